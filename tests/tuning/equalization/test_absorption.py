# SPDX-License-Identifier: Apache-2.0
"""High biases move into the layers that read them, where the function stays, and nowhere else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger
from tests.support.tuning import Chains, absorb, chains_of


class High(nn.Module):
    """A convolution whose first three channels of four are always far above 0."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 4, 3)
        self.plain, self.padded = nn.Conv2d(4, 2, 3), nn.Conv2d(4, 2, 3, padding=1)
        self.without_bias, self.grouped = nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, groups=2)
        self.norm, self.norm2, self.up = nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2, 2)
        self.fc, self.cell = nn.Linear(4 * 16, 2), nn.GRUCell(4, 3)
        for norm in (self.norm, self.norm2):
            nn.init.uniform_(norm.weight, 0.5, 1.0)
            nn.init.normal_(norm.running_mean)
        nn.init.constant_(self.first.bias, 20.0)
        nn.init.constant_(self.norm.bias, 20.0)
        self.first.bias.data[3] = self.norm.bias.data[3] = 0.0
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


ABSORBED: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "convolution": lambda m, x: m.plain(F.relu(m.first(x))),
    "groups": lambda m, x: m.grouped(F.relu(m.first(x))),
    "linear": lambda m, x: m.fc(F.relu(m.first(x)).flatten(1)),
    "max pool": lambda m, x: m.grouped(F.max_pool2d(F.relu(m.first(x)), 2)),
    "mean into a cell": lambda m, x: m.cell(F.relu(m.first(x)).mean((2, 3))),
    "batch norm": lambda m, x: m.plain(F.relu(m.norm(m.without_bias(m.first(x) * 0.01)))),
    "before a batch norm": lambda m, x: m.norm2(m.without_bias(F.relu(m.first(x)))),
    "a bias before a batch norm": lambda m, x: m.norm2(m.grouped(F.relu(m.first(x)))),
    "batch norm alone": lambda m, x: m.grouped(m.norm2(F.relu(m.first(x)))),
    "two readers": lambda m, x: m.grouped(y := F.relu(m.first(x))).sum() + m.plain(y),
}

KEPT: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "padding": lambda m, x: m.padded(F.relu(m.first(x))),
    "padded before": lambda m, x: m.plain(F.pad(F.relu(m.first(x)), (1, 1, 1, 1))),
    "transposed": lambda m, x: m.up(F.relu(m.first(x))),
    "no bias": lambda m, x: m.without_bias(F.relu(m.first(x))),
    "sum": lambda m, x: m.plain(F.relu(m.first(x)) + F.relu(m.first(x))),
    "taken from added channels": lambda m, x: m.plain(
        F.pad((y := F.relu(m.first(x)))[:, 3:], (0, 0, 0, 0, 0, 3)) - y  # zeros carry no factor that joins them with y
    ),
    "average pool": lambda m, x: m.grouped(F.avg_pool2d(F.relu(m.first(x)), 3, 1, 1)),
    "output": lambda m, x: F.relu(m.first(x)),
    "one reader of two": lambda m, x: m.padded(y := F.relu(m.first(x))).sum() + m.plain(y),
}


def data() -> Tensor:
    return torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(1)).double()


def found(forward: Callable[[Any, Tensor], Tensor]) -> tuple[nn.Module, Chains]:
    model = High(forward).double().eval()
    return model, chains_of(model, [(data(),)])[0]


@pytest.mark.parametrize("name", ABSORBED)
def test_the_function_stays(name: str) -> None:
    model, chains = found(ABSORBED[name])
    offsets = chains.offsets()
    maker = next(layer for layer in chains.layers if any(int(n) in offsets for n in layer.rows))
    assert all(int(n) in offsets for n in maker.rows[:3])
    assert maker.norm is not None or int(maker.rows[3]) not in offsets
    made = copy.deepcopy(model)
    absorb(made, chains.layers, offsets)
    with torch.no_grad():
        expected, given = model(data()), made(data())
    name_of_bias = maker.norm.bias if maker.norm is not None else next(iter(maker.biases))
    assert float(made.get_parameter(str(name_of_bias)).detach().amax()) < 15
    # sums of 64 products at most, in float64; a wrong sign moves outputs by more than 1
    assert float((expected - given).abs().amax()) <= 1e-11


@pytest.mark.parametrize("name", KEPT)
def test_biases_stay_where_the_function_would_not(name: str) -> None:
    assert found(KEPT[name])[1].offsets() == {}


def test_absorbed_biases_gain_range() -> None:
    """Three channels from 17 to 23 need 5 bits before the point, and from 0 to 6 three."""
    model = High(ABSORBED["convolution"]).eval()
    data32 = [data().float()]
    with torch.no_grad():
        model.plain.bias -= model(data32[0]).mean((0, 2, 3))  # else the outputs' own steps would hide all others
    result = linger.equalize(model, data32)
    assert any("absorbed" in change.what for change in result.changes)
    assert result.after_db >= result.before_db + 6
    assert float(model.first.bias.detach().amax()) < 15


def test_readers_that_are_forgotten_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = High(ABSORBED["convolution"]).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    monkeypatch.setattr("linger.tuning.equalization.weights._absorb_offset", lambda layer, state, offset: None)
    monkeypatch.setattr(
        "linger.tuning.equalization.equalize._Search._error",
        lambda self, choice: 1.0 - 0.5 * bool(choice and choice.offsets),
    )
    with pytest.raises(linger.UsageError, match="The model is as it was"):
        linger.equalize(model, [data().float()])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
