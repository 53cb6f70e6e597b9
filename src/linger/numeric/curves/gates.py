# SPDX-License-Identifier: Apache-2.0
"""What recurrent cells share: the curves of their gates as one table, rounding and saturation of narrow numbers.

Gates are whole numbers in Q11, saturated to 16 bits; the curves give Q7 (`tables.SIGMOID` and `tables.TANH` in Q15,
rounded, a sigmoid within 0 … 127). Outside LOW … HIGH both are constant, so the table ends there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Literal

import numpy as np

from linger.numeric import blocks
from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.kernel import Cell, Kernel, T
from linger.numeric.tables import SIGMOID, TANH, Pieces

Q7 = 128.0
_GATE_BITS = 16


@dataclass(frozen=True)
class Curves:
    """Sigmoid and tanh in Q7 at every whole number from `low` to `high` in Q11; beyond both ends they are constant."""

    low: int
    high: int
    sigmoid: tuple[int, ...]
    tanh: tuple[int, ...]


@cache
def gate_curves() -> Curves:
    """The curves, made on first use: there are 65 536 inputs."""
    sigmoid, tanh = _in_q7(SIGMOID, 0), _in_q7(TANH, -128)
    first, last = limits(_GATE_BITS)
    start = min(_constant(sigmoid), _constant(tanh))
    end = len(sigmoid) - min(_constant(sigmoid[::-1]), _constant(tanh[::-1]))
    return Curves(first + start, last + end - len(sigmoid), sigmoid[start:end], tanh[start:end])


def _in_q7(pieces: Pieces, low: int) -> tuple[int, ...]:
    """A curve at every whole number of 16 bits, rounded from Q15 and limited to low … 127."""
    first, last = limits(_GATE_BITS)
    found = []
    for x in range(first, last + 1):
        j = next(j for j, band in enumerate(pieces.bands) if abs(x) <= band)
        offset = pieces.mirror - pieces.offsets[j] if x < 0 else pieces.offsets[j]
        y = (pieces.slopes[j] * x >> pieces.shifts[j]) + offset
        found.append(min(max((y + 128) >> 8, low), 127))
    return tuple(found)


def _constant(values: Sequence[int]) -> int:
    """How many numbers at the beginning of a sequence repeat the first one."""
    return next(i for i, v in enumerate(values) if v != values[0]) - 1


def largest_gate(w: Any, b: Any, x_bits: int, source: float) -> float:
    """The largest |⌊(x·wᵀ + b)·2^11/source⌉| for any x of so many bits; infinite where float32 may round on the way.

    float32 holds v + ½ exactly while v, counted in its own last bit (or in halves, where it is whole), is below 2^24.
    """
    sums = np.abs(np.asarray(w, np.float64)).sum(axis=1) * 2.0 ** (x_bits - 1) + np.abs(np.asarray(b, np.float64))
    total, factor = float(sums.max(initial=0.0)), 2.0**11 / source
    last_bit = min(factor, 0.5)
    is_exact = total * factor / last_bit + 0.5 / last_bit < FLOAT32_EXACT
    return total * factor if is_exact else math.inf


class StateKit(Generic[T]):
    """Numbers of a recurrent op's states, and rounding to them."""

    def __init__(self, k: Kernel[T], *, o_bits: int, scale_h: float) -> None:
        self._k = k
        self._half = self.number(0.5)
        self.scale_h = k.scalar(scale_h)
        self.state_ends, self.cell_ends = self._ends(k.scalar(o_bits)), self._ends(k.scalar(16.0))

    def number(self, value: float) -> T:
        """A number in the carrier of narrow ones."""
        return self._k.narrow(self._k.scalar(value))

    def _ends(self, bits: T) -> tuple[T, T]:
        k = self._k
        half_range = k.pow2(k.sub(bits, k.scalar(1.0)))
        ends = k.sub(k.scalar(0.0), half_range), k.sub(half_range, k.scalar(1.0))
        return k.narrow(ends[0]), k.narrow(ends[1])

    def rounded(self, x: T) -> T:
        """⌊x + ½⌋."""
        return self._k.floor(self._k.add(x, self._half))

    def quantized(self, x: T, scale: T, ends: tuple[T, T]) -> T:
        """A real state as narrow whole numbers, rounded as Quant does."""
        k = self._k
        return k.clip(k.narrow(blocks.round_half_up(k, k.mul(x, k.real(scale)))), *ends)

    def to_gates(self, scale_w: float) -> T:
        """What brings a product of the state and weights of this scale to Q11, a wide power of two."""
        k = self._k
        return k.div(k.scalar(2.0**11), k.mul(self.scale_h, k.scalar(scale_w)))

    def cell(self, kind: Literal["LSTM", "GRU"], w: T, b: T, factor: T) -> Cell[T]:
        """A cell of this kind on these states."""
        curves = gate_curves()
        return Cell(kind, w, b, factor, curves.low, curves.sigmoid, curves.tanh, self.scale_h, self.state_ends)


class GateKit(Generic[T]):
    """Tables of a cell's gates, made before its loop so that no step makes them again.

    `kinds` are the curves of the gates in the order of the weights' rows; sigmoids come divided by 128, as factors.
    """

    def __init__(self, k: Kernel[T], kinds: Sequence[str], b: T) -> None:
        curves, self._k = gate_curves(), k
        sigmoid = k.mul(k.table(curves.sigmoid), self._number(1.0 / Q7))
        tanh = k.table(curves.tanh)
        size = len(curves.tanh)
        zeros = [k.mul(part, self._number(0.0)) for part in k.split(k.narrow(b), len(kinds), 0)]
        starts = {"sigmoid": self._number(-curves.low), "tanh": self._number(size - curves.low)}
        self._starts = k.concat([k.add(zero, starts[kind]) for zero, kind in zip(zeros, kinds, strict=True)], 0)
        self._joint = k.entries(k.concat([sigmoid, tanh], 0), self._starts)
        self._tanh = k.entries(tanh, zeros[0])
        self._tanh_start, self._tanh_end = self._number(0.5 - curves.low), self._number(size - 1)
        self._low, self._high = self._number(curves.low), self._number(curves.high)
        self._zero = self._number(0.0)
        self.count = len(kinds)

    def _number(self, value: float) -> T:
        return self._k.narrow(self._k.scalar(value))

    def activated(self, gates: T) -> tuple[T, ...]:
        """The curves of gates in Q11, one tensor for each gate."""
        k = self._k
        index = k.add(k.clip(gates, self._low, self._high), self._starts)
        return k.split(self._joint(index), self.count, -1)

    def tanh(self, x: T) -> T:
        """Tanh in Q7 of numbers in Q11, which are rounded first."""
        k = self._k
        index = k.clip(k.floor(k.add(x, self._tanh_start)), self._zero, self._tanh_end)
        return self._tanh(index)
