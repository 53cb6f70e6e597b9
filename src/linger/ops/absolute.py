# SPDX-License-Identifier: Apache-2.0
"""iqAbs: magnitudes; scale and width stay. The lowest integer has no counterpart, so its magnitude saturates.

linger's own: no device is known to have it. It equals the larger of x and −x, which a chip with iqMax can compute.
"""

from __future__ import annotations

from linger.dialect import no_settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op("iqAbs", is_pointwise=True)
def iq_abs(k: Kernel[T], x: T, *, data_bits: int, o_bits: int, scale_x: float, scale_o: float) -> T:
    """O = sat(⌊|x|·scale_o/scale_x + ½⌋)."""
    wide, zero = k.wide(x), k.scalar(0.0)
    magnitude = k.where_less(wide, zero, k.sub(zero, wide), wide)
    return blocks.requantize(k, magnitude, source=k.scalar(scale_x), target=k.scalar(scale_o), bits=o_bits)


iq_abs.function(
    "torch.abs", "torch.abs_", "torch.absolute", methods=("abs", "abs_", "absolute", "absolute_", "__abs__")
)(no_settings)


def _sample(name: str, x: Draw, scale_o: float = 16.0) -> Sample:
    return Sample(name, (x,), {"data_bits": x.bits, "o_bits": x.bits, "scale_x": 16.0, "scale_o": scale_o})


iq_abs.samples = (
    *(_sample(f"{bits} bits", Draw((2, 3, 5), bits)) for bits in (4, 8, 16, 32)),
    _sample("coarser: ties", Draw((4, 20)), 8.0),
    _sample("finer saturates", Draw((2, 10)), 64.0),
    _sample("empty batch", Draw((0, 3))),
    _sample("one element", Draw((1,))),
)
