# SPDX-License-Identifier: Apache-2.0
"""Shapes and bounds that a graph computes from fixed sizes become constants, which device packers want."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from linger.graph.core.finding import Changes
from linger.graph.core.nodes import Names, describe, opset_of, tensor_names
from linger.graph.core.rewiring import remove_nodes
from linger.graph.lowering.bodies import known_tensors
from linger.graph.passes.well_formed import remove_dead_code
from linger.graph.qdq.qdq_node import constant

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
    while any(_may_be_fixed(node) for node in model.graph):
        found = _computed(model, _fixed_sizes(model) if _asks_for_sizes(model) else {})
        for value, content in found.items():
            changes.note(str(value.name), f"is always {content.tolist()}, which is now a constant")
            _replace(value, content, names)
        if not (_take_branches(model, changes, names) or found):
            break
        remove_dead_code(model)
    return changes


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


def _asks_for_sizes(model: ir.Model) -> bool:
    return any(node.op_type in ("Shape", "Size") for node in model.graph)


def _fixed_sizes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The sizes of every tensor that has fixed ones, by name."""
    shapes = known_tensors(model).shapes
    return {name: tuple(n for n in shape if n is not None) for name, shape in shapes.items() if None not in shape}


def _may_be_fixed(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _OF_SHAPES


def _computed(model: ir.Model, shapes: dict[str, tuple[int, ...]]) -> dict[ir.Value, Array]:
    """The results of shape arithmetic that other nodes read; sizes behind a Reshape by such a shape are known with it."""
    known: dict[ir.Value, Array] = {}
    for node in model.graph:
        if node.op_type == "Reshape" and node.domain == "":
            _follow_reshape(node, known, shapes)
        if node.op_type == "Constant" or not _may_be_fixed(node):
            continue
        content = _evaluated(node, known, shapes, opset_of(model))
        if content is not None:
            known[node.outputs[0]] = content
    return {value: content for value, content in known.items() if _is_boundary(value, known)}


def _follow_reshape(node: ir.Node, known: Mapping[ir.Value, Array], shapes: dict[str, tuple[int, ...]]) -> None:
    """Note the size of a result whose input and shape are known, so that a chain of them needs one inference."""
    x, wanted = (*node.inputs, None, None)[:2]
    content = None if wanted is None else _content(wanted, known)
    sizes = None if x is None else shapes.get(x.name or "")
    if sizes is None or content is None or content.ndim != 1 or 0 in content or (content < 0).sum() > 1:
        return
    rest = math.prod(int(n) for n in content if n > 0)
    whole = math.prod(sizes)
    if rest and whole % rest == 0:
        shapes.setdefault(str(node.outputs[0].name), tuple(int(n) if n > 0 else whole // rest for n in content))


def _is_boundary(value: ir.Value, known: Mapping[ir.Value, Any]) -> bool:
    is_read = any(not set(node.outputs) <= set(known) for node in value.consumers())
    return is_read and not value.is_graph_output() and str(known[value].dtype) in _WHOLE


def _evaluated(
    node: ir.Node, known: Mapping[ir.Value, Any], shapes: Mapping[str, tuple[int, ...]], opset: int
) -> Array | None:
    """The result of a node whose inputs are constants, or of a Shape or Size of a tensor with fixed sizes; else None."""
    if node.op_type in ("Shape", "Size"):
        return _looked_up(node, shapes)
    given = {i: _content(value, known) for i, value in enumerate(node.inputs) if value is not None}
    contents = {f"i{i}": content for i, content in given.items() if content is not None}
    if not node.inputs or len(contents) < len(given) or _count_made(node.op_type, contents) > _LARGEST:
        return None
    try:
        with np.errstate(all="raise"):  # a division by zero is no shape
            result = _run(node, contents, opset)
    except _CANNOT:
        return None  # a broken node of somebody's file, which the checks report
    return result if result.size <= _LARGEST else None


def _count_made(op_type: str, given: Mapping[str, Array]) -> float:
    """How many numbers a node would make of a few others; 0 for ops that make no more than they get."""
    shape = {"ConstantOfShape": "i0", "Expand": "i1"}.get(op_type)
    if shape is not None:
        return math.prod(abs(int(n)) for n in given[shape].reshape(-1))
    if op_type != "Range" or any(array.size != 1 for array in given.values()):
        return 0
    start, end, step = (float(given[f"i{i}"].reshape(())) for i in range(3))
    return abs(end - start) / abs(step) if step else math.inf


def _looked_up(node: ir.Node, shapes: Mapping[str, tuple[int, ...]]) -> Array | None:
    shape = next((shapes.get(value.name or "") for value in node.inputs[:1] if value is not None), None)
    if shape is None:
        return None
    if node.op_type == "Size":
        return np.array(math.prod(shape), dtype=np.int64)
    start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    return np.array(shape[start:end], dtype=np.int64)


def _content(value: ir.Value, known: Mapping[ir.Value, Array]) -> Array | None:
    if value in known:
        return known[value]
    tensor = constant(value)
    return tensor.numpy() if tensor is not None and tensor.size <= _LARGEST else None


def _run(node: ir.Node, given: Mapping[str, Any], opset: int) -> Array:
    """Run one node in onnx's reference evaluator."""
    values = {name: ir.val(name, ir.DataType.from_numpy(array.dtype), array.shape) for name, array in given.items()}
    inputs = [values.get(f"i{i}") for i in range(len(node.inputs))]
    single = ir.Node("", node.op_type, inputs, attributes=list(node.attributes.values()), outputs=[ir.Value(name="o")])
    graph = ir.Graph(list(values.values()), single.outputs, nodes=[single], opset_imports={"": opset}, name="shape")
    model = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION))
    results: Any = ReferenceEvaluator(model).run(None, dict(given))
    return np.asarray(results[0])


def _replace(value: ir.Value, content: Array, names: Names) -> None:
    producer = value.producer()
    assert producer is not None  # it was computed
    made = ir.Value(name=names.choose(f"{value.name}.fixed"), type=ir.TensorType(ir.DataType.from_numpy(content.dtype)))
    node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor(content))], outputs=[made])
    node.name = f"{producer.name}.fixed"
    assert producer.graph is not None
    producer.graph.insert_before(producer, node)
    value.replace_all_uses_with(made)
