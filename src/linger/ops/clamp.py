# SPDX-License-Identifier: Apache-2.0
"""iqClamp: rescaled and limited to real bounds; the form in which older files hold torch.clamp.

linger writes a clamp as Clip, which keeps the scale; it reads and computes this one. The bounds are rounded half up to
the output's steps. In older files scale_o is 127/max, so both bounds are whole there.
"""

from __future__ import annotations

from linger.dialect import op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op("iqClamp")
def iq_clamp(
    k: Kernel[T],
    x: T,
    *,
    min: float,  # noqa: A002 - the file's name
    max: float,  # noqa: A002
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
) -> T:
    """O = sat(min(max(⌊x·scale_o/scale_x + ½⌋, ⌊min·scale_o + ½⌋), ⌊max·scale_o + ½⌋))."""
    target = k.scalar(scale_o)
    low, high = (blocks.round_half_up(k, k.mul(k.scalar(end), target)) for end in (min, max))
    rescaled = blocks.rescale(k, k.wide(x), source=k.scalar(scale_x), target=target)
    return k.store(blocks.saturate(k, k.clip(rescaled, low, high), o_bits), o_bits)


iq_clamp.samples = (
    Sample.single("as older files have it", Draw((2, 3, 20)), 32.0, 16.0, 8, min=-8.0, max=7.9375),
    Sample.single("from zero", Draw((2, 3, 20)), 16.0, 64.0, 8, min=0.0, max=1.984375),
    Sample.single("bounds between steps", Draw((2, 30)), 64.0, 16.0, 8, min=-0.71875, max=0.65625),
    Sample.single("bounds beyond the range", Draw((2, 30)), 16.0, 32.0, 8, min=-100.0, max=100.0),
    Sample.single("16 bits", Draw((2, 30), 16), 2048.0, 1024.0, 16, min=-8.0, max=7.9375),
    Sample.single("16 to 8 bits", Draw((2, 30), 16), 2048.0, 16.0, 8, min=-8.0, max=7.9375),
    Sample.single("4 bits", Draw((2, 30), 4), 4.0, 4.0, 4, min=-1.0, max=0.5),
    Sample.single("empty", Draw((0, 3)), 16.0, 16.0, 8, min=-8.0, max=7.9375),
    Sample.single("one element", Draw((1,)), 16.0, 16.0, 8, min=-8.0, max=7.9375),
)
