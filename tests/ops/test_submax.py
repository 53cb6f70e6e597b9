"""iqSubMax by hand: the distance to the largest number of the row, limited to the width of the input."""

import pytest

from tests.support.hand_worked import assert_gives, int8, int16
from tests.support.ops import find_op

iq_sub_max = find_op("iqSubMax")


def attributes(bits=8, scale_o=1.0):
    return {"dim": -1, "data_bits": bits, "o_bits": bits, "scale_x": 1.0, "scale_o": scale_o}


@pytest.mark.parametrize(
    ("x", "given", "expected"),
    [
        pytest.param(int8(3, 10, -5), attributes(), int8(-7, 0, -15), id="plain"),
        pytest.param(int8(-128, -100), attributes(), int8(-28, 0), id="all negative"),
        # −128 − 127 = −255 is beyond 8 bits
        pytest.param(int8(127, -128, -1, 0), attributes(), int8(0, -128, -128, -127), id="saturates"),
        pytest.param(int8(7, 7), attributes(), int8(0, 0), id="equal"),
        pytest.param(int16(32767, -1, 0), attributes(16), int16(0, -32768, -32767), id="16 bits"),
        # −1/2 → −½ → 0, −3/2 → −1½ → −1
        pytest.param(int8(5, 4, 2), attributes(scale_o=0.5), int8(0, 0, -1), id="coarser: ties go up"),
    ],
)
def test_value(x, given, expected):
    assert_gives(iq_sub_max, [x], given, expected)


def test_rows_are_apart():
    x = int8(1, 2, 3, 9, 8, 7).reshape(2, 3)
    assert_gives(iq_sub_max, [x], attributes(), int8(-2, -1, 0, 0, -1, -2).reshape(2, 3))
    columns = {**attributes(), "dim": 0}
    assert_gives(iq_sub_max, [x], columns, int8(-8, -6, -4, 0, 0, 0).reshape(2, 3))
