# SPDX-License-Identifier: Apache-2.0
"""Statistics of |x| over several passes, without keeping the tensors.

Count, mean and maximum are exact. The 0.99 order statistic is exact for one pass; over several it comes from a histogram
of the magnitudes' leading bits: the exponent and the first 8 bits of the mantissa (of a float32, its upper 16 bits without
the sign). What is reported is the largest number of the bin that holds the wanted rank, limited by the maximum: never below
the true order statistic and at most 2^-8 of it above (among subnormal float32 numbers, at most 2^-134).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np

from linger.analysis.blocks import Array, Values, finite_magnitudes, is_floating, read_blocks
from linger.analysis.magnitudes import Magnitudes, exact_sum, measure, nearest, rank_from_above

Kind = Literal["single", "double", "integer"]

KEPT_MANTISSA_BITS = 8
_KEPT_MASK = (1 << KEPT_MANTISSA_BITS) - 1

_DROPPED: Mapping[Kind, int] = {
    "single": 23 - KEPT_MANTISSA_BITS,
    "double": 52 - KEPT_MANTISSA_BITS,
    "integer": 52 - KEPT_MANTISSA_BITS,
}
"""How many low bits a bin ignores. An integer belongs to the bin of the float64 that begins with the same bits."""

_SMALL = 4096
"""Up to this size sorting is faster than a table of all bins."""

_SINGLE_BINS = 1 << 16
_HIDDEN_BIT = 1 << 23
_SINGLE_UNIT = Fraction(2) ** -149
"""Every float32 is a multiple of it."""

_DOUBLE_DIGITS = 53
_BEYOND_DOUBLE = np.uint64((1 << (64 - _DOUBLE_DIGITS)) - 1)
"""The low bits of a uint64 that a float64 may be unable to hold."""


@dataclass
class _Bins:
    """How many magnitudes have which leading bits. Only bins that hold something are kept: a few thousand of 2^16.

    Bin 0 also holds the zeros. They are counted separately as well, because zero is not a tiny number.
    """

    zeros: int = 0
    keys: Array = field(default_factory=lambda: np.empty(0, np.int64))
    counts: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def add(self, keys: Array, counts: Array) -> None:
        merged, place = np.unique(np.concatenate([self.keys, keys]), return_inverse=True)
        total = np.zeros(merged.size, np.int64)
        np.add.at(total, place, np.concatenate([self.counts, counts]))
        self.keys, self.counts = merged, total


@dataclass
class Accumulated:
    """The magnitudes of one tensor that every pass computes anew."""

    passes: int = 0
    count: int = 0
    nans: int = 0
    infinities: int = 0
    _sum: Fraction = Fraction(0)
    _maximum: float = 0
    _first: Magnitudes | None = None
    _bins: dict[Kind, _Bins] = field(default_factory=dict)

    def add(self, values: Values) -> None:
        """Add the tensor of one more pass."""
        if self.passes == 0:
            self._first = measure(values)
        self.passes += 1
        tally = _SingleTally() if values.size > _SMALL else None
        for piece in read_blocks(values):
            kind = _kind(piece)
            block, nans, infinities = finite_magnitudes(piece)
            self.nans += nans
            self.infinities += infinities
            bins = self._bins.setdefault(kind, _Bins())
            if block.size:
                self.count += block.size
                bins.zeros += block.size - int(np.count_nonzero(block))
                self._maximum = max(self._maximum, block.max().item())
                if kind == "single" and tally is not None:
                    tally.add(block)
                else:
                    bins.add(*np.unique(_bits(block) >> _DROPPED[kind], return_counts=True))
                    self._sum += exact_sum(block)
        if tally is not None and tally.is_used:
            keys, counts, total = tally.result()
            self._bins["single"].add(keys, counts)
            self._sum += total
        if values.implicit_zeros:
            self.count += values.implicit_zeros
            bins = self._bins.setdefault(next(iter(self._bins), "single"), _Bins())
            bins.zeros += values.implicit_zeros
            bins.add(np.zeros(1, np.int64), np.array([values.implicit_zeros]))

    def result(self) -> Magnitudes:
        """The statistics of all passes together; NaN everywhere without finite values."""
        if self.passes == 1 and self._first is not None:
            return self._first
        if self.count == 0:
            return Magnitudes(0, math.nan, math.nan, math.nan, self.nans, self.infinities)
        mean = nearest(self._sum / self.count, np.float64 if "double" in self._bins else np.float32)
        convert = int if set(self._bins) == {"integer"} else float
        dynamic = convert(min(self._order_statistic(), self._maximum))
        return Magnitudes(self.count, mean, convert(self._maximum), dynamic, self.nans, self.infinities)

    def _order_statistic(self) -> float:
        """The upper end of the bin that holds the wanted rank, counted from the largest magnitudes down."""
        missing = rank_from_above(self.count)
        from_above = (_upper_ends(kind, bins) for kind, bins in self._bins.items())
        for end, count in heapq.merge(*from_above, reverse=True):
            missing -= count
            if missing <= 0:
                return end
        raise AssertionError("the bins hold every finite magnitude")


class _SingleTally:
    """Bins and exact sum of float32 magnitudes, block by block: a count and the sum of the dropped bits per bin."""

    def __init__(self) -> None:
        self.is_used = False
        self._counts: Array = np.zeros(_SINGLE_BINS, np.int64)
        self._low_sums: Array = np.zeros(_SINGLE_BINS, np.float64)  # exact below 2^53: 2^38 numbers of 15 bits

    def add(self, block: Array) -> None:
        bits = _bits(block)
        dropped = _DROPPED["single"]
        keys = bits >> dropped
        self._counts += np.bincount(keys, minlength=_SINGLE_BINS)
        self._low_sums += np.bincount(keys, weights=bits & ((1 << dropped) - 1), minlength=_SINGLE_BINS)
        self.is_used = True

    def result(self) -> tuple[Array, Array, Fraction]:
        """The bins that hold something, their counts, and the sum of all magnitudes."""
        keys = np.flatnonzero(self._counts)
        counts = self._counts[keys]
        exponents = keys >> KEPT_MANTISSA_BITS
        lowest = ((keys & _KEPT_MASK) << _DROPPED["single"]) + np.where(exponents > 0, _HIDDEN_BIT, 0)
        sums = np.zeros(int(exponents[-1]) + 1, np.int64)
        np.add.at(sums, exponents, counts * lowest + self._low_sums[keys].astype(np.int64))
        # exponent 0 (subnormal) has the unit of exponent 1
        total = sum(int(part) << max(exponent - 1, 0) for exponent, part in enumerate(sums))
        return keys, counts, total * _SINGLE_UNIT


def _kind(numbers: Array) -> Kind:
    if not is_floating(numbers):
        return "integer"
    return "double" if numbers.dtype == np.float64 else "single"


def _bits(magnitudes: Array) -> Array:
    """The bits of float numbers; of an integer, those of a float64 in the same bin."""
    if not is_floating(magnitudes):
        is_wide = magnitudes >> np.uint64(_DOUBLE_DIGITS) != 0
        magnitudes = np.where(is_wide, magnitudes & ~_BEYOND_DOUBLE, magnitudes).astype(np.float64)
    bits: Array = magnitudes.view(np.uint32 if magnitudes.dtype == np.float32 else np.int64)
    return bits


def _upper_ends(kind: Kind, bins: _Bins) -> Iterator[tuple[float, int]]:
    """The upper end and the count of every bin, the highest first."""
    for key, count in zip(bins.keys[::-1], bins.counts[::-1], strict=True):
        yield _upper_end(kind, int(key)), int(count) - (bins.zeros if key == 0 else 0)
    yield 0, bins.zeros


def _upper_end(kind: Kind, key: int) -> float:
    """The largest number of a kind in its bin; for integers a Python int."""
    beyond = (key + 1) << _DROPPED[kind]
    if kind == "single":
        return float(np.array(beyond - 1, np.uint32).view(np.float32))
    if kind == "double":
        return float(np.array(beyond - 1, np.int64).view(np.float64))
    return math.ceil(float(np.array(beyond, np.int64).view(np.float64))) - 1
