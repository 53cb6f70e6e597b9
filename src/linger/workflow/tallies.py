# SPDX-License-Identifier: Apache-2.0
"""Statistics of a tensor over any number of batches, in memory that does not grow: range, clipping, a histogram on its grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.numeric.fixed_point import FixedPoint
from linger.reporting.facts import Bins

MOST_BINS = 128
CHUNK = 1 << 18
"""Values that are counted at once: a tensor is never copied as a whole."""

_MOST_DISTINCT = 1 << 16
"""Different integers that are counted; a tensor of 16 bits has no more."""


@dataclass(frozen=True)
class Grid:
    """How the integers of a tensor stand for real numbers: real = (integer - zero) / scale.

    Attributes:
        scale: The scale; None where it is not known.
        bits: The width; None for real numbers.
        zero: The integer that stands for 0.
        is_signed: Whether the least integer is negative.
    """

    scale: float | None = None
    bits: int | None = None
    zero: int = 0
    is_signed: bool = True

    @property
    def q_format(self) -> str:
        """Bits before and behind the point, `Q2.5`; empty where the scale is no power of two."""
        if self.scale is None or self.bits is None or self.zero or not self.is_signed:
            return ""
        fraction, exponent = math.frexp(self.scale)
        if fraction != 0.5:
            return ""
        return FixedPoint(self.bits - exponent, exponent - 1).name

    @property
    def ends(self) -> tuple[int | None, int | None]:
        """The integers at which values are cut off; the least unsigned one is no end where it stands for 0."""
        if self.bits is None:
            return None, None
        if not self.is_signed:
            return (0 if self.zero else None), 2**self.bits - 1
        return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1


class Tally:
    """Counts the values of one tensor.

    Bins are 2^k grid steps wide (of real numbers: 2^k), and begin at multiples of their width. When values come that would
    need more than `most_bins` bins, neighbours are joined, so that nothing has to be counted again.

    >>> tally = Tally(Grid(scale=4.0, bits=8))
    >>> tally.add(np.array([-128, 1, 1, 127], np.int8))
    >>> tally.low, tally.high, tally.distinct, tally.clipped
    (-32.0, 31.75, 3, 0.5)
    """

    def __init__(self, grid: Grid, most_bins: int = MOST_BINS, exponent: int | None = None) -> None:
        self.grid, self._most_bins = grid, most_bins
        self._exponent, self._first = exponent, 0
        self._counts: NDArray[np.int64] = np.zeros(0, np.int64)
        self._low, self._high = math.inf, -math.inf
        self._seen: NDArray[Any] | None = np.zeros(0, np.int64)
        self._clipped = self.values = 0
        self.is_broken = False

    def add(self, array: NDArray[Any]) -> None:
        """Count the values of one batch; what is not finite is left out."""
        flat = np.asarray(array).reshape(-1)
        if flat.dtype.kind not in "iufb" or not flat.size:
            return
        for part in self._parts(flat):  # the range of all first: it decides how wide the bins are
            self._low, self._high = min(self._low, float(part.min())), max(self._high, float(part.max()))
        for part in self._parts(flat):
            self._count(part, is_integer=flat.dtype.kind in "iu")

    def _parts(self, flat: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The finite values, a part at a time."""
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            if part.dtype.kind not in "iu":
                part = part.astype(np.float64)
                is_finite = np.isfinite(part)
                self.is_broken |= not is_finite.all()
                part = part[is_finite]
            if part.size:
                yield part

    def _count(self, flat: NDArray[Any], *, is_integer: bool) -> None:
        self.values += int(flat.size)
        if is_integer:
            self._clipped += sum(int(np.count_nonzero(flat == end)) for end in self.grid.ends if end is not None)
            self._see(flat)
        else:
            self._seen = None
        exponent = self._needed_exponent(is_integer=is_integer)
        if self._counts.size:
            self._widen(exponent)
        self._exponent = exponent
        indices = np.floor(np.ldexp(flat.astype(np.float64) - self.grid.zero, -exponent)).astype(np.int64)
        self._put(indices)

    def _see(self, flat: NDArray[Any]) -> None:
        if self._seen is not None:
            self._seen = np.union1d(self._seen, flat)
            if self._seen.size > _MOST_DISTINCT:
                self._seen = None

    def _needed_exponent(self, *, is_integer: bool) -> int:
        """The least bin width, as a power of two, with which everything seen so far needs no more bins than there may be."""
        low, high = self._low - self.grid.zero, self._high - self.grid.zero
        if self._exponent is not None:
            exponent = self._exponent
        elif is_integer:
            exponent = 0
        else:
            span = (high - low) or abs(high) or 1.0
            exponent = max(math.frexp(span / self._most_bins)[1] - 1, -1000)
        while math.floor(math.ldexp(high, -exponent)) - math.floor(math.ldexp(low, -exponent)) >= self._most_bins:
            exponent += 1
        return exponent

    def _widen(self, exponent: int) -> None:
        """Join neighbours until bins have this width."""
        shift = exponent - (self._exponent or 0)
        if shift <= 0:
            return
        places = (np.arange(self._counts.size, dtype=np.int64) + self._first) >> min(shift, 62)
        first = int(places[0])
        joined = np.zeros(int(places[-1]) - first + 1, np.int64)
        np.add.at(joined, places - first, self._counts)
        self._counts, self._first = joined, first

    def _put(self, indices: NDArray[np.int64]) -> None:
        first, last = int(indices.min()), int(indices.max())
        if self._counts.size:
            first, last = min(first, self._first), max(last, self._first + self._counts.size - 1)
        counts = np.bincount(indices - first, minlength=last - first + 1).astype(np.int64)
        if self._counts.size:
            start = self._first - first
            counts[start : start + self._counts.size] += self._counts
        self._counts, self._first = counts, first

    def _real(self, number: float) -> float:
        return number if self.grid.scale is None else (number - self.grid.zero) / self.grid.scale

    @property
    def low(self) -> float | None:
        """The smallest real value."""
        return self._real(self._low) if self.values else None

    @property
    def high(self) -> float | None:
        """The largest real value."""
        return self._real(self._high) if self.values else None

    @property
    def distinct(self) -> int | None:
        """How many different integers there were; None for real numbers."""
        return None if self._seen is None or not self.values else int(self._seen.size)

    @property
    def clipped(self) -> float | None:
        """The share of integers at the ends of the range; None for real numbers."""
        has_ends = any(end is not None for end in self.grid.ends)
        return self._clipped / self.values if self.values and has_ends else None

    @property
    def exponent(self) -> int | None:
        """Bins are 2^exponent steps wide."""
        return self._exponent if self._counts.size else None

    def bins(self) -> Bins | None:
        """The histogram, in real values; None where nothing was counted."""
        if not self._counts.size or self._exponent is None:
            return None
        step = 1.0 if self.grid.scale is None else 1.0 / self.grid.scale
        offset = self.grid.zero if self.grid.scale is None else 0
        width = math.ldexp(step, self._exponent)
        return Bins(self._first * width + offset, width, tuple(int(count) for count in self._counts))
