# SPDX-License-Identifier: Apache-2.0
"""iqWhere: of two quantized tensors, the first where a mask is set and the second elsewhere.

The mask is a tensor of booleans (or of zeros and ones). An attention masks its scores by this op with a scalar.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op("iqWhere", limit=min, state_name="iqwhere", has_own_counter=True)
def iq_where(
    k: Kernel[T], x: T, y: T, mask: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8
) -> T:
    """O = sat(⌊x·scale_o/scale_x + ½⌋) where mask ≠ 0, sat(⌊y·scale_o/scale_y + ½⌋) elsewhere."""
    left, right = blocks.rescale_pair(k, (x, scale_x), (y, scale_y), scale_o)
    chosen = k.where_less(k.scalar(0.0), k.wide(mask), left, right)
    return k.store(blocks.saturate(k, chosen, o_bits), o_bits)


def _sample(
    name: str, x: Draw, y: Draw, mask: tuple[int, ...], scales: tuple[float, float, float], bits: int = 8
) -> Sample:
    attributes: dict[str, Any] = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    inputs = (x, y, Draw(mask, 8, low=0, high=1))
    return Sample(name, inputs, attributes if bits == 8 else attributes | {"o_bits": bits})


iq_where.samples = (
    _sample("equal scales", Draw((2, 3, 4)), Draw((2, 3, 4)), (2, 3, 4), (16.0, 16.0, 16.0)),
    _sample("both shifted", Draw((2, 3, 4)), Draw((2, 3, 4)), (2, 3, 4), (64.0, 32.0, 16.0)),
    _sample("a scalar, a mask for every batch", Draw(()), Draw((2, 3, 4)), (3, 4), (16.0, 64.0, 16.0)),
    _sample("left shift saturates", Draw((2, 3)), Draw((2, 3)), (2, 3), (16.0, 16.0, 64.0)),
    _sample("wider output", Draw((), 16), Draw((2, 3)), (2, 3), (16.0, 16.0, 16.0), 16),
    _sample("16 bits", Draw((2, 3), 16), Draw((2, 3), 16), (2, 1), (1024.0, 256.0, 256.0), 16),
    _sample("32 bits", Draw((2, 3), 32), Draw((2, 3), 32), (2, 3), (1024.0, 1024.0, 1024.0), 32),
    _sample("4 bits", Draw((2, 3), 4), Draw((2, 3), 4), (2, 3), (4.0, 2.0, 2.0), 4),
    _sample("empty", Draw((0, 3)), Draw((0, 3)), (0, 3), (16.0, 16.0, 8.0)),
    _sample("one element", Draw((1,)), Draw((1,)), (1,), (16.0, 32.0, 8.0)),
)
