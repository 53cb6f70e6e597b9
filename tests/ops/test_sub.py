"""iqSub by hand: o = sat(⌊x·so/sx + ½⌋ − ⌊y·so/sy + ½⌋)."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op

iq_sub = find_op("iqSub")
from_reversed = iq_sub.functions["torch.rsub"]
from_sub = iq_sub.functions["torch.sub"]


@pytest.mark.parametrize(
    ("x", "y", "scales", "expected"),
    [
        pytest.param(int8(1, -128, 100), int8(2, -127, 50), (16.0, 16.0, 16.0), int8(-1, -1, 50), id="equal scales"),
        # 100 + 100 → 127, −100 − 100 → −128, 127 + 128 → 127, −128 − 127 → −128
        pytest.param(
            int8(100, -100, 127, -128),
            int8(-100, 100, -128, 127),
            (16.0, 16.0, 16.0),
            int8(127, -128, 127, -128),
            id="saturates",
        ),
        # x/4 and y/2, each rounded first: ½ − ½ → 1 − 1 = 0; −½ − ½ → 0 − 1 = −1; ½ − (−½) → 1 − 0 = 1 (exact: 1)
        pytest.param(
            int8(2, -2, 2), int8(1, 1, -1), (64.0, 32.0, 16.0), int8(0, -1, 1), id="each tie goes up by itself"
        ),
        # x at the output's scale, y/4: 10 − ½ → 10 − 1 = 9 (⌊9.5 + ½⌋ would be 10); 10 − (−½) → 10 − 0 = 10
        pytest.param(
            int8(10, 10), int8(2, -2), (16.0, 64.0, 16.0), int8(9, 10), id="a tie of y goes down in the result"
        ),
        # x/4, y at the output's scale: ½ − 3 → 1 − 3 = −2, −½ − 3 → 0 − 3 = −3
        pytest.param(int8(2, -2), int8(3, 3), (64.0, 16.0, 16.0), int8(-2, -3), id="a tie of x goes up"),
        # ·4 on both sides: 20 − 12 = 8; 128 + 124 → 127; 4·127 − 4·120 = 28: parts are not saturated
        pytest.param(int8(5, 32, 127), int8(3, -31, 120), (16.0, 16.0, 64.0), int8(8, 127, 28), id="left shift"),
    ],
)
def test_difference(x, y, scales, expected):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    assert_gives(iq_sub, [x, y], attributes, expected)


def test_sixteen_bits():
    # 32767 − (−32768/4 = −8192) → 32767; −32768 − 8192 → −32768 (32767/4 = 8191.75 → 8192); 1 − 2/4 (½ → 1) = 0
    x, y = int16(32767, -32768, 1), int16(-32768, 32767, 2)
    attributes = {"scale_x": 256.0, "scale_y": 1024.0, "scale_o": 256.0, "o_bits": 16}
    assert_gives(iq_sub, [x, y], attributes, int16(32767, -32768, 0))


def test_alpha_other_than_one_is_refused():
    x = torch.ones(2)
    assert from_sub(x, x) == from_reversed(x, x) == from_sub(x, x, alpha=1.0) == {}
    assert isinstance(from_sub(x, x, alpha=2), Refusal)
    assert isinstance(from_reversed(x, x, alpha=2), Refusal)


@pytest.mark.parametrize("name", iq_sub.functions)
def test_bound_name_is_a_difference_in_torch(name):
    is_reversed = iq_sub.orders.get(iq_sub.functions[name]) == ("y", "x")
    x, y = (3.0, 5.0) if is_reversed else (5.0, 3.0)
    assert torch_object(name)(torch.tensor([x]), torch.tensor([y])).item() == 2.0
