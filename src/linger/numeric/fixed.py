# SPDX-License-Identifier: Apache-2.0
"""Fixed-point numbers in plain Python: ranges, power-of-two scales, reciprocals, window geometry, and the class `FixedPoint`."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError

BIAS_BITS = 32
"""Width of every bias: int32 at scale sx·sw."""

FLOAT32_BITS = 24
"""Bits that float32 holds exactly, so a product of factors that have together no more is exact."""

FLOAT32_EXACT = 2**FLOAT32_BITS
"""Below this magnitude float32 holds every integer, so sums of integers are exact in any order."""

MOST_TRANSPOSED_TAPS = FLOAT32_EXACT // (15 * 15)
"""Products of two 4-bit digits that float32 adds exactly: input channels of a group times taps of the kernel."""

MAX_EXPONENT = 30
"""Largest exponent a scale may have: a tensor of tiny numbers must not ask for endless precision."""


NEGLIGIBLE = 2.0**-120
"""A range below this is that of a tensor of zeros; it gets the scale of the range ±1."""


@cache  # asked for every tensor of every pass
def limits(bits: int) -> tuple[int, int]:
    """Smallest and largest integer of a signed type.

    >>> limits(8)
    (-128, 127)
    """
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def storage_bits(bits: int) -> int:
    """Width of the integer type that stores a value of `bits` bits (4 bits travel in int8).

    >>> [storage_bits(b) for b in (4, 8, 12, 16, 32)]
    [8, 8, 16, 16, 32]
    """
    return 8 if bits <= 8 else 16 if bits <= 16 else 32


def round_half_up(value: Fraction | int) -> int:
    """Nearest integer, ties toward +∞: floor(value + ½), in exact arithmetic.

    >>> [round_half_up(Fraction(n, 2)) for n in (-3, -1, 1, 3)]
    [-1, 0, 1, 2]
    """
    return math.floor(value + Fraction(1, 2))


def is_power_of_two(scale: float) -> bool:
    """Whether a scale is 2^n for a whole n (also negative n).

    >>> is_power_of_two(0.25), is_power_of_two(3.0), is_power_of_two(0.0)
    (True, False, False)
    """
    return scale > 0 and math.isfinite(scale) and math.frexp(scale)[0] == 0.5


def as_float32(value: float) -> float:
    """The nearest number of float32, as a buffer holds it; infinity beyond the largest.

    >>> as_float32(0.1), as_float32(1e39)
    (0.10000000149011612, inf)
    """
    return ctypes.c_float(value).value


def scale_for(max_abs: float, bits: int) -> float:
    """Largest power-of-two scale at which `max_abs` still fits: 2^⌊log2(B/max)⌋, B = 2^(bits−1)−1.

    One rule for weights and activations, in training, evaluation and export. `frexp` gives the
    exponent exactly, where log2 may round across a whole number.

    >>> scale_for(1.0, 8), scale_for(0.9921875, 8), scale_for(0.9921876, 8), scale_for(200.0, 8)
    (64.0, 128.0, 64.0, 0.5)
    >>> scale_for(0.0, 8)
    128.0
    """
    top = limits(bits)[1]
    if max_abs < NEGLIGIBLE:
        return 2.0 ** (bits - 1)
    exponent = math.frexp(top / max_abs)[1] - 1
    return 2.0 ** min(exponent, MAX_EXPONENT)


def window_reciprocal(kernel_shape: Sequence[int]) -> float:
    """The factor that average pooling multiplies a window's sum with.

    1/k where the area k is a power of two. Otherwise the engine's fixed-point reciprocal: with
    d = k/2^n in [½, 1), r0 = rhu(2^29·32/⌊32·d⌋), then three Newton steps t = rhu(2^31 − r·k/2^(n−1)),
    r = rhu(r·t/2^30), and the factor is r/2^(29+n). It differs from 1/k only where sum/k is a tie.
    At most 31 significant bits, so the product with a sum below 2^22 is exact in float64.

    >>> window_reciprocal((2, 2))
    0.25
    >>> window_reciprocal((2, 3)) == 1 / 6
    False
    """
    area = math.prod(kernel_shape)
    if area & (area - 1) == 0:
        return 1.0 / area
    n = area.bit_length()
    r = round_half_up(Fraction(2**29 * 32, (32 * area) >> n))
    for _ in range(3):
        t = round_half_up(2**31 - Fraction(r * area, 2 ** (n - 1)))
        r = round_half_up(Fraction(r * t, 2**30))
    return math.ldexp(r, -(29 + n))


_LARGEST_AREA = 2**12
"""Of a window whose sums are all tried."""


def exact_mean(
    kernel_shape: Sequence[int],
    ratio: float,
    data: tuple[int, int],
    ends: tuple[int, int],
    *,
    zero: int,
    zero_point: int,
) -> tuple[float, int] | None:
    """A float32 factor and a bias by which integer kernels average exactly: clip(rint((sum + bias)·factor) + zero_point, 0, 255).

    That is the mean of a window of numbers between `data`, times `ratio`, saturated to `ends`, plus `zero`. Every sum that a
    window can have is tried in the kernels' arithmetic, float32 and half to even; None where no factor is right for all.

    >>> exact_mean((2, 2), 1.0, (-128, 127), (-128, 127), zero=128, zero_point=0)
    (0.2500000596046448, 512)
    """
    area, factor = math.prod(kernel_shape), window_reciprocal(kernel_shape) * ratio
    bias = (zero - zero_point) / factor
    if area > _LARGEST_AREA or not bias.is_integer() or bias >= 2**30:
        return None
    sums = np.arange(data[0] * area, data[1] * area + 1)
    exact = np.floor(sums * factor + 0.5).clip(*ends) + zero
    for lift in (0.0, 1.5 * 2.0**-23, -(2.0**-24)):
        tried = np.float32(factor * (1 + lift))
        found = np.rint((sums + bias).astype(np.float32) * tried) + zero_point
        if np.array_equal(found.clip(0, 255), exact):
            return float(tried), int(bias)
    return None


def pair(value: Any) -> tuple[int, int]:
    """A setting of a window: one number for both axes, or one for each."""
    return (value, value) if isinstance(value, int) else tuple(value)


def ceil_pads(
    size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> tuple[int, int, int, int]:
    """Pads that make room for the last, overhanging window; a window that starts in the end padding is dropped.

    >>> ceil_pads((6, 6), (3, 3), (2, 2), (0, 0, 0, 0), (1, 1))
    (0, 0, 1, 1)
    """
    ends = []
    for axis in (0, 1):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        padded = size[axis] + pads[axis] + pads[axis + 2]
        count = -(-(padded - reach) // strides[axis]) + 1
        if (count - 1) * strides[axis] >= size[axis] + pads[axis]:
            count -= 1
        ends.append(max(pads[axis + 2], (count - 1) * strides[axis] + reach - size[axis] - pads[axis]))
    return pads[0], pads[1], ends[0], ends[1]


@dataclass(frozen=True)
class WindowRun:
    """Windows of one size at one distance, over the pixels from `start` to `end`."""

    start: int
    end: int
    size: int
    stride: int


def adaptive_runs(side: int, count: int) -> list[WindowRun]:
    """The windows of adaptive pooling, from ⌊i·side/count⌋ to ⌈(i+1)·side/count⌉, joined into runs where they can be.

    >>> adaptive_runs(6, 3)
    [WindowRun(start=0, end=6, size=2, stride=2)]
    >>> adaptive_runs(7, 3)
    [WindowRun(start=0, end=7, size=3, stride=2)]
    >>> adaptive_runs(5, 3)
    [WindowRun(start=0, end=2, size=2, stride=1), WindowRun(start=1, end=4, size=3, stride=1), WindowRun(start=3, end=5, size=2, stride=1)]
    """
    runs: list[WindowRun] = []
    first = last = 0  # where the windows of the present run start
    for i in range(count):
        start, end = i * side // count, -(-(i + 1) * side // count)
        before = runs[-1] if runs else None
        is_second = before is not None and first == last and start > first
        if before and before.size == end - start and (is_second or (start > last and start - last == before.stride)):
            runs[-1] = WindowRun(first, end, before.size, start - last)
        else:
            runs.append(WindowRun(start, end, end - start, 1))
            first = start
        last = start
    return runs


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
        for name in _NAMES:
            if counts := name.fullmatch(str(text).strip()):
                return cls(int(counts[1]), int(counts[2]))
        raise UsageError(f'FixedPoint.parse: {text!r} names no format. Write it like "Q4.3" or "1|4|3".')

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
        """Distance of two neighbors: 1/scale."""
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
        if not isinstance(value, (int, float, np.integer, np.floating)):
            return self._encode_array(value)
        low, high = limits(self.bits)
        if value != value:
            raise UsageError(f"{self.name}.encode: the value is NaN, which no integer stands for.")
        if isinstance(value, (float, np.floating)) and math.isinf(value):
            return high if value > 0 else low
        exact = Fraction(int(value)) if isinstance(value, (int, np.integer)) else Fraction(float(value))
        return min(max(round_half_up(exact * Fraction(self.scale)), low), high)

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

    def _encode_array(self, value: Any) -> NDArray[Any]:
        try:
            array = np.asarray(value)
        except ValueError:  # rows of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biuf" and array.size:
            raise UsageError(f"FixedPoint.encode: expected real numbers, got {type(value).__name__} of {array.dtype}.")
        real = array.astype(np.float64)
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
