# SPDX-License-Identifier: Apache-2.0
"""Shapes in the file: those computed from fixed sizes become constants, those that depend on values stay open."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from linger.graph.core.dialect_node import opset_of
from linger.graph.passes.unneeded_nodes import remove_dead_code
from linger.graph.qdq.qdq_node import constant

Array = NDArray[Any]

_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max", "Floor", "Ceil", "Cast", "Equal", "Less", "Greater", "Not"}
)
_MOVING = frozenset({"Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Expand", "Where"})
_MAKING = frozenset({"ConstantOfShape", "Range", "ReduceProd", "ReduceSum", "Size", "Shape"})
_OF_SHAPES = _ARITHMETIC | _MOVING | _MAKING
"""Ops that compute shapes and bounds."""

_LARGEST = 64
"""A shape or a bound has far fewer numbers; a larger tensor is data."""

_IR_VERSION = 8

_WHOLE = frozenset({"int64", "int32", "bool"})

Shapes = Callable[[ir.Model], Mapping[str, tuple[int, ...]]]
"""The sizes of every tensor that has fixed ones, by name."""


def fix_shapes(model: ir.Model, infer: Shapes) -> int:
    """Replace whole numbers that the graph computes from constants and fixed sizes by constants.

    Device packers read shapes; they do not compute them.

    Args:
        model: Edited in place.
        infer: Finds the fixed sizes; called again as long as new constants make more sizes known.

    Returns:
        How many tensors became constants.
    """
    count = 0
    while any(_may_be_fixed(node) for node in model.graph):
        shapes = infer(model) if any(node.op_type in ("Shape", "Size") for node in model.graph) else {}
        found = _computed(model, shapes)
        if not found:
            break
        for value, content in found.items():
            _replace(value, content)
        count += len(found)
        remove_dead_code(model)
    return count


def _may_be_fixed(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _OF_SHAPES


def _computed(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[ir.Value, Array]:
    """The results of shape arithmetic that other nodes read."""
    known: dict[ir.Value, Array] = {}
    for node in model.graph:
        if node.op_type == "Constant" or not _may_be_fixed(node):
            continue
        content = _evaluated(node, known, shapes, opset_of(model))
        if content is not None:
            known[node.outputs[0]] = content
    return {value: content for value, content in known.items() if _is_boundary(value, known)}


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
    if not node.inputs or len(contents) < len(given):
        return None
    result = _run(node, contents, opset)
    return result if result.size <= _LARGEST else None


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


def _replace(value: ir.Value, content: Array) -> None:
    producer = value.producer()
    assert producer is not None  # it was computed
    made = ir.Value(name=f"{value.name}.fixed", type=ir.TensorType(ir.DataType.from_numpy(content.dtype)))
    node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor(content))], outputs=[made])
    node.name = f"{producer.name}.fixed"
    assert producer.graph is not None
    producer.graph.insert_before(producer, node)
    value.replace_all_uses_with(made)


_SIZES_FROM = {
    **dict.fromkeys(("Expand", "OneHot", "Pad", "Reshape", "Split", "Tile", "TopK", "Upsample"), (1,)),
    "ConstantOfShape": (0,),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
}
"""The inputs of an op whose values decide the size of its result."""

_SIZES_FROM_CONTENT = frozenset({"Compress", "NonMaxSuppression", "NonZero", "Unique"})
_ASKS_FOR_SIZES = frozenset({"Shape", "Size"})


def forget_sizes_from_values(model: ir.Model) -> None:
    """Leave open the sizes of outputs that depend on values of inputs.

    The trace has the sizes that follow from the example's values. Sizes that can be inferred are inferred again.
    """
    by_value = set(model.graph.inputs) - set(model.graph.initializers.values())
    sized_by_value: set[ir.Value] = set()
    for node in model.graph:
        is_sized = not sized_by_value.isdisjoint(node.inputs) or _is_sized_by(node, by_value)
        has_values = node.op_type not in _ASKS_FOR_SIZES and not by_value.isdisjoint(node.inputs)
        if is_sized:
            sized_by_value |= set(node.outputs)
        if has_values or is_sized:
            by_value |= set(node.outputs)
    for output in model.graph.outputs:
        if output in sized_by_value and output.shape is not None:
            output.shape = ir.Shape([None] * len(output.shape))


def _is_sized_by(node: ir.Node, by_value: set[ir.Value]) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type in _SIZES_FROM_CONTENT:
        return not by_value.isdisjoint(node.inputs)
    return any(node.inputs[i] in by_value for i in _SIZES_FROM.get(node.op_type, ()) if i < len(node.inputs))
