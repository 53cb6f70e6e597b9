# SPDX-License-Identifier: Apache-2.0
"""iqMax: the larger of two quantized tensors, element by element, at the coarser scale of the two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Interval, Refusal, Sample, op
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, T


@op("iqMax", limit=min, picks=True, state_name="iqmax")
def iq_max(
    k: Kernel[T],
    x: T,
    y: T,
    *,
    scale_x: float,
    scale_y: float,
    scale_o: float,
    o_bits: int = 8,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(max(⌊x·scale_o/scale_x + ½⌋, ⌊y·scale_o/scale_y + ½⌋))."""
    target = k.scalar(scale_o)
    left = blocks.rescale(k, k.wide(x), source=k.scalar(scale_x), target=target)
    right = blocks.rescale(k, k.wide(y), source=k.scalar(scale_y), target=target)
    return k.store(blocks.saturate(k, k.where_less(left, right, right, left), o_bits), o_bits)


@iq_max.used
def used(settings: Mapping[str, Any], constants: Sequence[Interval]) -> Interval:
    """A constant operand limits the other one from below."""
    return max((low for low, _ in constants), default=-math.inf), math.inf


@iq_max.exact
def exact(torch: Any, x: Any, y: Any, *, bits: Sequence[int]) -> Any:
    """Rounding keeps the order, so the larger operand is chosen first, then rounded."""
    del bits
    return torch.maximum(x, y)


@iq_max.function("torch.maximum", "torch.Tensor.maximum")
def from_maximum(x: object, other: object) -> Mapping[str, Any]:
    """torch.maximum has no settings."""
    return {}


@iq_max.function("torch.max", "torch.Tensor.max")
def from_max(x: object, other: Any = None, *rest: Any, **more: Any) -> Mapping[str, Any] | Refusal:
    """torch.max of two tensors; of one tensor it is another function, which has no integer form."""
    if hasattr(other, "shape") and not rest and not more:
        return {}
    return Refusal("the maximum over an axis has no integer form yet")


_sample = Sample.pair

iq_max.samples = (
    _sample("equal scales", Draw((2, 3, 4)), Draw((2, 3, 4)), (16.0, 16.0, 16.0)),
    _sample("both shifted", Draw((2, 3, 4)), Draw((2, 3, 4)), (64.0, 32.0, 16.0)),
    _sample("no shift of one, broadcast", Draw((2, 3, 4)), Draw((3, 1)), (16.0, 64.0, 16.0)),
    _sample("left shift saturates", Draw((2, 3)), Draw((2, 3)), (16.0, 16.0, 64.0)),
    _sample("16 bits", Draw((2, 3), 16), Draw((2, 3), 16), (1024.0, 256.0, 256.0), 16),
    _sample("4 bits", Draw((2, 3), 4), Draw((2, 3), 4), (4.0, 2.0, 2.0), 4),
    _sample("empty", Draw((0, 3)), Draw((0, 3)), (16.0, 16.0, 8.0)),
    _sample("one element", Draw((1,)), Draw((1,)), (16.0, 32.0, 8.0)),
)
