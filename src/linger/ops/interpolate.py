# SPDX-License-Identifier: Apache-2.0
"""iqInterpolate: bilinear interpolation as two products with matrices of weights; scale and width stay.

The dialect has no such op; the format is linger's own. `rows` is [height, new height] and `columns` [width, new width], both
int16 in Q14: constants where the sizes are known when the model is exported, else computed in the file. Only the last
step rounds. A weight is off by at most 2^-15 on each axis, so a result is within ½ + 2^-14·D steps of the real one, D the
largest difference of two pixels: ½ + 1/64 for 8 bits, 4½ for 16.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks, curves
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T

_ONE = 2.0 ** (2 * curves.WEIGHT_BITS)


@op(
    "iqInterpolate", has_platform_quant=False, keeps_open_sizes=False, sized_inputs=("rows", "columns"), keeps_sign=True
)
def iq_interpolate(
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
    """O = sat(⌊(rowsᵀ·x·columns)·scale_o/(2^28·scale_x) + ½⌋), the products exact; linger writes scale_o = scale_x."""
    # the constant stands on the right: runtimes do not broadcast a left matrix over an empty batch
    total = k.swap_height_width(k.matmul(k.swap_height_width(k.matmul(x, columns)), rows))
    source = k.mul(k.scalar(_ONE), k.scalar(scale_x))
    return blocks.requantize(k, total, source=source, target=k.scalar(scale_o), bits=o_bits, unsigned=o_unsigned)


@iq_interpolate.constants("rows", "columns", need_scale=False)
def matrices(*, rows: curves.Matrix, columns: curves.Matrix, scale: float, bits: int) -> tuple[Any, ...]:
    """The weights as they are; the scale does not matter to them."""
    return rows, columns


@iq_interpolate.function("torch.nn.functional.interpolate", "torch.nn.functional.upsample")
def from_interpolate(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Settings:
    """Images, bilinear, up or down; without antialiasing."""
    if mode != "bilinear" or x.dim() != 4:
        return Refusal(f"mode={mode!r} of {x.dim()} axes has no integer form; use bilinear or nearest on images")
    if antialias:
        return Refusal("antialias=True has no integer form; leave it out")
    old = tuple(int(n) for n in x.shape[2:])
    sizes = curves.output_sizes(old, size, scale_factor)
    if sizes is None or min(*old, *sizes[0]) < 1:
        return Refusal("torch takes either a size or a factor, and images that are not empty")
    new, factors = sizes
    if recompute_scale_factor:
        factors = (None, None)
    rows, columns = (
        curves.linear_weights(*setting, align_corners=bool(align_corners))
        for setting in zip(old, new, factors, strict=True)
    )
    return {"rows": tuple(zip(*rows, strict=True)), "columns": tuple(zip(*columns, strict=True))}


def _sample(name: str, x: Draw, new: tuple[int, int], *, shift: int = 0, low: int = 0) -> Sample:
    # any weights from `low` to ½: the products must be exact, whatever they are
    rows, columns = Draw((x.shape[-2], new[0]), 16, low, 8192), Draw((x.shape[-1], new[1]), 16, low, 8192)
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**-shift}
    return Sample(name, (x, rows, columns), {"data_bits": x.bits, "o_bits": x.bits, **scales})


iq_interpolate.samples = (
    _sample("larger", Draw((2, 3, 4, 5)), (8, 10)),
    _sample("smaller", Draw((1, 2, 7, 6)), (3, 4)),
    _sample("means of four: many ties", Draw((8, 20, 2, 2)), (1, 2), low=8192),
    _sample("saturates", Draw((1, 2, 12, 12), low=100), (5, 5)),
    _sample("coarser output", Draw((1, 2, 4, 4)), (5, 6), shift=2),
    *(_sample(f"{bits} bits", Draw((1, 2, 4, 5), bits), (6, 7)) for bits in (4, 16)),
    _sample("empty batch", Draw((0, 2, 3, 3)), (4, 4)),
    _sample("one element", Draw((1, 1, 1, 1)), (1, 1)),
    _sample("unsigned", DrawUnsigned((2, 3, 4, 5)), (8, 10)).extended(o_unsigned=1),
)
