# SPDX-License-Identifier: Apache-2.0
"""constrain and const_module set the limits that normalize_layers would, with the numbers of linger 3.x."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import linger
from linger.constraint.limits import Limits, limits_of


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Flatten(),
        nn.Linear(144, 5),
        nn.LayerNorm(5),
    ).eval()


X = torch.linspace(-2, 2, 128).reshape(2, 1, 8, 8)


def limits(model: nn.Module) -> dict[str, Limits]:
    return {path: limits_of(module) for path, module in model.named_modules() if limits_of(module).is_any}


def test_outputs_within_8_and_weights_within_7_times_their_mean(net: nn.Module) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weight = net[2].weight
    mean = float(weight.detach().abs().mean())
    model = linger.constrain(net)
    assert model is net
    found = limits(model)
    assert found["2"] == Limits(7 * mean, None, 8.0)
    assert set(found) == {"0.0", "0.1", "2"}  # as normalize_layers: layer norms must be named
    assert model[2].weight is weight
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_pair_is_limited_by_its_folded_weights(net: nn.Module) -> None:
    net[0][1].weight.data.fill_(3.0)
    traced = linger.trace_layers(net, X)
    folded = traced[0][0].folded()[0].detach()
    assert limits(linger.constrain(traced))["0.0"].weight == pytest.approx(7 * float(folded.abs().mean()), rel=1e-6)


def test_a_file_of_linger_3_and_one_of_lingers_own_say_the_same(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "3.yaml").write_text("""
clamp_info: {clamp_weight_value: 4, clamp_bias_value: 2, clamp_activation_value: 6}
first: {name: ['0'], clamp_info: {clamp_weight_value: 1.5}}
""")
    (tmp_path / "own.yaml").write_text("""
constrain:
  '*': {weight: 4, bias: 2, output: 6}
  0.*: {weight: 1.5, output: 8}
""")
    models = [linger.constrain(copy.deepcopy(net), tmp_path / f"{name}.yaml") for name in ("3", "own")]
    expected = dict.fromkeys(("0.0", "0.1"), Limits(1.5, None, 8.0)) | {"2": Limits(4.0, 2.0, 6.0)}
    assert limits(models[0]) == limits(models[1]) == expected
    by_hand = linger.normalize_module(copy.deepcopy(net), (nn.Linear,), 4, 2, 6)
    linger.normalize_module(by_hand[0], None, 1.5, None, 8)
    by_hand = linger.normalize_layers(by_hand)
    assert torch.equal(models[0](X), by_hand(X))


def test_limits_of_a_saved_model_come_back(net: nn.Module, tmp_path: Path) -> None:
    made = linger.init(linger.normalize_layers(copy.deepcopy(net), normalize_weight_value=2), disable_submodel=["2"])
    linger.restore()
    linger.save_config(made, tmp_path / "c.yaml")
    again = linger.constrain(copy.deepcopy(net), tmp_path / "c.yaml")
    assert limits(again) == limits(linger.normalize_layers(copy.deepcopy(net), normalize_weight_value=2))


def test_types_and_parts_stay_without_limits(net: nn.Module) -> None:
    linger.disable_normalize(net[0][1])
    model = linger.constrain(net, disable_module=[nn.Linear], disable_submodel=["0.0*"])
    assert limits(model) == {}


def test_const_module_changes_what_is_there(net: nn.Module) -> None:
    with pytest.raises(linger.UsageError, match="nothing in Sequential has limits"):
        linger.const_module(net)
    model = linger.constrain(net)
    assert linger.const_module(model[0], 4.0, 2.0, 1.0) is model[0]
    linger.const_module(model[2], c_weight_factor=3)
    found = limits(model)
    assert found["0.0"] == Limits(2.0, 1.0, 4.0)
    assert found["2"] == Limits(3 * float(model[2].weight.detach().abs().mean()), None, 8.0)
    with pytest.raises(linger.UsageError, match=r"c_weight_val=-1, c_activation_val='x'"):
        linger.const_module(model, "x", -1)
    with pytest.raises(linger.UsageError, match=r"c_weight_factor=0"):
        linger.const_module(model, c_weight_factor=0)
    assert limits(model) == found


def test_what_does_not_fit_is_named_and_changes_nothing(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("constrain: {'3': {output: 8}, '7.*': {output: 8}, '1': {}}")
    before = str(net)
    with pytest.raises(linger.UsageError) as caught:
        linger.constrain(net, tmp_path / "c.yaml", disable_submodel=["tail"])
    said = str(caught.value)
    assert "constrain: the pattern '7.*' fits nothing" in said
    assert "constrain.1: Flatten cannot be kept within limits" in said
    assert "disable_submodel: 'tail' is unknown" in said
    with pytest.raises(linger.UsageError, match=r"constrain: disable_module=\['Linear'\] \(types of layers"):
        linger.constrain(net, None, ["Linear"])  # type: ignore[list-item]  # the wrong type is what is tried
    assert str(net) == before
    made = linger.init(net)
    linger.restore()
    with pytest.raises(linger.UsageError, match="constrain: Sequential is quantized already"):
        linger.constrain(made)
