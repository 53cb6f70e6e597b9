# SPDX-License-Identifier: Apache-2.0
"""Means that do not depend on who summed in which order: the exact mean, rounded once."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 1 << 16
"""Largest array that a sum is taken of at once; the bound below is for this size."""

_SUM_ERROR = 2.0**-35
"""Relative error of a float64 sum of BLOCK non-negative numbers, in any order: below 2^16·2^-53, and as much again for
adding the sums and dividing."""

_MANTISSA_BITS = 53
_LOW_BITS = 26
_LOW_MASK = (1 << _LOW_BITS) - 1


def single_if_certain(total: float, count: int) -> float | None:
    """The float32 nearest to the mean of non-negative numbers whose float64 block sums add up to `total`.

    None where the rounding error of the sums leaves two candidates.
    """
    low = np.float32(total * (1 - _SUM_ERROR) / count)
    high = np.float32(total * (1 + _SUM_ERROR) / count)
    return float(low) if low == high and np.isfinite(high) else None


def exact_sum(block: NDArray[Any]) -> Fraction:
    """The sum of at most BLOCK non-negative numbers, without rounding."""
    if block.size == 0:
        return Fraction(0)
    if not np.issubdtype(block.dtype, np.floating):
        whole = block.astype(np.uint64)
        low = int(np.sum(whole & np.uint64(0xFFFFFFFF)))
        return Fraction(low + (int(np.sum(whole >> np.uint64(32))) << 32))
    mantissas, exponents = np.frexp(block.astype(np.float64))
    whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    smallest = int(exponents.min())
    places = exponents - smallest
    # halves of 27 and 26 bits: 2^16 of them add up below 2^53, so float64 weights are exact
    high_half = np.bincount(places, weights=(whole >> _LOW_BITS).astype(np.float64))
    low_half = np.bincount(places, weights=(whole & _LOW_MASK).astype(np.float64))
    total = 0
    for place, (upper, lower) in enumerate(zip(high_half, low_half, strict=True)):
        total += ((int(upper) << _LOW_BITS) + int(lower)) << place
    return Fraction(total) * Fraction(2) ** (smallest - _MANTISSA_BITS)


def nearest(value: Fraction, kind: type[np.floating[Any]]) -> float:
    """The floating-point number of a type that is nearest to a fraction; ties to the even mantissa.

    >>> nearest(Fraction(1, 3), np.float32)
    0.3333333432674408
    """
    guess = kind(float(value))  # within one step: the division is correctly rounded, the conversion nearly
    infinity = kind(np.inf)
    with np.errstate(over="ignore"):  # beside the largest number is infinity
        beside = (np.nextafter(guess, -infinity), guess, np.nextafter(guess, infinity))
    near = [c for c in beside if np.isfinite(c)]
    bits = np.uint32 if kind is np.float32 else np.uint64
    best = min(near, key=lambda c: (abs(Fraction(float(c)) - value), int(np.asarray(c, kind).view(bits)) & 1))
    return float(best)
