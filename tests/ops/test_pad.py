"""iqPad by hand: a border of one integer; and what of F.pad it stands for."""

import math

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, image, int8, int16, int32, torch_object
from tests.support.ops import Refusal, find_op, run_in_training

iq_pad = find_op("iqPad")
border = iq_pad.make_constants
from_pad = iq_pad.functions["torch.nn.functional.pad"]


def pads(*numbers):
    return np.array(numbers, np.int64)


@pytest.mark.parametrize(
    ("x", "places", "value", "expected"),
    [
        # ONNX counts begin of all axes, then end of all axes: one column before, two after
        pytest.param(
            int8([[1, 2], [3, -128]]), pads(0, 1, 0, 2), 0, int8([[0, 1, 2, 0, 0], [0, 3, -128, 0, 0]]), id="columns"
        ),
        pytest.param(int8([[1, 2]]), pads(1, 0, 0, 0), -7, int8([[-7, -7], [1, 2]]), id="a row before"),
        pytest.param(int8([[1, 2]]), pads(0, 0, 1, 0), 127, int8([[1, 2], [127, 127]]), id="a row after"),
        pytest.param(int8(1, 2, 3, 4), pads(-1, -2), 9, int8([2]), id="negative pads cut"),
        pytest.param(int8(1, 2, 3, 4), pads(-1, 2), 9, int8(2, 3, 4, 9, 9), id="cut and pad"),
        pytest.param(image([5]), pads(0, 0, 1, 0, 0, 0, 0, 1), 0, image([0, 0], [5, 0]), id="an image"),
        pytest.param(int16(-32768, 32767), pads(1, 0), -32768, int16(-32768, -32768, 32767), id="int16"),
        pytest.param(
            int32(-(2**31), 2**31 - 1), pads(0, 1), 2**24 + 1, int32(-(2**31), 2**31 - 1, 2**24 + 1), id="int32"
        ),
    ],
)
def test_value(x, places, value, expected):
    assert_gives(iq_pad, [x, places, np.array(value, x.dtype)], {}, expected)


@pytest.mark.parametrize(
    ("value", "scale", "expected"), [(0.0, 16.0, 0), (0.1, 16.0, 2), (0.03125, 16.0, 1), (-0.03125, 16.0, 0)]
)
def test_constant_is_rounded_half_up_to_the_steps(value, scale, expected):
    # 0.1·16 = 1.6 → 2; ±½ → 1 and 0
    assert border(pads=(0, 1), value=value, scale=scale, bits=8) == ((0, 1), expected)


def test_pads_of_torch_begin_at_the_last_axis():
    x = torch.zeros(2, 3, 4, 5)
    bound = from_pad(x, (1, 2, 3, 4))
    assert bound == {"pads": (0, 0, 3, 1, 0, 0, 4, 2), "value": 0.0}
    assert torch.nn.functional.pad(x, (1, 2, 3, 4)).shape == (2, 3, 4 + 3 + 4, 5 + 1 + 2)
    assert from_pad(x, [1, 1], "constant", 2)["value"] == 2.0
    assert from_pad(x, [1, 1], 2.5)["value"] == 2.5  # torch.constant_pad_nd has no mode
    assert torch_object("torch.constant_pad_nd")(torch.zeros(1), [0, 1], 2.5).tolist() == [0.0, 2.5]


class Scaled:
    scale_on_host, bits = 16.0, 8

    def dim(self):
        return 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 8.0, -8.1])
def test_a_constant_that_does_not_fit_is_refused(value):
    assert isinstance(from_pad(Scaled(), (1, 1), "constant", value), Refusal)
    assert "value" in from_pad(Scaled(), (1, 1), "constant", 7.9)
    assert "value" in from_pad(Scaled(), (1, 1), "constant", -8.0)


def test_other_modes_are_refused():
    assert isinstance(from_pad(torch.zeros(1, 2, 3), (1, 1), "reflect"), Refusal)


def test_gradient_passes_to_what_is_kept():
    x = torch.tensor([1.0, 2.0, 3.0]).requires_grad_()
    y = run_in_training(iq_pad, [x, torch.tensor([1, -1]), torch.tensor(5.0)], {})
    assert y.tolist() == [5.0, 1.0, 2.0]
    (y * torch.tensor([10.0, 20.0, 30.0])).sum().backward()
    assert x.grad.tolist() == [20.0, 30.0, 0.0]
