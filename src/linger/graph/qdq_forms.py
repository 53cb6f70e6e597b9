# SPDX-License-Identifier: Apache-2.0
"""How each dialect op is written between DequantizeLinear and QuantizeLinear, and how far that may be off.

QuantizeLinear rounds half to even, the dialect half up. Three ways keep half-up, each exact in float32:

*Zero point* (products): 128 LSB more in the int32 bias, zero point −128, scale·(1 − 2^-23). v = acc/2^s + 128 is
positive wherever it does not saturate, so the nudge lifts every tie; v < 2^8 moves by less than 2^-15, so nothing else
crosses a tie while s ≤ 14. Integer kernels that fuse the pattern compute the same.
*Half unit* (everything else, products when asked for zero points of 0): ½ of the accumulator's unit is added to the
real value. acc + ½ is never a tie and lies on the side of acc + 0. Exact while 2·acc + 1 < 2^24.
*Nudge* (average over an area that is no power of two): the device's reciprocal sends ties away from zero, or
towards it, and so does a scale that is 2^-21 smaller or larger. 2^-21 exceeds the float32 error of a mean (2^-22)
and moves |v| ≤ 128½ by less than half the distance 1/(2·denominator) to the next value, up to a denominator of 2^12.
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

from linger.graph.qdq_writer import QdqWriter, Written
from linger.numeric.fixed import FLOAT32_EXACT, window_reciprocal

LARGEST_ERROR = 255
"""In LSB: the whole range of int8."""

_TIE = 1
_LARGEST_ZERO_POINT_SHIFT = 14
_LARGEST_DENOMINATOR = 2**12
_LIFT, _AVERAGE_NUDGE = 2.0**-23, 2.0**-21
_INT32_END = 2**31
_BYTE, _INT16_END, _SAFE_WEIGHT = 255, 32767, 64
_GEMM_RANK = 2


def quant(w: QdqWriter) -> Written | str:
    """Rounded by explicit nodes, because the sum with ½ is itself rounded to float32; then an exact QuantizeLinear."""
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
    """DQ + DQ; where both operands are rounded, the first is quantised to the output's scale beforehand."""
    a = w.attributes
    target = a["scale_o"]
    left = w.part(w.input(0), source=a["scale_x"], target=target)
    if min(a["scale_x"], a["scale_y"]) > target:
        left = w.dequantize(w.quantize(left, target), target)
    right = w.part(w.input(1), source=a["scale_y"], target=target)
    return Written(w.quantize(w.emit("Add", [left, right]), target, bits=a["o_bits"]))


def mul(w: QdqWriter) -> Written | str:
    """DQ · DQ, half unit, Q."""
    a = w.attributes
    source = a["scale_x"] * a["scale_y"]
    product = w.emit("Mul", [w.dequantize(w.input(0), a["scale_x"]), w.dequantize(w.input(1), a["scale_y"])])
    real = w.plus(product, 0.5 / source) if source > a["scale_o"] else product
    return Written(w.quantize(real, a["scale_o"], bits=a["o_bits"]))


def cat(w: QdqWriter) -> Written | str:
    """DQ of each, half unit where it is rounded, Concat, Q."""
    a = w.attributes
    target, sources = a["scale_o"], [a[f"scale_x_{i}"] for i in range(len(w.node.inputs))]
    if len(sources) == 1 and sources[0] <= target:
        return "runtimes drop a Concat of one input and merge what is around it"
    parts = [w.part(w.input(i), source=source, target=target) for i, source in enumerate(sources)]
    return Written(w.quantize(w.emit("Concat", parts, axis=a["dim"]), target, bits=a["o_bits"]))


def relu(w: QdqWriter) -> Written | str:
    """DQ, Relu, Q at one scale."""
    scale = w.scale_of(w.input(0))
    return Written(w.quantize(w.emit("Relu", [w.dequantize(w.input(0), scale)]), scale))


def clip(w: QdqWriter) -> Written | str:
    """DQ, Clip with real thresholds, Q at one scale."""
    ends = [w.known(1), w.known(2)]
    scale = w.scale_of(w.input(0))
    if ends[0] is None or ends[1] is None:
        return "its thresholds are no constants"
    real = w.dequantize(w.input(0), scale)
    thresholds = [w.initializer(float(end) / scale, np.float32, "limit") for end in ends if end is not None]
    return Written(w.quantize(w.emit("Clip", [real, *thresholds]), scale))


def max_pool(w: QdqWriter) -> Written | str:
    """DQ, MaxPool, Q at one scale."""
    scale = w.scale_of(w.input(0))
    pooled = w.emit("MaxPool", [w.dequantize(w.input(0), scale)], **w.attributes)
    return Written(w.quantize(pooled, scale))


def average_pool(w: QdqWriter) -> Written | str:
    """DQ, AveragePool, Q; ties by half unit or by nudge."""
    a = w.attributes
    source, target, area = a["scale_x"], a["scale_o"], math.prod(a["kernel_shape"])
    denominator = Fraction(area) * Fraction(source) / Fraction(target)
    if max(denominator, area) > _LARGEST_DENOMINATOR:
        return f"float32 cannot tell ties apart at a denominator above {_LARGEST_DENOMINATOR}"
    geometry = {name: a[name] for name in ("kernel_shape", "strides", "pads")}
    real = w.emit("AveragePool", [w.dequantize(w.input(0), source)], count_include_pad=1, **geometry)
    nudge, error_fused = 0.0, 0
    if area & (area - 1) == 0:
        real = w.plus(real, 0.5 / (area * source)) if denominator > 1 else real
    elif (denominator / 2).denominator == 1:
        away = Fraction(window_reciprocal(a["kernel_shape"])) > Fraction(1, area)
        nudge = _AVERAGE_NUDGE if away else -_AVERAGE_NUDGE
    return Written(w.quantize(real, target, bits=a["o_bits"], nudge=nudge), error_fused=error_fused)


@dataclass(frozen=True)
class _Product:
    """What the bound of the accumulator allows: how the bias is written and how the sum is rounded."""

    bias: NDArray[Any]
    zero_point: int = 0
    error: int = 0
    error_fused: int = 0
    error_saturated: int = 0
    reasons: tuple[str, ...] = ()

    def written(self, w: QdqWriter, total: ir.Value) -> Written:
        """The sum, quantised."""
        nudge = _LIFT if self.zero_point else 0.0
        a = w.attributes
        value = w.quantize(total, a["scale_o"], bits=a["o_bits"], zero_point=self.zero_point, nudge=nudge)
        return Written(value, self.error, self.error_fused, self.error_saturated, "; ".join(self.reasons))

    def bias_value(self, w: QdqWriter) -> ir.Value:
        """The bias as a real: int32 with its DequantizeLinear, or float32 where half a unit is in it."""
        unit = w.attributes["scale_x"] * w.attributes["scale_w"]
        if self.bias.dtype == np.int32:
            return w.dequantize(w.initializer(self.bias, np.int32, "bias"), unit)
        return w.initializer(self.bias / unit, np.float32, "bias")


def _product(w: QdqWriter) -> _Product | str:
    a, weight, bias = w.attributes, w.known(1), w.known(2)
    if weight is None or bias is None:
        return "its weights are no constants, so no bound of the sum is known"
    rows = np.abs(weight.astype(np.float64)).reshape(len(weight), -1)
    reach = rows.sum(axis=1) * 2.0 ** (a["data_bits"] - 1)
    shift = math.frexp(a["scale_x"] * a["scale_w"] / a["scale_o"])[1] - 1
    lifted = bias.astype(np.int64) + (128 << min(max(shift, 0), _LARGEST_ZERO_POINT_SHIFT))
    error_fused, zero_point, unit, reasons = 0, 0, 1, []
    if shift <= 0:
        chosen = bias.astype(np.float64 if w.symmetric else np.int32)
    elif shift <= _LARGEST_ZERO_POINT_SHIFT and not w.symmetric and lifted.max(initial=0) < _INT32_END:
        chosen, zero_point = lifted.astype(np.int32), -128
    else:
        chosen, unit, error_fused = bias.astype(np.float64) + 0.5, 2, _TIE
        reasons.append("integer kernels round the half unit in the bias away: ties go to even")
    total = float((reach + np.abs(chosen.astype(np.float64))).max(initial=0.0))
    if total >= _INT32_END:
        return "its sum may exceed int32"
    error = 0
    if unit * total >= FLOAT32_EXACT:
        error = _in_lsb(_rounding(rows.shape[1]) * total, shift)
        reasons.append("its sum may exceed 2^24, where float32 rounds")
    saturated = _in_lsb(_saturation(rows), shift) if rows.max(initial=0.0) > _SAFE_WEIGHT else 0
    return _Product(chosen, zero_point, error, error_fused, saturated, tuple(reasons))


def _rounding(terms: int) -> float:
    """Relative error of a float32 sum in any order (Higham): k·u/(1 − k·u), u = 2^-24, bias and its rounding counted."""
    k = (terms + 2) * 2.0**-24
    return k / (1.0 - k)


def _saturation(rows: NDArray[Any]) -> float:
    """Largest loss where two products u8×s8 are added in 16 bits, whatever taps meet.

    A pair loses max(0, 255·(|w1| + |w2|) − 32767), which is convex, so pairing the largest with the largest
    bounds every pairing.
    """
    ordered = -np.sort(-rows, axis=1)
    ordered = np.pad(ordered, ((0, 0), (0, ordered.shape[1] % 2)))
    pairs = ordered[:, ::2] + ordered[:, 1::2]
    return float(np.maximum(_BYTE * pairs - _INT16_END, 0).sum(axis=1).max(initial=0.0))


def _in_lsb(accumulator_error: float, shift: int) -> int:
    """An error of the sum, seen after the shift: one more because it may cross a tie."""
    return min(LARGEST_ERROR, math.floor(accumulator_error * 2.0**-shift) + 1)


def conv2d(w: QdqWriter) -> Written | str:
    """DQ of data, weights and bias, Conv, Q."""
    a, plan = w.attributes, _product(w)
    if isinstance(plan, str):
        return plan
    geometry = {name: a[name] for name in ("dilations", "group", "kernel_shape", "pads", "strides")}
    operands = [w.dequantize(w.input(0), a["scale_x"]), w.dequantize(w.input(1), a["scale_w"])]
    return plan.written(w, w.emit("Conv", [*operands, plan.bias_value(w)], **geometry))


def linear(w: QdqWriter) -> Written | str:
    """DQ of data, weights and bias, Gemm (two axes) or MatMul and Add, Q."""
    a, plan, weight = w.attributes, _product(w), w.known(1)
    if isinstance(plan, str) or weight is None:
        return str(plan)
    data, shape = w.dequantize(w.input(0), a["scale_x"]), w.input(0).shape
    if shape is not None and shape.rank() == _GEMM_RANK:
        factors = [data, w.dequantize(w.input(1), a["scale_w"])]
        return plan.written(w, w.emit("Gemm", [*factors, plan.bias_value(w)], transB=1))
    transposed = w.initializer(weight.T, np.int8, "weight")
    product = w.emit("MatMul", [data, w.dequantize(transposed, a["scale_w"])])
    return plan.written(w, w.emit("Add", [product, plan.bias_value(w)]))


FORMS: Mapping[str, Callable[[QdqWriter], Written | str]] = {
    "Quant": quant,
    "Dequant": dequant,
    "Requant": requant,
    "Conv2dInt": conv2d,
    "LinearInt": linear,
    "iqAdd": add,
    "iqMul": mul,
    "iqCat": cat,
    "AvgPool2dInt": average_pool,
    "MaxPool": max_pool,
    "Relu": relu,
    "Clip": clip,
}
"""A form writes through the writer and says what error it has, or says why there is none and writes nothing that counts."""
