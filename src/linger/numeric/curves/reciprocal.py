# SPDX-License-Identifier: Apache-2.0
"""The reciprocal of average pooling where the window is not known before the file runs: `fixed.window_reciprocal`, step by step."""

from __future__ import annotations

from fractions import Fraction

from linger.numeric import blocks
from linger.numeric.fixed import round_half_up
from linger.numeric.kernel import Kernel, T

LARGEST_AREA = 2**23
"""Below this every product here has at most 53 bits."""

_BITS = LARGEST_AREA.bit_length() - 1
_PIECES = 32
_POWERS = tuple(2.0**n for n in range(_BITS + 1))
_INVERSES = tuple(2.0**-n for n in range(_BITS + 1))
_FIRST = tuple(float(round_half_up(Fraction(2**29 * _PIECES, d))) if d >= _PIECES // 2 else 0.0 for d in range(_PIECES))
"""The first guess by ⌊32·k/2^n⌋, which is 16 to 31."""


def window_reciprocal(k: Kernel[T], area: T) -> T:
    """The factor for windows of the areas [1, 1, rows, columns], each below `LARGEST_AREA`."""
    zero, one, two = k.scalar(0.0), k.scalar(1.0), k.scalar(2.0)
    n = k.sum_along(
        k.where_less(area, k.ladder(_POWERS[:-1]), zero, one), 1
    )  # bit length: the powers that are not above
    inverse = k.lookup(_INVERSES, n)
    part = k.mul(area, inverse)  # ½ … 1
    r = k.lookup(_FIRST, k.floor(k.mul(part, k.scalar(float(_PIECES)))))
    for _ in range(3):
        t = blocks.round_half_up(k, k.sub(k.scalar(2.0**31), k.mul(k.mul(r, part), two)))
        r = _shifted_product(k, r, t)
    found = k.mul(k.mul(r, inverse), k.scalar(2.0**-29))
    return k.where_less(k.scalar(0.5), part, found, k.mul(inverse, two))


def _shifted_product(k: Kernel[T], r: T, t: T) -> T:
    """⌊r·t/2^30 + ½⌋ of r < 2^31 and t < 2^32, whose product has more bits than the carrier.

    r = high·2^15 + low and high·t = kept·2^15 + rest, so r·t = kept·2^30 + (rest·2^15 + low·t): the first part is whole
    after the shift, the second is below 2^48.
    """
    high = k.floor(k.mul(r, k.scalar(2.0**-15)))
    low = k.sub(r, k.mul(high, k.scalar(2.0**15)))
    top = k.mul(high, t)
    kept = k.floor(k.mul(top, k.scalar(2.0**-15)))
    rest = k.sub(top, k.mul(kept, k.scalar(2.0**15)))
    small = k.add(k.mul(rest, k.scalar(2.0**15)), k.mul(low, t))
    return k.add(kept, blocks.round_half_up(k, k.mul(small, k.scalar(2.0**-30))))
