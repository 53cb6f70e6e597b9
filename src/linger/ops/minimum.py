# SPDX-License-Identifier: Apache-2.0
"""iqMin: the smaller of two quantized tensors, element by element, at the coarser scale of the two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from linger.dialect import Interval, Refusal, Settings, op, two_operands
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, Sample, T


@op("iqMin", limit=min, picks=True, state_name="iqmin", has_own_counter=True, keeps_sign=True)
def iq_min(
    k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(min(⌊x·scale_o/scale_x + ½⌋, ⌊y·scale_o/scale_y + ½⌋))."""
    left, right = blocks.rescale_pair(k, (x, scale_x), (y, scale_y), scale_o)
    return blocks.stored(k, k.where_less(left, right, left, right), o_bits, o_unsigned)


@iq_min.used
def used(settings: Mapping[str, Any], constants: Sequence[Interval]) -> Interval:
    """A constant operand limits the other one from above."""
    return -math.inf, min((high for _, high in constants), default=math.inf)


# rounding keeps the order, so the smaller operand is chosen first, then rounded
iq_min.exact(lambda torch, x, y, **_: torch.minimum(x, y))
iq_min.function("torch.minimum", "torch.Tensor.minimum")(two_operands)


@iq_min.function("torch.min", "torch.Tensor.min")
def from_min(x: object, other: Any = None, *rest: Any, **more: Any) -> Settings:
    """torch.min of two tensors; of one tensor it is another function, which has no integer form."""
    if hasattr(other, "shape") and not rest and not more:
        return {}
    return Refusal("the minimum over an axis has no integer form yet")


iq_min.samples = Sample.sums()
