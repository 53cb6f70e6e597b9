"""iqMax by hand: o = sat(max(⌊x·so/sx + ½⌋, ⌊y·so/sy + ½⌋))."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, torch_object
from tests.support.ops import Refusal, find_op
from tests.support.wired import Wired, image, quantize

iq_max = find_op("iqMax")
from_max = iq_max.functions["torch.max"]


@pytest.mark.parametrize(
    ("x", "y", "scales", "expected"),
    [
        pytest.param(int8(1, -128, 100), int8(2, -127, 100), (16.0, 16.0, 16.0), int8(2, -127, 100), id="equal scales"),
        # x/4, y/2: ½ → 1 and 0; −½ → 0 and −3/2 → −1; 6/4 = 1½ → 2 and 3/2 → 2
        pytest.param(int8(2, -2, 6), int8(0, -3, 3), (64.0, 32.0, 16.0), int8(1, 0, 2), id="both shifted"),
        # ·4: 128 → 127, −132 → −128
        pytest.param(int8(32, -33), int8(-128, -128), (16.0, 16.0, 64.0), int8(127, -128), id="left shift"),
    ],
)
def test_maximum(x, y, scales, expected):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    assert_gives(iq_max, [x, y], attributes, expected)


def test_the_other_functions_of_that_name_are_refused():
    x = torch.ones(2, 3)
    assert from_max(x, x) == {}
    for arguments in ((x,), (x, 1), (x, 1, True)):
        assert isinstance(from_max(*arguments), Refusal)
    assert isinstance(from_max(x, dim=1), Refusal)


@pytest.mark.parametrize("name", iq_max.functions)
def test_bound_name_is_a_maximum_in_torch(name):
    assert torch_object(name)(torch.tensor([2.0, 5.0]), torch.tensor([3.0, 4.0])).tolist() == [3.0, 5.0]


def test_a_limit_behind_it_reaches_the_layers_before():
    def forward(m, x):
        y = m.conv(x)
        return torch.maximum(m.conv2(y), y).clamp(-0.125, 0.125)

    model = quantize(Wired(forward), image(spread=8.0))
    assert model.conv2.running_o.item() == 0.125
    assert model.conv.running_o.item() > 0.125  # another layer reads all of it
