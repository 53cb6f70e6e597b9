# SPDX-License-Identifier: Apache-2.0
"""(x − mean)/√(variance + eps) of lines of integers as the device computes it: whole sums, a table for 1/√, Q10 out.

With S1 = Σq and S2 = Σq² over the N numbers of a line, N²·variance is N·S2 − S1² and N·(q − mean) is N·q − S1, all of
them whole. So nothing is rounded before the table.
"""

from __future__ import annotations

import math

from linger.numeric.blocks import round_half_up, saturate
from linger.numeric.kernel import Kernel, T

FRACTION = 10
"""Bits after the binary point of a normalised number, which has 16 bits."""

NORMAL_BITS = 16
"""Width of a normalised number."""

DEFAULT_EPS = 1e-5
"""The only one that the device has."""

_WITHIN = 1  # not −1: along a negative axis ONNX Runtime sums an empty tensor to one of the wrong shape
_SIGNIFICAND = 53  # bits of a whole number that float64 holds
_PAIRS = 29  # the highest pair of bits that the table of the newer device has: 2^58 and 2^59
_POWERS = tuple(4.0**pair for pair in range(1, _PAIRS + 1))
_LOWEST, _HIGHEST = 256, 1023  # the highest pair of bits at 9:8
_TO_LOWEST = tuple(_LOWEST * 4.0**-pair for pair in range(_PAIRS + 1))
_ROOTS = tuple(min(32767, math.isqrt((1 << 38) // t)) for t in range(_LOWEST, _HIGHEST + 1))
"""⌊2^15·√(256/t)⌋ for t from 256 on."""
_SHIFTS = tuple(2.0 ** (FRACTION - 15 - pair) for pair in range(_PAIRS + 1))


def is_exact(count: int, bits: int) -> bool:
    """Whether N·S2 and S1² of `count` integers of this width are below 2^53.

    >>> is_exact(1 << 19, 8), is_exact(1 << 20, 8), is_exact(2048, 16), is_exact(4096, 16)
    (True, False, True, False)
    """
    return count**2 << 2 * (bits - 1) < 1 << _SIGNIFICAND


def normalize(k: Kernel[T], lines: T, *, source: T, eps: float) -> T:
    """Each line of wide whole numbers at scale `source`, normalised: Q10, 16 bits, shape [1, lines, N].

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
    top = k.clip(top, k.scalar(_LOWEST), k.scalar(_HIGHEST))
    return k.lookup(_ROOTS, k.sub(top, k.scalar(_LOWEST))), k.lookup(_SHIFTS, pairs)
