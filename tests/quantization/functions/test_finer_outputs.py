# SPDX-License-Identifier: Apache-2.0
"""An activation that makes a range smaller has a finer scale than its input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger

X = torch.tensor([[-10.0, -5.0, -2.5, -0.625, 0.0, 0.625, 1.25, 3.0]]).T
"""Multiples of 1/8, the step of a tensor up to 10 (10·8 ≤ 127 < 10·16)."""


class Net(nn.Module):
    """A linear layer that changes nothing, then an activation."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(1, 1, bias=False), act
        nn.init.constant_(self.fc.weight, 1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.fc(x))


def calibrated(act: Any, x: Tensor = X) -> Any:
    model = linger.init(Net(act)).eval()
    with linger.calibration():
        model(x)
    return model


def tenth() -> nn.PReLU:
    act = nn.PReLU()
    nn.init.constant_(act.weight, 0.1)
    return act


@pytest.mark.parametrize("make", [lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(0.1, inplace=True), tenth])
def test_a_slope_of_a_tenth_gives_two_more_bits(make: Any) -> None:
    result = calibrated(make())(X)
    # −10 … 3 becomes −1 … 3, and 3·32 ≤ 127 < 3·64. −10 = −80 steps: −80·0.1·4 = −32; −5: −16; −2.5: −8;
    # −0.625: −2; 0.625 = 5 steps of 1/8 and 20 of 1/32; 1.25: 40; 3: 96
    assert result.scale == 32.0
    assert result.integers().flatten().tolist() == [-32, -16, -8, -2, 0, 20, 40, 96]


def test_fewer_bits_than_the_input_has_get_a_coarser_scale(tmp_path: Path) -> None:
    """10 at 16 bits has a scale of 512, which 8 bits of its result, −1 … 3, cannot have: they saturated at 127/512."""
    net = linger.quant_module(Net(nn.LeakyReLU(0.1)), out_bits=16)
    model = linger.init(net).eval()
    with linger.calibration():
        model(X)
    (act,) = [module for name, module in model.named_modules() if "iqleakyrelu" in name]
    act.out_bits = 8
    with linger.calibration():
        model(X)
    result = model(X)
    assert (result.bits, result.scale) == (8, 32.0)
    assert result.integers().flatten().tolist() == [-32, -16, -8, -2, 0, 20, 40, 96]
    linger.onnx.export(model, (X,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", X).differing == 0


@pytest.mark.parametrize("make", [lambda: nn.LeakyReLU(0.1), tenth])
def test_a_range_that_does_not_shrink_keeps_its_scale(make: Any) -> None:
    result = calibrated(make(), -X)(-X)  # −3 … 10
    assert result.scale == 8.0
    # 80, 40, 20, 5; −5·0.1 = −0.5 becomes 0; −10·0.1 = −1; −24·0.1 = −2.4 becomes −2
    assert result.integers().flatten().tolist() == [80, 40, 20, 5, 0, 0, -1, -2]


def test_leaky_relu_is_never_coarser_than_its_input() -> None:
    model = calibrated(nn.LeakyReLU(0.1))
    model.act._linger_round_tensor_iqleakyrelu_0.running_o.fill_(1000.0)
    assert model(X).scale == 8.0


def test_clamp_behind_leaky_relu_limits_its_range() -> None:
    model = calibrated(lambda x: F.leaky_relu(x, 0.1).clamp(-1.0, 1.0))
    assert model._linger_round_tensor_iqleakyrelu_0.running_o.item() == 1.0


@pytest.mark.parametrize("kind", ["layer", "function"])
def test_a_checkpoint_without_the_range_keeps_the_scale_of_the_input(kind: str) -> None:
    act = nn.LeakyReLU(0.1) if kind == "layer" else lambda x: F.leaky_relu(x, 0.1)
    state = calibrated(act).state_dict()
    old = {k: v for k, v in state.items() if "iqleakyrelu" not in k}
    assert len(old) == len(state) - 2
    fresh = linger.init(Net(act)).eval()
    fresh.load_state_dict(old)
    again = calibrated(act)
    again.load_state_dict(old)
    for model in (fresh, again):
        result = model(X)
        assert result.scale == 8.0
        # −80·0.1 = −8, −4, −2, −5·0.1 + ½ = 0
        assert result.integers().flatten().tolist() == [-8, -4, -2, 0, 0, 5, 10, 24]


def test_a_checkpoint_of_prelu_without_the_mark_keeps_its_scale() -> None:
    state = calibrated(tenth()).state_dict()
    old = {k: v for k, v in state.items() if not k.endswith(".finer")}
    assert len(old) == len(state) - 1
    fresh = linger.init(Net(tenth())).eval()
    fresh.load_state_dict(old)
    assert fresh(X).scale == 8.0
    fresh.load_state_dict(state)
    assert fresh(X).scale == 32.0


@pytest.mark.parametrize("make", [lambda: nn.LeakyReLU(0.1), tenth])
def test_training_learns_the_finer_scale_and_the_slope(make: Any) -> None:
    model = linger.init(Net(make())).train()
    x = X.clone().requires_grad_()
    result = model(x)
    assert result.scale == 32.0
    result.dequantize().sum().backward()
    assert torch.allclose(x.grad, torch.where(X > 0, 1.0, 0.1), atol=1e-5)  # the slope is off by 1.6e-5 of itself


@pytest.mark.parametrize("make", [lambda: nn.LeakyReLU(0.1, inplace=True), tenth])
def test_the_file_has_the_same_integers(make: Any, tmp_path: Path) -> None:
    model = calibrated(make())
    linger.onnx.export(model, (X,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (X,)).ok


def test_error_across_leaky_relu_falls() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 1).sub(1.5)  # mostly negative, as behind a layer with negative biases
    model = calibrated(nn.LeakyReLU(0.1), x)
    before = copy.deepcopy(model)
    before.act._linger_round_tensor_iqleakyrelu_0.running_o.zero_()
    exact = F.leaky_relu(x, 0.1)
    with torch.no_grad():
        noise = [float((m(x).dequantize() - exact).square().mean()) for m in (before, model)]
    assert noise[1] < noise[0] / 3  # a range of 4.6 becomes one of 1.5: a step of 1/4; noise falls to 1/16 at best


class Shared(nn.Module):
    """One activation behind two layers, of which the second returns a hundred times more."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.act = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False), nn.LeakyReLU(0.1)
        nn.init.constant_(self.small.weight, 1.0)
        nn.init.constant_(self.large.weight, 100.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.act(self.small(x)), self.act(self.large(x))


class Caller(nn.Module):
    """Two modules that call one activation."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.LeakyReLU(0.1)
        self.first, self.second = Net(act), Net(act)
        nn.init.constant_(self.second.fc.weight, 100.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.first(x), self.second(x)


@pytest.mark.parametrize("mode", ["calibrated", "trained"])
@pytest.mark.parametrize(("make", "scales"), [(Shared, (32.0, 0.25)), (Caller, (8.0, 0.125))])
def test_calls_of_one_activation_do_not_share_a_range(make: Any, scales: tuple[float, float], mode: str) -> None:
    model = linger.init(make())
    if mode == "calibrated":
        with linger.calibration():
            model(X)
    else:
        for _ in range(3):
            model.train()(X)
    results = model.eval()(X)
    # −10 … 3 and −1000 … 300; called from one module each call has a range of its own, else that of its input
    assert tuple(result.scale for result in results) == scales
    exact = [F.leaky_relu(factor * X, 0.1) for factor in (1.0, 100.0)]
    for result, wanted, scale in zip(results, exact, scales, strict=True):
        assert (result.dequantize() - wanted).abs().max() <= 1.0 / scale  # rounded twice, and nothing saturates
