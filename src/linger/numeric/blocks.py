# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that bodies share: rounding, saturation and requantization exist here and nowhere else."""

from __future__ import annotations

from linger.numeric.kernel import Ints, Kernel, T
from linger.numeric.tables import BUCKET, LONG_BUCKET, ONE, WIDE_BUCKET, LongPieces, Pieces, WidePieces


def round_half_up(k: Kernel[T], x: T) -> T:
    """⌊x + ½⌋ in the precision of x: ties go toward +∞."""
    return k.floor(k.add(x, k.like(0.5, x)))


def saturate(k: Kernel[T], x: T, bits: int, unsigned: int = 0) -> T:
    """Saturate x to −2^(bits−1) … 2^(bits−1)−1, unsigned numbers to 0 … 2^bits−1.

    A node has the attribute `o_unsigned` only where it is 1, so an open attribute means unsigned (`dialect.EXTENSIONS`).
    """
    if unsigned != 0:
        return k.clip(x, k.scalar(0.0), k.sub(k.pow2(k.scalar(bits)), k.scalar(1.0)))
    half_range = k.pow2(k.sub(k.scalar(bits), k.scalar(1.0)))
    return k.clip(x, k.sub(k.scalar(0.0), half_range), k.sub(half_range, k.scalar(1.0)))


def rescale(k: Kernel[T], x: T, *, source: T, target: T) -> T:
    """Whole numbers at scale `source`, rounded to scale `target` (not yet saturated)."""
    return round_half_up(k, k.mul(x, k.div(target, source)))


def stored(k: Kernel[T], x: T, bits: int, unsigned: int = 0) -> T:
    """Whole numbers, saturated, as an integer tensor."""
    return k.store(saturate(k, x, bits, unsigned), bits, is_unsigned=unsigned != 0)


def requantize(k: Kernel[T], x: T, *, source: T, target: T, bits: int, unsigned: int = 0) -> T:
    """sat(⌊x·target/source + ½⌋): the rounding right shift with saturation that every layer ends with."""
    return stored(k, rescale(k, x, source=source, target=target), bits, unsigned)


def rescale_pair(k: Kernel[T], first: tuple[T, float], second: tuple[T, float], scale_o: float) -> tuple[T, T]:
    """Two (integer operand, scale) pairs as wide numbers rounded to the output's scale (not yet saturated)."""
    target = k.scalar(scale_o)
    left = rescale(k, k.wide(first[0]), source=k.scalar(first[1]), target=target)
    return left, rescale(k, k.wide(second[0]), source=k.scalar(second[1]), target=target)


def requantize_product(
    k: Kernel[T],
    x: T,
    scales: tuple[float, float],
    scale_o: float,
    bits: int,
    *,
    exponents: Ints = (),
    has_last_channels: bool = False,
    unsigned: int = 0,
) -> T:
    """A product of integers at these two scales, requantized to the output's.

    With `exponents` channel c is at the product of both times 2^exponents[c]; channels are axis 1, or the last axis.
    """
    source = k.mul(k.scalar(scales[0]), k.scalar(scales[1]))
    if exponents != ():
        powers = channel_powers(k, exponents)
        x = k.mul(x, powers if has_last_channels else k.per_channel(powers, x))
    return requantize(k, x, source=source, target=k.scalar(scale_o), bits=bits, unsigned=unsigned)


def scaled_rows(k: Kernel[T], factor: T, exponents: Ints) -> T:
    """A factor of a product, or one for each row of its weights where these have exponents."""
    return factor if exponents == () else k.mul(factor, channel_powers(k, exponents))


def channel_powers(k: Kernel[T], exponents: Ints) -> T:
    """2^−e of each channel's exponent e: it brings what is at a channel's own scale to the scale of all."""
    return k.pow2(k.sub(k.scalar(0.0), k.vector(exponents)))


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
    zero = k.scalar(0.0)
    index = _piece(k, x, pieces, BUCKET)
    factors = tuple(slope * 2.0**-shift for slope, shift in zip(pieces.slopes, pieces.shifts, strict=True))
    offset = k.lookup(pieces.offsets, index)
    offset = k.where_less(x, zero, k.sub(k.scalar(pieces.mirror), offset), offset)
    # slope·x has 31 bits and the shift is one of the exponent: the product with the quotient is exact
    return k.add(k.floor(k.mul(k.lookup(factors, index), x)), offset)


def ramp(k: Kernel[T], x: T, source: T) -> T:
    """min(max(x + 3, 0), 6) of whole numbers at scale `source`, at the same scale."""
    return k.clip(k.add(x, k.mul(k.scalar(3.0), source)), k.scalar(0.0), k.mul(k.scalar(6.0), source))


def round_sixth(k: Kernel[T], x: T) -> T:
    """⌊x/6 + ½⌋ = ⌊(x + 3)/6⌋ of x = m/2^f, exact while |m + 3·2^f| < 2^53.

    What is no whole number lies at least 1/(6·2^f) below the next one, and the division is off by less: at most 2^-53 of
    a quotient below 2^53/(6·2^f). So no quotient is rounded up to a whole number, and the floor is right.
    """
    return k.floor(k.div(k.add(x, k.scalar(3.0)), k.scalar(6.0)))


def long_piecewise_linear(k: Kernel[T], x: T, *, source: T, pieces: LongPieces) -> T:
    """A curve in Q27 of whole numbers at scale `source`, which are first rounded to Q27 and saturated to 32 bits."""
    x = saturate(k, rescale(k, x, source=source, target=k.scalar(ONE)), 32)
    index = _piece(k, x, pieces, LONG_BUCKET)
    slope = k.lookup(pieces.slopes, index)
    slope = k.where_less(x, k.scalar(0.0), k.sub(k.scalar(ONE), slope), slope)
    return k.add(shifted_product(k, x, slope, bits=27), k.lookup(pieces.offsets, index))


def shifted_product(k: Kernel[T], x: T, factor: T, *, bits: int) -> T:
    """⌊x·factor/2^bits + ½⌋ of 32 bits and a factor below 2^31 in magnitude, for bits from 17 to 32.

    The product may have 62 bits, more than the carrier holds. So x = high·2^16 + low with 0 ≤ low < 2^16, and of
    top = high·factor (below 2^46) the quotient by 2^(bits−16) is taken out first: with top = quotient·2^(bits−16) + r,
    0 ≤ r < 2^(bits−16), the product is quotient·2^bits + (r·2^16 + low·factor). The first part is whole after the shift; the
    second is below 2^bits + 2^47. Every number here has at most 48 bits, so nothing but the floors is rounded.
    """
    high = k.floor(k.mul(x, k.scalar(2.0**-16)))
    low = k.sub(x, k.mul(high, k.scalar(2.0**16)))
    top = k.mul(high, factor)
    quotient = k.floor(k.mul(top, k.scalar(2.0 ** (16 - bits))))
    rest = k.mul(k.sub(top, k.mul(quotient, k.scalar(2.0 ** (bits - 16)))), k.scalar(2.0**16))
    return k.add(quotient, round_half_up(k, k.mul(k.add(rest, k.mul(low, factor)), k.scalar(2.0**-bits))))


def wide_piecewise_linear(k: Kernel[T], x: T, *, source: T, pieces: WidePieces) -> T:
    """⌊(slope·x/2^27 + offset)·2^11⌋, a curve in Q42, of whole numbers at scale `source`, first brought to Q27 (32 bits).

    The device rounds this down to Q31 (arcs) or rounds it to the output as it is (venusA).
    """
    x = saturate(k, rescale(k, x, source=source, target=k.scalar(2.0**27)), 32)
    index = _piece(k, x, pieces, WIDE_BUCKET)
    slope = k.lookup(pieces.slopes, index)
    # slope·x has up to 62 bits, more than the carrier's 53. With x = high·2^16 + low, 0 ≤ low < 2^16, and slope < 2^31:
    # |slope·high| ≤ 2^31·2^15 and slope·low < 2^31·2^16 are exact, and ⌊slope·x/2^16⌋ = slope·high + ⌊slope·low/2^16⌋,
    # because the first is whole. No number here has more than 48 bits.
    high = k.floor(k.mul(x, k.scalar(2.0**-16)))
    low = k.sub(x, k.mul(high, k.scalar(2.0**16)))
    product = k.add(k.mul(slope, high), k.floor(k.mul(k.mul(slope, low), k.scalar(2.0**-16))))
    left, right = (k.lookup(table, index) for table in (pieces.negative_offsets, pieces.offsets))
    offset = k.where_less(x, k.scalar(0.0), left, right)
    return k.add(product, k.mul(offset, k.scalar(2.0 ** (_WIDE_CURVE - pieces.offset_bits))))


_WIDE_CURVE = 42
"""Fractional bits of a wide curve: 27 of x and 31 of the slope, less the 16 that were dropped."""

WIDE_CURVE_SCALE = 2.0**_WIDE_CURVE


def _piece(k: Kernel[T], x: T, pieces: Pieces | WidePieces | LongPieces, bucket_width: int) -> T:
    """Number of the first piece that holds |x|."""
    zero, one = k.scalar(0.0), k.scalar(1.0)
    size = k.where_less(x, zero, k.sub(zero, x), x)
    bucket = k.floor(k.mul(size, k.scalar(1.0 / bucket_width)))
    is_beyond = k.where_less(k.lookup(pieces.edges, bucket), size, one, zero)
    return k.add(k.lookup(pieces.before, bucket), is_beyond)
