# SPDX-License-Identifier: Apache-2.0
"""Which element type every tensor has, found by walking the graph once."""

from __future__ import annotations

from functools import cache
from typing import Any

import onnx
import onnx_ir as ir

from linger.graph.core.dialect_node import attributes_of, is_dialect, op_of
from linger.numeric.onnx.writer import integer_type

INTEGERS = frozenset({ir.DataType.INT8, ir.DataType.INT16, ir.DataType.INT32})
"""Types that quantised tensors have."""

_TYPES: dict[Any, ir.DataType] = {t.value: t for t in ir.DataType}
_STANDARD = ("", "ai.onnx")
_FIXED = {
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression"), ir.DataType.INT64),
    **dict.fromkeys(
        ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"),
        ir.DataType.BOOL,
    ),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), ir.DataType.INT32),
    "DequantizeLinear": ir.DataType.FLOAT,
    "DynamicQuantizeLinear": ir.DataType.UINT8,
}
_TYPED_BY_INPUT = {"Where": 1, "CastLike": 1, "OneHot": 2, "QLinearConv": 7, "QLinearMatMul": 7}
"""Which input a result has its type from; the first one for other ops."""

_ALIKE = frozenset({"Split", "BatchNormalization", "LSTM", "GRU", "RNN"})
"""Standard ops whose results all have one type; of others only the first is typed: TopK's second one is indices."""


_WITH_BODIES = ("If", "Loop", "Scan")
"""Ops whose results are those of a graph inside them."""


def infer_element_types(graph: ir.Graph, *, guess: bool = True) -> None:
    """Give every value of a sorted graph (and of the graphs inside it) its element type where it can be known.

    Args:
        graph: The graph.
        guess: Whether an op that nobody knows is taken to give what it gets.
    """
    for node in graph:
        inner = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
        for subgraph in inner:
            infer_element_types(subgraph, guess=guess)
        if not guess and not is_dialect(node) and not _is_standard(node):
            continue
        for output, found in zip(node.outputs, _output_types(node, inner), strict=False):
            if found is not None and (output.dtype is None or is_dialect(node)):
                output.dtype = found


def _is_standard(node: ir.Node) -> bool:
    return node.domain in _STANDARD and _makes_tensors(node.op_type)


@cache
def _makes_tensors(op_type: str) -> bool:
    """Whether standard ONNX has such an op, and its result may be a tensor: not one of those that make sequences."""
    if not onnx.defs.has(op_type, ""):
        return False
    results = onnx.defs.get_schema(op_type, "").outputs
    return any(kind.startswith("tensor") for result in results[:1] for kind in result.types)


def _output_types(node: ir.Node, inner: list[ir.Graph]) -> list[ir.DataType | None]:
    if inner and node.domain in _STANDARD and node.op_type in _WITH_BODIES:
        ends = (
            inner[0].outputs[1:] if node.op_type == "Loop" else inner[0].outputs
        )  # a Loop's first one is its condition
        return [end.dtype for end in ends]
    first = _output_type(node)
    others = ir.DataType.FLOAT if is_dialect(node) else first if node.op_type in _ALIKE else None
    return [first, *[others] * (len(node.outputs) - 1)]


def _output_type(node: ir.Node) -> ir.DataType | None:
    if is_dialect(node):
        return _dialect_output_type(node)
    if node.op_type in _FIXED:
        return _FIXED[node.op_type]
    if node.op_type == "Cast":
        target = node.attributes.get("to")
        return None if target is None or target.type is not ir.AttributeType.INT else _TYPES.get(target.value)
    if node.op_type in ("Constant", "ConstantOfShape"):
        return constant_type(node)
    if node.op_type == "QuantizeLinear":
        return _dtype(node, 2) or ir.DataType.UINT8
    return _dtype(node, _TYPED_BY_INPUT.get(node.op_type, 0))


def _dtype(node: ir.Node, index: int) -> ir.DataType | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.dtype


def constant_type(node: ir.Node) -> ir.DataType | None:
    """The element type of a Constant or a ConstantOfShape; None where the caller of a function gives the tensor."""
    for name, attribute in node.attributes.items():
        if name == "value" and attribute.type == ir.AttributeType.TENSOR:
            return None if attribute.is_ref() else attribute.as_tensor().dtype
        if name.startswith("value_int"):
            return ir.DataType.INT64
        if name.startswith("value_string"):
            return ir.DataType.STRING
    return ir.DataType.FLOAT


def _dialect_output_type(node: ir.Node) -> ir.DataType | None:
    op = op_of(node)
    if not op.has_integer_output:
        return ir.DataType.FLOAT
    if op.output_bits is None:
        return _dtype(node, 0)
    return integer_type(attributes_of(node, op)[op.output_bits])
