"""Relu by hand: y = max(q, 0)."""

import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object, uint8
from tests.support.ops import find_op
from tests.support.wired import Wired, image, quantize

relu = find_op("Relu")
from_functional_relu = relu.functions["torch.nn.functional.relu"]
from_relu = relu.functions["torch.relu"]


@pytest.mark.parametrize(
    ("integers", "expected"),
    [
        pytest.param(int8(-128, -1, 0, 1, 127), int8(0, 0, 0, 1, 127), id="int8"),
        pytest.param(int16(-32768, -1, 0, 1, 32767), int16(0, 0, 0, 1, 32767), id="int16"),
        # 2^24 + 1 and 2^31 − 1 do not fit in float32: the detour must be wider
        pytest.param(int32(-(2**31), -1, 2**24 + 1, 2**31 - 1), int32(0, 0, 2**24 + 1, 2**31 - 1), id="int32"),
    ],
)
def test_negative_becomes_zero(integers, expected):
    assert_gives(relu, [integers], {}, expected)


@pytest.mark.parametrize("name", relu.functions)
def test_binding_has_no_settings(name):
    function = torch_object(name)
    x = torch.tensor([-3.0, 0.0, 4.0])
    assert function(x.clone()).tolist() == [0.0, 0.0, 4.0]
    assert relu.functions[name](x) == {}


def test_in_place_is_accepted():
    assert from_functional_relu(torch.zeros(1), inplace=True) == from_relu(torch.zeros(1)) == {}


def test_a_limit_behind_it_reaches_the_layer_before():
    model = quantize(Wired(lambda m, x: torch.relu(m.conv(x)).clamp(max=0.125)), image())
    assert model.conv.running_o.item() == 0.125


def test_unsigned_numbers_are_what_they_were():
    assert_gives(relu, [uint8(0, 1, 127, 128, 200, 255)], {}, uint8(0, 1, 127, 128, 200, 255))
