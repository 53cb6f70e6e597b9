"""iqAdd by hand: o = sat(⌊x·so/sx + ½⌋ + ⌊y·so/sy + ½⌋)."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object, uint8
from tests.support.ops import Refusal, find_op

iq_add = find_op("iqAdd")
from_add = iq_add.functions["torch.add"]
from_add_in_place = iq_add.functions["torch.Tensor.add_"]


@pytest.mark.parametrize(
    ("x", "y", "scales", "expected"),
    [
        pytest.param(int8(1, -128, 100), int8(2, 127, -50), (16.0, 16.0, 16.0), int8(3, -1, 50), id="equal scales"),
        pytest.param(
            int8(100, -100, 127), int8(100, -100, 1), (16.0, 16.0, 16.0), int8(127, -128, 127), id="saturates"
        ),
        # x/4 and y/2, each rounded first: ½ + ½ → 1 + 1 (the exact sum is 1); −½ − ½ → 0 + 0 (exact: −1)
        pytest.param(int8(2, -2), int8(1, -1), (64.0, 32.0, 16.0), int8(2, 0), id="each tie goes up by itself"),
        # 3/4 → 1, 1/4 → 0, −3/4 → −1, −1/4 → 0; y/2: 3/2 → 2, −3/2 → −1, 5/2 → 3, −5/2 → −2
        pytest.param(int8(3, 1, -3, -1), int8(3, -3, 5, -5), (64.0, 32.0, 16.0), int8(3, -1, 2, -2), id="both shifted"),
        # 127/4 = 31.75 → 32, 127/2 = 63.5 → 64; −128/4 = −32, −128/2 = −64
        pytest.param(int8(127, -128), int8(127, -128), (64.0, 32.0, 16.0), int8(96, -96), id="extremes shifted"),
        # ·4 on both sides: 20 + 12 = 32; 128 + 124 → 127; −128 − 132 → −128
        pytest.param(int8(5, 32, -32), int8(3, 31, -33), (16.0, 16.0, 64.0), int8(32, 127, -128), id="left shift"),
        # the sum is saturated, not its parts: 4·127 − 4·120 = 28
        pytest.param(int8(127), int8(-120), (16.0, 16.0, 64.0), int8(28), id="parts are not saturated"),
    ],
)
def test_sum(x, y, scales, expected):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    assert_gives(iq_add, [x, y], attributes, expected)


def test_broadcast_over_the_channels():
    x, y = int8([[1, 2, 3], [4, 5, 6]]), int8([[10], [-10]])
    attributes = {"scale_x": 8.0, "scale_y": 8.0, "scale_o": 8.0}
    assert_gives(iq_add, [x, y], attributes, int8([[11, 12, 13], [-6, -5, -4]]))


def test_sixteen_bits():
    # 32767 + 32767/4 (8191.75 → 8192) → 32767; −32768 − 8192 → −32768; 1 + 2/4 (½ → 1) = 2
    x, y = int16(32767, -32768, 1), int16(32767, -32768, 2)
    attributes = {"scale_x": 256.0, "scale_y": 1024.0, "scale_o": 256.0, "o_bits": 16}
    assert_gives(iq_add, [x, y], attributes, int16(32767, -32768, 2))


@pytest.mark.parametrize("bind", [from_add, from_add_in_place])
def test_alpha_other_than_one_is_refused(bind):
    x = torch.ones(2)
    assert bind(x, x) == bind(x, x, alpha=1) == bind(x, x, alpha=1.0) == {}
    assert isinstance(bind(x, x, alpha=2), Refusal)


@pytest.mark.parametrize("name", iq_add.functions)
def test_bound_name_is_an_addition_in_torch(name):
    assert torch_object(name)(torch.tensor([2.0]), torch.tensor([3.0])).item() == 5.0


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        # x at 32 is halved: 255/2 = 127½ → 128, 3/2 → 2, 0; y at 16: −128, −3, 100
        pytest.param(uint8(255, 3, 0), int8(-128, -3, 100), int8(0, -1, 100), id="to signed"),
        pytest.param(uint8(255, 3, 0), int8(-128, -3, 100), uint8(0, 0, 100), id="to unsigned"),
        pytest.param(uint8(255, 3, 0), uint8(255, 0, 1), int8(127, 2, 1), id="two unsigned to signed"),
        # 128 + 127 = 255; 128 + 128 = 256 → 255; 2 + 200 = 202
        pytest.param(uint8(255, 255, 3), uint8(127, 128, 200), uint8(255, 255, 202), id="all unsigned"),
        # −127/2 = −63½ → −63
        pytest.param(int8(-127, 127, 3), uint8(255, 255, 1), uint8(192, 255, 3), id="signed first"),
    ],
)
def test_unsigned_operands_and_results(x, y, expected):
    attributes = {"scale_x": 32.0, "scale_y": 16.0, "scale_o": 16.0}
    unsigned = {"o_unsigned": 1} if expected.dtype == "uint8" else {}
    assert_gives(iq_add, [x, y], attributes | unsigned, expected)
