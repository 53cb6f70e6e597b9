# SPDX-License-Identifier: Apache-2.0
"""iqClamp: rescaled and limited to real bounds; the form in which older files hold torch.clamp.

linger writes a clamp as Clip, which keeps the scale; it reads and computes this one. The bounds are rounded half up to
the output's steps. In older files scale_o is 127/max, so both bounds are whole there.
"""

from __future__ import annotations

from linger.dialect import PLATFORM_QUANT, Draw, Sample, op
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, T


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
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(min(max(⌊x·scale_o/scale_x + ½⌋, ⌊min·scale_o + ½⌋), ⌊max·scale_o + ½⌋))."""
    target = k.scalar(scale_o)
    low, high = (blocks.round_half_up(k, k.mul(k.scalar(end), target)) for end in (min, max))
    rescaled = blocks.rescale(k, k.wide(x), source=k.scalar(scale_x), target=target)
    return k.store(blocks.saturate(k, k.clip(rescaled, low, high), o_bits), o_bits)


def _sample(name: str, x: Draw, ends: tuple[float, float], scales: tuple[float, float], bits: int = 8) -> Sample:
    attributes = {"min": ends[0], "max": ends[1], "scale_x": scales[0], "scale_o": scales[1]}
    return Sample(name, (x,), attributes if bits == 8 else attributes | {"o_bits": bits})


iq_clamp.samples = (
    _sample("as older files have it", Draw((2, 3, 20)), (-8.0, 7.9375), (32.0, 16.0)),
    _sample("from zero", Draw((2, 3, 20)), (0.0, 1.984375), (16.0, 64.0)),
    _sample("bounds between steps", Draw((2, 30)), (-0.71875, 0.65625), (64.0, 16.0)),
    _sample("bounds beyond the range", Draw((2, 30)), (-100.0, 100.0), (16.0, 32.0)),
    _sample("16 bits", Draw((2, 30), 16), (-8.0, 7.9375), (2048.0, 1024.0), 16),
    _sample("16 to 8 bits", Draw((2, 30), 16), (-8.0, 7.9375), (2048.0, 16.0)),
    _sample("4 bits", Draw((2, 30), 4), (-1.0, 0.5), (4.0, 4.0), 4),
    _sample("empty", Draw((0, 3)), (-8.0, 7.9375), (16.0, 16.0)),
    _sample("one element", Draw((1,)), (-8.0, 7.9375), (16.0, 16.0)),
)
