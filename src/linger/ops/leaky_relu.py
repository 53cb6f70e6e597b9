# SPDX-License-Identifier: Apache-2.0
"""iqLeakyRelu: multiplies negative integers by a slope; if that makes the range smaller, the output gets a finer scale.

The dialect has no such op, so the format is linger's own: `alpha` is a signed integer of at most 16 bits divided by a power of
two. A float32 attribute holds such a number exactly; 0.1 becomes 26214/2^18, with a relative error of 1.5e-5. A slope beyond ±1
would widen the range, so such a layer stays float; PReLU can be used instead, because its output may be coarser than its input.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks, fixed
from linger.numeric.kernel import Draw, Kernel, Sample, T

_SLOPE_BITS = 16
_EXTRA_BITS = 8


def _finest(scales: Iterable[float]) -> float:
    """Eight fraction bits more than the input has, which is enough for a slope of 2^-8."""
    return min(scales) * 2.0**_EXTRA_BITS


@op(
    "iqLeakyRelu",
    has_platform_quant=False,
    limit=_finest,
    is_pointwise=True,
    keeps_scale_unseen=True,
    state_name="iqleakyrelu",
    has_own_counter=True,
)
def iq_leaky_relu(
    k: Kernel[T], x: T, *, alpha: float, data_bits: int, o_bits: int, scale_x: float, scale_o: float
) -> T:
    """O = sat(⌊(x > 0 ? x : x·alpha)·scale_o/scale_x + ½⌋), the product exact; linger writes scale_o ≥ scale_x."""
    wide = k.wide(x)
    activated = k.where_less(k.scalar(0.0), wide, wide, k.mul(wide, k.scalar(alpha)))
    return blocks.requantize(k, activated, source=k.scalar(scale_x), target=k.scalar(scale_o), bits=o_bits)


# with the rounded slope that the file stores
iq_leaky_relu.real(lambda torch, x, *, alpha, **_: torch.nn.functional.leaky_relu(x, alpha))


def rounded_slope(slope: float) -> float:
    """The nearest slope with a 16-bit mantissa.

    >>> rounded_slope(0.25), rounded_slope(0.1) * 2**18
    (0.25, 26214.0)
    """
    scale = fixed.scale_for(abs(slope), _SLOPE_BITS)
    return fixed.round_half_up(Fraction(slope) * Fraction(scale)) / scale


@iq_leaky_relu.function("torch.nn.functional.leaky_relu", "torch.nn.functional.leaky_relu_")
def from_leaky_relu(x: object, negative_slope: float = 0.01, inplace: bool = False) -> Settings:
    """The slope as the file stores it; the caller handles `inplace`."""
    if not math.isfinite(negative_slope) or abs(negative_slope) > 1:
        return Refusal(f"negative_slope={negative_slope} is beyond ±1 and widens the range; use PReLU")
    return {"alpha": rounded_slope(float(negative_slope))}


def _sample(name: str, x: Draw, alpha: float, *, shift: int = 0) -> Sample:
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**-shift}
    return Sample(name, (x,), {"alpha": rounded_slope(alpha), "data_bits": x.bits, "o_bits": x.bits, **scales})


iq_leaky_relu.samples = (
    _sample("a tenth", Draw((2, 3, 20)), 0.1),
    _sample("a quarter: ties", Draw((2, 3, 20)), 0.25),
    _sample("minus one saturates", Draw((2, 20)), -1.0),
    _sample("no slope", Draw((2, 5)), 0.0),
    _sample("a whole slope changes nothing", Draw((2, 5)), 1.0),
    _sample("coarser output", Draw((2, 30)), 0.3, shift=2),
    _sample("finer output saturates", Draw((2, 30)), 0.3, shift=-1),
    *(_sample(f"{bits} bits", Draw((3, 40), bits), 0.2) for bits in (4, 16, 32)),
    _sample("empty", Draw((0, 3)), 0.1),
    _sample("one element", Draw((1,)), 0.1),
)
