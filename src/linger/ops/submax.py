# SPDX-License-Identifier: Apache-2.0
"""iqSubMax: how far each number of a row lies below the largest one; scale and width stay.

linger's own: no device is known to have it. It stands before a softmax whose input goes beyond ±64, where the device's
Q25 ends: softmax(x) = softmax(x − max x), and what is 64 or more below the largest number has the probability 0 anyway.
"""

from __future__ import annotations

from linger.dialect import op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "iqSubMax",
    last_axis="dim",
    if_missing="Keep the scores within ±64 with linger.normalize_module; or quantize with linger.init(model, target=…), "
    "which leaves the subtraction out and says what is lost; or leave the softmax out: its largest input decides anyway.",
)
def iq_sub_max(k: Kernel[T], x: T, *, dim: int, data_bits: int, o_bits: int, scale_x: float, scale_o: float) -> T:
    """O = sat(⌊(x − max x)·scale_o/scale_x + ½⌋), the largest number along `dim`."""
    wide = k.wide(x)
    below = k.sub(wide, k.max_along(wide, dim))
    return blocks.requantize(k, below, source=k.scalar(scale_x), target=k.scalar(scale_o), bits=o_bits)


def _sample(name: str, x: Draw, *, dim: int = -1, scale_o: float = 1.0) -> Sample:
    widths = {"data_bits": x.bits, "o_bits": x.bits}
    return Sample(name, (x,), {"dim": dim, **widths, "scale_x": 1.0, "scale_o": scale_o})


iq_sub_max.samples = (
    *(_sample(f"{bits} bits saturate", Draw((4, 6), bits)) for bits in (4, 8, 16, 32)),
    _sample("in range", Draw((3, 40), low=-60, high=60)),
    _sample("another axis", Draw((2, 5, 6)), dim=1),
    _sample("coarser: ties", Draw((4, 20), low=-60, high=60), scale_o=0.5),
    _sample("empty", Draw((0, 3))),
    _sample("one element", Draw((1,))),
)
