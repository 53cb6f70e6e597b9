# SPDX-License-Identifier: Apache-2.0
"""Numbers that are read block by block: mean, maximum and 0.99 order statistic of |x|, and their histogram. Imports no torch.

The mean does not depend on the order of summation: it is the exact mean, rounded once.

The order statistic at position ⌊0.99·n⌋ − 1 of the sorted magnitudes is the smallest of the m = n − that position
largest ones, about 1 % of all. A threshold just below it, guessed from a sample, lets one pass collect a little more than
those; should the guess have been too high, a second pass keeps the m largest so far and raises its own threshold.
Either way the result is the element that sorting would have found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Number = float | np.number[Any]

BLOCK = 1 << 16
"""The largest array that is read, and summed, at once."""

SHARE = 0.99
"""The share of values that lie at or below `dynamic`."""

_SAMPLE_PIECES = 64
_PIECE = 256
_MARGIN = 0.004
"""How far below the share the guess aims: five standard deviations of the sample's error."""

_WORTH_GUESSING = 8 * BLOCK

_SUM_ERROR = 2.0**-35
"""Relative error of a float64 sum of BLOCK non-negative numbers, in any order: below 2^16·2^-53, and as much again for
adding the sums and dividing."""

_MANTISSA_BITS = 53
_LOW_BITS = 26
_LOW_MASK = (1 << _LOW_BITS) - 1


class Values(Protocol):
    """A flat sequence of numbers that is read in pieces."""

    @property
    def size(self) -> int:
        """How many numbers there are to read."""

    @property
    def implicit_zeros(self) -> int:
        """How many zeros there are besides them (sparse tensors store none)."""

    def read(self, start: int, stop: int) -> Array:
        """Numbers start … stop−1: float32, float64, integers or bools, exactly."""

    def release(self, start: int, stop: int) -> None:
        """These numbers will not be read again soon: memory that holds them may go."""


def read_blocks(values: Values, size: int = BLOCK) -> Iterator[Array]:
    """All numbers in blocks of at most `size`; each block is released when the next one is asked for."""
    for start in range(0, values.size, size):
        stop = min(start + size, values.size)
        yield values.read(start, stop)
        values.release(start, stop)


def is_floating(array: Array) -> bool:
    """Whether an array holds floats (else integers or bools)."""
    return bool(np.issubdtype(array.dtype, np.floating))


def finite_magnitudes(block: Array, out: Array | None = None) -> tuple[Array, int, int]:
    """|x| of the finite numbers, how many were NaN, and how many infinite; `out` is memory for the result.

    Those of integers and bools are unsigned.
    """
    if not is_floating(block):
        is_signed = np.issubdtype(block.dtype, np.signedinteger)
        # |−2^63| wraps to itself, and is 2^63 when its bits are read as an unsigned number
        return (np.abs(block.astype(np.int64)).view(np.uint64) if is_signed else block.astype(np.uint64)), 0, 0
    size = np.abs(block, out=out)
    if np.isfinite(size.max()):
        return size, 0, 0
    return size[np.isfinite(size)], int(np.isnan(size).sum()), int(np.isinf(size).sum())


def histogram(values: Values, largest: float, bins: int = 256) -> tuple[Array, Array]:
    """Equally spaced edges from −largest to largest, and the counts of finite values between them, in one pass.

    Zeros that a sparse tensor does not store are counted too.
    """
    reach = largest if largest > 0 else 1.0
    edges = np.linspace(-reach, reach, bins + 1)
    counts = np.zeros(bins, np.int64)
    for block in read_blocks(values):
        counts += np.histogram(block[np.isfinite(block)].astype(np.float64), edges)[0]
    counts[bins // 2] += values.implicit_zeros
    return edges, counts


@dataclass(frozen=True)
class Magnitudes:
    """Statistics of |x| over the finite values of a tensor; the others are counted.

    Attributes:
        count: Finite values.
        mean: Their exact mean magnitude, rounded once (to float32; to float64 for float64 tensors). NaN if there are none.
        dynamic: The magnitude that 99 % do not exceed: element ⌊0.99·n⌋ − 1 of the sorted ones.
        nans: Values that are no numbers.
    """

    count: int
    mean: float
    maximum: float
    dynamic: float
    nans: int = 0
    infinities: int = 0

    @property
    def multiple(self) -> float:
        """Maximum over mean, as a float32; NaN where all values are zero."""
        return _ratio(self.maximum, self.mean)

    @property
    def versu(self) -> float:
        """Maximum over dynamic, as a float32; infinite where 99 % of the values are zero and one is not."""
        return _ratio(self.maximum, self.dynamic)


def _ratio(a: float, b: float) -> float:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return float(np.float32(np.float64(a) / np.float64(b)))


def rank_from_above(count: int) -> int:
    """How many of the largest magnitudes reach down to the order statistic.

    >>> [rank_from_above(n) for n in (1, 2, 100, 101, 1000)]
    [1, 2, 2, 3, 11]
    """
    position = int(count * SHARE) - 1
    return count - position if position >= 0 else 1


class _Largest:
    """The `needed` largest magnitudes of all blocks; more are held until it is worth dropping them."""

    def __init__(self, needed: int, threshold: Number | None = None) -> None:
        self.needed, self.threshold = needed, threshold
        self._blocks: list[Array] = []
        self._count = 0

    def add(self, block: Array) -> None:
        # a copy in either case: the block's memory is used again
        large = block.copy() if self.threshold is None else block[np.flatnonzero(block >= self.threshold)]
        self._blocks.append(large)
        self._count += large.size
        if self._count > 2 * self.needed + BLOCK:
            everything = np.concatenate(self._blocks)
            largest = np.partition(everything, everything.size - self.needed)[-self.needed :]
            self._blocks, self._count, self.threshold = [largest], largest.size, largest[0]

    def smallest_of(self, rank: int) -> Number | None:
        """The `rank`-th largest magnitude; None if so many are not there."""
        place = self._count - rank
        return None if place < 0 else np.partition(np.concatenate(self._blocks), place)[place]


@dataclass
class _Running:
    """Statistics of the blocks so far; `sums` are their float64 sums, which are of use for float32 only."""

    count: int = 0
    maximum: Number = 0
    nans: int = 0
    infinities: int = 0
    is_single: bool = False
    is_double: bool = False
    sums: list[float] = field(default_factory=list)

    def add(self, dtype: np.dtype[Any], block: Array, nans: int, infinities: int) -> None:
        self.is_double = dtype == np.float64
        self.is_single = np.issubdtype(dtype, np.floating) and not self.is_double
        self.nans += nans
        self.infinities += infinities
        self.count += block.size
        if block.size:
            self.maximum = max(self.maximum, block.max())
            if self.is_single:
                self.sums.append(float(np.add.reduce(block.astype(np.float64))))


def measure(values: Values) -> Magnitudes:
    """The statistics of one tensor; NaN everywhere for one without finite values."""
    needed = rank_from_above(values.size + values.implicit_zeros)
    running = _Running()
    largest = _Largest(needed, _guess(values) if values.size >= _WORTH_GUESSING else None)
    for block in _magnitudes(values, running):
        largest.add(block)
    count = running.count + values.implicit_zeros
    if count == 0:
        return Magnitudes(0, math.nan, math.nan, math.nan, running.nans, running.infinities)
    rank = rank_from_above(count)
    dynamic = largest.smallest_of(rank)
    if dynamic is None and running.count >= rank:  # the guess was too high
        largest = _Largest(needed)
        for block in _magnitudes(values):
            largest.add(block)
        dynamic = largest.smallest_of(rank)
    mean = _mean(values, running, count)
    convert = float if running.is_single or running.is_double else int
    # dynamic is None where a sparse tensor stores fewer values than needed: the rest are zeros
    top, middle = convert(running.maximum), convert(0 if dynamic is None else dynamic)
    return Magnitudes(count, mean, top, middle, running.nans, running.infinities)


def _magnitudes(values: Values, running: _Running | None = None) -> Iterator[Array]:
    """|x| of the finite numbers, block by block, in the same memory; `running` counts all of them."""
    room: Array | None = None
    for piece in read_blocks(values, BLOCK):
        if room is None and is_floating(piece):
            room = np.empty(BLOCK, piece.dtype)
        block, nans, infinities = finite_magnitudes(piece, None if room is None else room[: piece.size])
        if running is not None:
            running.add(piece.dtype, block, nans, infinities)
        yield block


def _mean(values: Values, running: _Running, count: int) -> float:
    certain = single_if_certain(float(np.add.reduce(np.array(running.sums))), count) if running.is_single else None
    if certain is not None:
        return certain
    total = sum((exact_sum(block) for block in _magnitudes(values)), Fraction(0))
    return nearest(total / count, np.float64 if running.is_double else np.float32)


def _guess(values: Values) -> Number | None:
    """A magnitude a little below the order statistic, from pieces spread over the tensor."""
    starts = range(0, max(values.size - _PIECE, 1), max(values.size // _SAMPLE_PIECES, 1))
    sample = np.concatenate([finite_magnitudes(values.read(s, min(s + _PIECE, values.size)))[0] for s in starts])
    values.release(0, values.size)
    position = int(sample.size * ((SHARE - _MARGIN) if values.implicit_zeros == 0 else 0.0))
    return np.partition(sample, position)[position] if sample.size else None


def single_if_certain(total: float, count: int) -> float | None:
    """The float32 nearest to the mean of non-negative numbers whose float64 block sums add up to `total`.

    None where the rounding error of the sums leaves two candidates.
    """
    low, high = (np.float32(total * (1 + error) / count) for error in (-_SUM_ERROR, _SUM_ERROR))
    return float(low) if low == high and np.isfinite(high) else None


def exact_sum(block: Array) -> Fraction:
    """The sum of at most BLOCK non-negative numbers, without rounding."""
    if block.size == 0:
        return Fraction(0)
    if not is_floating(block):
        whole = block.astype(np.uint64)
        low = int(np.sum(whole & np.uint64(0xFFFFFFFF)))
        return Fraction(low + (int(np.sum(whole >> np.uint64(32))) << 32))
    mantissas, exponents = np.frexp(block.astype(np.float64))
    whole = np.ldexp(mantissas, _MANTISSA_BITS).astype(np.int64)
    smallest = int(exponents.min())
    # halves of 27 and 26 bits: 2^16 of them add up below 2^53, so float64 weights are exact
    high_half, low_half = (
        np.bincount(exponents - smallest, weights=half.astype(np.float64))
        for half in (whole >> _LOW_BITS, whole & _LOW_MASK)
    )
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
    bits = np.uint32 if kind is np.float32 else np.uint64
    best = min(
        (c for c in beside if np.isfinite(c)),
        key=lambda c: (abs(Fraction(float(c)) - value), int(np.asarray(c, kind).view(bits)) & 1),
    )
    return float(best)
