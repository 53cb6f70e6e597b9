# SPDX-License-Identifier: Apache-2.0
"""Learned rounding: integers worked out by hand, held-out data that decide, and the same integers in the file."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.tuning.learned_rounding import rounding
from linger.tuning.learned_rounding.integer_fit import Fit, Grid, Moments, nearest_integers
from tests.support.tuning import split_data


def quantized(model: nn.Module, data: list[Tensor]) -> tuple[nn.Module, nn.Module]:
    """A calibrated model and its float reference."""
    reference = copy.deepcopy(model.eval())
    made = linger.init(model).eval()
    with linger.calibration(), torch.no_grad():
        for batch in data:
            made(batch)
    return made, reference


def pair_of_weights(inputs: list[Tensor]) -> tuple[nn.Module, nn.Module]:
    """Two weights of 64.4 steps of 1/64, which both round to 64."""
    model = nn.Linear(2, 1, bias=False)
    model.weight.data.fill_(64.4 / 64)
    linger.quant_module(model, out_bits=16)
    return quantized(model, inputs)


def integers(layer: nn.Module) -> Tensor:
    return layer.freeze(layer.read("scale_x")).weight_integers


TOGETHER = [torch.tensor([[a, a]]) / 64 for a in (127.0, 64.0, 32.0)]
AGAINST = torch.tensor([[127.0, -127.0]]) / 64


def test_two_weights_that_always_work_together() -> None:
    # x·(64.4 + 64.4)/64 = x·128.8/64: 64 + 64 is 0.8 steps away, 65 + 64 only 0.2
    model, reference = pair_of_weights(TOGETHER)
    result = linger.round_weights(model, reference, TOGETHER)
    assert sorted(integers(model).flatten().tolist()) == [64, 65]
    assert sorted((model.weight * 64).flatten().tolist()) == [64, 65]
    assert model.ranges["w"].chosen_range() == 127 / 64
    assert result.after_db > result.before_db
    assert [change.name for change in result.changes] == [""]


@pytest.mark.parametrize(
    "data", [[torch.cat(TOGETHER[:2]), TOGETHER[2]], [torch.cat(TOGETHER)]], ids=["two batches", "one batch"]
)
def test_one_batch_to_learn_from_is_enough(data: list[Tensor]) -> None:
    model, reference = pair_of_weights(data)
    linger.round_weights(model, reference, data)
    assert sorted(integers(model).flatten().tolist()) == [64, 65]


def test_the_held_out_part_decides() -> None:
    # learned from inputs that work together, 65 + 64 is right; held out is a difference, which float gives as 0
    data = [*TOGETHER[:3], AGAINST]
    model, reference = pair_of_weights(data)
    result = linger.round_weights(model, reference, data)
    assert integers(model).flatten().tolist() == [64, 64]
    assert result.changes == ()
    assert result.after_db == result.before_db
    assert model.ranges["w"].chosen_range() is None


def test_every_fourth_batch_is_held_out() -> None:
    batches = [(torch.tensor([float(i)]),) for i in range(9)]
    learned, held = split_data("here", batches)
    assert [float(b[0]) for b in held] == [0.0, 4.0, 8.0]
    assert [float(b[0]) for b in learned] == [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    learned, held = split_data("here", [(torch.arange(8.0), "setting")])
    assert learned[0][0].tolist() == [0, 1, 2, 3, 4, 5]
    assert held[0][0].tolist() == [6, 7]
    assert held[0][1] == "setting"
    with pytest.raises(linger.UsageError, match="here: one batch that cannot be split"):
        split_data("here", [(torch.ones(1, 3),)])


def test_integers_are_as_good_as_all_neighbors() -> None:
    generator = torch.Generator().manual_seed(0)
    x = (
        torch.randn(40, 1, 4, generator=generator, dtype=torch.float64)
        @ torch.randn(4, 4, generator=generator).double()
    )
    wanted = 3 * torch.randn(1, 3, 4, generator=generator).double()
    moments = Moments(1, 3, 4)
    moments.add(x, x @ wanted.mT)
    bound = torch.full((4,), 127.0, dtype=torch.float64)
    found = nearest_integers(moments.xx, wanted, bound)
    error, zero = moments.error(found, moments.y * 0), moments.y * 0
    near = (wanted + 0.5).floor()
    assert float(error.sum()) < float(moments.error(near, zero).sum())
    for steps in itertools.product((-1.0, 0.0, 1.0), repeat=4):
        if sum(map(abs, steps)) == 1:  # damping by 1 % of the mean power shifts the optimum by less than that
            moved = moments.error(found + torch.tensor(steps).double(), zero)
            assert bool((moved > 0.95 * error).all())
    assert float(nearest_integers(moments.xx, 100 * wanted, bound * 0 + 2).abs().amax()) == 2.0


class Net(nn.Module):
    """A batch norm, a depthwise and a transposed convolution, a layer that is called twice, and a pool, which has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, groups=8)
        self.twice = nn.Conv2d(8, 8, 1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2, groups=2)
        self.pool = nn.AvgPool2d(2)
        self.bn.weight.data = torch.linspace(-2.0, 2.0, 8)
        self.bn.weight.data[3] = 0.0
        self.bn.running_mean = torch.linspace(-1.0, 1.0, 8)
        self.bn.running_var = torch.linspace(0.01, 9.0, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.conv(x)))
        x = torch.relu(self.depthwise(x))
        return self.pool(self.up(torch.relu(self.twice(torch.relu(self.twice(x))))))


@pytest.fixture
def net() -> tuple[nn.Module, nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = Net().eval()
    data = list(torch.randn(40, 3, 7, 7).split(5))
    linger.trace_layers(model, model, data[0])
    linger.quant_module(model, parameter_bits=4)
    return (*quantized(model, data[:4]), data)


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused reference", "reference as written"])
def test_a_network_gains_and_its_file_is_proven(
    net: tuple[nn.Module, nn.Module, list[Tensor]], tmp_path: Path, *, is_fused: bool
) -> None:
    model, reference, data = net
    if not is_fused:
        reference = Net().eval()
        weights = {
            k.replace("conv.conv.", "conv.").replace("conv.bn.", "bn."): v for k, v in net[1].state_dict().items()
        }
        reference.load_state_dict({k: weights[k] for k in reference.state_dict()})
    result = linger.round_weights(model, reference, data)
    assert result.after_db > result.before_db + 1.0
    assert {change.name for change in result.changes} == {"conv", "depthwise", "twice", "up"}
    chosen = {change.name: integers(model.get_submodule(change.name)) for change in result.changes}
    again = copy.deepcopy(model)
    again.load_state_dict(model.state_dict())
    assert all(torch.equal(integers(again.get_submodule(name)), found) for name, found in chosen.items())
    x = torch.randn(2, 3, 7, 7)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).differing == 0


def test_twice_the_same_result(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, data = net
    other = copy.deepcopy(model)
    first, second = (linger.round_weights(m, reference, data, positions=50, seed=3) for m in (model, other))
    assert first == second
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


def test_what_hurts_is_undone(net: tuple[nn.Module, nn.Module, list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference, data = net
    before = copy.deepcopy(model.state_dict())

    def harmful(grid: Grid, *_: Moments) -> Fit:
        return Fit(-grid.integers, grid.bias, torch.ones_like(grid.integers[:, :, 0]).bool(), 1.0, 0.5)

    monkeypatch.setattr(rounding, "fit_integers", harmful)
    result = linger.round_weights(model, reference, data)
    assert result.changes == ()
    assert result.after_db == result.before_db
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_bad_input_leaves_the_model_as_it_was(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, data = net
    before = copy.deepcopy(model.state_dict())
    for bad, words in (
        ([], "data are empty"),
        ([data[0] * torch.nan], "holds NaN"),
        (data[0][:1], "cannot be split"),
        ([torch.ones(1, 4, 7, 7)] * 2, "fails on the input"),
    ):
        with pytest.raises(linger.UsageError, match=words):
            linger.round_weights(model, reference, bad)
    with pytest.raises(linger.UsageError, match="positions"):
        linger.round_weights(model, reference, data, positions=0)
    with pytest.raises(linger.UsageError, match="the reference has no layer conv"):
        linger.round_weights(model, nn.Conv2d(3, 8, 3), data)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class Deep(nn.Module):
    """Layers that are called once, between them one that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.twice, self.third, self.last = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.twice(torch.relu(self.second(torch.relu(self.first(x))))))
        return self.last(torch.relu(self.third(torch.relu(self.twice(y)))).mean((2, 3)))


def passes_of(model: nn.Module, reference: nn.Module, data: list[Tensor], **options: int) -> tuple[int, linger.Remedy]:
    """How often rounding begins a pass of the quantized model, and its result."""
    count = 0

    def enter(*_: object) -> None:
        nonlocal count
        count += 1

    handle = model.register_forward_pre_hook(enter)
    result = linger.round_weights(model, reference, data, **options)
    handle.remove()
    return count, result


def test_one_pass_rounds_all_layers_that_are_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = list(torch.randn(8, 4, 3, 8, 8))
    made, reference = quantized(Deep(), data)
    slow = copy.deepcopy(made)
    count, result = passes_of(made, reference, data)
    # 20 of errors before and after, one that finds the layers; first and second, third and last in a pass each; eight for the other
    assert count == 2 * (8 + 2) + 1 + 2 + 8
    monkeypatch.setattr(rounding, "_LARGEST", 0)
    slow_count, slowly = passes_of(slow, reference, data)
    assert slow_count == 2 * (8 + 2) + 1 + 5 * 8
    # the same layers by the same inputs of each, at other positions: every position of these small pictures is looked at
    assert {change.name for change in result.changes} == {change.name for change in slowly.changes}
    assert result.after_db == pytest.approx(slowly.after_db, abs=1.0)
    assert result.after_db > result.before_db + 1


def test_outputs_are_kept_for_as_many_layers_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    data = list(torch.randn(8, 4, 3, 8, 8))
    made, reference = quantized(Deep(), data)
    monkeypatch.setattr(rounding, "_KEPT", 1)
    assert passes_of(made, reference, data)[0] == 2 * (8 + 2) + 1 + 4 + 8


class Stepwise(nn.Module):
    """Rows lie along the second axis of the state, so batches of one cannot be joined."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        assert state.shape[0] == 1
        return self.head(torch.relu(self.inside(x) + state[0]))


def test_batches_that_are_no_rows_pass_one_by_one() -> None:
    torch.manual_seed(0)
    data = [(torch.randn(1, 6), torch.randn(1, 1, 8)) for _ in range(8)]
    made = Stepwise().eval()
    reference = copy.deepcopy(made)
    made = linger.init(made).eval()
    with linger.calibration(), torch.no_grad():
        for batch in data:
            made(*batch)
    count, _ = passes_of(made, reference, data)  # type: ignore[arg-type]
    assert count == 2 * (8 + 2) + 1 + 2 * 8
