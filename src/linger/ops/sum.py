# SPDX-License-Identifier: Apache-2.0
"""iqSum: the sum along one axis, which stays with size 1; exact, then rounded once.

Several axes are joined into one before it, and an axis that is not kept is removed behind it: both only move numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Refusal, Sample, op
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, T


@op(
    "iqSum",
    limit=min,
    if_missing="Replace the sum by an average pool, or by a product with a matrix of ones.",
    state_name="iqsum__default_index",
)
def iq_sum(
    k: Kernel[T],
    x: T,
    *,
    dims: int,
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(⌊Σx·scale_o/scale_x + ½⌋) along the axis `dims`."""
    total = k.sum_along(k.wide(x), dims)
    return blocks.requantize(k, total, source=k.scalar(scale_x), target=k.scalar(scale_o), bits=o_bits)


@iq_sum.real
def real(torch: Any, x: Any, *, dims: int, **_: Any) -> Any:
    """The sum along one axis, which stays."""
    return torch.sum(x, dims, keepdim=True)


@iq_sum.function("torch.sum", "torch.Tensor.sum")
def from_sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: object = None) -> Mapping[str, Any] | Refusal:
    """A sum over one axis that is kept; callers bring every other sum into this form."""
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not isinstance(dim, int) or not keepdim or not 0 <= dim < len(x.shape):
        return Refusal("its axes are not those of the tensor")
    return {"dims": dim}


def _sample(name: str, x: Draw, dims: int, scales: tuple[float, float], bits: int = 8) -> Sample:
    attributes: dict[str, Any] = {"dims": dims, "scale_x": scales[0], "scale_o": scales[1]}
    return Sample(name, (x,), attributes if bits == 8 else attributes | {"o_bits": bits})


iq_sum.samples = (
    _sample("plain", Draw((3, 4, 5)), 1, (16.0, 4.0)),
    _sample("last axis", Draw((3, 4, 6)), 2, (16.0, 8.0)),
    _sample("first axis, saturating", Draw((9, 4)), 0, (16.0, 16.0)),
    _sample("negative axis", Draw((3, 4, 5)), -2, (16.0, 2.0)),
    _sample("many ties", Draw((20, 4), low=-3, high=3), 1, (16.0, 8.0)),
    _sample("4 bits", Draw((3, 4), 4), 1, (4.0, 2.0), 4),
    _sample("16 bits", Draw((3, 40), 16), 1, (2048.0, 128.0), 16),
    _sample("32 bits", Draw((3, 40), 32), 1, (2.0**20, 2.0**14), 32),
    _sample("empty", Draw((0, 3)), 1, (16.0, 8.0)),
    _sample("one element", Draw((1,)), 0, (16.0, 8.0)),
)
