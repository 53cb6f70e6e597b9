# SPDX-License-Identifier: Apache-2.0
"""iqHardsigmoid: min(max(x + 3, 0), 6)/6, exact up to one rounding.

The dialect has no such op; the formula is linger's own. The quotient is rational: it is rounded once, half up, to the
output's steps, as integers would be, ⌊(2·t + 6)/12⌋.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


# A sixth is no whole number at any scale, so none is too fine.
@op(
    "iqHardsigmoid",
    limit=math.inf,
    is_pointwise=True,
    state_name="iqhardsigmoid",
    takes_unsigned=True,
    never_negative=True,
)
def iq_hardsigmoid(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0) -> T:
    """O = sat(⌊min(max(x + 3·scale_x, 0), 6·scale_x)·scale_o/(6·scale_x) + ½⌋), rounded once."""
    source = k.scalar(scale_x)
    ramp = blocks.ramp(k, k.wide(x), source)
    whole = blocks.round_sixth(k, k.mul(ramp, k.div(k.scalar(scale_o), source)))
    return blocks.stored(k, whole, o_bits, o_unsigned)


iq_hardsigmoid.used(lambda _settings, _constants: (-3.0, 3.0))  # the ramp
iq_hardsigmoid.real(lambda torch, x, **_: torch.nn.functional.hardsigmoid(x))


@iq_hardsigmoid.function("torch.nn.functional.hardsigmoid")
def from_hardsigmoid(x: Any, inplace: bool = False) -> Settings:
    """`inplace` is honored by the caller."""
    if getattr(x, "bits", 8) > 16:
        return Refusal("32 bits have no exact quotient; give the layer before it an output of 16 bits")
    return {}


_sample = Sample.single

iq_hardsigmoid.samples = (
    _sample("plain", Draw((4, 50)), 16.0, 64.0),
    _sample("one saturates", Draw((4, 50)), 16.0, 128.0),
    _sample("many ties", Draw((8, 50)), 32.0, 16.0),
    _sample("coarse input", Draw((4, 50)), 0.5, 64.0),
    _sample("coarse output", Draw((4, 50)), 64.0, 2.0),
    _sample("16 bits", Draw((4, 50), 16), 4096.0, 2.0**14),
    _sample("4 bits", Draw((4, 50), 4), 2.0, 4.0),
    _sample("empty", Draw((0, 3)), 16.0, 64.0),
    _sample("one element", Draw((1,)), 16.0, 64.0),
    _sample("unsigned", DrawUnsigned((4, 50)), 32.0, 128.0).extended(o_unsigned=1),
)
