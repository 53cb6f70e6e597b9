# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear, DequantizeLinear and integer ops of other tools: where they are no fixed point, or differ between CPUs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx_ir as ir

from linger.checks.findings.node_places import CheckedModel, NodePlace
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import WARNING, Finding
from linger.graph.core.tensor_types import constant_tensor
from linger.graph.core.unsigned_bytes import LARGEST, SAFE_WEIGHT, stands_for
from linger.graph.qdq.qdq_node import (
    DEQUANTIZE,
    QUANTIZE,
    constant,
    data_inputs,
    is_between_pair,
    is_moving,
    is_qdq,
    quantization_of,
)
from linger.numeric.fixed import is_power_of_two

_SUM_LIFT = 1.0 + 2.0**-12  # the factor that the scales of a sum may have besides a power of two
_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SCALE, _ZERO_POINT = 1, 2
_QUANTISE = "Quantise the float model with linger for a fixed-point device."
_OPERANDS = {"MatMulInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT = frozenset({"Conv", "Gemm", "MatMul"})
_REMEDY = (
    "Quantise with unsigned weights or with weights of 7 bits (reduce_range), or set session.disable_quant_qdq (Q/DQ files)"
    " or session.x64quantprecision to 1 in ONNX Runtime."
)


def qdq_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Zero points and scales that fixed point does not have; warnings in a file of the dialect, notes in any other."""
    severity = WARNING if checked.has_dialect else None
    for place in checked.places:
        is_pair = place.node.op_type in _PAIR and not place.node.domain
        if is_pair and str(place) not in skip and not _is_of_carrier(place.node):
            yield from _pair_findings(place, severity)


def _is_of_carrier(node: ir.Node) -> bool:
    """Whether a node makes or reads integers that linger carries as unsigned bytes, which is exact."""
    values = (value for value in (*node.inputs[:1], *node.outputs) if value is not None)
    is_unit = all(is_power_of_two(scale) or is_power_of_two(scale / _SUM_LIFT) for scale in _content(node, _SCALE))
    return is_unit and any(v.dtype == ir.DataType.UINT8 and v.name and stands_for(v.name) != v.name for v in values)


def _pair_findings(place: NodePlace, severity: str | None) -> Iterator[Finding]:
    odd = [scale for scale in _content(place.node, _SCALE) if not is_power_of_two(scale)]
    shifted = [zero for zero in _content(place.node, _ZERO_POINT) if zero]
    if odd:
        reason = f"its scale {odd[0]:.9g} is no power of two"
        yield place.finding(rules.ODD_QDQ_SCALE, reason, _QUANTISE, severity=severity)
    if shifted:
        yield place.finding(rules.ZERO_POINT, f"its zero point is {shifted[0]:g}", _QUANTISE, severity=severity)


def _content(node: ir.Node, index: int) -> list[float]:
    """The different numbers of a constant input, in order."""
    tensor = constant_tensor(node.inputs[index] if index < len(node.inputs) else None)
    return [] if tensor is None else [float(number) for number in np.unique(tensor.numpy().astype(np.float64))]


def saturation_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Every node whose products of unsigned data and signed weights beyond ±64 may saturate."""
    for place in checked.places:
        data, weight = _bytes(place.node)
        if data != ir.DataType.UINT8 or weight is None or not _is_large(weight) or _has_small_data(place.node):
            continue
        yield place.finding(
            rules.SATURATING_PRODUCT,
            "ONNX Runtime multiplies unsigned by signed bytes here, and its sums saturate in 16 bits on x64 CPUs without "
            "VNNI: there the file computes other numbers",
            _REMEDY,
        )


def _has_small_data(node: ir.Node) -> bool:
    """Whether the data of an integer op is at most 127, so that no pair of products leaves 16 bits: 2·127·128 = 32512."""
    op_type = "" if node.domain else node.op_type
    waiting = [node.inputs[0]] if op_type in _OPERANDS else [None]
    for value in waiting:  # the list grows while it is walked
        maker = None if value is None else value.producer()
        ends = _upper_end(maker)
        if ends is not None and ends <= LARGEST:
            continue
        if maker is None or not is_moving(maker) or maker.op_type == "Pad":
            return False
        waiting += [maker.inputs[index] for index in data_inputs(maker) if maker.inputs[index] not in waiting]
    return True


def _upper_end(maker: ir.Node | None) -> int | None:
    """The largest number that a Clip with a constant end, or a table, gives; None where that is not known."""
    index = {"Clip": 2, "GatherElements": 0}.get("" if maker is None or maker.domain else maker.op_type)
    if maker is None or index is None or index >= len(maker.inputs):
        return None
    tensor = constant_tensor(maker.inputs[index])
    return None if tensor is None or tensor.size == 0 else int(tensor.numpy().max())


def _bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The type of the data as ONNX Runtime multiplies it, and the integer weights; None where it does not."""
    op_type = "" if node.domain else node.op_type
    if op_type in _OPERANDS:
        data, weight = (node.inputs[i] if i < len(node.inputs) else None for i in _OPERANDS[op_type])
        return None if data is None else data.dtype, weight
    return _dequantised_bytes(node) if op_type in _FLOAT and len(node.inputs) > 1 else (None, None)


def _dequantised_bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The same for a float op between DequantizeLinear and QuantizeLinear, which ONNX Runtime computes with bytes."""
    before, weights = (_dequantiser(value) for value in node.inputs[:2])
    if before is None or weights is None or before.inputs[0] is None:
        return None, None
    return _type_in_use(before, node), weights.inputs[0]


def _type_in_use(before: ir.Node, node: ir.Node) -> ir.DataType | None:
    """The type with which ONNX Runtime computes: unsigned also for signed data that it makes unsigned before and behind the op."""
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
    """Whether weights are signed bytes that may lie beyond ±64."""
    tensor = constant(weight)
    if tensor is None:
        return weight.dtype == ir.DataType.INT8 and not isinstance(weight.const_value, ir.ExternalTensor)
    return tensor.dtype == ir.DataType.INT8 and bool((np.abs(tensor.numpy().astype(np.int16)) > SAFE_WEIGHT).any())
