"""Integer graphs for passes that rewrite for chips, and what such a pass must hold: every tensor keeps its integers."""

import numpy as np
import onnx
import onnx_ir as ir

from linger.graph.files.model_io import copied
from linger.graph.lowering.bodies import attach_functions
from linger.runtime.reference import Reference
from tests.support.onnx_text import content, parse
from tests.support.passes import computed, interface

# sums come out as they are, so that no difference is lost in rounding or saturation
EXACT = {"data_bits": 8, "parameter_bits": 8, "o_bits": 32, "scale_x": 1.0, "scale_w": 1.0, "scale_o": 1.0}
SIZES = {"n": 2, "h": 7, "w": 6}


def graph_of(body, *, inputs, outputs="y", opset=12, **constants):
    """A model of dialect nodes; `constants` are initializers, given as arrays."""
    typed = [f"{array.dtype.name}{list(array.shape)} {name}" for name, array in constants.items()]
    model = parse(body, inputs=", ".join([inputs, *typed]), outputs=outputs, domains=', "thinker": 1', opset=opset)
    for value in [v for v in model.graph.inputs if v.name in constants]:
        value.const_value = ir.tensor(constants[value.name], name=value.name)
        model.graph.inputs.remove(value)
        model.graph.register_initializer(value)
    return model


def node(op, result, operands, **attributes):
    """One line of ONNX text."""
    listed = ", ".join(f"{name}={value}" for name, value in attributes.items())
    return f"{result} = {op}<{listed}>({operands})"


def numbers(draw, shape, dtype=np.int8):
    """Numbers over the whole range, a quarter of them at its ends."""
    ends = np.iinfo(dtype)
    drawn = draw.integers(ends.min, ends.max, shape, endpoint=True)
    return np.where(draw.random(shape) < 0.25, draw.choice([ends.min, ends.max], shape), drawn).astype(dtype)


def feeds_of(model, draw):
    """Numbers for every input; open sizes are those of SIZES."""
    shapes = {v.name: [n if isinstance(n, int) else SIZES[n.value] for n in v.shape] for v in model.graph.inputs}
    return {name: numbers(draw, shape) for name, shape in shapes.items()}


def everything(model, feeds):
    """What every node of the main graph computes, in linger's numpy reference."""
    made = {output.name for node in model.graph if node.op_type != "Constant" for output in node.outputs}
    return {name: array for name, array in Reference(model).intermediates(feeds).items() if name in made}


def differing(before, after):
    """The tensors that are others now, or are missing."""
    return [name for name, old in before.items() if not _equal(old, after.get(name))]


def _equal(old, new):
    return new is not None and old.dtype == new.dtype and np.array_equal(old, new)


def kept(function, model, draw, *, in_onnx_runtime=True):
    """The changes of a pass as rows; every tensor must keep its integers, and the second time nothing may happen."""
    feeds, outside = feeds_of(model, draw), interface(model)
    before = everything(model, feeds)
    changes = function(model).rows()
    once = content(model)
    assert function(model).rows() == []
    assert content(model) == once
    assert interface(model) == outside
    assert differing(before, everything(model, feeds)) == []
    if in_onnx_runtime:
        runnable = copied(model)
        attach_functions(runnable)
        onnx.checker.check_model(onnx.shape_inference.infer_shapes(ir.to_proto(runnable)), full_check=True)
        outputs = [output.name for output in model.graph.outputs]
        assert differing({name: before[name] for name in outputs},
                         dict(zip(outputs, computed(runnable, feeds), strict=True))) == []  # fmt: skip
    return changes


def left_alone(function, model):
    """Whether a pass does nothing to a model."""
    before = content(model)
    return function(model).rows() == [] and content(model) == before


def attributes(model, name):
    """An attribute of every node of the dialect that has it."""
    found = [n.attributes[name] for n in model.graph if name in n.attributes and n.op_type != "Constant"]
    return [list(a.value) if isinstance(a.value, (list, tuple)) else a.value for a in found]


def constant(model, name):
    """The content of an initializer."""
    return model.graph.initializers[name].const_value.numpy()
