# SPDX-License-Identifier: Apache-2.0
"""iqMean: the mean along one axis, which stays with size 1; linger's own op.

The sum is exact, and its quotient by the number of elements is rounded once, half up. (A mean over
the height and width of images is AvgPool2dInt, which the device has.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from linger.dialect import Refusal, Settings, kept_axis, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T

_FINER = 10
_EXACT_BITS = 52


def _finest(scales: Iterable[float]) -> float:
    """A mean has finer steps than its input; ten bits more are enough, and exact."""
    return min(scales) * 2.0**_FINER


@op("iqMean", limit=_finest, state_name="iqmean__default_index", keeps_sign=True)
def iq_mean(
    k: Kernel[T], x: T, *, dims: int, scale_x: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(⌊Σx·scale_o/(scale_x·N) + ½⌋) along the axis `dims` of N elements; the quotient is not rounded before."""
    x = k.wide(x)
    count = k.sum_along(k.add(k.mul(x, k.scalar(0.0)), k.scalar(1.0)), dims)
    ratio = k.div(k.scalar(scale_o), k.scalar(scale_x))
    mean = blocks.round_quotient(k, k.sum_along(x, dims), count, ratio=ratio)
    return blocks.stored(k, mean, o_bits, o_unsigned)


iq_mean.real(lambda torch, x, *, dims, **_: torch.mean(x, dims, keepdim=True))


@iq_mean.function("torch.mean", "torch.Tensor.mean")
def from_mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Settings:
    """A mean over one axis that is kept; callers bring every other mean into this form."""
    refusal = kept_axis(x, dim, keepdim=keepdim, dtype=dtype)
    if refusal is not None:
        return refusal
    count = int(x.shape[dim])
    if count == 0:
        return Refusal("there is no mean of no numbers")
    if count << (getattr(x, "bits", 8) + _FINER) >= 1 << _EXACT_BITS:
        return Refusal(f"the mean of {count} numbers of {x.bits} bits would not be exact; use fewer bits")
    return {"dims": dim}


iq_mean.samples = (
    Sample.single("plain", Draw((3, 7, 5)), 16.0, 16.0, dims=1),
    Sample.single("finer", Draw((3, 4, 6)), 16.0, 64.0, dims=2),
    Sample.single("coarser", Draw((3, 4, 6)), 16.0, 4.0, dims=2),
    Sample.single("saturating", Draw((3, 4)), 16.0, 256.0, dims=0),
    Sample.single("negative axis", Draw((3, 5, 4)), 16.0, 32.0, dims=-2),
    Sample.single("many ties", Draw((40, 6), low=-3, high=3), 16.0, 16.0, dims=1),
    Sample.single("4 bits", Draw((3, 6), 4), 4.0, 8.0, dims=1),
    Sample.single("16 bits", Draw((3, 41), 16), 2048.0, 4096.0, dims=1),
    Sample.single("32 bits", Draw((3, 40), 32), 2.0**20, 2.0**20, dims=1),
    Sample.single("empty", Draw((0, 3)), 16.0, 8.0, dims=1),
    Sample.single("one element", Draw((1,)), 16.0, 8.0, dims=0),
    Sample.single("unsigned", DrawUnsigned((3, 7, 5)), 16.0, 32.0, dims=1).extended(o_unsigned=1),
)
