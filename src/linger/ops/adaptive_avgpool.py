# SPDX-License-Identifier: Apache-2.0
"""iqAdaptiveAvgPool: average pooling to a number of windows, whatever the size of the image; linger's own op.

Where the size is known when the file is written, such a pool is AvgPool2dInt, which devices have. With open sizes the file
itself computes which pixels belong to which window (`rows` and `columns`) and how many they are. The integers are those of
AvgPool2dInt at every size.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import op
from linger.numeric import blocks, curves
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op("iqAdaptiveAvgPool", has_platform_quant=False, keeps_open_sizes=False, is_for_open_sizes=True, keeps_sign=True)
def iq_adaptive_avgpool(
    k: Kernel[T],
    x: T,
    rows: T,
    columns: T,
    *,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    o_unsigned: int = 0,
) -> T:
    """O = sat(⌊(rowsᵀ·x·columns)·r·scale_o/scale_x + ½⌋), r the reciprocal of the window's area as of AvgPool2dInt.

    `rows` [height, windows] and `columns` [width, windows] are int16: 1 where a pixel belongs to a window, else 0. Windows
    have fewer than 2^23 pixels.
    """
    total = _windows(k, x, rows, columns)
    empty = k.mul(k.sum_along(k.sum_along(k.wide(x), 0), 1), k.scalar(0.0))  # [1, 1, height, width], also of no images
    area = _windows(k, k.add(empty, k.scalar(1.0)), rows, columns)
    mean = k.mul(total, curves.window_reciprocal(k, area))
    source, target = k.scalar(scale_x), k.scalar(scale_o)
    return blocks.requantize(k, mean, source=source, target=target, bits=o_bits, unsigned=o_unsigned)


def _windows(k: Kernel[T], x: T, rows: T, columns: T) -> T:
    """The sum over each window."""
    return k.swap_height_width(k.matmul(k.swap_height_width(k.matmul(x, columns)), rows))


def _sample(name: str, x: Draw, windows: tuple[int, int], *, shift: int = 0) -> Sample:
    # any choice of pixels will do, if every window has some
    low, high = (1, 1) if windows == (1, 1) else (1, 2)
    rows = Draw((x.shape[-2], windows[0]), 16, low, high)
    columns = Draw((x.shape[-1], windows[1]), 16, low, high)
    scales: dict[str, Any] = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**-shift}
    return Sample(name, (x, rows, columns), {"data_bits": x.bits, "o_bits": x.bits, **scales})


iq_adaptive_avgpool.samples = (
    _sample("one window", Draw((2, 3, 5, 7)), (1, 1)),
    _sample("one window of a power of two", Draw((2, 3, 4, 8)), (1, 1)),
    _sample("several windows", Draw((2, 3, 6, 5)), (2, 3)),
    _sample("means of six: many ties", Draw((8, 20, 2, 3), low=-9, high=9), (1, 1)),
    _sample("means of four: many ties", Draw((8, 20, 2, 2), low=-9, high=9), (1, 1)),
    _sample("extremes", Draw((1, 2, 8, 8), low=-128, high=-120), (1, 1)),
    _sample("coarser output", Draw((1, 2, 6, 6)), (3, 2), shift=2),
    *(_sample(f"{bits} bits", Draw((1, 2, 6, 5), bits), (1, 2)) for bits in (4, 16)),
    _sample("empty batch", Draw((0, 2, 3, 3)), (1, 1)),
    _sample("one element", Draw((1, 1, 1, 1)), (1, 1)),
    _sample("unsigned", DrawUnsigned((2, 3, 5, 7)), (2, 3)).extended(o_unsigned=1),
)
