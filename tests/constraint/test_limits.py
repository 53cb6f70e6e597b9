"""Limits: which values can be one, what limiting does to values and gradients, and what a converted layer keeps."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from linger import NormalizeLinear
from linger.errors import UsageError
from tests.support.constraint import AHEAD_RELU, checked_limits, clamp, exceeds
from tests.support.quantization import Limits, Normalized, limits_of


@pytest.mark.parametrize("value", [1, 8, 0.5, 1e-30, 1e30, np.float32(0.25), np.float64(3), np.int64(2)], ids=repr)
def test_positive_finite_numbers_are_limits(value):
    found = checked_limits("here", weight=value, bias=None, output=value)
    assert found == Limits(float(value), None, float(value))
    assert type(found.weight) is float


@pytest.mark.parametrize("value", [0, 0.0, -1, -8.0, math.inf, -math.inf, math.nan, "8", True, False, [8]], ids=repr)
def test_anything_else_is_refused(value):
    with pytest.raises(UsageError, match="cannot be a limit") as caught:
        checked_limits("here", a=8, b=value, c=None)
    assert str(caught.value).startswith(f"here: b={value!r} cannot")


def test_every_wrong_value_is_named_and_no_other():
    with pytest.raises(UsageError) as caught:
        checked_limits("normalize_layers", first=-1, second=2, third=math.nan)
    assert str(caught.value) == (
        "normalize_layers: first=-1, third=nan cannot be a limit. Give a positive finite number, or None for no limit."
    )


def test_limits_know_whether_anything_is_limited():
    assert not Limits().is_any
    assert Limits(weight=1.0).is_any
    assert Limits(bias=1.0).is_any
    assert Limits(output=1.0).is_any


def test_gradient_is_one_inside_and_on_the_edge_and_zero_outside():
    x = torch.tensor([-3.0, -2.0, -1.5, 0.0, 1.5, 2.0, 2.0001, 3.0], requires_grad=True)
    y = clamp(x, 2.0)
    assert y.tolist() == [-2.0, -2.0, -1.5, 0.0, 1.5, 2.0, 2.0, 2.0]
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 1, 1, 0, 0]


def test_no_limit_and_no_tensor_pass():
    x = torch.tensor([1e9])
    assert clamp(x, None) is x
    assert clamp(None, 3.0) is None


@pytest.mark.parametrize(
    ("values", "limit", "expected"),
    [([2.0, -2.0], 2.0, False), ([2.1], 2.0, True), ([-2.1, 0.0], 2.0, True), ([9.0], None, False), ([], 1.0, False)],
)
def test_exceeding_is_beyond_the_edge(values, limit, expected):
    part = (torch.tensor(values, requires_grad=True), limit)
    assert exceeds(part) is expected
    assert exceeds((torch.ones(2), 1.0), part) is expected


class Wide(nn.Linear):
    """A subclass with an attribute of its own."""

    def __init__(self):
        super().__init__(3, 2)
        self.color = "green"


def converted(layer, **limits):
    return NormalizeLinear.from_layer(layer, Limits(**limits))


def test_a_converted_layer_keeps_parameters_mode_and_attributes():
    layer = Wide().eval()
    layer.bias.requires_grad_(requires_grad=False)
    made = converted(layer, weight=0.1)
    assert made.weight is layer.weight
    assert made.bias is layer.bias
    assert not made.bias.requires_grad
    assert not made.training
    assert made.color == "green"
    assert list(made.state_dict()) == ["weight", "bias"]
    assert limits_of(made) == Limits(weight=0.1)


def test_hooks_go_on_working_and_their_handles_too():
    layer, seen = Wide(), []
    handle = layer.register_forward_hook(lambda module, args, output: seen.append(type(module)))
    made = converted(layer, output=1.0)
    made(torch.ones(1, 3))
    assert seen == [NormalizeLinear]
    handle.remove()
    made(torch.ones(1, 3))
    assert len(seen) == 1


def test_whoever_holds_the_old_layer_holds_the_same_parameters():
    layer = Wide()
    made = converted(layer, weight=1.0)
    made.to(torch.float64)
    assert layer.weight.dtype == torch.float64
    made.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    assert layer.weight.sum() == 6


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["copy", "pickle"])
def test_a_copy_has_the_limits_and_parameters_of_its_own(clone):
    made = converted(nn.Linear(3, 2), weight=0.25, bias=0.5, output=1.0)
    again = clone(made)
    assert limits_of(again) == Limits(0.25, 0.5, 1.0)
    assert again.weight is not made.weight
    assert torch.equal(again(torch.ones(4, 3)), made(torch.ones(4, 3)))


def test_other_modules_have_no_limits():
    assert limits_of(nn.Linear(2, 2)) == Limits()


def test_constructor_takes_limits_and_marks_by_keyword():
    layer = NormalizeLinear(3, 2, False, normalize_data=1, normalize_weight=2, ahead_relu=True, ahead_sigmoid=True)
    assert layer.bias is None
    assert limits_of(layer) == Limits(weight=2.0, output=1.0)
    assert getattr(layer, AHEAD_RELU) is True
    assert getattr(NormalizeLinear(3, 2), AHEAD_RELU) is False


def test_constructor_names_every_wrong_limit():
    with pytest.raises(UsageError, match=r"^NormalizeLinear: normalize_weight=-1, normalize_data=0 cannot be a limit"):
        NormalizeLinear(3, 2, normalize_data=0, normalize_weight=-1, normalize_bias=1)


def test_limits_are_shown():
    layer = NormalizeLinear(3, 2, normalize_data=8, normalize_bias=0.5)
    assert repr(layer).endswith("in_features=3, out_features=2, bias=True, normalize_bias=0.5, normalize_data=8)")
    assert repr(NormalizeLinear(3, 2)).endswith("bias=True)")


def test_limits_can_be_replaced_and_removed():
    layer = NormalizeLinear(3, 2, normalize_weight=1)
    layer.limit_to(Limits(output=2.0))
    assert limits_of(layer) == Limits(output=2.0)
    layer.limit_to(Limits())
    assert not limits_of(layer).is_any
    assert isinstance(layer, Normalized)
