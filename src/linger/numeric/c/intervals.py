# SPDX-License-Identifier: Apache-2.0
"""Intervals of whole numbers, and the C types that hold them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import product as pairs

Interval = tuple[int, int]
"""The smallest and the largest number that a value can have, both included."""

INT32, INT64 = "int32_t", "int64_t"
WIDTHS = {INT32: 32, INT64: 64}
RANGES: dict[str, Interval] = {
    "uint8_t": (0, 1),
    **{f"int{bits}_t": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
}
"""What the elements of an array of each type can be; bytes without a sign are booleans."""


def is_inside(inner: Interval, outer: Interval) -> bool:
    """Whether every number of `inner` is one of `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that holds all of these.

    >>> hull([(0, 3), (-2, 1)])
    (-2, 3)
    """
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def meet(a: Interval, b: Interval) -> Interval:
    """What two intervals share; the first one where that is nothing."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def times(a: Interval, b: Interval) -> Interval:
    """The products of two numbers.

    >>> times((-2, 3), (-5, 1))
    (-15, 10)
    """
    corners = [x * y for x, y in pairs(a, b)]
    return min(corners), max(corners)


def square(a: Interval) -> Interval:
    """The products of a number with itself.

    >>> square((-3, 2))
    (0, 9)
    """
    largest = max(a[0] ** 2, a[1] ** 2)
    return (0 if a[0] <= 0 <= a[1] else min(a[0] ** 2, a[1] ** 2)), largest


def shifted(a: Interval, amounts: Interval) -> Interval:
    """⌊x/2^n⌋ for n of an interval of whole numbers that are not negative."""
    corners = [x >> n for x, n in pairs(a, amounts)]
    return min(corners), max(corners)


def masked(a: Interval, bits: int) -> Interval:
    """X mod 2^bits: exact where the interval does not leave one block of 2^bits numbers.

    >>> masked((-1, -1), 4), masked((3, 18), 4)
    ((15, 15), (0, 15))
    """
    size = 1 << bits
    return (a[0] % size, a[1] % size) if a[0] >> bits == a[1] >> bits else (0, size - 1)


def floor_divided(a: Interval, b: Interval) -> Interval:
    """⌊x/y⌋ for y > 0."""
    corners = [x // y for x, y in pairs(a, b)]
    return min(corners), max(corners)


def sums(term: Interval, count: int) -> Interval:
    """Sums of up to `count` such terms: also every partial sum on the way."""
    return count * min(term[0], 0), count * max(term[1], 0)


def arithmetic_type(*intervals: Interval) -> str | None:
    """The C type to compute in: 32 bits where everything fits, else 64; None beyond."""
    found = hull(intervals)
    return next((ctype for ctype in (INT32, INT64) if is_inside(found, RANGES[ctype])), None)


def storage_type(interval: Interval) -> str | None:
    """The smallest C type for an array of such numbers."""
    types = ("int8_t", "int16_t", INT32, INT64)
    return next((ctype for ctype in types if is_inside(interval, RANGES[ctype])), None)


def literal(value: int, ctype: str) -> str:
    """A number as C text; the smallest ones have names, because C has no negative literals.

    >>> literal(-7, INT32), literal(1 << 40, INT64), literal(-(1 << 31), INT32)
    ('-7', 'INT64_C(1099511627776)', 'INT32_MIN')
    """
    if value == RANGES[ctype][0] and ctype in WIDTHS:
        return f"INT{WIDTHS[ctype]}_MIN"
    if ctype == INT64:
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    return str(value)


def dyadic(value: float) -> tuple[int, int]:
    """A finite float as m·2^e with m odd (or 0·2^0), exactly.

    >>> dyadic(0.75), dyadic(-8.0), dyadic(0.0)
    ((3, -2), (-1, 3), (0, 0))
    """
    if value == 0:
        return 0, 0
    top, bottom = float(value).as_integer_ratio()
    twos = (top & -top).bit_length() - 1
    return top >> twos, twos - (bottom.bit_length() - 1)


def at_exponent(value: float, exponent: int, *, up: bool) -> int:
    """value/2^exponent, rounded up or down where it is no whole number."""
    m, e = dyadic(value)
    if e >= exponent:
        return m << (e - exponent)
    shift = exponent - e
    return -(-m >> shift) if up else m >> shift


def size_of(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    return math.prod(shape)
