# SPDX-License-Identifier: Apache-2.0
"""iqSum: the sum along one axis, which stays with size 1; exact, then rounded once.

Several axes are joined into one before it, and an axis that is not kept is removed behind it: both only move numbers.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import Settings, kept_axis, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op(
    "iqSum",
    limit=min,
    if_missing="Replace the sum by an average pool, or by a product with a matrix of ones.",
    state_name="iqsum__default_index",
    keeps_sign=True,
)
def iq_sum(k: Kernel[T], x: T, *, dims: int, scale_x: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0) -> T:
    """O = sat(⌊Σx·scale_o/scale_x + ½⌋) along the axis `dims`."""
    total = k.sum_along(k.wide(x), dims)
    source, target = k.scalar(scale_x), k.scalar(scale_o)
    return blocks.requantize(k, total, source=source, target=target, bits=o_bits, unsigned=o_unsigned)


iq_sum.real(lambda torch, x, *, dims, **_: torch.sum(x, dims, keepdim=True))


@iq_sum.function("torch.sum", "torch.Tensor.sum")
def from_sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Settings:
    """A sum over one axis that is kept; callers bring every other sum into this form."""
    return kept_axis(x, dim, keepdim=keepdim, dtype=dtype) or {"dims": dim}


iq_sum.samples = (
    Sample.single("plain", Draw((3, 4, 5)), 16.0, 4.0, dims=1),
    Sample.single("last axis", Draw((3, 4, 6)), 16.0, 8.0, dims=2),
    Sample.single("first axis, saturating", Draw((9, 4)), 16.0, 16.0, dims=0),
    Sample.single("negative axis", Draw((3, 4, 5)), 16.0, 2.0, dims=-2),
    Sample.single("many ties", Draw((20, 4), low=-3, high=3), 16.0, 8.0, dims=1),
    Sample.single("4 bits", Draw((3, 4), 4), 4.0, 2.0, dims=1),
    Sample.single("16 bits", Draw((3, 40), 16), 2048.0, 128.0, dims=1),
    Sample.single("32 bits", Draw((3, 40), 32), 2.0**20, 2.0**14, dims=1),
    Sample.single("empty", Draw((0, 3)), 16.0, 8.0, dims=1),
    Sample.single("one element", Draw((1,)), 16.0, 8.0, dims=0),
    Sample.single("unsigned", DrawUnsigned((3, 4, 5)), 16.0, 4.0, dims=1).extended(o_unsigned=1),
)
