# SPDX-License-Identifier: Apache-2.0
"""Products that ONNX Runtime computes from unsigned and signed bytes: their sums saturate on x64 CPUs without VNNI."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from linger.checks.findings.node_places import Whole
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding
from linger.graph.qdq.byte_fusing import is_between_pair
from linger.graph.qdq.qdq_node import DEQUANTIZE, QUANTIZE, constant, is_qdq, quantization_of

_SAFE_WEIGHT = 64  # two products of a byte and such a weight fit in 16 bits: 2·255·64 = 32640
_OPERANDS = {"MatMulInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT = frozenset({"Conv", "Gemm", "MatMul"})
_REMEDY = (
    "Quantise with unsigned weights or with weights of 7 bits (reduce_range), or set session.disable_quant_qdq (Q/DQ files)"
    " or session.x64quantprecision to 1 in ONNX Runtime."
)


def saturation_findings(whole: Whole) -> Iterator[Finding]:
    """Every node whose products of unsigned data and signed weights beyond ±64 may saturate."""
    for place in whole.places:
        data, weight = _bytes(place.node)
        if data != ir.DataType.UINT8 or weight is None or not _is_large(weight):
            continue
        yield place.finding(
            rules.SATURATING_PRODUCT,
            "ONNX Runtime multiplies unsigned by signed bytes here, and its sums saturate in 16 bits on x64 CPUs without "
            "VNNI: there the file computes other numbers",
            _REMEDY,
        )


def _bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The type of the data as ONNX Runtime multiplies it, and the integer weights; None where it does not."""
    if node.domain:
        return None, None
    if node.op_type in _OPERANDS:
        first, second = (node.inputs[i] if i < len(node.inputs) else None for i in _OPERANDS[node.op_type])
        return None if first is None else first.dtype, second
    if node.op_type not in _FLOAT or len(node.inputs) <= 1:
        return None, None
    before, weights = (_dequantiser(value) for value in node.inputs[:2])
    if before is None or weights is None or before.inputs[0] is None:
        return None, None
    return _type_in_use(before, node), weights.inputs[0]


def _type_in_use(before: ir.Node, node: ir.Node) -> ir.DataType | None:
    """Of unsigned data unsigned; of signed data too, if ONNX Runtime makes it unsigned before and behind the op."""
    found = quantization_of(before)
    if found is None or found.element != ir.DataType.INT8:
        return None if found is None else found.element
    behind = [use.node.outputs[0] for use in node.outputs[0].uses() if is_qdq(use.node, QUANTIZE)]
    turns = all(value is not None and _becomes_unsigned(value) for value in (before.inputs[0], *behind))
    return ir.DataType.UINT8 if turns else found.element


def _becomes_unsigned(value: ir.Value) -> bool:
    maker = value.producer()
    if maker is None or not is_between_pair(value):
        return False
    (use,) = value.uses()
    return quantization_of(maker) == quantization_of(use.node)


def _dequantiser(value: ir.Value | None) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if maker is not None and is_qdq(maker, DEQUANTIZE) else None


def _is_large(weight: ir.Value) -> bool:
    """Whether signed bytes are not constants within ±64."""
    tensor = constant(weight)
    if tensor is None:
        return weight.dtype == ir.DataType.INT8 and not isinstance(weight.const_value, ir.ExternalTensor)
    return tensor.dtype == ir.DataType.INT8 and bool((np.abs(tensor.numpy().astype(np.int16)) > _SAFE_WEIGHT).any())
