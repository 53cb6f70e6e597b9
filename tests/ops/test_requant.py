"""Requant by hand: y = sat(⌊q·scale_o/scale_x + ½⌋)."""

import pytest

from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op

requant = find_op("Requant")


@pytest.mark.parametrize(
    ("integers", "bits", "scales", "expected"),
    [
        # ·2^8: −128 → −32768, 127 → 32512
        pytest.param(int8(-128, 127, 1, 0), (8, 16), (16.0, 4096.0), int16(-32768, 32512, 256, 0), id="8 to 16"),
        # /2^8: 128 → ½ → 1; −128 → −½ → 0; −384 → −1½ → −1; 384 → 1½ → 2
        pytest.param(int16(128, -128, -384, 384), (16, 8), (4096.0, 16.0), int8(1, 0, -1, 2), id="16 to 8, ties"),
        # 127 → 0.496 → 0; 129 → 0.504 → 1; −127 → −0.496 → 0; −129 → −0.504 → −1
        pytest.param(int16(127, 129, -127, -129), (16, 8), (4096.0, 16.0), int8(0, 1, 0, -1), id="16 to 8, near ties"),
        # 32767/256 = 127.996 → 128 → 127; −32768/256 = −128; 32639/256 = 127.496 → 127
        pytest.param(int16(32767, -32768, 32639), (16, 8), (4096.0, 16.0), int8(127, -128, 127), id="16 to 8, ends"),
        # ·2^24: −128 → −2^31, 127 → 127·2^24
        pytest.param(int8(-128, 127), (8, 32), (1.0, 2.0**24), int32(-(2**31), 127 * 2**24), id="8 to 32"),
        # ·4: 31 → 124; 32 → 128 → 127; −32 → −128; −33 → −132 → −128
        pytest.param(
            int8(31, 32, -32, -33), (8, 8), (16.0, 64.0), int8(124, 127, -128, -128), id="left shift saturates"
        ),
        # /8: 4 → ½ → 1; −4 → −½ → 0; 12 → 1½ → 2; −12 → −1½ → −1; 127 → 15.875 → 16
        pytest.param(int8(4, -4, 12, -12, 127), (8, 8), (64.0, 8.0), int8(1, 0, 2, -1, 16), id="right shift"),
        # /2^12 to 4 bits: 30720 → 7.5 → 8 → 7; −32768 → −8; 2048 → ½ → 1
        pytest.param(int16(30720, -32768, 2048), (16, 4), (4096.0, 1.0), int8(7, -8, 1), id="16 to 4"),
        pytest.param(int8(-128, 0, 127), (8, 8), (32.0, 32.0), int8(-128, 0, 127), id="same scale changes nothing"),
    ],
)
def test_shift(integers, bits, scales, expected):
    attributes = {"data_bits": bits[0], "o_bits": bits[1], "scale_x": scales[0], "scale_o": scales[1]}
    assert_gives(requant, [integers], attributes, expected)
