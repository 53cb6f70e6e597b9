# SPDX-License-Identifier: Apache-2.0
"""Scales that stay on a device: in training, reading one back to the host would stall a GPU once for every tensor.

There a scale, or the range that it follows from, is a float64 tensor without axes; on the CPU it is a Python number, which
is faster. Both follow the rules of `linger.numeric.fixed`, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.fixed import MAX_EXPONENT, NEGLIGIBLE, limits, scale_for

Scale = Any
"""A power of two, or the largest magnitude it follows from: a number or a tensor, which are computed with alike."""


def scale_for_range(largest: Scale, bits: int) -> Scale:
    """`fixed.scale_for`, for a tensor too: the largest power of two at which `largest` still fits. NaN stays NaN."""
    if not isinstance(largest, Tensor):
        return scale_for(largest, bits)
    quotient = limits(bits)[1] / largest.double()
    # quotient = m·2^e with ½ ≤ m < 1, so the power of two at or below it is 2^(e−1) = quotient/(2m), without rounding
    exact = quotient / (2.0 * torch.frexp(quotient).mantissa)
    held = exact.clamp(max=2.0**MAX_EXPONENT)
    return held.masked_fill(largest < NEGLIGIBLE, 2.0 ** (bits - 1))


def smallest(scales: Sequence[Scale]) -> Scale:
    """The least of some scales; all must be on one device, or numbers."""
    return _reduced(min, torch.minimum, scales)


def largest_of(scales: Sequence[Scale]) -> Scale:
    """The greatest of some scales."""
    return _reduced(max, torch.maximum, scales)


def _reduced(plain: Callable[..., float], pair: Callable[..., Tensor], scales: Sequence[Scale]) -> Scale:
    tensors = [s for s in scales if isinstance(s, Tensor)]
    if not tensors:
        return plain(scales)
    total = tensors[0]
    for other in tensors[1:]:
        total = pair(total, other)
    numbers: list[float] = [s for s in scales if not isinstance(s, Tensor) and math.isfinite(s)]
    if not numbers:
        return total
    return total.clamp(max=min(numbers)) if plain is min else total.clamp(min=max(numbers))


def limit_of(rule: Callable[..., Scale], scales: Sequence[Scale]) -> Scale:
    """What an op's rule makes of its operands' scales, with Python's min and max done on the device."""
    if not [s for s in scales if isinstance(s, Tensor)]:
        return rule(scales)
    if rule is min:
        return smallest(scales)
    return largest_of(scales) if rule is max else rule(scales)


def magnitude_within(low: Scale, high: Scale, interval: tuple[float, float]) -> Scale:
    """The largest magnitude of numbers from `low` to `high` once they are limited to an interval around zero."""
    if not isinstance(high, Tensor):
        return max(min(high, interval[1]), -max(low, interval[0]), 0.0)
    limited = torch.maximum(high.clamp(max=interval[1]), -low.clamp(min=interval[0])).clamp(min=0.0)
    return limited.masked_fill(~(high.isfinite() & low.isfinite()), math.nan)
