"""iqAdaptiveAvgPool by hand: sums of chosen pixels over their number, with the ties of AvgPool2dInt."""

import numpy as np
import pytest

from tests.support.hand_worked import assert_gives, image, int16
from tests.support.ops import find_op

iq_adaptive_avgpool = find_op("iqAdaptiveAvgPool")


def attributes(o_shift=0, bits=8):
    return {"data_bits": bits, "o_bits": bits, "scale_x": 16.0, "scale_o": 16.0 / 2**o_shift}


def test_one_window_of_a_image():
    # (1 + 2 + 3 + 4)/4 = 2½ → 3; at a quarter of the scale 0.625 → 1
    ones, x = int16([[1], [1]]), image([1, 2], [3, 4])
    assert_gives(iq_adaptive_avgpool, [x, ones, ones], attributes(), image([3]))
    assert_gives(iq_adaptive_avgpool, [x, ones, ones], attributes(2), image([1]))


def test_windows_that_share_a_pixel():
    # 3 pixels to 2 windows: {0, 1} and {1, 2}, so (0 + 4)/2 and (4 + 9)/2 = 6½ → 7
    columns = int16([[1, 0], [1, 1], [0, 1]])
    assert_gives(iq_adaptive_avgpool, [image([0, 4, 9]), int16([[1]]), columns], attributes(), image([2, 7]))


@pytest.mark.parametrize(
    ("area", "sums", "expected"),
    [
        # r = 715827883/2^32 is a little more than 1/6: 3·r → 1, −3·r = −0.5000000002 → −1
        (6, [3, 9, -3, -9, 2, -4], [1, 2, -1, -2, 0, -1]),
        # r = 858993459/2^33 is a little less than 1/10: 5·r = 0.4999999999 → 0, and −5·r → 0
        (10, [5, 15, -5, -15, 6], [0, 1, 0, -1, 1]),
        # 1/8 is exact: ½ → 1, −½ → 0
        (8, [4, -4, 12, -12], [1, 0, 2, -1]),
    ],
)
def test_ties_are_those_of_the_device(area, sums, expected):
    # window i has `area` pixels, the first of which is the whole sum
    x = np.zeros((1, 1, 1, area * len(sums)), np.int8)
    x[..., ::area] = sums
    columns = np.repeat(np.eye(len(sums), dtype=np.int16), area, axis=0)
    assert_gives(iq_adaptive_avgpool, [x, int16([[1]]), columns], attributes(), image(expected))


def test_sixteen_bits():
    # 6·32767/6: r is 1.0000000005/6, 32767.00002 → 32767; 6·−32768 → −32768.00002 → −32768
    x = image([32767] * 6 + [-32768] * 6, dtype=np.int16)
    columns = np.repeat(np.eye(2, dtype=np.int16), 6, axis=0)
    expected = image([32767, -32768], dtype=np.int16)
    assert_gives(iq_adaptive_avgpool, [x, int16([[1]]), columns], attributes(bits=16), expected)
