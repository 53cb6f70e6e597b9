# SPDX-License-Identifier: Apache-2.0
"""Gate curves in C: straight pieces that give exactly the numbers of a table. 25 of them replace 20 425 bytes.

The pieces are fitted to the table, which holds the device's sixteen pieces rounded to 8 bits. So bodies keep the word
`table`, whose meaning is the same in all kernels, and each piece is compared with all the numbers that it replaces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from linger.numeric.c.intervals import INT32, RANGES, Interval, is_inside, storage_type
from linger.numeric.c.nodes import Bounds, Node, Place
from linger.numeric.c.text import Index, bare

SLOPE_BITS = 18
"""Fraction of a slope. Fewer bits need more pieces; with more, the slope of tanh (1/16) does not fit in 16 bits."""
OFFSET_BITS = 8
"""Fraction of an offset, so that numbers of 8 bits and their fraction fill 16 bits."""

_TO_SLOPE = SLOPE_BITS - OFFSET_BITS
_STORED, _BYTES = "int16_t", 2
_LOWEST, _HIGHEST = RANGES[_STORED]
_NUMBERS_OF_PIECE = 3

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """From x = start on: ⌊(slope·(x − start) + offset·2^10)/2^18⌋. All three fit in 16 bits, and every step in 32."""

    start: int
    slope: int
    offset: int

    def at(self, x: Numbers) -> Numbers:
        """The numbers that it gives."""
        return (self.slope * (x - self.start) + (self.offset << _TO_SLOPE)) >> SLOPE_BITS


@dataclass(frozen=True)
class Piecewise:
    """values[x] by pieces; the interval of x is inside the table."""

    values: tuple[int, ...]
    pieces: tuple[Piece, ...]
    is_elementwise = True
    weight = 40

    def bounds(self, node: Node, known: Bounds) -> Interval:
        low, high = known.of(node.args[0])
        part = self.values[max(low, 0) : high + 1]
        return min(part), max(part)

    def write(self, place: Place, node: Node, index: Index) -> str:
        name, _ = place.table(piece_array(self.pieces, len(self.values)))
        where = bare(place.read_as(node.args[0], index, INT32))
        # the search walks from the piece that it is given, and gates are more often small than saturated
        middle = len(self.pieces) // 2 * _NUMBERS_OF_PIECE
        return f"{place.helper('linger_pieces')}(&{name}[{middle}], {where})"


def piece_array(pieces: Sequence[Piece], end: int) -> tuple[int, ...]:
    """Pieces as the array that C reads: start, slope and offset of each, then where the last one ends."""
    return (*(number for p in pieces for number in (p.start, p.slope, p.offset)), end)


@cache
def straight_pieces(values: tuple[int, ...]) -> tuple[Piece, ...]:
    """Pieces that give these numbers of 8 bits exactly, each as long as one line allows.

    There are none where they would need as much memory as the numbers, or where some number needs another type.

    >>> straight_pieces(tuple(x // 20 for x in range(200)))
    (Piece(start=0, slope=13101, offset=2),)
    """
    numbers, found, start = np.asarray(values, np.int64), list[Piece](), 0
    if not values or not is_inside((min(values), max(values)), RANGES["int8_t"]):
        return ()
    while start < len(values):
        piece, end = _longest(numbers, start)
        found.append(piece)
        assert np.array_equal(piece.at(np.arange(start, end)), numbers[start:end])
        start = end
        if len(found) * _NUMBERS_OF_PIECE * _BYTES >= len(values):
            return ()
    return tuple(found) if _is_stored(piece_array(found, len(values))) else ()


def _is_stored(numbers: Sequence[int]) -> bool:
    """Whether an array of these numbers gets the type that C reads pieces from."""
    return storage_type((min(numbers), max(numbers))) == _STORED


def _longest(numbers: Numbers, start: int) -> tuple[Piece, int]:
    """The piece that reaches farthest, and where it ends.

    What a line gives on some places it gives on fewer of them too, so the end is found by bisection.
    """
    ends = range(start + 1, len(numbers) + 1)
    end = start + bisect_left(ends, 1, key=lambda e: int(_line(numbers, start, e) is None))
    piece = _line(numbers, start, end)
    assert piece is not None  # a single number is a line
    return piece, end


def _line(numbers: Numbers, start: int, end: int) -> Piece | None:
    """A line with y ≤ line < y + 1 at every place from `start` to `end` − 1, in whole numbers; None if there is none."""
    part = numbers[start:end]
    last, rise = len(part) - 1, int(part[-1] - part[0])
    jumps = np.flatnonzero(np.diff(part))
    # between its jumps the table is constant and a line is monotone, so the ends of these runs decide
    x = np.concatenate([[0], jumps, jumps + 1, [last]])
    y = part[x] << SLOPE_BITS
    slopes = np.arange(((rise - 1) << SLOPE_BITS) // max(last, 1), ((rise + 1) << SLOPE_BITS) // max(last, 1) + 1)
    slopes = slopes[(slopes >= _LOWEST) & (slopes <= _HIGHEST)]
    products = slopes[:, None] * x
    lows = -((products - y) >> _TO_SLOPE).min(axis=1)
    highs = ((y + (1 << SLOPE_BITS) - 1 - products) >> _TO_SLOPE).min(axis=1)
    usable = np.flatnonzero((lows <= highs) & (lows <= _HIGHEST) & (highs >= _LOWEST))
    if not len(usable):
        return None
    chosen = usable[len(usable) // 2]
    return Piece(start, int(slopes[chosen]), max(int(lows[chosen]), _LOWEST))
