# SPDX-License-Identifier: Apache-2.0
"""Which pixels an interpolated one comes from, and with which weights: the geometry of torch's interpolate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import cast

import numpy as np

from linger.numeric.fixed import round_half_up

WEIGHT_BITS = 14
"""Fraction of a weight: 1 is 2^14, the largest power of two that 16 bits hold."""

Matrix = tuple[tuple[int, ...], ...]


def output_sizes(
    old: Sequence[int], size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]] | None:
    """Sizes of the result, and the factors that were given (None for a size); None where both or neither are.

    >>> output_sizes((4, 5), None, 1.5)
    ((6, 7), (1.5, 1.5))
    >>> output_sizes((4, 5), (8, 3), None)
    ((8, 3), (None, None))
    """
    if (size is None) == (scale_factor is None):
        return None
    given = scale_factor if size is None else size
    per_axis = tuple(given) if isinstance(given, Sequence) else (given,) * len(old)
    if len(per_axis) != len(old):
        return None
    if size is not None:
        return tuple(int(cast(int, n)) for n in per_axis), (None,) * len(old)
    factors = tuple(float(cast(float, f)) for f in per_axis)
    return tuple(math.floor(int(n) * f) for n, f in zip(old, factors, strict=True)), factors


@cache
def nearest_places(old: int, new: int, factor: float | None, *, is_exact: bool) -> tuple[int, ...]:
    """The pixel each new one repeats, in float32 as torch computes it; `is_exact` for mode nearest-exact.

    >>> nearest_places(4, 6, None, is_exact=False)
    (0, 0, 1, 2, 2, 3)
    """
    step = np.float32(1.0 / factor) if factor else np.float32(old) / np.float32(new)
    offset = np.float32(0.5 if is_exact else 0.0)
    places = np.floor((np.arange(new, dtype=np.float32) + offset) * step).astype(np.int64)
    return tuple(np.minimum(places, old - 1).tolist())


@cache
def linear_weights(old: int, new: int, factor: float | None, *, align_corners: bool) -> Matrix:
    """Row i holds the weights of the old pixels in the new pixel i; each row adds up to 2^14.

    The second of two neighbours has the weight ⌊fraction·2^14 + ½⌋, the first what is left of 2^14.

    >>> linear_weights(2, 4, None, align_corners=False)
    ((16384, 0), (12288, 4096), (4096, 12288), (0, 16384))
    """
    one = 1 << WEIGHT_BITS
    if align_corners:
        step, offset = (Fraction(old - 1, new - 1) if new > 1 else Fraction(0)), Fraction(0)
    else:
        step = 1 / Fraction(factor) if factor else Fraction(old, new)
        offset = step / 2 - Fraction(1, 2)
    rows = []
    for place in range(new):
        source = max(place * step + offset, Fraction(0))
        first = min(math.floor(source), old - 1)
        second = min(first + 1, old - 1)
        weight = round_half_up(min(source - first, Fraction(1)) * one)
        row = [0] * old
        row[first] += one - weight
        row[second] += weight
        rows.append(tuple(row))
    return tuple(rows)
