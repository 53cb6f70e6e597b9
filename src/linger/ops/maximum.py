# SPDX-License-Identifier: Apache-2.0
"""iqMax: the larger of two quantized tensors, element by element, at the coarser scale of the two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from linger.dialect import Interval, Refusal, Settings, op, two_operands
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, Sample, T


@op("iqMax", limit=min, picks=True, state_name="iqmax", keeps_sign=True)
def iq_max(
    k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(max(⌊x·scale_o/scale_x + ½⌋, ⌊y·scale_o/scale_y + ½⌋))."""
    left, right = blocks.rescale_pair(k, (x, scale_x), (y, scale_y), scale_o)
    return blocks.stored(k, k.where_less(left, right, right, left), o_bits, o_unsigned)


@iq_max.used
def used(settings: Mapping[str, Any], constants: Sequence[Interval]) -> Interval:
    """A constant operand limits the other one from below."""
    return max((low for low, _ in constants), default=-math.inf), math.inf


# rounding keeps the order, so the larger operand is chosen first, then rounded
iq_max.exact(lambda torch, x, y, **_: torch.maximum(x, y))
iq_max.function("torch.maximum", "torch.Tensor.maximum")(two_operands)


@iq_max.function("torch.max", "torch.Tensor.max")
def from_max(x: object, other: Any = None, *rest: Any, **more: Any) -> Settings:
    """torch.max of two tensors; of one tensor it is another function, which has no integer form."""
    if hasattr(other, "shape") and not rest and not more:
        return {}
    return Refusal("the maximum over an axis has no integer form yet")


iq_max.samples = Sample.sums()
