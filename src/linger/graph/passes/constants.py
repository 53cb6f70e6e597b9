# SPDX-License-Identifier: Apache-2.0
"""Constant folding, of weights and of shapes; equal nodes merged: common subexpressions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from linger.dialect import ops
from linger.errors import GraphError, in_one_line
from linger.graph.core.dialects import is_quantizing, packed_name
from linger.graph.core.nodes import Changes, Names, all_graphs, describe, in_order, inner_graphs, opset_of, tensor_names
from linger.graph.core.rewiring import Effects, ValueReplacer, remove_nodes
from linger.graph.core.tensor_types import attributes_key, tensor_key
from linger.graph.lowering.bodies import Shape, known_tensors, shape_of
from linger.graph.passes.well_formed import remove_dead_code
from linger.graph.qdq.qdq_node import ByteFusing, constant, is_qdq_parameter

Array = NDArray[Any]

_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max", "Floor", "Ceil", "Cast", "Equal", "Less", "Greater", "Not"}
)
_MOVING = frozenset(
    {"Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Expand", "Where", "Transpose"}
)
_MAKING = frozenset({"ConstantOfShape", "Range", "ReduceProd", "ReduceSum", "Size", "Shape"})
_OF_SHAPES = _ARITHMETIC | _MOVING | _MAKING
"""Ops that compute shapes and bounds."""

_LARGEST = 64
"""A shape or a bound has far fewer numbers; a larger tensor is data."""

_IR_VERSION = 8

_CANNOT = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What onnx's reference evaluator raises for nodes that do not fit their inputs."""

_WHOLE = frozenset({"int64", "int32", "bool"})


def fix_shapes(model: ir.Model) -> Changes:
    """Replace whole numbers that the graph computes from constants and fixed sizes by constants.

    Device packers read shapes; they do not compute all of them. An If that always takes the same branch becomes that branch.
    New constants may make more sizes known, so it goes on as long as there are some. Leaves: computed shapes and bounds only
    where they depend on an open size or on values.
    """
    changes, names = Changes(), tensor_names(model)
    while any(map(_may_be_fixed, model.graph)):
        asks_for_sizes = any(node.op_type in ("Shape", "Size") for node in model.graph)
        contents = _computed_shapes(model, fixed_sizes(known_tensors(model).shapes) if asks_for_sizes else {})
        for value, content in contents.items():
            changes.note(str(value.name), f"is always {content.tolist()}, which is now a constant")
            _make_constant(value, content, names)
        if not (_take_branches(model, changes, names) or contents):
            break
        remove_dead_code(model)
    return changes


def fixed_sizes(shapes: Mapping[str, Shape]) -> dict[str, tuple[int, ...]]:
    """The sizes of every tensor that has fixed ones, by name."""
    return {name: tuple(n for n in shape if n is not None) for name, shape in shapes.items() if None not in shape}


def _take_branches(model: ir.Model, changes: Changes, names: Names) -> bool:
    """Put the branch that is always taken in the place of each If with a constant condition; whether there is one."""
    is_taken = False
    for node in [n for n in model.graph if n.op_type == "If" and n.domain == ""]:
        condition = constant(node.inputs[0]) if node.inputs else None
        if condition is not None and condition.size == 1:
            branch, is_taken = f"{'then' if condition.numpy().item() else 'else'}_branch", True
            changes.note(describe(node), f"always takes its {branch}, which is now in its place")
            _inline(model.graph, node, node.attributes[branch].as_graph(), names)
    return is_taken


def _inline(graph: ir.Graph, node: ir.Node, branch: ir.Graph, names: Names) -> None:
    """Put the nodes of a branch in the place of its If; an Identity keeps the name of each result."""
    inner, results, constants = list(branch), list(branch.outputs), list(branch.initializers.values())
    branch.outputs.clear()
    branch.initializers.clear()
    branch.remove(inner)
    for value in (*constants, *(output for each in inner for output in each.outputs if output.name)):
        value.name = names.choose(str(value.name))  # the other branch, and those of another If, may have the same names
    for value in constants:
        graph.register_initializer(value)
    graph.insert_before(node, inner)
    for old, result in zip(node.outputs, results, strict=True):
        passed = ir.Value(name=old.name, type=old.type, shape=old.shape)
        graph.insert_before(node, ir.Node("", "Identity", [result], outputs=[passed], name=node.name))
        old.name = None
        old.replace_all_uses_with(passed, replace_graph_outputs=True)
    remove_nodes([node])


def _may_be_fixed(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _OF_SHAPES


def _computed_shapes(model: ir.Model, shapes: dict[str, tuple[int, ...]]) -> dict[ir.Value, Array]:
    """The results of shape arithmetic that other nodes read; sizes behind a Reshape by such a shape are known with it."""
    known: dict[ir.Value, Array] = {}
    for node in model.graph:
        if node.op_type == "Reshape" and node.domain == "":
            _follow_reshape(node, known, shapes)
        if node.op_type != "Constant" and _may_be_fixed(node):
            content = _evaluated(node, known, shapes, opset_of(model))
            known |= {} if content is None else {node.outputs[0]: content}
    return {value: content for value, content in known.items() if _is_boundary(value, known)}


def _is_boundary(value: ir.Value, known: Mapping[ir.Value, Any]) -> bool:
    is_read = any(not set(node.outputs) <= set(known) for node in value.consumers())
    return is_read and not value.is_graph_output() and str(known[value].dtype) in _WHOLE


def _follow_reshape(node: ir.Node, known: Mapping[ir.Value, Array], shapes: dict[str, tuple[int, ...]]) -> None:
    """Note the size of a result whose input and shape are known, so that a chain of them needs one inference."""
    x, shape = (*node.inputs, None, None)[:2]
    content, sizes = _content(shape, known), None if x is None else shapes.get(x.name or "")
    if sizes is None or content is None or content.ndim != 1 or 0 in content or (content < 0).sum() > 1:
        return
    rest, whole = math.prod(int(n) for n in content if n > 0), math.prod(sizes)
    if rest and whole % rest == 0:
        shapes.setdefault(str(node.outputs[0].name), tuple(int(n) if n > 0 else whole // rest for n in content))


def _evaluated(
    node: ir.Node, known: Mapping[ir.Value, Any], shapes: Mapping[str, tuple[int, ...]], opset: int
) -> Array | None:
    """The result of a node whose inputs are constants, or of a Shape or Size of a tensor with fixed sizes; else None."""
    if node.op_type in ("Shape", "Size"):
        shape = shape_of(next(iter(node.inputs), None), shapes)
        return None if shape is None else np.array(_sizes(node, shape), dtype=np.int64)
    inputs = {f"i{i}": value for i, value in enumerate(node.inputs) if value is not None}
    contents = {name: content for name, value in inputs.items() if (content := _content(value, known)) is not None}
    if not inputs or len(contents) < len(inputs) or _count_made(node.op_type, contents) > _LARGEST:
        return None
    try:
        with np.errstate(all="raise"):  # a division by zero is no shape
            result = _run(node, contents, opset)
    except _CANNOT:
        return None  # a broken node of somebody's file, which the checks report
    return result if result.size <= _LARGEST else None


def _sizes(node: ir.Node, shape: Shape) -> Any:
    """What a Shape or a Size gives for a shape."""
    if node.op_type == "Size":
        return math.prod(n or 0 for n in shape)
    start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    return shape[start:end]


def _count_made(op_type: str, given: Mapping[str, Array]) -> float:
    """How many numbers a node would make of a few others; 0 for ops that make no more than they get."""
    shape = {"ConstantOfShape": "i0", "Expand": "i1"}.get(op_type)
    if shape is not None:
        return math.prod(abs(int(n)) for n in given[shape].reshape(-1))
    if op_type != "Range" or any(array.size != 1 for array in given.values()):
        return 0
    start, end, step = (float(given[f"i{i}"].reshape(())) for i in range(3))
    return abs(end - start) / abs(step) if step else math.inf


def _content(value: ir.Value | None, known: Mapping[ir.Value, Array]) -> Array | None:
    if value is None or value in known:
        return None if value is None else known[value]
    tensor = constant(value)
    return tensor.numpy() if tensor is not None and tensor.size <= _LARGEST else None


def _run(node: ir.Node, contents: Mapping[str, Any], opset: int) -> Array:
    """Run one node, whose inputs are called i0, i1 and so on."""
    inputs = [ir.Value(name=f"i{i}") if f"i{i}" in contents else None for i in range(len(node.inputs))]
    single = ir.Node("", node.op_type, inputs, attributes=list(node.attributes.values()), outputs=[ir.Value(name="o")])
    return evaluated([single], contents, single.outputs, opset)[0]


def evaluated(
    nodes: Iterable[ir.Node], contents: Mapping[str, Array], ends: Iterable[ir.Value], opset: int
) -> list[Array]:
    """The tensors that standard nodes compute of others, whose contents are given by name, in onnx's reference evaluator."""
    graph = onnx.GraphProto(name="constants", node=map(ir.to_proto, nodes))
    for name, array in contents.items():
        graph.input.add(name=name).type.tensor_type.elem_type = int(ir.DataType.from_numpy(array.dtype))
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in ends if value.name)
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=[onnx.OperatorSetIdProto(version=opset)])
    results: Any = ReferenceEvaluator(model).run(None, dict(contents))
    return list(map(np.asarray, results))


def _make_constant(value: ir.Value, content: Array, names: Names) -> None:
    producer = value.producer()
    assert producer is not None  # it was computed
    made = ir.Value(name=names.choose(f"{value.name}.fixed"), type=ir.TensorType(ir.DataType.from_numpy(content.dtype)))
    node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor(content))], outputs=[made])
    node.name = f"{producer.name}.fixed"
    assert producer.graph is not None
    producer.graph.insert_before(producer, node)
    value.replace_all_uses_with(made)


def merge_duplicates(model: ir.Model) -> Changes:
    """Common subexpression elimination: nodes of one graph with the same op, inputs and attributes; the first in order stays.

    Not merged: nodes with branches or bodies, nodes that draw random numbers, ops of unknown domains, nodes that decide
    which kernels ONNX Runtime chooses for Q/DQ files (`ByteFusing`). Of two equal nodes whose results are both outputs,
    both stay, and the second one serves its output alone.

    Raises:
        GraphError: Nodes depend on each other in a circle.
    """
    changes = Changes()
    replacer, effects, fusing = ValueReplacer(model), Effects(model), ByteFusing(model)
    for place in all_graphs(model):
        first: dict[Hashable, ir.Node] = {}
        for node in in_order(place):
            attributes = attributes_key(node)
            if attributes is None or effects.is_random(node) or fusing.holds([*node.inputs, *node.outputs]):
                continue
            present = tuple(bool(output.name) for output in node.outputs)
            twin = first.setdefault((node.op_identifier(), tuple(node.inputs), attributes, present), node)
            if twin is not node:
                _merge_nodes(twin, node, replacer, changes)
    replacer.finish()
    return changes


def _merge_nodes(twin: ir.Node, node: ir.Node, replacer: ValueReplacer, changes: Changes) -> None:
    pairs = list(zip(node.outputs, twin.outputs, strict=True))
    if all(replacer.is_possible(old, new) for old, new in pairs):
        for old, new in pairs:
            replacer.replace(old, new)
        changes.note(describe(node), f"merged with {describe(twin)}, which computes the same")
        replacer.discard(node)
        return
    shared = [replacer.share(old, new) for old, new in pairs]
    if any(shared):
        changes.note(describe(node), f"serves its output alone: {describe(twin)} computes the same for all others")


def merge_initializers(model: ir.Model) -> Changes:
    """Merge initializers of one graph that are equal bit for bit; the first one stays, an output before others.

    Content is read only where type and shape agree. Not merged: tensors in other files (which are not read), inputs with
    a default, and scales and zero points of Q/DQ nodes, of which tools want one for each node.
    """
    changes, replacer = Changes(), ValueReplacer(model)
    for place in all_graphs(model):
        alike: dict[Hashable, list[ir.Value]] = {}
        for value in place.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor) or value.is_graph_input():
                continue
            if not is_qdq_parameter(value):
                alike.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
        for values in alike.values():
            if len(values) > 1:
                _merge_tensors(place.graph, values, replacer, changes)
    return changes


def _merge_tensors(graph: ir.Graph, values: list[ir.Value], replacer: ValueReplacer, changes: Changes) -> None:
    first: dict[Hashable, ir.Value] = {}
    for value in sorted(values, key=lambda v: not v.is_graph_output()):  # stable: outputs first
        assert value.const_value is not None  # only those were collected
        twin, name = first.setdefault(tensor_key(value.const_value), value), str(value.name)
        if twin is not value and not value.is_graph_output() and replacer.replace(value, twin):
            del graph.initializers[name]
            changes.note(name, f"initializer merged with {twin.name}, which holds the same")


def own_parameters(model: ir.Model) -> Changes:
    """Give every dialect node parameters that no other node reads, one behind the other in the list of initializers.

    Packers copy the parameters of a node as one block that begins at the first of them, so a bias that lies elsewhere, because
    two nodes share it, is read from a stranger's bytes. Leaves: shared parameters only where they are inputs of the graph.
    """
    changes, names = Changes(), tensor_names(model)
    owners: dict[ir.Value, ir.Node] = {}
    for node in model.graph:
        shared = [v for v in parameters_of(node) if owners.setdefault(v, node) is not node or _is_read_otherwise(v)]
        for value in shared:
            copy = _copied(value, names.choose(str(value.name)))
            model.graph.register_initializer(copy)
            for index in range(1, len(node.inputs)):
                if node.inputs[index] is value:
                    node.replace_input_with(index, copy)
        if shared:
            what = ", ".join(map(attrgetter("name"), shared))
            changes.note(describe(node), f"got a copy of {what}, because nodes must not share parameters")
    if _put_side_by_side(model.graph):
        changes.note("the graph", "lists the parameters of every node one behind the other")
    return changes


def _copied(value: ir.Value, name: str) -> ir.Value:
    assert value.const_value is not None  # it is an initializer
    return ir.Value(name=name, type=value.type, shape=value.shape, const_value=ir.tensor(value.const_value, name=name))


def _is_read_otherwise(value: ir.Value) -> bool:
    """Whether a parameter is an output, or something else of another node."""
    return value.is_graph_output() or any(value not in parameters_of(node) for node, _ in value.uses())


def parameters_of(node: ir.Node) -> tuple[ir.Value, ...]:
    """Weight and bias of a node, and what else of the kind its op has; nothing where it has one parameter only."""
    op = ops().get(packed_name(node)) if is_quantizing(node) else None
    if op is None or not (op.weight_axes is not None or op.normalizes):
        return ()
    found = (v for v in node.inputs[1:] if v is not None and v.is_initializer() and not v.is_graph_input())
    values = tuple(dict.fromkeys(found))
    return values if len(values) > 1 else ()


def _put_side_by_side(graph: ir.Graph) -> bool:
    """Move parameters behind the first one of their node; False where all lie so."""
    blocks = {own[0]: own for own in map(parameters_of, graph) if own}
    moved = {value for own in blocks.values() for value in own[1:]}
    before = list(graph.initializers.values())
    after = [each for value in before if value not in moved for each in blocks.get(value, (value,))]
    if before != after:
        graph.initializers.clear()
        for value in after:
            graph.register_initializer(value)
    return before != after


_RANDOM = frozenset(
    {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Left alone: a weight that is stored in 8 bits would be stored in 32."""

_USUAL_BYTES = 1 << 24


def fold_constants(model: ir.Model, *, largest: int = _USUAL_BYTES) -> Changes:
    """Replace what the main graph of a sorted model computes from constants and fixed sizes by constants, in place.

    Leaves: random numbers, Q/DQ nodes, branches, functions and the dialect; tensors of more than `largest` bytes, by which a
    file would grow; outputs of the model keep their node.

    Raises:
        GraphError: ONNX Runtime cannot compute a part that depends on constants only.
    """
    changes = Changes()
    _fold(model, largest, changes)
    while _fix_sizes(model, changes):  # constants make more sizes known, and these more constants
        _fold(model, largest, changes)
    remove_dead_code(model)
    return changes


def _fix_sizes(model: ir.Model, changes: Changes) -> bool:
    """Replace sizes that are fixed, where a node asks for them; returns whether there were any."""
    shapes, contents = fixed_sizes(known_tensors(model).shapes), dict[ir.Value, Array]()
    for node in [node for node in model.graph if node.op_type == "Shape" and not node.domain]:
        shape = shape_of(next(iter(node.inputs), None), shapes)
        if shape is not None and _is_read_outside(node.outputs[0], {}):
            contents[node.outputs[0]] = np.array(_sizes(node, shape), np.int64)
    _replace(model, contents, changes)
    return bool(contents)


def _fold(model: ir.Model, largest: int, changes: Changes) -> None:
    folded = _foldable(model, largest)
    ends = [v for node in folded for v in node.outputs if _is_read_outside(v, folded)]
    contents = _computed(model, folded, ends)
    _replace(model, {value: content for value, content in contents.items() if content.nbytes <= largest}, changes)


def _replace(model: ir.Model, contents: Mapping[ir.Value, NDArray[Any]], changes: Changes) -> None:
    names = tensor_names(model)
    for value, content in contents.items():
        producer = value.producer()
        assert producer is not None  # it was computed
        made = ir.Value(name=names.choose(f"{value.name}_folded"), const_value=ir.tensor(content))
        made.type, made.shape = ir.TensorType(ir.DataType.from_numpy(content.dtype)), ir.Shape(content.shape)
        model.graph.register_initializer(made)
        value.replace_all_uses_with(made)
        changes.note(describe(producer), f"computed once: {made.name} is a constant of {content.nbytes} bytes")


def _foldable(model: ir.Model, largest: int) -> dict[ir.Node, None]:
    """The nodes that depend on constants only, in order."""
    sizes, folded = known_tensors(model).shapes, dict[ir.Node, None]()
    for node in model.graph:
        if _is_plain(node) and all(_is_constant(value, folded) for value in node.inputs):
            shapes = [sizes.get(str(value.name), ()) for value in node.outputs]
            if all(math.prod(size or 1 for size in shape) <= largest for shape in shapes):
                folded[node] = None
    return folded


def _is_plain(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type not in _RANDOM | _QUANTIZING and not inner_graphs(node)


def _is_constant(value: ir.Value | None, folded: Mapping[ir.Node, None]) -> bool:
    if value is None or value.producer() in folded:
        return True
    return value.is_initializer() and not value.is_graph_input()


def _is_read_outside(value: ir.Value, folded: Mapping[ir.Node, None]) -> bool:
    producer = value.producer()
    is_stored = producer is not None and producer.op_type == "Constant"
    return not is_stored and not value.is_graph_output() and any(node not in folded for node in value.consumers())


def _computed(model: ir.Model, nodes: Mapping[ir.Node, None], ends: Sequence[ir.Value]) -> dict[ir.Value, Array]:
    """The values of some tensors, as ONNX Runtime computes them without rewriting anything."""
    if not ends:
        return {}
    import onnxruntime  # a runtime is started only where something is folded

    inputs = dict.fromkeys(value for node in nodes for value in node.inputs if value is not None)
    read, imports = [value for value in inputs if value.is_initializer()], {"": model.graph.opset_imports[""]}
    part = ir.GraphView([], ends, nodes=list(nodes), initializers=read, opset_imports=imports, name="constants").clone()
    for value in part.outputs:
        value.shape = None
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    content = ir.to_proto(ir.Model(part, ir_version=model.ir_version)).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        results = session.run(None, {})
    except Exception as error:  # ONNX Runtime has no common base of its errors
        problem = f"ONNX Runtime cannot compute the constant part: {in_one_line(error)}"
        raise GraphError(f"fold_constants: {problem}") from error
    return dict(zip(ends, results, strict=True))
