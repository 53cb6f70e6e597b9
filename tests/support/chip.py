"""What a chip says of a small model in ONNX text."""

import numpy as np
import onnx_ir as ir

from linger.graph.target_findings import target_findings
from linger.targets import TARGETS
from tests.support.onnx_text import parse

WIDTHS = {"data_bits": 8, "parameter_bits": 8, "o_bits": 8, "scale_x": 16.0, "scale_w": 64.0, "scale_o": 16.0}
WINDOW = {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "group": 1}
SIGNAL = {"kernel_shape": [3], "strides": [1], "pads": [1, 1], "dilations": [1], "group": 1}


def node(op, operands="x", **attributes):
    """`y = thinker.op<…>(operands)` in ONNX text."""
    listed = ", ".join(f"{name}={_written(value)}" for name, value in attributes.items())
    return f"y = thinker.{op}<{listed}>({operands})" if listed else f"y = thinker.{op}({operands})"


def _written(value):
    return f'"{value}"' if isinstance(value, str) else str(value)


def model_of(body, *, inputs="int8[1,8,16,16] x", opset=12, **constants):
    """A model with the output y; `constants` are initializers, given as arrays or as the shapes of int8 zeros."""
    model = parse(body, inputs=inputs, outputs="y", domains=', "thinker": 1', opset=opset)
    for name, content in constants.items():
        array = np.zeros(content, np.int8) if isinstance(content, tuple) else np.asarray(content)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        model.graph.register_initializer(value)
        for node in model.graph:
            for index, used in enumerate(node.inputs):
                if used is not None and used.name == name:
                    node.replace_input_with(index, value)
    return model


def findings(body, target="venus", **model):
    """(severity, text) of everything found, without the remark that so small a graph has no constants."""
    found = target_findings(model_of(body, **model), TARGETS[target])
    return [(f.severity, str(f)) for f in found if "holds no constants" not in f.reason]


def only_finding(body, **model):
    """The one thing that is found."""
    (found,) = findings(body, **model)
    return found
