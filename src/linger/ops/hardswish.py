# SPDX-License-Identifier: Apache-2.0
"""iqHardswish: x·min(max(x + 3, 0), 6)/6, exact up to one rounding.

The dialect has no such op; the formula is linger's own. The product of integers is exact, and the sixth of it is
rational: it is rounded once, half up, to the output's steps.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


# A sixth is no whole number at any scale, so none is too fine.
@op("iqHardswish", limit=math.inf, is_pointwise=True, state_name="iqhardswish")
def iq_hardswish(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊x·min(max(x + 3·scale_x, 0), 6·scale_x)·scale_o/(6·scale_x²) + ½⌋), rounded once."""
    source, wide = k.scalar(scale_x), k.wide(x)
    product = k.mul(wide, blocks.ramp(k, wide, source))
    whole = blocks.round_sixth(k, k.mul(product, k.div(k.scalar(scale_o), k.mul(source, source))))
    return k.store(blocks.saturate(k, whole, o_bits), o_bits)


iq_hardswish.used(lambda _settings, _constants: (-3.0, math.inf))  # below −3 everything becomes zero
iq_hardswish.real(lambda torch, x, **_: torch.nn.functional.hardswish(x))


@iq_hardswish.function("torch.nn.functional.hardswish")
def from_hardswish(x: Any, inplace: bool = False) -> Settings:
    """`inplace` is honored by the caller."""
    if getattr(x, "bits", 8) > 16:
        return Refusal("32 bits have no exact product; give the layer before it an output of 16 bits")
    return {}


_sample = Sample.single

iq_hardswish.samples = (
    _sample("plain", Draw((4, 50)), 16.0, 16.0),
    _sample("finer output saturates", Draw((4, 50)), 16.0, 64.0),
    _sample("many ties", Draw((8, 50)), 4.0, 1.0),
    _sample("coarse input", Draw((4, 50)), 0.5, 0.5),
    _sample("narrow input", Draw((4, 50)), 1024.0, 512.0),
    _sample("16 bits", Draw((4, 50), 16), 4096.0, 4096.0),
    _sample("16 bits, narrow input", Draw((4, 50), 16), 2.0**20, 2.0**19),
    _sample("4 bits", Draw((4, 50), 4), 2.0, 2.0),
    _sample("empty", Draw((0, 3)), 16.0, 16.0),
    _sample("one element", Draw((1,)), 16.0, 16.0),
)
