# SPDX-License-Identifier: Apache-2.0
"""One fixed-point format as an object: a sign bit, integer bits, fraction bits, and the way there and back."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError
from linger.numeric.fixed import limits, round_half_up, scale_for, storage_bits

_NAMES = (re.compile(r"Q(-?\d+)\.(-?\d+)"), re.compile(r"1\|(-?\d+)\|(-?\d+)"))
_WIDTHS = (2, 32)
_EXPONENTS = (-990, 990)
"""Fraction bits between which the scale, its inverse and the largest value of 32 bits are finite float64 numbers."""


@dataclass(frozen=True)
class FixedPoint:
    """A signed format: a real number v is the integer ⌊v·2^fraction_bits + ½⌋, saturated.

    Either count may be negative: Q-2.9 holds 8 bits that begin two places after the point, Q9.-2 multiples of 4.

    >>> q = FixedPoint(4, 3)
    >>> q.name, str(q), q.bits, q.resolution, q.minimum, q.maximum
    ('Q4.3', '1|4|3', 8, 0.125, -16.0, 15.875)
    >>> q.encode(3.1), q.decode(25)
    (25, 3.125)
    """

    integer_bits: int
    fraction_bits: int

    def __post_init__(self) -> None:
        counts = {"integer_bits": self.integer_bits, "fraction_bits": self.fraction_bits}
        wrong = [f"{name}={n!r}" for name, n in counts.items() if not isinstance(n, int) or isinstance(n, bool)]
        if wrong:
            raise UsageError(f"FixedPoint: {', '.join(wrong)} is no whole number. Give two counts of bits.")
        low, high = _WIDTHS
        if not low <= self.bits <= high:
            raise UsageError(
                f"FixedPoint({self.integer_bits}, {self.fraction_bits}): sign, integer and fraction make {self.bits} bits. "
                f"Choose counts that make {low} to {high}."
            )
        low, high = _EXPONENTS
        if not low <= self.fraction_bits <= high:
            raise UsageError(f"FixedPoint: fraction_bits={self.fraction_bits} is beyond {low} … {high}.")

    @classmethod
    def for_range(cls, largest: float, bits: int = 8) -> FixedPoint:
        """The finest format of this width that holds ±largest; linger's rule for every scale.

        >>> FixedPoint.for_range(1.0).name, FixedPoint.for_range(127 / 128).name
        ('Q1.6', 'Q0.7')
        """
        is_width = isinstance(bits, int) and _WIDTHS[0] <= bits <= _WIDTHS[1]
        wrong = [] if math.isfinite(largest) and largest >= 0 else [f"largest={largest!r} is no finite magnitude"]
        wrong += [] if is_width else [f"bits={bits!r} is no width from {_WIDTHS[0]} to {_WIDTHS[1]}"]
        if wrong:
            raise UsageError(f"FixedPoint.for_range: {', '.join(wrong)}.")
        fraction_bits = math.frexp(scale_for(float(largest), bits))[1] - 1
        return cls(bits - 1 - fraction_bits, fraction_bits)

    @classmethod
    def parse(cls, text: str) -> FixedPoint:
        """The format that a name stands for.

        >>> FixedPoint.parse("Q4.3") == FixedPoint.parse("1|4|3") == FixedPoint(4, 3)
        True
        """
        found = next((m for name in _NAMES if (m := name.fullmatch(str(text).strip()))), None)
        if found is None:
            raise UsageError(f'FixedPoint.parse: {text!r} names no format. Write it like "Q4.3" or "1|4|3".')
        return cls(int(found[1]), int(found[2]))

    @property
    def bits(self) -> int:
        """Width of the integers, sign included."""
        return 1 + self.integer_bits + self.fraction_bits

    @property
    def scale(self) -> float:
        """2^fraction_bits: multiplies a real number to give an integer."""
        return math.ldexp(1.0, self.fraction_bits)

    @property
    def resolution(self) -> float:
        """Distance of two neighbours: 1/scale."""
        return math.ldexp(1.0, -self.fraction_bits)

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return limits(self.bits)[0] * self.resolution

    @property
    def maximum(self) -> float:
        """Largest value."""
        return limits(self.bits)[1] * self.resolution

    @property
    def name(self) -> str:
        """Q<integer bits>.<fraction bits>."""
        return f"Q{self.integer_bits}.{self.fraction_bits}"

    def __str__(self) -> str:
        return f"1|{self.integer_bits}|{self.fraction_bits}"

    def encode(self, value: Any) -> Any:
        """⌊v·scale + ½⌋ saturated: an int for a number, the narrowest integer type for an array (taken as float64).

        Raises:
            UsageError: A value is NaN, or no real number.
        """
        if isinstance(value, (int, float, np.integer, np.floating)):
            return self._encode_number(value)
        return self._encode_array(_as_real(value))

    def decode(self, integers: Any) -> Any:
        """q/scale: a float for an integer, float64 for an array.

        Raises:
            UsageError: Something is no integer of this width.
        """
        array = np.asarray(integers)
        if array.dtype.kind not in "iu" and array.size:
            raise UsageError(f"FixedPoint.decode: expected integers, got {array.dtype}. Encode real numbers first.")
        low, high = limits(self.bits)
        outside = int(((array < low) | (array > high)).sum())
        if outside:
            raise UsageError(f"{self.name}.decode: {outside} of {array.size} integers are outside {low} … {high}.")
        real = array.astype(np.float64) * self.resolution
        return float(real) if array.ndim == 0 and not isinstance(integers, np.ndarray) else real

    def _encode_number(self, value: Any) -> int:
        low, high = limits(self.bits)
        if value != value:
            raise UsageError(f"{self.name}.encode: the value is NaN, which no integer stands for.")
        if isinstance(value, (float, np.floating)) and math.isinf(value):
            return high if value > 0 else low
        exact = Fraction(int(value)) if isinstance(value, (int, np.integer)) else Fraction(float(value))
        return min(max(round_half_up(exact * Fraction(self.scale)), low), high)

    def _encode_array(self, real: NDArray[np.float64]) -> NDArray[Any]:
        count = int(np.isnan(real).sum())
        if count:
            first = tuple(int(i) for i in np.argwhere(np.isnan(real))[0])
            raise UsageError(f"{self.name}.encode: {count} of {real.size} values are NaN, the first at index {first}.")
        low, high = limits(self.bits)
        # saturated first, at whole numbers: nothing overflows, and no rounding changes
        scaled = np.clip(real, self.minimum, self.maximum) * self.scale
        down = np.floor(scaled)
        # not floor(v + ½): the sum would round 0.49999999999999994 up to 1
        rounded: NDArray[Any] = np.clip(down + (scaled - down >= 0.5), low, high)
        return rounded.astype(f"int{storage_bits(self.bits)}")


def _as_real(value: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" and array.size:
        raise UsageError(f"FixedPoint.encode: expected real numbers, got {type(value).__name__} of {array.dtype}.")
    return array.astype(np.float64)
