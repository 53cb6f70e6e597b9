# SPDX-License-Identifier: Apache-2.0
"""iqPRelu: negative integers are multiplied by learned slopes, one for all channels or one each.

The dialect has no such op, so the format is linger's own: `w` is [1] or [channels], whole numbers of 16 bits at their
own scale, the finest that holds the largest slope (a slope of 0.1 is off by at most 1.6e-5 of itself). Slopes may be
negative or beyond 1. The range of the output is observed. Where it is smaller than that of x the output's scale is finer:
both sides are products at scale_x·scale_w, which are shifted right only. Older models have a scale of at most that of x.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from linger.dialect import Settings, op
from linger.numeric import blocks
from linger.numeric.fixed import FLOAT32_BITS
from linger.numeric.kernel import Draw, Kernel, Sample, T

_SLOPE_BITS = 16


def _finest(scales: Iterable[float]) -> float:
    """Neither side of x is shifted left."""
    scale_x, scale_w = scales
    return scale_x * (1.0 + scale_w - abs(1.0 - scale_w)) * 0.5  # scale_x·min(1, scale_w), for a tensor too


@op("iqPRelu", limit=_finest, keeps_shape=True, finer_limit=math.prod, state_name="iqprelu")
def iq_prelu(k: Kernel[T], x: T, w: T, *, scale_x: float, scale_w: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊x·(x > 0 ? scale_w : w[channel])·scale_o/(scale_x·scale_w) + ½⌋), the product exact, one rounding."""
    wide, unit = k.wide(x), k.scalar(scale_w)
    slope = k.where_less(k.scalar(0.0), wide, unit, k.wide(k.per_channel(w, x)))
    source = k.mul(k.scalar(scale_x), unit)
    return blocks.requantize(k, k.mul(wide, slope), source=source, target=k.scalar(scale_o), bits=o_bits)


@iq_prelu.exact
def exact(torch: Any, x: Any, w: Any, *, bits: Sequence[int]) -> Any:
    """The product where x is negative, in float64 where float32 could not hold it."""
    is_narrow = bits[0] + _SLOPE_BITS <= FLOAT32_BITS
    return torch.prelu(x, w.to(x.dtype)) if is_narrow else torch.prelu(x.double(), w.double())


@iq_prelu.function("torch.prelu", "torch.Tensor.prelu", "torch.nn.functional.prelu")
def from_prelu(x: object, weight: object) -> Settings:
    """torch.prelu has no settings."""
    return {}


def _sample(name: str, x: Draw, slopes: int, scales: tuple[float, float, float]) -> Sample:
    attributes: dict[str, Any] = dict(zip(("scale_x", "scale_w", "scale_o"), scales, strict=True))
    w = Draw((slopes,), 16)
    return Sample(name, (x, w), attributes if x.bits == 8 else attributes | {"o_bits": x.bits})


iq_prelu.samples = (
    _sample("a slope for each channel", Draw((2, 3, 4, 5)), 3, (16.0, 2.0**15, 16.0)),
    _sample("one slope", Draw((2, 3, 4, 5)), 1, (16.0, 2.0**15, 16.0)),
    _sample("signals", Draw((2, 3, 9)), 3, (16.0, 2.0**15, 8.0)),
    _sample("rows", Draw((4, 30)), 30, (16.0, 2.0**15, 16.0)),
    _sample("steep slopes saturate", Draw((2, 3, 4, 4)), 3, (16.0, 2.0**9, 16.0)),
    _sample("very steep slopes", Draw((2, 3, 4, 4)), 3, (16.0, 0.5, 8.0)),
    _sample("16 bits", Draw((2, 3, 40), 16), 3, (1024.0, 2.0**15, 512.0)),
    _sample("4 bits", Draw((2, 3, 10), 4), 3, (4.0, 2.0**16, 4.0)),
    _sample("empty batch", Draw((0, 3, 4)), 3, (16.0, 2.0**15, 16.0)),
    _sample("one axis", Draw((5,)), 1, (16.0, 2.0**15, 16.0)),
    _sample("one element", Draw((1,)), 1, (16.0, 2.0**15, 8.0)),
)
