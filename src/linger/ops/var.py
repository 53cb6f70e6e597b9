# SPDX-License-Identifier: Apache-2.0
"""iqVar: the variance along one axis, which stays with size 1; exact sums, then rounded once, half up.

With S1 = Σx and S2 = Σx² over N numbers the variance is (N·S2 − S1²)/(N·(N − unbiased)).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from linger.dialect import Refusal, Settings, kept_axis, op
from linger.numeric import blocks, curves
from linger.numeric.kernel import Draw, Kernel, Sample, T


def _finest(scales: Iterable[float]) -> float:
    """A square has twice the bits after the point; finer than that the sums would not be exact."""
    return min(scales) ** 2


@op("iqVar", texts={"castor_mode": "luna"}, limit=_finest, chip_limits=("variance",), state_name="iqvar")
def iq_var(k: Kernel[T], x: T, *, dim: int, unbiased: int = 1, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """Y = sat(⌊(N·Σx² − (Σx)²)/(N·(N − unbiased))·scale_o/scale_x² + ½⌋) along the axis `dim` of N elements.

    The quotient is not rounded before.
    """
    x = k.wide(x)
    count = k.sum_along(k.add(k.mul(x, k.scalar(0.0)), k.scalar(1.0)), dim)
    total, squares = k.sum_along(x, dim), k.sum_along(k.mul(x, x), dim)
    spread = k.sub(k.mul(count, squares), k.mul(total, total))
    divisor = k.mul(count, k.sub(count, k.scalar(unbiased)))
    ratio = k.div(k.scalar(scale_o), k.mul(k.scalar(scale_x), k.scalar(scale_x)))
    variance = blocks.round_quotient(k, spread, divisor, ratio=ratio)
    return k.store(blocks.saturate(k, variance, o_bits), o_bits)


iq_var.real(lambda torch, x, *, dim, unbiased, **_: torch.var(x, dim, correction=unbiased, keepdim=True))


@iq_var.function("torch.var", "torch.Tensor.var")
def from_var(
    x: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None
) -> Settings:
    """A variance over one axis that is kept; callers bring every other one into this form."""
    if correction is not None:
        return Refusal(f"a correction of {correction} has no integer form; use 0 or 1")
    refusal = kept_axis(x, dim, keepdim=keepdim)
    if refusal is not None:
        return refusal
    count, bits = int(x.shape[dim]), getattr(x, "bits", 8)
    if count <= int(unbiased):
        return Refusal(f"{count} numbers have no variance")
    if not curves.is_exact(2 * count, bits):
        return Refusal(f"the variance of {count} numbers of {bits} bits would not be exact; use fewer bits")
    return {"dim": dim, "unbiased": int(unbiased)}


@iq_var.function("torch.std", "torch.Tensor.std")
def from_std(x: object, *settings: Any, **more: Any) -> Refusal:
    """The device has no square root."""
    return Refusal("there is no square root of integers; use var")


def _sample(name: str, x: Draw, scales: tuple[float, float], *, dim: int = 1, unbiased: int = 1) -> Sample:
    return Sample.single(name, x, *scales, dim=dim, unbiased=unbiased)


iq_var.samples = (
    _sample("plain", Draw((3, 7, 5)), (16.0, 2.0)),
    _sample("of everything", Draw((3, 7, 5)), (16.0, 2.0), unbiased=0),
    _sample("last axis", Draw((3, 4, 6)), (16.0, 4.0), dim=2),
    _sample("saturating", Draw((3, 4)), (16.0, 256.0), dim=0),
    _sample("negative axis", Draw((3, 5, 4)), (16.0, 2.0), dim=-2),
    _sample("many ties", Draw((60, 3), low=-2, high=2), (4.0, 16.0)),
    _sample("4 bits", Draw((3, 6), 4), (4.0, 0.5)),
    _sample("16 bits", Draw((3, 41), 16), (2048.0, 64.0)),
    _sample("long lines of 16 bits", Draw((2, 1024), 16), (2048.0, 64.0)),
    _sample("empty", Draw((0, 3)), (16.0, 8.0)),
    _sample("two elements", Draw((2,)), (16.0, 1.0), dim=0),
    _sample("one element", Draw((1,)), (16.0, 8.0), dim=0, unbiased=0),
)
