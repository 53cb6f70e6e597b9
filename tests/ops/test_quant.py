"""Quant by hand: q = sat(⌊f32(f32(x·scale) + ½)⌋)."""

import numpy as np
import pytest

from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op

quant = find_op("Quant")


def reals(*values):
    return np.array(values, np.float32)


BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # 0.49999997
BEYOND_MINUS_HALF = np.nextafter(np.float32(-0.5), np.float32(-1))  # −0.50000006


@pytest.mark.parametrize(
    ("values", "scale", "expected"),
    [
        # ·16: 0.5 → ⌊1.0⌋, 1.5 → ⌊2.0⌋, 2.5 → ⌊3.0⌋: a tie goes up, also where half-even would go down
        pytest.param(reals(0.03125, 0.09375, 0.15625), 16.0, int8(1, 2, 3), id="positive ties go up"),
        # ·16: −0.5 → ⌊0⌋, −1.5 → ⌊−1⌋, −2.5 → ⌊−2⌋: up is toward zero here
        pytest.param(reals(-0.03125, -0.09375, -0.15625), 16.0, int8(0, -1, -2), id="negative ties go up"),
        # ·16: 127.5 → 128 → 127; 127.4375 + ½ = 127.9375 → 127; 1600 → 127
        pytest.param(reals(7.96875, 7.96484375, 100.0), 16.0, int8(127, 127, 127), id="saturates above"),
        # ·16: −128.5 → −128; −129.5 → −129 → −128; −1600 → −128; −127.5 → −127
        pytest.param(
            reals(-8.03125, -8.09375, -100, -7.96875), 16.0, int8(-128, -128, -128, -127), id="saturates below"
        ),
        # the float32 sum 0.49999997 + 0.5 rounds to 1.0
        pytest.param(reals(BELOW_HALF), 1.0, int8(1), id="just below a half becomes one"),
        # −0.49999997 + 0.5 = 2.98e-8 → 0; −0.50000006 + 0.5 = −5.96e-8 → −1: both sums are exact
        pytest.param(reals(-BELOW_HALF, BEYOND_MINUS_HALF), 1.0, int8(0, -1), id="around minus a half"),
        # 0.49999997/16·16 is 0.49999997 again: a power of two moves the exponent only
        pytest.param(reals(BELOW_HALF / 16), 16.0, int8(1), id="just below a half at another scale"),
        # ·½: 3 → 1.5 → 2, −3 → −1.5 → −1, 255 → 127.5 → 127, −257 → −128.5 → −128
        pytest.param(reals(3, -3, 255, -257), 0.5, int8(2, -1, 127, -128), id="scale below one"),
        pytest.param(reals(np.inf, -np.inf), 16.0, int8(127, -128), id="infinity saturates"),
        pytest.param(reals(0.0, -0.0, 1e-30, -1e-30), 16.0, int8(0, 0, 0, 0), id="zeros and dust"),
    ],
)
def test_eight_bits(values, scale, expected):
    assert_gives(quant, [values], {"data_bits": 8, "scale_x": scale}, expected)


def test_four_bits_travel_in_int8():
    # ·2: 3.5 → 7 → 7; 3.75 → 7.5 → 8 → 7; −4 → −8; −4.5 → −9 → −8; 0.25 → 0.5 → 1
    values = reals(3.5, 3.75, -4.0, -4.5, 0.25)
    assert_gives(quant, [values], {"data_bits": 4, "scale_x": 2.0}, int8(7, 7, -8, -8, 1))


def test_sixteen_bits():
    # ·4096: 7.9999 → 32767.59 → ⌊32768.09⌋ → 32767; −8 → −32768; 1/8192 → 0.5 → 1
    values = reals(7.9999, -8.0, 1 / 8192)
    assert_gives(quant, [values], {"data_bits": 16, "scale_x": 4096.0}, int16(32767, -32768, 1))


def test_thirty_two_bits_keep_the_float32_sum():
    # above 2^23 float32 holds whole numbers only: 8388609 + ½ is a tie between 8388609 and …10, even wins
    # 2^31 saturates to 2^31 − 1; −2^31 fits
    values = reals(8388609.0, 2.0**31, -(2.0**31))
    assert_gives(quant, [values], {"data_bits": 32, "scale_x": 1.0}, int32(8388610, 2**31 - 1, -(2**31)))
