# SPDX-License-Identifier: Apache-2.0
"""Distillation: steps in units of the grid, the best state by held-out data alone, and the same integers in the file."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.numeric.fixed import scale_for
from linger.numeric.torch.quantize import max_abs
from linger.tuning import distillation
from linger.tuning.distillation import grid_steps
from tests.support.tuning import OutputError, split_data
from tests.tuning.learned_rounding.test_rounding import AGAINST, TOGETHER, quantized


def pair_of_weights(inputs: list[Tensor]) -> tuple[nn.Module, nn.Module]:
    """Weights of 64.4 and 64.2 steps of 1/64, which both round to 64."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data = torch.tensor([[64.4, 64.2]]) / 64
    linger.quant_module(model, out_bits=16)
    return quantized(model, inputs)


class Net(nn.Module):
    """A batch norm, a layer with 4-bit weights, an LSTM of two layers and directions, and a product in the forward itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv1d(2, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.rnn = nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True)
        self.last = nn.Parameter(torch.randn(3, 10) / 3)
        self.bn.weight.data = torch.linspace(-2.0, 2.0, 6)
        self.bn.weight.data[2] = 0.0
        self.bn.running_var = torch.linspace(0.1, 4.0, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.relu(self.bn(self.conv(x)))
        y, _ = self.rnn(x.transpose(1, 2))
        return nn.functional.linear(y, self.last), y.mean(1)


@pytest.fixture
def net() -> tuple[nn.Module, nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Net().eval()
    data = list(torch.randn(16, 2, 6).split(2))
    linger.trace_layers(model, model, data[0])
    linger.quant_module(model, parameter_bits=4)
    return (*quantized(model, data), data)


def test_a_step_is_a_part_of_the_grid() -> None:
    # 128.6 steps are wanted, 128 are there: both weights move up by 0.2 steps, so that 64.6 becomes 65 and 64.4 stays 64
    model, reference = pair_of_weights(TOGETHER)
    result = linger.distill(model, reference, TOGETHER, steps=1, learning_rate=0.2)
    moved = model.weight.detach() * 64
    assert torch.allclose(moved, torch.tensor([[64.6, 64.4]]), atol=1e-3)  # float32 holds 64 steps to 4e-6
    assert model.freeze(model.read("scale_x")).weight_integers.tolist() == [[65, 64]]
    assert result.after_db > result.before_db
    assert result.changes[0].name == "weight"
    assert result.changes[0].after == pytest.approx(0.2, abs=1e-3)


def test_the_best_state_is_left_and_not_the_last() -> None:
    # 65 and 64 after the first step, as above; the two smaller steps back end at 64.46, which is 64 again and no better
    model, reference = pair_of_weights(TOGETHER)
    result = linger.distill(model, reference, TOGETHER, steps=3, learning_rate=0.2)
    assert model.freeze(model.read("scale_x")).weight_integers.tolist() == [[65, 64]]
    assert result.after_db > result.before_db
    assert result.trials == 3


def test_a_vanishing_gradient_moves_nothing() -> None:
    model, reference = pair_of_weights(TOGETHER)
    error = OutputError(reference, [(x,) for x in TOGETHER])
    training = distillation._Training(model, error, error, grid_steps(model), None)
    with torch.no_grad():
        training._move(0, torch.full((1, 2), 1e-25), 1, 0.03)  # its square is 0 in float32
    assert torch.equal(model.weight.detach(), reference.weight.detach())


def test_the_held_out_part_decides() -> None:
    # what the learned part wants, 65 and 64, is wrong by 0.8 for a difference of both inputs, 64 and 64 by 0.2 alone
    data = [*TOGETHER, AGAINST]
    model, reference = pair_of_weights(data)
    before = copy.deepcopy(model.state_dict())
    learned, held = split_data("here", [(x,) for x in data])
    result = linger.distill(model, reference, data, steps=5, learning_rate=0.2)
    assert len(learned) == 3
    assert torch.equal(held[0][0], AGAINST)
    assert result.changes == ()
    assert result.after_db == result.before_db
    assert list(model.state_dict()) == list(before)
    assert torch.equal(model.weight, before["weight"])


def test_the_held_out_part_decides_though_all_data_together_gain() -> None:
    # with 65 and 64 the learned part loses 0.4 steps of 127 in place of 0.6, a held-out difference of 20 loses 0.8 in place of 0.2
    data = [*TOGETHER, AGAINST * 20 / 127]
    model, reference = pair_of_weights(data)
    error = OutputError(reference, [(x,) for x in data])
    wanted = copy.deepcopy(model)
    wanted.weight.data = torch.tensor([[65.0, 64.0]]) / 64
    assert error(wanted) < error(model)
    result = linger.distill(model, reference, data, steps=5, learning_rate=0.2)
    assert result.changes == ()
    assert model.freeze(model.read("scale_x")).weight_integers.tolist() == [[64, 64]]


def test_steps_of_all_kinds_of_parameters(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, _ = net
    found = {name: step for name, (_, step) in grid_steps(model).items()}
    bn = reference.conv.bn
    factor = (bn.weight / (bn.running_var + bn.eps).sqrt()).abs().detach()
    folded = found["conv.weight"].flatten() * factor * model.conv.read("scale_w")
    assert torch.allclose(folded, (factor > 0).float())  # one step of the folded grid; none where γ is 0
    assert torch.allclose(found["conv.bias"] * factor * model.conv.read("scale_o"), (factor > 0).float())
    assert float(found["rnn.weight_hh_l1_reverse"]) == 1 / model.rnn.read("scale_hw_l1_reverse")
    assert float(found["rnn.bias_ih_l0"]) == 1 / model.rnn.read("scale_iw")
    assert not [name for name in found if ".bn." in name]
    assert float(found["last"]) == 1 / scale_for(max_abs(model.last), 8)


def test_a_network_gains_and_its_file_is_proven(net: tuple[nn.Module, nn.Module, list[Tensor]], tmp_path: Path) -> None:
    model, reference, data = net
    scales = {name: value for name, value in model.state_dict().items() if "scale_w" in name or "scale_iw" in name}
    scales = copy.deepcopy(scales)
    model.conv.weight.requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    model.train()
    with torch.no_grad():
        result = linger.distill(model, reference, data, steps=24, learning_rate=0.1)
    assert result.after_db > result.before_db + 0.5
    assert {"conv.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l1_reverse", "last"} <= {c.name for c in result.changes}
    assert all(torch.equal(model.state_dict()[name], value) for name, value in scales.items())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())
    model.eval()
    linger.onnx.export(model, (data[0],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (data[0],)).differing == 0


def test_twice_the_same_result_and_another_for_another_seed() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    linger.quant_module(model, parameter_bits=4)
    data = list(torch.randn(64, 8).split(8))
    made, reference = quantized(model, data)
    models = [copy.deepcopy(made) for _ in range(3)]
    results = [
        linger.distill(m, reference, data, steps=30, learning_rate=0.01, batch_size=12, seed=seed)
        for m, seed in zip(models, (1, 1, 2), strict=True)
    ]
    assert results[0] == results[1]
    assert all(result.changes for result in results)
    assert all(torch.equal(value, models[1].state_dict()[key]) for key, value in models[0].state_dict().items())
    assert not torch.equal(models[0][0].weight, models[2][0].weight)


def test_no_state_is_kept_that_is_worse_than_the_first(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, data = net
    error = OutputError(reference, split_data("here", [(x,) for x in data])[1])
    before = error(model)
    linger.distill(model, reference, data, steps=12, learning_rate=20.0)
    assert error(model) <= before


def test_an_interruption_leaves_the_best_state(
    net: tuple[nn.Module, nn.Module, list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, reference, data = net
    other = copy.deepcopy(model)

    def interrupted(items: range, _description: str) -> Iterator[int]:
        yield from items[:7]
        raise KeyboardInterrupt

    monkeypatch.setattr(distillation, "progress", interrupted)
    error = OutputError(reference, split_data("here", [(x,) for x in data])[1])
    before = error(model)
    with pytest.raises(KeyboardInterrupt):
        linger.distill(model, reference, data, steps=14, learning_rate=0.1)
    assert error(model) < before
    monkeypatch.undo()
    result = linger.distill(other, reference, data, steps=200, learning_rate=0.1, budget=1e-9)
    assert result.trials == 1


def test_bad_input_leaves_the_model_as_it_was(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, data = net
    before = copy.deepcopy(model.state_dict())
    for bad, words in (
        ([], "data are empty"),
        ([data[0] * torch.nan], "holds NaN"),
        (data[0][:1], "cannot be split"),
        ([torch.ones(1, 3, 6)] * 2, "fails on the input"),
    ):
        with pytest.raises(linger.UsageError, match=words):
            linger.distill(model, reference, bad)
    for name in ("steps", "learning_rate", "batch_size", "budget"):
        with pytest.raises(linger.UsageError, match=f"distill: {name} is 0; a number above 0"):
            linger.distill(model, reference, data, **{name: 0})
    with pytest.raises(linger.UsageError, match="the reference has no layer conv"):
        linger.distill(model, nn.Conv1d(2, 6, 3), data)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_model_without_gradients_is_refused() -> None:
    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).argmax(1).float()

    torch.manual_seed(0)
    data = [torch.randn(4, 2) for _ in range(2)]
    model, reference = quantized(Largest(), data)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(linger.UsageError, match="no output depends on a weight by a gradient"):
        linger.distill(model, reference, data)
    assert list(model.state_dict()) == list(before)
