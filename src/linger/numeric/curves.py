# SPDX-License-Identifier: Apache-2.0
"""Curves and tables of the device, written once, in the vocabulary of op bodies.

**Gates of recurrent cells** are integers in Q11, saturated to 16 bits; their curves give Q7 (`tables.SIGMOID` and
`tables.TANH` in Q15, rounded, a sigmoid within 0 … 127). Beyond both ends of the table the curves are constant.

**Interpolation** has the geometry of torch's interpolate: source pixels of each output pixel, and their weights.

**Normalization**, (x − mean)/√(variance + eps) of lines of integers, has integer sums, a table for 1/√, Q10 out. With S1 = Σq
and S2 = Σq² over the N numbers of a line, N²·variance is N·S2 − S1² and N·(q − mean) is N·q − S1, all of them integers. So
nothing is rounded before the table.

**Reciprocals** of average pooling, where the window is not known before the file runs, are `fixed.window_reciprocal` step by
step.

**Softmax** is Q25 in, Q15 out, with a polynomial for 2^x and, on venus, two Newton steps for 1/sum. The sum has 32 bits and
saturates: in a row of more than 255 equal numbers each gets 1/256.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Generic, Literal, cast

import numpy as np

from linger.numeric import blocks, fixed
from linger.numeric.blocks import rescale, round_half_up, saturate, shifted_product
from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.kernel import Cell, Ints, Kernel, T
from linger.numeric.tables import LOG2_E, POWER_OF_TWO, SIGMOID, TANH, Pieces

Q7 = 128.0
_GATE_BITS = 16


@dataclass(frozen=True)
class _Curves:
    """Sigmoid and tanh in Q7 at every whole number from `low` to `high` in Q11; beyond both ends they are constant."""

    low: int
    high: int
    sigmoid: tuple[int, ...]
    tanh: tuple[int, ...]


@cache
def gate_curves() -> _Curves:
    """The curves, computed on first use: there are 65 536 inputs."""
    sigmoid, tanh = _in_q7(SIGMOID, 0), _in_q7(TANH, -128)
    first, last = limits(_GATE_BITS)
    start = min(_constant(sigmoid), _constant(tanh))
    end = len(sigmoid) - min(_constant(sigmoid[::-1]), _constant(tanh[::-1]))
    return _Curves(first + start, last + end - len(sigmoid), sigmoid[start:end], tanh[start:end])


def _in_q7(pieces: Pieces, low: int) -> tuple[int, ...]:
    """A curve at every whole number of 16 bits, rounded from Q15 and limited to low … 127."""
    first, last = limits(_GATE_BITS)
    values = []
    for x in range(first, last + 1):
        j = next(j for j, band in enumerate(pieces.bands) if abs(x) <= band)
        offset = pieces.mirror - pieces.offsets[j] if x < 0 else pieces.offsets[j]
        y = (pieces.slopes[j] * x >> pieces.shifts[j]) + offset
        values.append(min(max((y + 128) >> 8, low), 127))
    return tuple(values)


def _constant(values: Sequence[int]) -> int:
    """The index of the last of the equal numbers that a sequence begins with."""
    return next(i for i, v in enumerate(values) if v != values[0]) - 1


def largest_gate(w: Any, b: Any, x_bits: int, source: float, exponents: Ints = ()) -> float:
    """The largest |⌊(x·wᵀ + b)·2^11/source⌉| for any x of so many bits; `source` is the scale of the product, of row r times 2^exponents[r]; infinite where float32 may round on the way.

    float32 holds v + ½ exactly while v, counted in its own last bit (or in halves, where it is whole), is below 2^24.
    """
    sums = np.abs(np.asarray(w, np.float64)).sum(axis=1) * 2.0 ** (x_bits - 1) + np.abs(np.asarray(b, np.float64))
    factor = 2.0**11 / source * 2.0 ** -np.asarray(exponents or 0, np.float64)
    last_bit = np.minimum(factor, 0.5)
    is_exact = bool((sums * factor / last_bit + 0.5 / last_bit < FLOAT32_EXACT).all())
    return float((sums * factor).max(initial=0.0)) if is_exact else math.inf


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
    """Tables of a cell's gates, prepared once before its loop.

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


WEIGHT_BITS = 14
"""Fraction of a weight: 1 is 2^14, the largest power of two that 16 bits hold."""

Matrix = tuple[tuple[int, ...], ...]


def output_sizes(
    old: Sequence[int], size: int | Sequence[int] | None, scale_factor: float | Sequence[float] | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]] | None:
    """Output sizes, and the scale factors (None for a size); None unless exactly one of both is set.

    >>> output_sizes((4, 5), None, 1.5)
    ((6, 7), (1.5, 1.5))
    >>> output_sizes((4, 5), (8, 3), None)
    ((8, 3), (None, None))
    """
    if (size is None) == (scale_factor is None):
        return None
    setting = scale_factor if size is None else size
    per_axis = tuple(setting) if isinstance(setting, Sequence) else (setting,) * len(old)
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

    The second of two neighbors has the weight ⌊fraction·2^14 + ½⌋, the first what is left of 2^14.

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
        weight = fixed.round_half_up(min(source - first, Fraction(1)) * one)
        row = [0] * old
        row[first] += one - weight
        row[second] += weight
        rows.append(tuple(row))
    return tuple(rows)


FRACTION = 10
"""Bits after the binary point of a normalized number, which has 16 bits."""

NORMAL_BITS = 16
"""Width of a normalized number."""

DEFAULT_EPS = 1e-5
"""The only one that the device has."""

_WITHIN = 1  # not −1: along a negative axis ONNX Runtime sums an empty tensor to one of the wrong shape
_SIGNIFICAND = 53  # bits of a whole number that float64 holds
_PAIRS = 29  # the highest pair of bits that the table of the newer device has: 2^58 and 2^59
_POWERS = tuple(4.0**pair for pair in range(1, _PAIRS + 1))
LOWEST_TOP, _HIGHEST = 256, 1023  # the highest pair of bits at 9:8
_TO_LOWEST = tuple(LOWEST_TOP * 4.0**-pair for pair in range(_PAIRS + 1))
ROOTS = tuple(min(32767, math.isqrt((1 << 38) // t)) for t in range(LOWEST_TOP, _HIGHEST + 1))
"""⌊2^15·√(256/t)⌋ for t from 256 on."""
_SHIFTS = tuple(2.0 ** (FRACTION - 15 - pair) for pair in range(_PAIRS + 1))


def finest_normal_scale(scales: Iterable[float]) -> float:
    """A shift to the right only, from Q10 times the scale of the weight, which is the second one."""
    return list(scales)[1] * 2.0**FRACTION


def is_exact(count: int, bits: int) -> bool:
    """Whether N·S2 and S1² of `count` integers of this width are below 2^53.

    >>> is_exact(1 << 19, 8), is_exact(1 << 20, 8), is_exact(2048, 16), is_exact(4096, 16)
    (True, False, True, False)
    """
    return count**2 << 2 * (bits - 1) < 1 << _SIGNIFICAND


def normalize(k: Kernel[T], lines: T, *, source: T, eps: float) -> T:
    """Each line of wide whole numbers at scale `source`, normalized: Q10, 16 bits, shape [1, lines, N].

    n = sat(⌊(N·q − S1)·r + ½⌋), r ≈ 2^10/√D by `inverse_root`, D = N·S2 − S1² + ⌊eps·source²·N² + ½⌋, eps as float32.
    """
    count, total = k.line_length(lines), k.sum_along(lines, _WITHIN)
    squares = k.sum_along(k.mul(lines, lines), _WITHIN)
    spread = k.sub(k.mul(count, squares), k.mul(total, total))
    # a scale is a power of two, so eps·source² is not rounded; the product with N² is, once and everywhere alike
    softening = k.mul(k.mul(k.wide(k.single(eps)), k.mul(source, source)), k.mul(count, count))
    root, shift = inverse_root(k, k.add(spread, round_half_up(k, softening)))
    distance = k.sub(k.mul(count, lines), total)
    return saturate(k, round_half_up(k, k.mul(k.mul(distance, root), shift)), NORMAL_BITS)


def inverse_root(k: Kernel[T], d: T) -> tuple[T, T]:
    """Two factors whose product is about 2^10/√d of a matrix of wide whole numbers d ≥ 0: 15 bits, and 2^-n.

    The highest pair of bits of d is number p = ⌊log4 d⌋; t = ⌊d·2^(8−2p)⌋ has it at the places 9:8, and the factors are
    ⌊2^15·√(256/t)⌋ (at most 32767) and 2^(10−15−p). For d = 0 (a line of equal numbers) they do not matter: every
    distance is 0.
    """
    pairs = k.sum_along(k.where_less(d, k.ladder(_POWERS), k.scalar(0.0), k.scalar(1.0)), 0)
    top = k.floor(k.mul(d, k.lookup(_TO_LOWEST, pairs)))
    top = k.clip(top, k.scalar(LOWEST_TOP), k.scalar(_HIGHEST))
    return k.lookup(ROOTS, k.sub(top, k.scalar(LOWEST_TOP))), k.lookup(_SHIFTS, pairs)


LARGEST_AREA = 2**23
"""Below this every product here has at most 53 bits."""

_BITS = LARGEST_AREA.bit_length() - 1
_PIECES = 32
_POWERS_OF_TWO = tuple(2.0**n for n in range(_BITS + 1))
_INVERSES = tuple(2.0**-n for n in range(_BITS + 1))
_FIRST = tuple(
    float(fixed.round_half_up(Fraction(2**29 * _PIECES, d))) if d >= _PIECES // 2 else 0.0 for d in range(_PIECES)
)
"""The first guess by ⌊32·k/2^n⌋, which is 16 to 31."""


def window_reciprocal(k: Kernel[T], area: T) -> T:
    """The factor for windows of the areas [1, 1, rows, columns], each below `LARGEST_AREA`."""
    zero, one, two = k.scalar(0.0), k.scalar(1.0), k.scalar(2.0)
    # bit length: the powers that are not above
    n = k.sum_along(k.where_less(area, k.ladder(_POWERS_OF_TWO[:-1]), zero, one), 1)
    inverse = k.lookup(_INVERSES, n)
    part = k.mul(area, inverse)  # ½ … 1
    r = k.lookup(_FIRST, k.floor(k.mul(part, k.scalar(float(_PIECES)))))
    for _ in range(3):
        t = blocks.round_half_up(k, k.sub(k.scalar(2.0**31), k.mul(k.mul(r, part), two)))
        r = _shifted_product(k, r, t)
    factor = k.mul(k.mul(r, inverse), k.scalar(2.0**-29))
    return k.where_less(k.scalar(0.5), part, factor, k.mul(inverse, two))


def _shifted_product(k: Kernel[T], r: T, t: T) -> T:
    """⌊r·t/2^30 + ½⌋ of r < 2^31 and t < 2^32, whose product has more bits than the carrier.

    r = high·2^15 + low and high·t = quotient·2^15 + rest, so r·t = quotient·2^30 + (rest·2^15 + low·t): the first part is whole
    after the shift, the second is below 2^48.
    """
    high = k.floor(k.mul(r, k.scalar(2.0**-15)))
    low = k.sub(r, k.mul(high, k.scalar(2.0**15)))
    top = k.mul(high, t)
    quotient = k.floor(k.mul(top, k.scalar(2.0**-15)))
    rest = k.sub(top, k.mul(quotient, k.scalar(2.0**15)))
    small = k.add(k.mul(rest, k.scalar(2.0**15)), k.mul(low, t))
    return k.add(quotient, blocks.round_half_up(k, k.mul(small, k.scalar(2.0**-30))))


_LOWEST_POWER = -40  # a power of two below which nothing is left of a Q23 number
_SOFTMAX_POWERS = tuple(2.0**exponent for exponent in range(_LOWEST_POWER, 2))
_ONE = 23  # bits of the fraction: exponentials and the sum are Q23
_HALVES = tuple(2.0**-n for n in range(9))
SEED = float(0xBB5000)
"""What the first guess at a reciprocal is subtracted from."""
LARGEST_POWER = 8388668.0
"""e^0 in Q23, as the polynomial has it."""


def softmax(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """Softmax in Q15 of whole numbers at scale `source`, as venus has it."""
    powers, total = _powers(k, x, source, axis, _exponential)
    return saturate(k, _shift(k, k.mul(_reciprocal(k, total), powers), 31), 32)


def softmax_by_division(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """The same as arcs has it: the sum's reciprocal by long division."""
    return _divided(k, *_powers(k, x, source, axis, _exponential))


def softmax_with_rounded_powers(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """The same as venusA has it: as arcs, but the exponentials are rounded.

    venusA also raises a largest number of −2^31 by one. A row with it holds nothing else, and a difference of −1 in Q25 has
    the exponential of 0, so that changes nothing.
    """
    return _divided(k, *_powers(k, x, source, axis, _rounded_exponential))


def _powers(k: Kernel[T], x: T, source: T, axis: int, exponential: Callable[[Kernel[T], T], T]) -> tuple[T, T]:
    """e^(x − max x) along an axis, in Q23, of numbers that are first brought to Q25; and their sum, which saturates."""
    x = saturate(k, rescale(k, x, source=source, target=k.scalar(2.0**25)), 32)
    powers = exponential(k, saturate(k, k.sub(x, k.max_along(x, axis)), 32))
    return powers, saturate(k, k.sum_along(powers, axis), 32)


def _divided(k: Kernel[T], powers: T, total: T) -> T:
    """⌊⌊2^52/total⌋·power/2^37 + ½⌋: 30 steps of long division of 2^23 give twice this quotient.

    The carrier's division is rounded to the nearest, and yet its floor is exact: a quotient that is not whole is at least
    1/total below the next whole number, and half a unit in its last place is at most 2^-53·2^52/total = 1/(2·total). No
    power exceeds the total, so quotient·power ≤ 2^52 is exact too.
    """
    return _shift(k, k.mul(k.floor(k.div(k.scalar(2.0**52), total)), powers), 37)


def power_below(k: Kernel[T], x: T, *, source: T) -> T:
    """e^x in Q23, as venus has it, of whole numbers x ≤ 0 at scale `source`, which is at most 2^25."""
    return _exponential(k, saturate(k, rescale(k, x, source=source, target=k.scalar(2.0**25)), 32))


def _exponential(k: Kernel[T], x: T) -> T:
    """e^x in Q23, truncated, of x ≤ 0 in Q25."""
    whole, fraction = _parts(k, x)
    return k.floor(k.mul(_horner(k, fraction, POWER_OF_TWO), _power(k, whole)))


def _rounded_exponential(k: Kernel[T], x: T) -> T:
    """e^x in Q23 of x ≤ 0 in Q25, rounded once at the end: the last product keeps its 46 bits until then."""
    whole, fraction = _parts(k, x)
    y = _horner(k, fraction, POWER_OF_TWO[:-1])
    last = k.add(k.mul(fraction, y), k.scalar(POWER_OF_TWO[-1] * 2.0**_ONE))
    return _shift(k, k.mul(last, _power(k, whole)), _ONE)


def _horner(k: Kernel[T], x: T, coefficients: Sequence[int]) -> T:
    """A polynomial of x in Q23 by Horner's rule, the highest power first; every product is rounded to Q23."""
    y = k.scalar(coefficients[0])
    for coefficient in coefficients[1:]:
        y = k.add(_shift(k, k.mul(x, y), _ONE), k.scalar(coefficient))
    return y


def _parts(k: Kernel[T], x: T) -> tuple[T, T]:
    """x·log2(e) as a whole number and a fraction from −1 to 0 in Q23, the whole one less."""
    x = shifted_product(k, x, k.scalar(LOG2_E), bits=31)  # log2(e) is Q29
    whole = k.floor(k.mul(x, k.scalar(2.0**-_ONE)))
    return whole, k.sub(k.sub(x, k.mul(whole, k.scalar(2.0**_ONE))), k.scalar(2.0**_ONE))


def _power(k: Kernel[T], whole: T) -> T:
    """2^(whole + 1)."""
    exponent = k.clip(k.add(whole, k.scalar(1.0)), k.scalar(_LOWEST_POWER), k.scalar(1.0))
    return k.lookup(_SOFTMAX_POWERS, k.sub(exponent, k.scalar(_LOWEST_POWER)))


def _reciprocal(k: Kernel[T], total: T) -> T:
    """The factor that makes Q46 of a Q23 number: 2^46/total, of a total from 2^23 (its largest part is e^0) on."""
    zero, one = k.scalar(0.0), k.scalar(1.0)
    doublings = k.mul(total, zero)
    for bit in range(_ONE + 1, 31):
        doublings = k.add(doublings, k.where_less(total, k.scalar(2.0**bit), zero, one))
    factor = k.lookup(_HALVES, doublings)
    x = k.floor(k.mul(total, k.mul(factor, k.scalar(0.5))))  # from 2^22 to 2^23
    r = k.sub(k.scalar(SEED), x)
    for _ in range(2):
        error = k.mul(k.sub(k.scalar(2.0**22), _shift(k, k.mul(x, r), _ONE)), k.scalar(2.0))
        r = k.add(r, _shift(k, k.mul(r, error), _ONE))
    return k.floor(k.mul(r, factor))


def _shift(k: Kernel[T], x: T, bits: int) -> T:
    """Rounding right shift."""
    return round_half_up(k, k.mul(x, k.scalar(2.0**-bits)))
