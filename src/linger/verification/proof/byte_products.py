# SPDX-License-Identifier: Apache-2.0
"""Nodes that ONNX Runtime may compute as products of unsigned and signed bytes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import inputs_within
from linger.runtime.saturation import SAFE_WEIGHT

_INTEGER_OPERANDS = {"MatMulInteger": (0, 1), "ConvInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT_OPS = frozenset({"MatMul", "Gemm", "Conv"})
_SIGNED, _UNSIGNED = ir.DataType.INT8, ir.DataType.UINT8


def byte_products_before(graph: ir.Graph, tensor: str) -> list[str]:
    """Products that may run in u8×s8 kernels among the nodes that a tensor depends on, in the order of computation.

    Those of integer ops whose operands differ in sign, and those of float ops between int8 Q and DQ nodes: ONNX Runtime
    makes unsigned bytes of the data there. Constant weights within ±64 cannot saturate and are left out.
    """
    before = ancestors(graph, tensor)
    return [describe(node) for node in graph if node in before and _may_saturate(node)]


def ancestors(graph: ir.Graph, tensor: str) -> set[ir.Node]:
    """The nodes of a graph that a tensor depends on."""
    waiting = [o for node in graph for o in node.outputs if o.name == tensor]
    found: set[ir.Node] = set()
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node not in found and node.graph is graph:
            found.add(node)
            waiting += inputs_within(node)
    return found


def _may_saturate(node: ir.Node) -> bool:
    if node.domain != "":
        return False
    if node.op_type in _INTEGER_OPERANDS:
        places = _INTEGER_OPERANDS[node.op_type]
        operands = [node.inputs[i] for i in places if i < len(node.inputs)]
        types = {v.dtype for v in operands if v is not None}
        return types == {_SIGNED, _UNSIGNED} and not any(_is_safe(v) for v in operands)
    if node.op_type in _FLOAT_OPS:
        data, weight = (_quantized(v) for v in node.inputs[:2])
        return _type(data) in (_SIGNED, _UNSIGNED) and _type(weight) == _SIGNED and not _is_safe(weight)
    return False


def _quantized(value: ir.Value | None) -> ir.Value | None:
    """The integers behind a float tensor that a DequantizeLinear makes."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else None


def _type(value: ir.Value | None) -> ir.DataType | None:
    return None if value is None else value.dtype


def _is_safe(value: ir.Value | None) -> bool:
    """Whether a constant of signed bytes keeps every pair of products within 16 bits."""
    if value is None or value.const_value is None or value.dtype != _SIGNED:
        return False
    return bool((np.abs(value.const_value.numpy().astype(np.int16)) <= SAFE_WEIGHT).all())
