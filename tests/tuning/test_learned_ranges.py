# SPDX-License-Identifier: Apache-2.0
"""Scales that learn: the derivative by hand, wrong scales that find back, and a user's own training loop."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.numeric.fixed import is_power_of_two
from linger.tuning.learned_ranges import _derivative
from tests.support.tuning import ranges_of
from tests.tuning.learned_rounding.test_rounding import quantized


@pytest.fixture
def net() -> tuple[nn.Module, nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4)).eval()
    model[1].running_var.uniform_(0.2, 2.0)
    data = list(torch.randn(32, 3, 6).split(4))
    linger.trace_layers(model, model, data[0])
    return (*quantized(model, data), data)


def test_the_derivative_by_hand() -> None:
    # steps of ¼ in 8 bits end at 31.75: 0.3 becomes 0.25 and is 0.05 too small, 40 becomes 31.75 and moves with the step
    real = torch.tensor([0.3, 40.0, -40.0])
    rounded = torch.tensor([0.25, 31.75, -32.0])
    expected = [math.log(2) * (0.25 - 0.3), math.log(2) * 31.75, -math.log(2) * 32.0]
    assert _derivative(rounded, real, 4.0, 8).tolist() == pytest.approx(expected, rel=1e-5)  # float32


@pytest.mark.parametrize(
    ("key", "factor"), [("0.o", 4.0), ("0.x", 4.0), ("4.w", 4.0), ("0.o", 1 / 16), ("0.x", 1 / 16)]
)
def test_a_wrong_scale_finds_back(net: tuple[nn.Module, nn.Module, list[Tensor]], key: str, factor: float) -> None:
    model, reference, data = net
    wrong = ranges_of(model)[key]
    right = wrong.scale
    wrong.choose(right * factor)
    model(data[0])
    result = linger.distill(model, reference, data, steps=30, learning_rate=0.2, learn_ranges=True)
    assert abs(math.log2(wrong.scale / right)) < abs(math.log2(factor))
    assert result.after_db > result.before_db + 3.0
    assert key in [change.name for change in result.changes if change.what == "scale"]


def test_a_training_loop_of_a_user(net: tuple[nn.Module, nn.Module, list[Tensor]], tmp_path: Path) -> None:
    model, _, data = net
    ranges_of(model)["0.o"].choose(ranges_of(model)["0.o"].scale * 8)
    classes = [(x.mean((1, 2)) > 0).long() for x in data]
    learned = linger.LearnedRanges(model)
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": learned.parameters(), "lr": 0.1}], lr=0.01)
    before, losses = copy.deepcopy(model.state_dict()), []
    with learned:
        for x, y in [*zip(data, classes, strict=True)] * 2:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).dequantize(), y)
            loss.backward()
            optimizer.step()
            learned.after_step()
            losses.append(float(loss.detach()))
    assert sum(losses[8:]) < 0.8 * sum(losses[:8])
    assert set(learned.keys) == {"0.x", "0.w", "0.o", "4.w", "4.o"}
    assert model[0].read("scale_o") < float(before["0.scale_o"])
    assert all(is_power_of_two(found.scale) for found in ranges_of(model).values())
    assert repr(learned) == "LearnedRanges(5 ranges)"
    model(data[0])
    assert learned.exponents.grad is not None
    optimizer.zero_grad()
    model(data[0]).dequantize().sum().backward()  # outside the block nothing is learned
    assert learned.exponents.grad is None
    linger.onnx.export(model, (data[0],), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (data[0],)).differing == 0


def test_what_cannot_learn_is_refused(net: tuple[nn.Module, nn.Module, list[Tensor]]) -> None:
    model, reference, _ = net
    with pytest.raises(linger.UsageError, match="not quantized"):
        linger.LearnedRanges(reference)
    with pytest.raises(linger.UsageError, match="Calibrate the model first"):
        linger.LearnedRanges(linger.init(nn.Linear(2, 2)))
    learned = linger.LearnedRanges(model.train())
    with pytest.raises(linger.UsageError, match=r"Call model\.eval\(\)"), learned:
        pass
