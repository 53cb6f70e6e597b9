# SPDX-License-Identifier: Apache-2.0
"""Write dialect nodes as standard float ops between DequantizeLinear and QuantizeLinear.

For toolchains that look for that pattern (ONNX Runtime's integer kernels, OpenVINO, TensorRT). The integers between
Q and DQ are the dialect's own, under the same names; steps are the inverse power-of-two scales, and every Q or DQ node
has a step and a zero point of its own. `qdq_forms` says how each op keeps half-up rounding. What has no QDQ form
(16 bits, scales that are no powers of two, weights that are not constant, ops without a float twin) stays in the
dialect for `expand_dialect`, which writes it as explicit nodes and exactly.

An error is counted in LSB of the node's output, its inputs being right, in one of three ways to run the file:

- `error`: node by node as written: ONNX Runtime with ORT_DISABLE_ALL or with `session.disable_quant_qdq=1`;
- `error_fused`: pattern by pattern in integer kernels; ONNX Runtime's default fuses what it can, so all three bound it;
- `error_saturated`: the same where a kernel adds two products u8×s8 in 16 bits, as ONNX Runtime does with weights
  beyond ±64 on x64 CPUs without VNNI, because it turns int8 data into uint8 unless `session.qdqisint8allowed=1`.

Zero points other than 0 keep ONNX Runtime's default from making uint8 of a layer: it stays exact, and float. Integer
kernels take it with `session.qdqisint8allowed=1`, as exactly. Where nothing keeps it from that, weights beyond ±64 are
written as unsigned bytes, so that only symmetric files saturate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import Op
from linger.errors import listing
from linger.graph.core.dialects import SAFE_WEIGHT
from linger.graph.core.nodes import Changes, all_nodes, attributes_of, describe, is_dialect, is_used, op_of, opset_of
from linger.graph.lowering.bodies import FormWriter, bring_to_normal_form
from linger.numeric.fixed import FLOAT32_EXACT, is_power_of_two, limits, storage_bits, window_reciprocal
from linger.numeric.onnx.products import by_output

_LARGEST_ERROR = 255  # LSB: the whole range of int8
_TIE = 1
_LARGEST_LIFTED_SHIFT = 14
_LARGEST_DENOMINATOR = 2**12
_LIFT, _AVERAGE_NUDGE = 2.0**-23, 2.0**-21
_MIDDLE = 128
_BYTE, _INT16_MAX, _INT32_END = 255, 32767, 2**31
_GEMM_RANK = 2
_BYTE_BITS, _AXIS_OPSET = 8, 13
_ZERO_TYPES: Mapping[ir.DataType | None, type[np.generic]] = {ir.DataType.INT32: np.int32, ir.DataType.UINT8: np.uint8}


@dataclass(frozen=True)
class _QdqNode:
    """A dialect node as it was written, and its largest errors in LSB (the module says what the three mean).

    Attributes:
        value: What stands for its output; None where the node is left to be explicit, for a reason.
    """

    value: ir.Value | None
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""
    name: str = ""

    @property
    def is_explicit(self) -> bool:
        return self.value is None


@dataclass
class _QdqWriter(FormWriter):
    """Writes a node between DequantizeLinear and QuantizeLinear.

    `scale_of` gives the scale of an integer tensor, for ops that have no scale attribute; `is_symmetric` asks for
    zero points of 0 and real biases.
    """

    scale_of: Callable[[ir.Value], float]
    is_symmetric: bool = False

    @property
    def kind(self) -> type[np.generic]:
        """The type of the node's result."""
        return _ZERO_TYPES.get(self.node.outputs[0].dtype, np.int8)

    def dequantize(
        self,
        q: ir.Value,
        scale: float | NDArray[Any],
        *,
        zero_point: int = 0,
        axis: int = 0,
        kind: type[np.generic] | None = None,
    ) -> ir.Value:
        """(q − zero_point) / scale, of each channel along an axis where there are several scales."""
        step = self.initializer(1.0 / np.asarray(scale), np.float32, "scale")
        zeros = np.full(np.shape(scale), zero_point)
        zero = self.initializer(zeros, kind or _ZERO_TYPES.get(q.dtype, np.int8), "zero_point")
        along = {"axis": axis} if np.ndim(scale) else {}
        return self.emit("DequantizeLinear", [q, step, zero], **along)

    def quantize(
        self,
        real: ir.Value,
        scale: float,
        *,
        bits: int = 8,
        zero_point: int = 0,
        nudge: float = 0.0,
        kind: type[np.generic] | None = None,
    ) -> ir.Value:
        """real·scale/(1 − nudge) rounded half to even, plus zero_point, saturated; a Clip does that below 8 bits."""
        kind = kind or self.kind
        if bits < _BYTE_BITS:
            reach = (0, (1 << bits) - 1) if kind is np.uint8 else limits(bits)
            ends = [self.initializer((end - zero_point) / scale, np.float32, "limit") for end in reach]
            real = self.emit("Clip", [real, *ends])
        step = self.initializer((1.0 - nudge) / scale, np.float32, "scale")
        return self.emit("QuantizeLinear", [real, step, self.initializer(zero_point, kind, "zero_point")])

    def plus(self, real: ir.Value, number: float) -> ir.Value:
        """real + number."""
        return self.emit("Add", [real, self.initializer(number, np.float32, "half")])

    def part(self, q: ir.Value, *, source: float, target: float) -> ir.Value:
        """q / source for a QuantizeLinear at scale `target`: half a unit more where that will round."""
        real = self.dequantize(q, source)
        return self.plus(real, 0.5 / source) if source > target else real


Form = Callable[[_QdqWriter], "_QdqNode | str"]
"""Writes the nodes; or says why the op has no QDQ form here."""


def quant(w: _QdqWriter) -> _QdqNode | str:
    """Mul, Add ½, Floor, Mul, then a QuantizeLinear that has nothing to round: the device rounds the sum to float32."""
    scale = w.attributes["scale_x"]
    scaled = w.emit("Mul", [w.input(0), w.initializer(scale, np.float32, "factor")])
    whole = w.emit("Floor", [w.plus(scaled, 0.5)])
    real = w.emit("Mul", [whole, w.initializer(1.0 / scale, np.float32, "factor")])
    return _QdqNode(w.quantize(real, scale, bits=w.attributes["data_bits"]))


def dequant(w: _QdqWriter) -> _QdqNode | str:
    """One DequantizeLinear."""
    return _QdqNode(w.dequantize(w.input(0), w.attributes["scale_o"]))


def requant(w: _QdqWriter) -> _QdqNode | str:
    """DQ, half unit, Q."""
    source, target = w.attributes["scale_x"], w.attributes["scale_o"]
    if source <= target:
        return "runtimes merge a DequantizeLinear that meets a QuantizeLinear"
    real = w.part(w.input(0), source=source, target=target)
    return _QdqNode(w.quantize(real, target, bits=w.attributes["o_bits"]))


def add(w: _QdqWriter) -> _QdqNode | str:
    """DQ + DQ, Q; where both operands are rounded, one is quantized to the output's scale first."""
    a, target = w.attributes, w.attributes["scale_o"]
    left = w.part(w.input(0), source=a["scale_x"], target=target)
    if min(a["scale_x"], a["scale_y"]) > target:
        kind = _ZERO_TYPES.get(w.input(0).dtype, np.int8)
        left = w.dequantize(w.quantize(left, target, kind=kind), target, kind=kind)
    right = w.part(w.input(1), source=a["scale_y"], target=target)
    return _QdqNode(w.quantize(w.emit("Add", [left, right]), target, bits=a["o_bits"]))


def mul(w: _QdqWriter) -> _QdqNode | str:
    """DQ · DQ, half unit, Q."""
    a, unit = w.attributes, w.attributes["scale_x"] * w.attributes["scale_y"]
    product = w.emit("Mul", [w.dequantize(w.input(0), a["scale_x"]), w.dequantize(w.input(1), a["scale_y"])])
    real = w.plus(product, 0.5 / unit) if unit > a["scale_o"] else product
    return _QdqNode(w.quantize(real, a["scale_o"], bits=a["o_bits"]))


def cat(w: _QdqWriter) -> _QdqNode | str:
    """DQ of each part, half a unit where it is rounded, Concat, Q."""
    a, target = w.attributes, w.attributes["scale_o"]
    sources = [a[f"scale_x_{i}"] for i in range(len(w.node.inputs))]
    if len(sources) == 1 and sources[0] <= target:
        return "runtimes drop the Concat of one tensor and merge what is around it"
    parts = [w.part(w.input(i), source=source, target=target) for i, source in enumerate(sources)]
    return _QdqNode(w.quantize(w.emit("Concat", parts, axis=a["dim"]), target, bits=a["o_bits"]))


def relu(w: _QdqWriter) -> _QdqNode | str:
    """DQ, Relu, Q, all at one scale."""
    scale = w.scale_of(w.input(0))
    return _QdqNode(w.quantize(w.emit("Relu", [w.dequantize(w.input(0), scale)]), scale))


def clip(w: _QdqWriter) -> _QdqNode | str:
    """DQ, Clip at the real thresholds, Q, all at one scale."""
    low, high, scale = w.known(1), w.known(2), w.scale_of(w.input(0))
    if low is None or high is None:
        return "its thresholds are not constant"
    ends = [w.initializer(float(end) / scale, np.float32, "limit") for end in (low, high)]
    return _QdqNode(w.quantize(w.emit("Clip", [w.dequantize(w.input(0), scale), *ends]), scale))


def max_pool(w: _QdqWriter) -> _QdqNode | str:
    """DQ, MaxPool, Q, all at one scale."""
    scale = w.scale_of(w.input(0))
    return _QdqNode(w.quantize(w.emit("MaxPool", [w.dequantize(w.input(0), scale)], **w.attributes), scale))


def average_pool(w: _QdqWriter) -> _QdqNode | str:
    """DQ, AveragePool, Q; ties by half a unit (area a power of two) or by a nudge."""
    a, source, target = w.attributes, w.attributes["scale_x"], w.attributes["scale_o"]
    area = math.prod(a["kernel_shape"])
    denominator = area * Fraction(source) / Fraction(target)
    # means of 0 … 255 are twice as large
    if max(denominator, area) * (1 + (w.input(0).dtype == ir.DataType.UINT8)) > _LARGEST_DENOMINATOR:
        return f"float32 cannot keep means with a denominator above {_LARGEST_DENOMINATOR} apart from ties"
    geometry = {name: a[name] for name in ("kernel_shape", "strides", "pads")}
    real = w.emit("AveragePool", [w.dequantize(w.input(0), source)], count_include_pad=1, **geometry)
    is_power_of_two, nudge = area & (area - 1) == 0, 0.0
    if is_power_of_two and denominator > 1:
        real = w.plus(real, 0.5 / (area * source))
    elif not is_power_of_two and (denominator / 2).denominator == 1:  # else no sum of integers is a tie
        goes_away_from_zero = Fraction(window_reciprocal(a["kernel_shape"])) > Fraction(1, area)
        nudge = _AVERAGE_NUDGE if goes_away_from_zero else -_AVERAGE_NUDGE
    value = w.quantize(real, target, bits=a["o_bits"], nudge=nudge)
    reason = "an integer kernel may lose the nudge that decides ties"
    return _QdqNode(value, error_fused=_TIE, reason=reason) if nudge else _QdqNode(value)


@dataclass(frozen=True)
class _Product:
    """How a sum of products is biased and rounded, and what that costs."""

    weight: NDArray[Any]
    bias: NDArray[Any]
    zero_point: int
    errors: tuple[int, int, int]
    reason: str
    nudge: float
    powers: NDArray[Any]
    """By what the scales of weights and bias are multiplied: one number, or one for each channel."""
    axis: int

    def real_weight(self, w: _QdqWriter, *, is_one_node: bool = True) -> ir.Value:
        """The weights behind a DequantizeLinear, turned round for a MatMul.

        Where ONNX Runtime could multiply unsigned data by signed weights in 16 bits, the weights are unsigned bytes around
        128, whose products no kernel cuts off; but never when zero points must be 0.
        """
        scale, weight = w.attributes["scale_w"] * self.powers, self.weight if is_one_node else self.weight.T
        axis = self.axis if is_one_node else 1
        if self._saturated(w, is_one_node=is_one_node) and not w.is_symmetric:
            unsigned = w.initializer(weight.astype(np.int16) + _MIDDLE, np.uint8, "weight")
            return w.dequantize(unsigned, scale, zero_point=_MIDDLE, axis=axis)
        signed = w.input(1) if is_one_node else w.initializer(weight, np.int8, "weight")
        return w.dequantize(signed, scale, axis=axis)

    def _saturated(self, w: _QdqWriter, *, is_one_node: bool) -> int:
        """What signed weights would lose.

        ONNX Runtime makes uint8 only of a Q and a DQ whose zero points agree, and fuses only data of one type; but between
        MatMul and Add it may set a pair of its own.
        """
        is_signed = w.input(0).dtype == ir.DataType.INT8
        return 0 if self.zero_point and is_one_node and is_signed else self.errors[2]

    def real_bias(self, w: _QdqWriter) -> ir.Value:
        """Behind a DequantizeLinear as int32, or itself real where half a unit is in it."""
        unit = w.attributes["scale_x"] * w.attributes["scale_w"] * self.powers
        if self.bias.dtype == np.int32:
            return w.dequantize(w.initializer(self.bias, np.int32, "bias"), unit)
        return w.initializer(self.bias / unit, np.float32, "bias")

    def finish(self, w: _QdqWriter, total: ir.Value, *, is_one_node: bool = True) -> _QdqNode:
        """The sum, quantized."""
        a = w.attributes
        value = w.quantize(total, a["scale_o"], bits=a["o_bits"], zero_point=self.zero_point, nudge=self.nudge)
        saturated = self._saturated(w, is_one_node=is_one_node) if w.is_symmetric else 0
        return _QdqNode(value, *self.errors[:2], saturated, self.reason)


def _plan_product(w: _QdqWriter, *, is_transposed: bool = False) -> _Product | str:
    a, weight, bias = w.attributes, w.known(1), w.known(2)
    if weight is None or bias is None:
        return "its weights are not constant, so the sum has no known bound"
    exponents, is_unsigned = np.asarray(a.get("exponents_w") or 0, np.int64), w.kind is np.uint8
    rows = by_output(np.abs(weight.astype(np.int16)), a["group"] if is_transposed else None)
    shifts = math.frexp(a["scale_x"] * a["scale_w"] / a["scale_o"])[1] - 1 + exponents
    chosen, zero_point, nudge = _rounding_bias(bias, shifts, is_unsigned=is_unsigned, is_symmetric=w.is_symmetric)
    shift = int(np.min(shifts))  # where an error is largest
    has_half, reasons = bool((shifts > 0).any()) and not nudge, []
    if has_half:
        reasons.append("an integer kernel rounds the half unit in the bias away, and ties go to even")
    reach = rows.sum(axis=1, dtype=np.float64) * 2.0 ** (a["data_bits"] - (w.input(0).dtype == ir.DataType.INT8))
    total = float((reach + np.abs(chosen.astype(np.float64))).max(initial=0.0))
    if total >= _INT32_END:
        return "its sum may exceed int32"
    error = 0
    if (1 + has_half) * total >= FLOAT32_EXACT:
        error = _in_lsb(_relative_rounding(rows.shape[1]) * total, shift)
        reasons.append(f"its sum may reach {total:.3g}, beyond what float32 adds exactly")
    saturated = _in_lsb(_saturation(rows), shift) if rows.max(initial=0) > SAFE_WEIGHT else 0
    errors, powers = (error, _TIE * has_half, saturated), 2.0**exponents
    return _Product(weight, chosen, zero_point, errors, "; ".join(reasons), nudge, powers, int(is_transposed))


def _rounding_bias(
    bias: NDArray[Any], shifts: NDArray[np.int64], *, is_unsigned: bool, is_symmetric: bool
) -> tuple[NDArray[Any], int, float]:
    """The bias with what makes ties round up, the zero point that takes it off again, and a nudge of the scale.

    Of each channel, as `byte_layers` proves: what is unsigned needs the nudge alone, because sums below 0 become 0.
    """
    if not (shifts > 0).any():
        return bias.astype(np.float64 if is_symmetric else np.int32), 0, 0.0
    lift = 0.0 if is_unsigned else _MIDDLE * 2.0 ** np.minimum(shifts, _LARGEST_LIFTED_SHIFT)
    lifted, is_covered = bias + lift, bool((shifts <= _LARGEST_LIFTED_SHIFT).all()) and not is_symmetric
    if not is_covered or (lifted % 1).any() or lifted.max(initial=0) >= _INT32_END:
        return bias + np.where(shifts > 0, 0.5, 0.0), 0, 0.0
    return lifted.astype(np.int32), 0 if is_unsigned else -_MIDDLE, _LIFT


def _relative_rounding(terms: int) -> float:
    """Error of a float32 sum in any order, k·u/(1 − k·u) with u = 2^-24; the bias and its own rounding count too."""
    k = (terms + 2) * 2.0**-24
    return k / (1.0 - k)


def _saturation(rows: NDArray[Any]) -> float:
    """Largest loss where pairs of u8×s8 products are added in 16 bits: Σ max(0, 255·(|w1| + |w2|) − 32767).

    The summand is convex, so pairing the largest with the next largest bounds every pairing.
    """
    ordered = np.pad(np.sort(rows, axis=1), ((0, 0), (rows.shape[1] % 2, 0))).astype(np.int32)
    return float(np.maximum(_BYTE * (ordered[:, ::2] + ordered[:, 1::2]) - _INT16_MAX, 0).sum(axis=1).max())


def _in_lsb(error_of_sum: float, shift: int) -> int:
    """An error of the sum after the shift, and one more, because it may cross a tie."""
    return min(_LARGEST_ERROR, math.floor(error_of_sum * 2.0**-shift) + 1)


def convolution(w: _QdqWriter) -> _QdqNode | str:
    """DQ of data, weights and bias, Conv over one or two axes or ConvTranspose, Q."""
    a, op = w.attributes, op_of(w.node)
    plan = _plan_product(w, is_transposed=op.is_transposed)
    if isinstance(plan, str):
        return plan
    names = (
        "dilations",
        "group",
        "kernel_shape",
        *(("output_padding",) if op.is_transposed else ()),
        "pads",
        "strides",
    )
    factors = [w.dequantize(w.input(0), a["scale_x"]), plan.real_weight(w), plan.real_bias(w)]
    return plan.finish(w, w.emit(op.float_op or "", factors, **{name: a[name] for name in names}))


def linear(w: _QdqWriter) -> _QdqNode | str:
    """DQ of data, weights and bias, Gemm (data of two axes) or MatMul and Add, Q."""
    plan = _plan_product(w)
    if isinstance(plan, str):
        return plan
    data, shape = w.dequantize(w.input(0), w.attributes["scale_x"]), w.input(0).shape
    if shape is not None and shape.rank() == _GEMM_RANK:
        return plan.finish(w, w.emit("Gemm", [data, plan.real_weight(w), plan.real_bias(w)], transB=1))
    product = w.emit("MatMul", [data, plan.real_weight(w, is_one_node=False)])
    return plan.finish(w, w.emit("Add", [product, plan.real_bias(w)]), is_one_node=False)


FORMS: Mapping[str, Form] = {
    "QuantizeLinear": quant,
    "DequantizeLinear": dequant,
    "Identity": requant,
    "Conv": convolution,
    "ConvTranspose": convolution,
    "Gemm": linear,
    "Add": add,
    "Mul": mul,
    "Concat": cat,
    "AveragePool": average_pool,
    "MaxPool": max_pool,
    "Relu": relu,
    "Clip": clip,
}
"""By the standard op that computes a dialect op on real numbers (`float_op`); ops without one become explicit nodes."""


_UNKNOWN_SCALE = 1.0


@dataclass(frozen=True)
class _QdqReport:
    """What `to_qdq` did with every dialect node, in the order of execution."""

    changes: Changes
    nodes: tuple[_QdqNode, ...]

    @property
    def inexact(self) -> tuple[_QdqNode, ...]:
        """Nodes that may be off by rounding, as written or fused, on any CPU."""
        return tuple(n for n in self.nodes if n.error or n.error_fused)

    @property
    def explicit(self) -> tuple[_QdqNode, ...]:
        """Nodes without a QDQ form: exact, but no pattern for an integer kernel."""
        return tuple(n for n in self.nodes if n.is_explicit)

    @property
    def saturating(self) -> tuple[_QdqNode, ...]:
        """Nodes that u8×s8 in 16 bits would spoil."""
        return tuple(n for n in self.nodes if n.error_saturated)

    def rows(self) -> list[tuple[str, str, int, int, int, str]]:
        """Each node as (name, form, error, error_fused, error_saturated, reason)."""
        forms = {True: "explicit", False: "qdq"}
        return [(n.name, forms[n.is_explicit], n.error, n.error_fused, n.error_saturated, n.reason) for n in self.nodes]

    def summary(self) -> str:
        """What a user of the file must know, in one paragraph; empty where everything is exact everywhere."""
        sentences = []
        if self.inexact:
            sentences.append(f"not exact: {_listed(self.inexact)}.")
        if self.explicit:
            sentences.append(f"written as explicit nodes, exactly: {_listed(self.explicit)}.")
        if self.saturating:
            worst, names = max(n.error_saturated for n in self.saturating), listing(n.name for n in self.saturating)
            where = f"On x64 CPUs without VNNI, ONNX Runtime's defaults saturate u8×s8 (up to {worst} LSB) in {names}"
            sentences.append(f"{where}: set session.qdqisint8allowed or session.disable_quant_qdq to 1.")
        return " ".join(sentences)


def _listed(nodes: Iterable[_QdqNode]) -> str:
    groups: dict[str, list[str]] = {}
    for n in nodes:
        sizes = "" if n.is_explicit else f"{n.error} LSB as written, {n.error_fused} fused: "
        groups.setdefault(sizes + n.reason, []).append(n.name)
    return "; ".join(f"{listing(names)} ({why})" for why, names in groups.items())


def to_qdq(model: ir.Model, *, is_symmetric: bool = False) -> _QdqReport:
    """Replace every dialect node that has a QDQ form; run `expand_dialect` afterwards for the rest.

    Leaves: standard nodes for all that has a form, the other nodes as they were; names of integer tensors are kept.

    Args:
        model: Edited in place.
        is_symmetric: All zero points 0 and biases real, as TensorRT demands. Convolutions and linear layers are then
            exact as written, and off by one at ties where an integer kernel rounds their bias.
    """
    changes = bring_to_normal_form(model)
    scales, nodes = _scales(model), []
    for node in [n for n in all_nodes(model) if is_dialect(n)]:
        op = op_of(node)
        attributes = attributes_of(node, op)
        writer = _QdqWriter(node, attributes, lambda v: scales.get(v.name, _UNKNOWN_SCALE), is_symmetric=is_symmetric)
        missing = _missing_numbers(node, attributes, opset_of(model), is_symmetric=is_symmetric)
        written = missing or _obstacle(node, op, attributes) or FORMS[op.float_op or ""](writer)
        if isinstance(written, str):
            written = _QdqNode(None, reason=written)
        nodes.append(replace(written, name=describe(node)))
        if written.value is not None:
            _replace(model, writer, written.value)
            changes.note(describe(node), "written between DequantizeLinear and QuantizeLinear")
    return _QdqReport(changes, tuple(nodes))


def _scales(model: ir.Model) -> dict[str | None, float]:
    """The scale of every integer tensor by name: its producer's, or its source's where numbers are only moved."""
    scales: dict[str | None, float] = {}
    for node in all_nodes(model):
        source = node.inputs[0] if node.inputs else None
        scale = _UNKNOWN_SCALE if source is None else scales.get(source.name, _UNKNOWN_SCALE)
        if is_dialect(node):
            attributes = attributes_of(node, op_of(node))
            scale = attributes.get("scale_o", attributes.get("scale_x", scale))
        scales.update({output.name: scale for output in node.outputs})
    return scales


def _missing_numbers(node: ir.Node, attributes: Mapping[str, Any], opset: int, *, is_symmetric: bool) -> str | None:
    """Why a scale for each channel, or unsigned bytes, have no QDQ form here."""
    if attributes.get("exponents_w") and opset < _AXIS_OPSET:
        return f"DequantizeLinear has one scale before opset {_AXIS_OPSET}; export with a newer one"
    if attributes.get("exponents_w") and "output_padding" in attributes and attributes["group"] > 1:
        return "a DequantizeLinear has no scale for each output channel of a transposed convolution with groups"
    is_unsigned = any(getattr(value, "dtype", None) == ir.DataType.UINT8 for value in (*node.inputs, *node.outputs))
    if is_symmetric and is_unsigned:
        return "of unsigned bytes, a zero point of 0 is not in the middle; export without qdq_symmetric, or quantize without them"
    return None


def _obstacle(node: ir.Node, op: Op, attributes: dict[str, Any]) -> str | None:
    """Why no QDQ form can be tried."""
    if op.float_op is None:
        return f"{node.op_type} has no QDQ form"
    scales = (value for name, value in attributes.items() if name.startswith("scale_"))
    odd = next(itertools.filterfalse(is_power_of_two, scales), None)
    if odd is not None:
        return f"scale {odd} is no power of two"
    width = _BYTE_BITS if op.output_bits is None else storage_bits(attributes[op.output_bits])
    # of a product, the third input is the int32 bias; of a Clip, both are of the first one's type
    types = {getattr(value, "dtype", None) for value in node.inputs[: None if op.is_variadic else 2]}
    is_fitting = width <= _BYTE_BITS and types <= _input_types(op)
    return None if is_fitting else "QuantizeLinear knows only 8-bit integers before opset 21"


def _input_types(op: Op) -> set[ir.DataType]:
    """The types of data that a QDQ form takes; DequantizeLinear also takes int32."""
    if op.real_inputs:
        return {ir.DataType.FLOAT}
    bytes_of_both = {ir.DataType.INT8, ir.DataType.UINT8}
    return bytes_of_both if op.has_integer_output else bytes_of_both | {ir.DataType.INT32}


def _replace(model: ir.Model, writer: _QdqWriter, result: ir.Value) -> None:
    node, graph = writer.node, writer.node.graph
    inputs = {value for value in node.inputs if value is not None}
    assert graph is not None  # the node came from a graph
    for initializer in writer.initializers:
        model.graph.register_initializer(initializer)
    ir.convenience.replace_nodes_and_values(graph, node, [node], writer.nodes, node.outputs, [result])
    for value in inputs:
        if value.is_initializer() and not is_used(value):
            model.graph.initializers.pop(value.name or "", None)
