"""Clip by hand: y = min(max(q, low), high), and the integer thresholds of real ones."""

import math

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, int32, torch_object
from tests.support.ops import Refusal, find_op

clip = find_op("Clip")
from_clamp = clip.functions["torch.clamp"]
from_hardtanh = clip.functions["torch.nn.functional.hardtanh"]
from_relu6 = clip.functions["torch.nn.functional.relu6"]
from_relu6_layer = clip.layers["torch.nn.ReLU6"]
thresholds = clip.make_constants


@pytest.mark.parametrize(
    ("integers", "low", "high", "expected"),
    [
        pytest.param(int8(-128, -1, 0, 95, 96, 97, 127), 0, 96, int8(0, 0, 0, 95, 96, 96, 96), id="ReLU6 at scale 16"),
        pytest.param(int8(-128, -17, -16, 16, 17, 127), -16, 16, int8(-16, -16, -16, 16, 16, 16), id="both sides"),
        pytest.param(int8(-128, 127), -128, 127, int8(-128, 127), id="the whole range"),
        pytest.param(int16(-32768, 384, 385, 32767), 0, 384, int16(0, 384, 384, 384), id="int16"),
        pytest.param(int32(-5, 2**24 + 1, 2**31 - 1), 0, 2**24 + 1, int32(0, 2**24 + 1, 2**24 + 1), id="int32"),
    ],
)
def test_limits(integers, low, high, expected):
    ends = [np.array(end, integers.dtype) for end in (low, high)]
    assert_gives(clip, [integers, *ends], {}, expected)


@pytest.mark.parametrize(
    ("scale", "expected"),
    [
        (128.0, 127),  # 768 does not fit: every int8 is below 6
        (64.0, 127),  # 384 neither
        (32.0, 127),  # nor 192
        (16.0, 96),
        (8.0, 48),
        (1.0, 6),
        (0.5, 3),
        (0.25, 2),  # 1.5, a tie, goes up
        (0.125, 1),  # 0.75
        (0.0625, 0),  # 0.375
    ],
)
def test_relu6_threshold_of_int8(scale, expected):
    assert thresholds(low=0.0, high=6.0, scale=scale, bits=8) == (0, expected)


@pytest.mark.parametrize(
    ("ends", "scale", "bits", "expected"),
    [
        pytest.param((0.0, 6.0), 64.0, 16, (0, 384), id="16 bits have room"),
        pytest.param((0.0, 6.0), 1.0, 4, (0, 6), id="4 bits"),
        pytest.param((0.0, 6.0), 2.0, 4, (0, 7), id="4 bits saturate"),
        pytest.param((-1.0, 1.0), 16.0, 8, (-16, 16), id="hardtanh"),
        pytest.param((-1.0, 1.0), 0.5, 8, (0, 1), id="both ties go up"),  # −½ → 0, ½ → 1
        pytest.param((-20.0, 20.0), 16.0, 8, (-128, 127), id="both ends saturate"),
    ],
)
def test_thresholds(ends, scale, bits, expected):
    assert thresholds(low=ends[0], high=ends[1], scale=scale, bits=bits) == expected


@pytest.mark.parametrize("scale", [64.0, 16.0, 8.0, 0.5])
def test_relu6_on_integers_is_relu6_on_reals(scale):
    # 6·scale is whole (or beyond the range) at these scales, so nothing is rounded
    integers = torch.arange(-128, 128)
    layer = torch.nn.ReLU6()
    low, high = thresholds(low=0.0, high=6.0, scale=scale, bits=8)
    assert torch.equal(integers.clamp(low, high) / scale, layer(integers / scale))


def test_relu6_layer_is_bound_as_a_call_of_hardtanh():
    bound = from_relu6_layer(torch.nn.ReLU6())
    x = torch.tensor([-1.0, 3.0, 7.0])
    assert torch.equal(torch_object(bound["call"])(x, *bound["arguments"]), torch.nn.ReLU6()(x))
    assert from_hardtanh(x, *bound["arguments"]) == from_relu6(x) == {"low": 0.0, "high": 6.0}


def test_hardtanh_binding_has_the_defaults_of_torch():
    x = torch.linspace(-2, 2, 9)
    bound = from_hardtanh(x)
    assert torch.equal(x.clamp(bound["low"], bound["high"]), torch.nn.functional.hardtanh(x))


@pytest.mark.parametrize("name", [*clip.functions, *clip.layers])
def test_bound_name_exists_in_torch(name):
    assert callable(torch_object(name))


def test_clamp_with_open_crossed_and_impossible_bounds():
    x = torch.ones(2)
    assert from_clamp(x, 1) == {"low": 1.0, "high": math.inf}
    assert from_clamp(x, max=0.5) == {"low": -math.inf, "high": 0.5}
    assert from_clamp(x, 2, 1) == {"low": 1.0, "high": 1.0}
    for bounds in ({}, {"min": torch.zeros(())}, {"max": math.nan}, {"min": True}):
        assert isinstance(from_clamp(x, **bounds), Refusal)


@pytest.mark.parametrize(
    ("low", "high", "scale", "bits", "expected"),
    [
        (-math.inf, math.inf, 16.0, 8, (-128, 127)),
        (-1e30, 1e30, 16.0, 16, (-32768, 32767)),
        # ties go up: 0.03125·16 = ½ → 1, −½ → 0
        (-0.03125, 0.03125, 16.0, 8, (0, 1)),
    ],
)
def test_thresholds_of_open_and_distant_bounds(low, high, scale, bits, expected):
    assert thresholds(low=low, high=high, scale=scale, bits=bits) == expected
