# SPDX-License-Identifier: Apache-2.0
"""Shapes that a file with fixed sizes computes become constants: packers want to read them, not to compute them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from linger.graph.core.dialect_node import opset_of
from linger.graph.passes.unneeded_nodes import remove_dead_code

_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Neg", "Min", "Max", "Floor", "Ceil", "Cast", "Equal", "Less", "Greater", "Not"}
)
_MOVING = frozenset({"Gather", "Slice", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Expand", "Where"})
_MAKING = frozenset({"ConstantOfShape", "Range", "ReduceProd", "ReduceSum", "Size", "Shape"})
_OF_SHAPES = _ARITHMETIC | _MOVING | _MAKING
"""What shapes and bounds are computed with."""

_LARGEST = 64
"""Numbers in a shape or in bounds, with much to spare: more are data."""

_IR_VERSION = 8

_WHOLE = frozenset({"int64", "int32", "bool"})

Shapes = Callable[[ir.Model], Mapping[str, tuple[int, ...]]]
"""The sizes of every tensor that has fixed ones, by name."""


def fix_shapes(model: ir.Model, infer: Shapes) -> int:
    """Let constants stand where the graph computes whole numbers from constants and fixed sizes.

    Args:
        model: Edited in place.
        infer: Finds the sizes; asked again while constants make more of them known.

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


def _computed(model: ir.Model, shapes: Mapping[str, tuple[int, ...]]) -> dict[ir.Value, np.ndarray[Any, Any]]:
    """Results of shape arithmetic that something else reads."""
    known: dict[ir.Value, np.ndarray[Any, Any]] = {}
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
) -> np.ndarray[Any, Any] | None:
    """A node's result where its inputs are constants, or fixed sizes are all it looks at."""
    first = node.inputs[0] if node.inputs else None
    if node.op_type in ("Shape", "Size"):
        shape = shapes.get(first.name or "") if first is not None else None
        return None if shape is None else _looked_up(node, shape)
    contents = [None if value is None else _content(value, known) for value in node.inputs]
    if not contents or any(c is None and v is not None for c, v in zip(contents, node.inputs, strict=True)):
        return None
    result = _run(node, {f"i{i}": c for i, c in enumerate(contents) if c is not None}, opset)
    return result if result.size <= _LARGEST else None


def _looked_up(node: ir.Node, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if node.op_type == "Size":
        return np.array(math.prod(shape), dtype=np.int64)
    start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
    return np.array(shape[start:end], dtype=np.int64)


def _content(value: ir.Value, known: Mapping[ir.Value, Any]) -> Any:
    producer = value.producer()
    if value in known:
        return known[value]
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        tensor = producer.attributes["value"].as_tensor()
    elif producer is None and value.const_value is not None and not value.is_graph_input():
        tensor = value.const_value
    else:
        return None
    return tensor.numpy() if tensor.size <= _LARGEST else None


def _run(node: ir.Node, given: Mapping[str, Any], opset: int) -> np.ndarray[Any, Any]:
    """One node, by onnx's own reference."""
    values = {name: ir.val(name, ir.DataType.from_numpy(array.dtype), array.shape) for name, array in given.items()}
    inputs = [values.get(f"i{i}") for i in range(len(node.inputs))]
    single = ir.Node("", node.op_type, inputs, attributes=list(node.attributes.values()), outputs=[ir.Value(name="o")])
    graph = ir.Graph(list(values.values()), single.outputs, nodes=[single], opset_imports={"": opset}, name="shape")
    model = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION))
    results: Any = ReferenceEvaluator(model).run(None, dict(given))
    return np.asarray(results[0])


def _replace(value: ir.Value, content: np.ndarray[Any, Any]) -> None:
    producer = value.producer()
    assert producer is not None  # it was computed
    made = ir.Value(name=f"{value.name}.fixed", type=ir.TensorType(ir.DataType.from_numpy(content.dtype)))
    node = ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", ir.tensor(content))], outputs=[made])
    node.name = f"{producer.name}.fixed"
    assert producer.graph is not None
    producer.graph.insert_before(producer, node)
    value.replace_all_uses_with(made)
