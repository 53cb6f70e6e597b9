# SPDX-License-Identifier: Apache-2.0
"""How each dialect op is written between DequantizeLinear and QuantizeLinear, and how far that may be off.

QuantizeLinear rounds half to even, the dialect half up. Three ways keep half-up, each exact in float32:

*Zero point* (products): 128 LSB more in the int32 bias, zero point −128, step·(1 − 2^-23). v = acc/2^s + 128 is
positive wherever it does not saturate, so the nudge lifts every tie; v < 2^8 moves by less than 2^-15, so nothing else
crosses a tie while s ≤ 14. Integer kernels that fuse the pattern multiply, round and add in the same order.
*Half unit* (all else; products with a longer shift, or when zero points must be 0): ½ of the accumulator's unit is
added to the real value. acc + ½ is never a tie and rounds as acc does. Exact while 2·|acc| + 1 < 2^24.
*Nudge* (averages over an area that is no power of two): the device's reciprocal sends ties away from zero, or towards
it, and so does a step that is 2^-21 smaller or larger. That exceeds the float32 error of a mean (2^-22), and both
together move |v| ≤ 128½ by less than 1/(2·denominator), its distance from a tie, up to a denominator of 2^12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.carriers import SAFE_WEIGHT
from linger.graph.forms.form_writer import FormWriter
from linger.numeric.fixed import FLOAT32_EXACT, limits, window_reciprocal
from linger.numeric.onnx.products import by_output

_LARGEST_ERROR = 255  # LSB: the whole range of int8
_TIE = 1
_LARGEST_LIFTED_SHIFT = 14
_LARGEST_DENOMINATOR = 2**12
_LIFT, _AVERAGE_NUDGE = 2.0**-23, 2.0**-21
_MIDDLE = 128
_BYTE, _INT16_MAX, _INT32_END = 255, 32767, 2**31
_GEMM_RANK = 2
_BYTE_BITS = 8
_ZERO_TYPES: Mapping[ir.DataType | None, type[np.generic]] = {ir.DataType.INT32: np.int32, ir.DataType.UINT8: np.uint8}


@dataclass(frozen=True)
class Written:
    """The output of a form and its largest errors in LSB; `to_qdq` says what the three mean."""

    value: ir.Value
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reason: str = ""


@dataclass
class QdqWriter(FormWriter):
    """Writes a node between DequantizeLinear and QuantizeLinear.

    `scale_of` gives the scale of an integer tensor, for ops that have no scale attribute; `is_symmetric` asks for
    zero points of 0 and real biases.
    """

    scale_of: Callable[[ir.Value], float]
    is_symmetric: bool = False

    def dequantize(self, q: ir.Value, scale: float, *, zero_point: int = 0) -> ir.Value:
        """(q − zero_point) / scale."""
        dtype = _ZERO_TYPES.get(q.dtype, np.int8)
        step, zero = (
            self.initializer(1.0 / scale, np.float32, "scale"),
            self.initializer(zero_point, dtype, "zero_point"),
        )
        return self.emit("DequantizeLinear", [q, step, zero])

    def quantize(
        self, real: ir.Value, scale: float, *, bits: int = 8, zero_point: int = 0, nudge: float = 0.0
    ) -> ir.Value:
        """real·scale/(1 − nudge) rounded half to even, plus zero_point, saturated; a Clip does that below 8 bits."""
        if bits < _BYTE_BITS:
            ends = [self.initializer((end - zero_point) / scale, np.float32, "limit") for end in limits(bits)]
            real = self.emit("Clip", [real, *ends])
        step = self.initializer((1.0 - nudge) / scale, np.float32, "scale")
        return self.emit("QuantizeLinear", [real, step, self.initializer(zero_point, np.int8, "zero_point")])

    def plus(self, real: ir.Value, number: float) -> ir.Value:
        """real + number."""
        return self.emit("Add", [real, self.initializer(number, np.float32, "half")])

    def part(self, q: ir.Value, *, source: float, target: float) -> ir.Value:
        """q / source for a QuantizeLinear at scale `target`: half a unit more where that will round."""
        real = self.dequantize(q, source)
        return self.plus(real, 0.5 / source) if source > target else real


Form = Callable[[QdqWriter], "Written | str"]
"""Writes the nodes; or says why the op has no QDQ form here."""


def quant(w: QdqWriter) -> Written | str:
    """Mul, Add ½, Floor, Mul, then a QuantizeLinear that has nothing to round: the device rounds the sum to float32."""
    scale = w.attributes["scale_x"]
    scaled = w.emit("Mul", [w.input(0), w.initializer(scale, np.float32, "factor")])
    whole = w.emit("Floor", [w.plus(scaled, 0.5)])
    real = w.emit("Mul", [whole, w.initializer(1.0 / scale, np.float32, "factor")])
    return Written(w.quantize(real, scale, bits=w.attributes["data_bits"]))


def dequant(w: QdqWriter) -> Written | str:
    """One DequantizeLinear."""
    return Written(w.dequantize(w.input(0), w.attributes["scale_o"]))


def requant(w: QdqWriter) -> Written | str:
    """DQ, half unit, Q."""
    source, target = w.attributes["scale_x"], w.attributes["scale_o"]
    if source <= target:
        return "runtimes merge a DequantizeLinear that meets a QuantizeLinear"
    real = w.part(w.input(0), source=source, target=target)
    return Written(w.quantize(real, target, bits=w.attributes["o_bits"]))


def add(w: QdqWriter) -> Written | str:
    """DQ + DQ, Q; where both operands are rounded, one is quantised to the output's scale first."""
    a, target = w.attributes, w.attributes["scale_o"]
    left = w.part(w.input(0), source=a["scale_x"], target=target)
    if min(a["scale_x"], a["scale_y"]) > target:
        left = w.dequantize(w.quantize(left, target), target)
    right = w.part(w.input(1), source=a["scale_y"], target=target)
    return Written(w.quantize(w.emit("Add", [left, right]), target, bits=a["o_bits"]))


def mul(w: QdqWriter) -> Written | str:
    """DQ · DQ, half unit, Q."""
    a, unit = w.attributes, w.attributes["scale_x"] * w.attributes["scale_y"]
    product = w.emit("Mul", [w.dequantize(w.input(0), a["scale_x"]), w.dequantize(w.input(1), a["scale_y"])])
    real = w.plus(product, 0.5 / unit) if unit > a["scale_o"] else product
    return Written(w.quantize(real, a["scale_o"], bits=a["o_bits"]))


def cat(w: QdqWriter) -> Written | str:
    """DQ of each part, half a unit where it is rounded, Concat, Q."""
    a, target = w.attributes, w.attributes["scale_o"]
    sources = [a[f"scale_x_{i}"] for i in range(len(w.node.inputs))]
    if len(sources) == 1 and sources[0] <= target:
        return "runtimes drop the Concat of one tensor and merge what is around it"
    parts = [w.part(w.input(i), source=source, target=target) for i, source in enumerate(sources)]
    return Written(w.quantize(w.emit("Concat", parts, axis=a["dim"]), target, bits=a["o_bits"]))


def relu(w: QdqWriter) -> Written | str:
    """DQ, Relu, Q, all at one scale."""
    scale = w.scale_of(w.input(0))
    return Written(w.quantize(w.emit("Relu", [w.dequantize(w.input(0), scale)]), scale))


def clip(w: QdqWriter) -> Written | str:
    """DQ, Clip at the real thresholds, Q, all at one scale."""
    low, high, scale = w.known(1), w.known(2), w.scale_of(w.input(0))
    if low is None or high is None:
        return "its thresholds are not constant"
    ends = [w.initializer(float(end) / scale, np.float32, "limit") for end in (low, high)]
    return Written(w.quantize(w.emit("Clip", [w.dequantize(w.input(0), scale), *ends]), scale))


def max_pool(w: QdqWriter) -> Written | str:
    """DQ, MaxPool, Q, all at one scale."""
    scale = w.scale_of(w.input(0))
    return Written(w.quantize(w.emit("MaxPool", [w.dequantize(w.input(0), scale)], **w.attributes), scale))


def average_pool(w: QdqWriter) -> Written | str:
    """DQ, AveragePool, Q; ties by half a unit (area a power of two) or by a nudge."""
    a, source, target = w.attributes, w.attributes["scale_x"], w.attributes["scale_o"]
    area = math.prod(a["kernel_shape"])
    denominator = area * Fraction(source) / Fraction(target)
    if max(denominator, area) > _LARGEST_DENOMINATOR:
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
    return Written(value, error_fused=_TIE, reason=reason) if nudge else Written(value)


@dataclass(frozen=True)
class _Product:
    """How a sum of products is biased and rounded, and what that costs."""

    weight: NDArray[Any]
    bias: NDArray[Any]
    zero_point: int
    errors: tuple[int, int, int]
    reason: str

    def real_weight(self, w: QdqWriter, *, is_one_node: bool = True) -> ir.Value:
        """The weights behind a DequantizeLinear, turned round for a MatMul.

        Where ONNX Runtime could multiply unsigned data by signed weights in 16 bits, the weights are unsigned bytes around
        128, whose products no kernel cuts off; but never when zero points must be 0.
        """
        scale, weight = w.attributes["scale_w"], self.weight if is_one_node else self.weight.T
        if self._saturated(is_one_node=is_one_node) and not w.is_symmetric:
            unsigned = w.initializer(weight.astype(np.int16) + _MIDDLE, np.uint8, "weight")
            return w.dequantize(unsigned, scale, zero_point=_MIDDLE)
        return w.dequantize(w.input(1) if is_one_node else w.initializer(weight, np.int8, "weight"), scale)

    def _saturated(self, *, is_one_node: bool) -> int:
        """What signed weights would lose.

        ONNX Runtime makes uint8 only of a Q and a DQ whose zero points agree, and fuses only data of one type; but between
        MatMul and Add it may set a pair of its own.
        """
        return 0 if self.zero_point and is_one_node else self.errors[2]

    def real_bias(self, w: QdqWriter) -> ir.Value:
        """Behind a DequantizeLinear as int32, or itself real where half a unit is in it."""
        unit = w.attributes["scale_x"] * w.attributes["scale_w"]
        if self.bias.dtype == np.int32:
            return w.dequantize(w.initializer(self.bias, np.int32, "bias"), unit)
        return w.initializer(self.bias / unit, np.float32, "bias")

    def finish(self, w: QdqWriter, total: ir.Value, *, is_one_node: bool = True) -> Written:
        """The sum, quantised."""
        a, nudge = w.attributes, _LIFT if self.zero_point else 0.0
        value = w.quantize(total, a["scale_o"], bits=a["o_bits"], zero_point=self.zero_point, nudge=nudge)
        saturated = self._saturated(is_one_node=is_one_node) if w.is_symmetric else 0
        return Written(value, *self.errors[:2], saturated, self.reason)


def _plan_product(w: QdqWriter, *, is_transposed: bool = False) -> _Product | str:
    a, weight, bias = w.attributes, w.known(1), w.known(2)
    if weight is None or bias is None:
        return "its weights are not constant, so the sum has no known bound"
    rows = by_output(np.abs(weight.astype(np.int16)), a["group"] if is_transposed else None)
    shift = math.frexp(a["scale_x"] * a["scale_w"] / a["scale_o"])[1] - 1
    chosen, zero_point = _rounding_bias(bias, shift, is_symmetric=w.is_symmetric)
    has_half, reasons = shift > 0 and not zero_point, []
    if has_half:
        reasons.append("an integer kernel rounds the half unit in the bias away, and ties go to even")
    reach = rows.sum(axis=1, dtype=np.float64) * 2.0 ** (a["data_bits"] - 1)
    total = float((reach + np.abs(chosen.astype(np.float64))).max(initial=0.0))
    if total >= _INT32_END:
        return "its sum may exceed int32"
    error = 0
    if (1 + has_half) * total >= FLOAT32_EXACT:
        error = _in_lsb(_relative_rounding(rows.shape[1]) * total, shift)
        reasons.append(f"its sum may reach {total:.3g}, beyond what float32 adds exactly")
    saturated = _in_lsb(_saturation(rows), shift) if rows.max(initial=0) > SAFE_WEIGHT else 0
    return _Product(weight, chosen, zero_point, (error, _TIE if has_half else 0, saturated), "; ".join(reasons))


def _rounding_bias(bias: NDArray[Any], shift: int, *, is_symmetric: bool) -> tuple[NDArray[Any], int]:
    """The bias with what makes ties round up, and the zero point that takes it off again."""
    if shift <= 0:
        return bias.astype(np.float64 if is_symmetric else np.int32), 0
    lifted = bias.astype(np.int64) + (_MIDDLE << min(shift, _LARGEST_LIFTED_SHIFT))
    if shift > _LARGEST_LIFTED_SHIFT or is_symmetric or lifted.max(initial=0) >= _INT32_END:
        return bias.astype(np.float64) + 0.5, 0
    return lifted.astype(np.int32), -_MIDDLE


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


def convolution(w: QdqWriter) -> Written | str:
    """DQ of data, weights and bias, Conv over one or two axes, Q."""
    a, plan = w.attributes, _plan_product(w)
    if isinstance(plan, str):
        return plan
    geometry = {name: a[name] for name in ("dilations", "group", "kernel_shape", "pads", "strides")}
    factors = [w.dequantize(w.input(0), a["scale_x"]), plan.real_weight(w)]
    return plan.finish(w, w.emit("Conv", [*factors, plan.real_bias(w)], **geometry))


def transposed_convolution(w: QdqWriter) -> Written | str:
    """DQ of data, weights and bias, ConvTranspose, Q."""
    a, plan = w.attributes, _plan_product(w, is_transposed=True)
    if isinstance(plan, str):
        return plan
    names = ("dilations", "group", "kernel_shape", "output_padding", "pads", "strides")
    factors = [w.dequantize(w.input(0), a["scale_x"]), plan.real_weight(w)]
    return plan.finish(w, w.emit("ConvTranspose", [*factors, plan.real_bias(w)], **{name: a[name] for name in names}))


def linear(w: QdqWriter) -> Written | str:
    """DQ of data, weights and bias, Gemm (data of two axes) or MatMul and Add, Q."""
    a, plan = w.attributes, _plan_product(w)
    if isinstance(plan, str):
        return plan
    data, shape = w.dequantize(w.input(0), a["scale_x"]), w.input(0).shape
    if shape is not None and shape.rank() == _GEMM_RANK:
        factors = [data, plan.real_weight(w)]
        return plan.finish(w, w.emit("Gemm", [*factors, plan.real_bias(w)], transB=1))
    product = w.emit("MatMul", [data, plan.real_weight(w, is_one_node=False)])
    return plan.finish(w, w.emit("Add", [product, plan.real_bias(w)]), is_one_node=False)


FORMS: Mapping[str, Form] = {
    "QuantizeLinear": quant,
    "DequantizeLinear": dequant,
    "Identity": requant,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
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
