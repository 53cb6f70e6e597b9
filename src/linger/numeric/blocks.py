# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that bodies share: rounding, saturation and requantisation exist here and nowhere else."""

from __future__ import annotations

from linger.numeric.kernel import Kernel, T
from linger.numeric.tables import BUCKET, Pieces


def round_half_up(k: Kernel[T], x: T) -> T:
    """⌊x + ½⌋ in the precision of x: ties go towards +∞."""
    return k.floor(k.add(x, k.like(0.5, x)))


def saturate(k: Kernel[T], x: T, bits: int) -> T:
    """X limited to −2^(bits−1) … 2^(bits−1)−1."""
    half_range = k.pow2(k.sub(k.scalar(bits), k.scalar(1.0)))
    return k.clip(x, k.sub(k.scalar(0.0), half_range), k.sub(half_range, k.scalar(1.0)))


def rescale(k: Kernel[T], x: T, *, source: T, target: T) -> T:
    """Whole numbers at scale `source`, rounded to scale `target` (not yet saturated)."""
    return round_half_up(k, k.mul(x, k.div(target, source)))


def requantize(k: Kernel[T], x: T, *, source: T, target: T, bits: int) -> T:
    """sat(⌊x·target/source + ½⌋): the rounding right shift with saturation that every layer ends with."""
    return k.store(saturate(k, rescale(k, x, source=source, target=target), bits), bits)


def round_quotient(k: Kernel[T], a: T, b: T, *, ratio: T) -> T:
    """⌊a·ratio/b + ½⌋ of whole numbers a and b > 0 and a power of two, exactly: no quotient is rounded on the way.

    Holds while 2·|a|·max(ratio, 1) + b·max(1/ratio, 1) is below 2^53: the quotient of two whole numbers t/d that is no
    whole number n misses the next one by at least 1/d, and float64 cannot round n − 1/d to n while n·d < 2^53.
    """
    one, two = k.scalar(1.0), k.scalar(2.0)
    up = k.where_less(ratio, one, one, ratio)
    down = k.where_less(ratio, one, k.div(one, ratio), one)
    bottom = k.mul(b, k.mul(down, two))
    top = k.add(k.mul(a, k.mul(up, two)), k.mul(b, down))
    return k.floor(k.div(top, bottom))


def piecewise_linear(k: Kernel[T], x: T, *, source: T, pieces: Pieces) -> T:
    """A curve in Q15 of whole numbers at scale `source`, which are first rounded to Q11 and saturated to 16 bits."""
    x = saturate(k, rescale(k, x, source=source, target=k.scalar(2.0**11)), 16)
    zero, one = k.scalar(0.0), k.scalar(1.0)
    size = k.where_less(x, zero, k.sub(zero, x), x)
    bucket = k.floor(k.mul(size, k.scalar(1.0 / BUCKET)))
    is_beyond = k.where_less(k.lookup(pieces.edges, bucket), size, one, zero)
    index = k.add(k.lookup(pieces.before, bucket), is_beyond)
    factors = tuple(slope * 2.0**-shift for slope, shift in zip(pieces.slopes, pieces.shifts, strict=True))
    offset = k.lookup(pieces.offsets, index)
    offset = k.where_less(x, zero, k.sub(k.scalar(pieces.mirror), offset), offset)
    # slope·x has 31 bits and the shift is one of the exponent: the product with the quotient is exact
    return k.add(k.floor(k.mul(k.lookup(factors, index), x)), offset)
