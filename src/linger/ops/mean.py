# SPDX-License-Identifier: Apache-2.0
"""iqMean: the mean along one axis, which stays with size 1; linger's own op.

The sum is exact, and its quotient by the number of elements is rounded once, half up. (A mean over
the height and width of images is AvgPool2dInt, which the device has.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Refusal, Sample, op
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, T

_FINER = 10
_EXACT_BITS = 52


def _finest(scales: Iterable[float]) -> float:
    """A mean has finer steps than its input; ten bits more are enough, and exact."""
    return min(scales) * 2.0**_FINER


@op("iqMean", limit=_finest, state_name="iqmean__default_index")
def iq_mean(
    k: Kernel[T],
    x: T,
    *,
    dims: int,
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(⌊Σx·scale_o/(scale_x·N) + ½⌋) along the axis `dims` of N elements; the quotient is not rounded before."""
    x = k.wide(x)
    count = k.sum_along(k.add(k.mul(x, k.scalar(0.0)), k.scalar(1.0)), dims)
    ratio = k.div(k.scalar(scale_o), k.scalar(scale_x))
    mean = blocks.round_quotient(k, k.sum_along(x, dims), count, ratio=ratio)
    return k.store(blocks.saturate(k, mean, o_bits), o_bits)


@iq_mean.real
def real(torch: Any, x: Any, *, dims: int, **_: Any) -> Any:
    """The mean along one axis, which stays."""
    return torch.mean(x, dims, keepdim=True)


@iq_mean.function("torch.mean", "torch.Tensor.mean")
def from_mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Mapping[str, Any] | Refusal:
    """A mean over one axis that is kept; callers bring every other mean into this form."""
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not isinstance(dim, int) or not keepdim or not 0 <= dim < len(x.shape):
        return Refusal("its axes are not those of the tensor")
    count = int(x.shape[dim])
    if count == 0:
        return Refusal("there is no mean of no numbers")
    if count << (getattr(x, "bits", 8) + _FINER) >= 1 << _EXACT_BITS:
        return Refusal(f"the mean of {count} numbers of {x.bits} bits would not be exact; use fewer bits")
    return {"dims": dim}


def _sample(name: str, x: Draw, dims: int, scales: tuple[float, float], bits: int = 8) -> Sample:
    attributes: dict[str, Any] = {"dims": dims, "scale_x": scales[0], "scale_o": scales[1]}
    return Sample(name, (x,), attributes if bits == 8 else attributes | {"o_bits": bits})


iq_mean.samples = (
    _sample("plain", Draw((3, 7, 5)), 1, (16.0, 16.0)),
    _sample("finer", Draw((3, 4, 6)), 2, (16.0, 64.0)),
    _sample("coarser", Draw((3, 4, 6)), 2, (16.0, 4.0)),
    _sample("saturating", Draw((3, 4)), 0, (16.0, 256.0)),
    _sample("negative axis", Draw((3, 5, 4)), -2, (16.0, 32.0)),
    _sample("many ties", Draw((40, 6), low=-3, high=3), 1, (16.0, 16.0)),
    _sample("4 bits", Draw((3, 6), 4), 1, (4.0, 8.0), 4),
    _sample("16 bits", Draw((3, 41), 16), 1, (2048.0, 4096.0), 16),
    _sample("32 bits", Draw((3, 40), 32), 1, (2.0**20, 2.0**20), 32),
    _sample("empty", Draw((0, 3)), 1, (16.0, 8.0)),
    _sample("one element", Draw((1,)), 0, (16.0, 8.0)),
)
