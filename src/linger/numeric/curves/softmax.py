# SPDX-License-Identifier: Apache-2.0
"""Softmax as the chips compute it: Q25 in, Q15 out, with a polynomial for 2^x and, on venus, two Newton steps for 1/sum.

The sum has 32 bits and saturates: in a row of more than 255 numbers that are all alike, each gets 1/256.
"""

from __future__ import annotations

from linger.numeric.blocks import rescale, round_half_up, saturate, shifted_product
from linger.numeric.kernel import Kernel, T
from linger.numeric.tables import LOG2_E, POWER_OF_TWO

_LOWEST = -40  # a power of two below which nothing is left of a Q23 number
_POWERS = tuple(2.0**exponent for exponent in range(_LOWEST, 2))
_ONE = 23  # bits of the fraction: exponentials and the sum are Q23
_HALVES = tuple(2.0**-n for n in range(9))
_SEED = float(0xBB5000)


def softmax(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """Softmax in Q15 of whole numbers at scale `source`, as venus has it."""
    x = _in_q25(k, x, source)
    powers = _exponential(k, _below(k, x, k.max_along(x, axis)))
    reciprocal = _reciprocal(k, _sum(k, powers, axis))
    return saturate(k, _shift(k, k.mul(reciprocal, powers), 31), 32)


def softmax_by_division(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """The same as arcs has it: the sum's reciprocal by long division."""
    x = _in_q25(k, x, source)
    powers = _exponential(k, _below(k, x, k.max_along(x, axis)))
    return _divided(k, powers, _sum(k, powers, axis))


def softmax_with_rounded_powers(k: Kernel[T], x: T, *, source: T, axis: int) -> T:
    """The same as venusA has it: as arcs, but the exponentials are rounded.

    venusA also raises a largest number of −2^31 by one. A row with it holds nothing else, and a difference of −1 in Q25 has
    the exponential of 0, so that changes nothing.
    """
    x = _in_q25(k, x, source)
    powers = _rounded_exponential(k, _below(k, x, k.max_along(x, axis)))
    return _divided(k, powers, _sum(k, powers, axis))


def _in_q25(k: Kernel[T], x: T, source: T) -> T:
    return saturate(k, rescale(k, x, source=source, target=k.scalar(2.0**25)), 32)


def _below(k: Kernel[T], x: T, largest: T) -> T:
    """How far a number lies below the largest one of its row, as a number ≤ 0."""
    return saturate(k, k.sub(x, largest), 32)


def _sum(k: Kernel[T], powers: T, axis: int) -> T:
    return saturate(k, k.sum_along(powers, axis), 32)


def _divided(k: Kernel[T], powers: T, total: T) -> T:
    """⌊⌊2^52/total⌋·power/2^37 + ½⌋: 30 steps of long division of 2^23 give twice this quotient.

    The carrier's division is rounded to the nearest, and yet its floor is exact: a quotient that is not whole is at least
    1/total below the next whole number, and half a unit in its last place is at most 2^-53·2^52/total = 1/(2·total). No
    power exceeds the total, so quotient·power ≤ 2^52 is exact too.
    """
    return _shift(k, k.mul(k.floor(k.div(k.scalar(2.0**52), total)), powers), 37)


def _exponential(k: Kernel[T], x: T) -> T:
    """e^x in Q23, truncated, of x ≤ 0 in Q25."""
    whole, fraction = _parts(k, x)
    y = k.scalar(POWER_OF_TWO[0])
    for coefficient in POWER_OF_TWO[1:]:
        y = k.add(_shift(k, k.mul(fraction, y), _ONE), k.scalar(coefficient))
    return k.floor(k.mul(y, _power(k, whole)))


def _rounded_exponential(k: Kernel[T], x: T) -> T:
    """e^x in Q23 of x ≤ 0 in Q25, rounded once at the end: the last product keeps its 46 bits until then."""
    whole, fraction = _parts(k, x)
    y = k.scalar(POWER_OF_TWO[0])
    for coefficient in POWER_OF_TWO[1:-1]:
        y = k.add(_shift(k, k.mul(fraction, y), _ONE), k.scalar(coefficient))
    last = k.add(k.mul(fraction, y), k.scalar(POWER_OF_TWO[-1] * 2.0**_ONE))
    return _shift(k, k.mul(last, _power(k, whole)), _ONE)


def _parts(k: Kernel[T], x: T) -> tuple[T, T]:
    """x·log2(e) as a whole number and a fraction from −1 to 0 in Q23, the whole one less."""
    x = shifted_product(k, x, k.scalar(LOG2_E), bits=31)  # log2(e) is Q29
    whole = k.floor(k.mul(x, k.scalar(2.0**-_ONE)))
    return whole, k.sub(k.sub(x, k.mul(whole, k.scalar(2.0**_ONE))), k.scalar(2.0**_ONE))


def _power(k: Kernel[T], whole: T) -> T:
    """2^(whole + 1)."""
    exponent = k.clip(k.add(whole, k.scalar(1.0)), k.scalar(_LOWEST), k.scalar(1.0))
    return k.lookup(_POWERS, k.sub(exponent, k.scalar(_LOWEST)))


def _reciprocal(k: Kernel[T], total: T) -> T:
    """The factor that makes Q46 of a Q23 number: 2^46/total, of a total from 2^23 (its largest part is e^0) on."""
    zero, one = k.scalar(0.0), k.scalar(1.0)
    doublings = k.mul(total, zero)
    for bit in range(_ONE + 1, 31):
        doublings = k.add(doublings, k.where_less(total, k.scalar(2.0**bit), zero, one))
    factor = k.lookup(_HALVES, doublings)
    x = k.floor(k.mul(total, k.mul(factor, k.scalar(0.5))))  # from 2^22 to 2^23
    r = k.sub(k.scalar(_SEED), x)
    for _ in range(2):
        error = k.mul(k.sub(k.scalar(2.0**22), _shift(k, k.mul(x, r), _ONE)), k.scalar(2.0))
        r = k.add(r, _shift(k, k.mul(r, error), _ONE))
    return k.floor(k.mul(r, factor))


def _shift(k: Kernel[T], x: T, bits: int) -> T:
    """Rounding right shift."""
    return round_half_up(k, k.mul(x, k.scalar(2.0**-bits)))
