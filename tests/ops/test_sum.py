"""iqSum by hand: exact sums, shifted right with rounding half up."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.ops import Refusal, find_op

iq_sum = find_op("iqSum")


def attributes(dims, scale_o=4.0, **more):
    return {"dims": dims, "scale_x": 16.0, "scale_o": scale_o} | more


def test_ties_and_both_ends():
    x = int8([[1, 1, 0], [-1, -1, 0], [2, 4, 0], [127, 127, 127], [-128, -128, -128]])
    # /4: 2 → ½ → 1; −2 → −½ → 0; 6 → 1½ → 2; 381 → 95¼ → 95; −384 → −96
    assert_gives(iq_sum, [x], attributes(1), int8([[1], [0], [2], [95], [-96]]))
    # at the same scale they saturate
    assert_gives(iq_sum, [x], attributes(1, 16.0), int8([[2], [-2], [6], [127], [-128]]))


def test_first_axis():
    # 1 + 3 + 5 = 9, 2 + 4 + 6 = 12; /4 = 2¼ and 3
    assert_gives(iq_sum, [int8([[1, 2], [3, 4], [5, 6]])], attributes(0), int8([[2, 3]]))


def test_sixteen_and_thirty_two_bits():
    assert_gives(iq_sum, [int16([[30000, 30000]])], attributes(1, o_bits=16), int16([[15000]]))
    # 2^31 − 1 twice is 2^32 − 2, a quarter 2^30 − ½ → 2^30
    x = int32([[2**31 - 1, 2**31 - 1]])
    assert_gives(iq_sum, [x], attributes(1, o_bits=32), int32([[2**30]]))


@pytest.mark.parametrize("name", iq_sum.functions)
def test_bound_name_is_the_sum_of_torch(name):
    x = torch.ones(2, 3)
    assert torch_object(name)(x, 1, keepdim=True).tolist() == [[3.0], [3.0]]
    bind = iq_sum.functions[name]
    assert bind(x, 1, True) == {"dims": 1}
    assert bind(x, 1, True, dtype=torch.float32) == {"dims": 1}
    for settings in ((x, 1), (x, None, True), (x, (0, 1), True), (x, 2, True)):
        assert isinstance(bind(*settings), Refusal)
    assert "float64" in bind(x, 1, True, dtype=torch.float64).reason
