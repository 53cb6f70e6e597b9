# SPDX-License-Identifier: Apache-2.0
"""Ranges by name: what can be chosen, what a choice does to the integers, and that it can be put back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import linger
from tests.support.quantization import Kind, ranges_of


def calibrated(model: nn.Module, x: torch.Tensor) -> nn.Module:
    made = linger.init(model).eval()
    with linger.calibration():
        made(x)
    return made


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def test_every_range_that_can_be_chosen_has_a_key(net: nn.Module) -> None:
    made = calibrated(net, torch.randn(4, 2, 6, 6))
    found = ranges_of(made)
    assert {key: r.kind for key, r in found.items()} == {
        "0.x": Kind.INPUT,
        "0.w": Kind.WEIGHT,
        "0.o": Kind.OUTPUT,
        "3.w": Kind.WEIGHT,
        "3.o": Kind.OUTPUT,
    }


def test_a_finer_scale_of_weights_saturates_the_largest(net: nn.Module) -> None:
    x = torch.randn(4, 2, 6, 6)
    made = calibrated(net, x)
    weights = ranges_of(made)["3.w"]
    before, scale = made(x).dequantize().clone(), weights.scale
    weights.choose(scale * 4)
    made(x)
    integers = made[3].freeze(made[0].read("scale_o")).weight_integers
    wanted = (made[3].weight.detach().double() * scale * 4 + 0.5).floor().clamp(-128, 127)
    assert integers.tolist() == wanted.long().tolist()
    assert integers.abs().max() >= 127
    assert weights.scale == scale * 4
    made[3].ranges["w"].choose_range(None)
    assert torch.equal(made(x).dequantize(), before)


def test_a_choice_is_part_of_the_checkpoint(net: nn.Module) -> None:
    x = torch.randn(4, 2, 6, 6)
    made = calibrated(copy.deepcopy(net), x)
    found = ranges_of(made)
    found["0.w"].choose(found["0.w"].scale * 2)
    found["3.o"].choose(found["3.o"].scale * 2)
    wanted = made(x).dequantize()
    assert "0.chosen_w" in made.state_dict()
    other = linger.init(copy.deepcopy(net)).eval()
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(x).dequantize(), wanted)
    plain = calibrated(copy.deepcopy(net), x)
    other.load_state_dict(plain.state_dict())  # a checkpoint of this stage without a choice takes it back
    assert torch.equal(other(x).dequantize(), plain(x).dequantize())


def test_saved_ranges_can_be_put_back(net: nn.Module) -> None:
    x = torch.randn(4, 2, 6, 6)
    made = calibrated(net, x)
    before = made(x).dequantize().clone()
    for range_ in ranges_of(made).values():
        saved = range_.save()
        range_.choose(range_.scale / 8)
        assert not torch.equal(made(x).dequantize(), before), range_.key
        range_.restore(saved)
        assert torch.equal(made(x).dequantize(), before), range_.key


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_weights_can_be_chosen(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4)
    made = calibrated(nn.Sequential(kind(4, 6, bidirectional=True)), x)
    keys = ["0.i", "0.iw", "0.hw", "0.o", "0.iw_reverse", "0.hw_reverse"]
    found = ranges_of(made)
    assert set(found) == set(keys)
    before = made(x)[0].dequantize().clone()
    for key in ("0.iw", "0.hw_reverse", "0.i"):
        saved = found[key].save()
        found[key].choose(found[key].scale * 8)
        assert not torch.equal(made(x)[0].dequantize(), before), key
        found[key].restore(saved)
        assert torch.equal(made(x)[0].dequantize(), before), key


def test_saturated_weights_get_no_gradient(net: nn.Module) -> None:
    x = torch.randn(4, 2, 6, 6)
    made = calibrated(net, x)
    weights = ranges_of(made)["3.w"]
    weights.choose(weights.scale * 4)
    made(x).dequantize().square().sum().backward()
    is_beyond = made[3].weight.detach() * weights.scale >= 127.5
    assert is_beyond.any()
    assert (made[3].weight.grad[is_beyond] == 0).all()
    assert (made[3].weight.grad[~is_beyond] != 0).any()


def test_a_scale_is_a_power_of_two(net: nn.Module) -> None:
    made = calibrated(net, torch.randn(4, 2, 6, 6))
    with pytest.raises(linger.UsageError, match=r"0\.w: the scale 3 is no power of two"):
        ranges_of(made)["0.w"].choose(3)


@pytest.mark.parametrize("kind", [nn.Linear, nn.LSTM])
def test_wide_weights_get_the_scale_that_was_chosen(kind: type[nn.Module]) -> None:
    source = kind(4, 3)
    linger.quant_module(source, parameter_bits=16)
    model = linger.init(source).eval()
    x = torch.randn(5, 2, 4)
    with torch.no_grad(), linger.calibration():
        model(x)
    found = ranges_of(model)["w" if kind is nn.Linear else "iw"]
    wanted = found.scale / 16
    found.choose(wanted)
    with torch.no_grad():
        model(x)
    assert (found.bits, found.scale) == (16, wanted)
