"""iqLargest by hand: the largest integer along an axis."""

from linger.ops.largest import iq_largest
from tests.support.hand_worked import assert_gives, int8, int16, int32


def test_along_either_axis():
    x = int8([[3, -7, 5], [-128, -2, -9]])
    assert_gives(iq_largest, [x], {"dims": 1}, int8([[5], [-2]]))
    assert_gives(iq_largest, [x], {"dims": 0}, int8([[3, -2, 5]]))


def test_wider_integers():
    assert_gives(iq_largest, [int16([[-32768, -32767]])], {"dims": -1, "o_bits": 16}, int16([[-32767]]))
    assert_gives(iq_largest, [int32([[2**31 - 2, 2**31 - 1]])], {"dims": -1, "o_bits": 32}, int32([[2**31 - 1]]))
