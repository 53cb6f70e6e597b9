"""Dequant by hand: y = q / scale, rounded once to float32."""

import numpy as np
import pytest

from tests.support.hand_worked import assert_gives, int8, int16, int32
from tests.support.ops import find_op

dequant = find_op("Dequant")


@pytest.mark.parametrize(
    ("integers", "scale", "expected"),
    [
        # 5/16 = 0.3125, −128/16 = −8, 127/16 = 7.9375
        pytest.param(int8(5, -128, 127, 0), 16.0, (0.3125, -8.0, 7.9375, 0.0), id="int8"),
        # 3/¼ = 12
        pytest.param(int8(3, -3), 0.25, (12.0, -12.0), id="scale below one"),
        # 32767/1024 = 31.9990234375, exact in float32
        pytest.param(int16(32767, -32768), 1024.0, (31.9990234375, -32.0), id="int16"),
        # 2^24 + 1 has 25 bits: a tie between 2^24 and 2^24 + 2, the even one is 2^24; 2^24 + 3 goes to 2^24 + 4
        pytest.param(int32(2**24 + 1, 2**24 + 3), 1.0, (16777216.0, 16777220.0), id="int32 is rounded once"),
        # (2^24 + 3)/2: the same bits with another exponent
        pytest.param(int32(2**24 + 3), 2.0, (8388610.0,), id="int32 at another scale"),
    ],
)
def test_quotient(integers, scale, expected):
    assert_gives(dequant, [integers], {"scale_o": scale}, np.array(expected, np.float32))
