# SPDX-License-Identifier: Apache-2.0
"""Factors of channels leave a model's function as it is, through every kind of chain, and leave alone what they must."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from tests.support import tuning
from tests.support.tuning import Chains, apply_factors, apply_limits

Forward = Callable[..., Any]


class Wired(nn.Module):
    """Layers of four channels, joined by a function."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 2, 1)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.multiplied = nn.Conv2d(4, 8, 3, padding=1, groups=4)
        self.grouped = nn.Conv2d(4, 6, 1, groups=2)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.up_grouped = nn.ConvTranspose2d(4, 6, 2, 2, groups=2)
        self.last8, self.last6 = nn.Conv2d(8, 2, 1), nn.Conv2d(6, 2, 1)
        self.norm, self.norm2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
        self.plain_norm = nn.BatchNorm2d(4, affine=False)
        self.slopes, self.slope = nn.PReLU(4), nn.PReLU()
        self.fc, self.fc_wide = nn.Linear(4, 3), nn.Linear(4 * 36, 3)
        self.lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
        self.gru, self.cell = nn.GRU(4, 3, num_layers=2, batch_first=True), nn.LSTMCell(4, 3)
        self.scale = nn.Parameter(torch.ones(1, 4, 1, 1))
        self.relu6, self.dropout = nn.ReLU6(inplace=True), nn.Dropout(0.5)
        self.run = forward

    def forward(self, x: Tensor) -> Any:
        return self.run(self, x)


def wired(forward: Forward) -> Wired:
    torch.manual_seed(3)
    model = Wired(forward).eval()
    with torch.no_grad():
        for norm in (model.norm, model.norm2):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.01, 2)
            norm.weight.uniform_(-2, 2)
            norm.bias.normal_()
        model.slopes.weight.uniform_(-0.5, 0.5)
    return model.double()


def image() -> Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(4)).double()


def through(between: Callable[[Wired, Tensor], Tensor]) -> Forward:
    return lambda m, x: m.last(between(m, m.first(x)))


def residual(m: Wired, x: Tensor) -> Tensor:
    x = F.relu(m.first(x))
    x = x + m.second(F.relu(m.depthwise(x)))
    return m.last(F.relu(x))


def joined(m: Wired, x: Tensor) -> Tensor:
    a, b = F.relu(m.first(x)), F.relu(m.depthwise(F.relu(m.first(x))))
    return m.last8(torch.cat([a, b], 1))


def gated(m: Wired, x: Tensor) -> Tensor:
    y = F.relu(m.first(x))
    return m.last(y * torch.sigmoid(m.second(y.mean((2, 3), keepdim=True))))


CHAINS: dict[str, tuple[Forward, int]] = {
    "relu": (through(lambda m, y: F.relu(y)), 4),
    "leaky relu": (through(lambda m, y: F.leaky_relu(y, 0.1)), 4),
    "prelu per channel": (through(lambda m, y: m.slopes(y)), 4),
    "prelu": (through(lambda m, y: m.slope(y)), 4),
    "linear": (through(lambda m, y: y), 4),
    "clamp below": (through(lambda m, y: y.clamp(min=0)), 4),
    "max pool": (through(lambda m, y: F.max_pool2d(F.relu(y), 2)), 4),
    "average pool": (through(lambda m, y: F.avg_pool2d(y, 3, 1, 1)), 4),
    "adaptive pool": (through(lambda m, y: F.adaptive_avg_pool2d(y, 2)), 4),
    "dropout": (through(lambda m, y: m.dropout(y)), 4),
    "zero padding": (through(lambda m, y: F.pad(y, (1, 2, 0, 1))), 4),
    "reflected padding": (through(lambda m, y: F.pad(y, (1, 1, 1, 1), mode="reflect")), 4),
    "nearest": (through(lambda m, y: F.interpolate(y, scale_factor=2)), 4),
    "bilinear": (through(lambda m, y: F.interpolate(y, size=9, mode="bilinear")), 4),
    "times numbers": (through(lambda m, y: -2.0 * y * m.scale / 3), 4),
    "gate without factors": (gated, 4),
    "slices": (through(lambda m, y: torch.cat([y[:, 2:], y[:, :2]], 1)), 4),
    "chunks": (through(lambda m, y: torch.cat(y.chunk(2, 1)[::-1], 1)), 4),
    "shuffled channels": (
        through(lambda m, y: y.reshape(2, 2, 2, 6, 6).transpose(1, 2).flatten(1, 2)),
        4,
    ),
    "depthwise": (through(lambda m, y: F.relu(m.depthwise(F.relu(y)))), 8),
    "channel multiplier": (lambda m, x: m.last8(F.relu(m.multiplied(m.first(x)))), 12),
    "groups": (lambda m, x: m.last6(F.relu(m.grouped(m.first(x)))), 10),
    "transposed": (through(lambda m, y: m.up(y)), 8),
    "transposed groups": (lambda m, x: m.last6(F.relu(m.up_grouped(m.first(x)))), 10),
    "residual": (residual, 8),
    "joined": (joined, 8),
    "batch norm": (through(lambda m, y: F.relu(m.norm(y))), 4),
    "batch norm alone": (lambda m, x: m.last(F.relu(m.norm(F.relu(m.first(x))))), 8),
    "two batch norms": (through(lambda m, y: m.norm2(m.norm(y))), 8),
    "flattened": (lambda m, x: m.fc_wide(F.relu(m.first(x)).flatten(1)), 4),
    "mean into linear": (lambda m, x: m.fc(m.first(x).mean((2, 3))), 4),
    "into lstm": (lambda m, x: m.lstm(m.first(x).mean(2).transpose(1, 2))[0], 4),
    "into gru": (lambda m, x: m.gru(m.first(x).mean(2).transpose(1, 2))[0], 4),
    "into lstm cell": (lambda m, x: m.cell(m.first(x).mean((2, 3))), 4),
    "shared layer": (through(lambda m, y: m.second(F.relu(m.second(F.relu(y))))), 4),
    "relu6": (through(lambda m, y: m.relu6(y)), 4),
    "functional relu6": (through(lambda m, y: F.relu6(y)), 4),
    "clamp to half": (through(lambda m, y: y.clamp(0, 0.5)), 4),
    "relu6 after batch norm": (through(lambda m, y: m.relu6(m.norm(y))), 4),
    "relu6 twice": (through(lambda m, y: m.relu6(m.depthwise(m.relu6(y)))), 8),
}

PINNED: dict[str, Forward] = {
    "sigmoid": through(lambda m, y: torch.sigmoid(y)),
    "softmax": through(lambda m, y: y.softmax(1)),
    "tanh": through(lambda m, y: torch.tanh(y)),
    "gelu": through(lambda m, y: F.gelu(y)),
    "hardtanh": through(lambda m, y: F.hardtanh(y)),
    "relu6 of a sum": through(lambda m, y: F.relu6(y + 0 * y)),
    "relu6 beside another use": through(lambda m, y: F.relu6(y) + y),
    "output": lambda m, x: m.first(x),
    "returned beside": lambda m, x: (m.last(y := F.relu(m.first(x))), y),
    "constant added": through(lambda m, y: y + 1.0),
    "parameter added": through(lambda m, y: y + m.scale),
    "constant padding": through(lambda m, y: F.pad(y, (1, 1, 1, 1), value=1.0)),
    "square": through(lambda m, y: y * y),
    "divisor": through(lambda m, y: m.scale / (y.abs() + 1.0)),
    "batch norm without factors": through(lambda m, y: m.plain_norm(y)),
    "written into": through(lambda m, y: _written(y)),
    "number read": through(lambda m, y: y * float(y.abs().amax())),
    "weight used twice": lambda m, x: m.last(m.first(x)) + m.first.weight.sum() + m.last.weight.sum(),
    "shared with the output": lambda m, x: m.second(F.relu(m.second(m.scale * x.mean(1, keepdim=True)))),
}


def _written(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :, 0] = 1.0
    return y


def chains_of(model: nn.Module, *, has_limits: bool = True) -> tuple[Chains, list[Any]]:
    return tuning.chains_of(model, [(image().to(next(model.parameters()).dtype),)], has_limits=has_limits)


def outputs(model: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        return [t for t in torch.utils._pytree.tree_leaves(model(image())) if isinstance(t, Tensor)]


def with_factors(model: nn.Module) -> nn.Module:
    """A copy with factors from 1/8 to 1, which every limit allows."""
    chains, limited = chains_of(model)
    factors = chains.factors(np.random.default_rng(5).uniform(-3, 0, chains.count))
    made = copy.deepcopy(model)
    apply_factors(made, chains.layers, factors)
    apply_limits(made, limited, factors)
    return made


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("is_fused", [False, True], ids=["as it is", "traced"])
def test_factors_leave_the_function_as_it_is(name: str, is_fused: bool) -> None:
    forward, count = CHAINS[name]
    model = wired(forward)
    expected = outputs(model)
    if is_fused:
        if "norm" not in name:
            return
        linger.trace_layers(model, image())
    assert chains_of(model)[0].count == count
    made = with_factors(model)
    assert any(not torch.equal(a, b) for a, b in zip(model.parameters(), made.parameters(), strict=True))
    # at most 3 layers of 36 products each in float64: 2·108·2^-52 of the largest, 5e-14; a fault gives at least 1e-3
    for first, second in zip(expected, outputs(made), strict=True):
        assert float((first - second).abs().amax()) <= 1e-12 * float(first.abs().amax())


@pytest.mark.parametrize("name", PINNED)
def test_what_does_not_commute_with_factors_stays(name: str) -> None:
    assert chains_of(wired(PINNED[name]))[0].count == 0


def test_a_clip_stays_where_limits_cannot_be_had() -> None:
    assert chains_of(wired(CHAINS["relu6"][0]), has_limits=False)[0].count == 0
    assert chains_of(wired(CHAINS["relu6 after batch norm"][0]), has_limits=False)[0].count == 0


def test_what_a_module_remembers_stays() -> None:
    def forward(m: Wired, x: Tensor) -> Tensor:
        m.kept = F.relu(m.first(x))
        return m.last(m.kept)

    assert chains_of(wired(forward))[0].count == 0


def test_tied_weights_have_one_factor() -> None:
    model = wired(through(lambda m, y: F.relu(m.second(F.relu(m.up(y))))))
    model.up.bias = model.second.bias
    expected = outputs(model)
    assert chains_of(model)[0].count == 8
    assert float((outputs(with_factors(model))[0] - expected[0]).abs().amax()) < 1e-12


def test_weights_that_share_memory_stay() -> None:
    model = wired(through(lambda m, y: m.second(F.relu(y))))
    model.last.weight.data = model.second.weight.data[:2, :, :1, :1]
    assert chains_of(model)[0].count == 0
