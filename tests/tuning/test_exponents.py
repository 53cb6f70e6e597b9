# SPDX-License-Identifier: Apache-2.0
"""Exponents: planted mistakes are found and mended, the trials are bounded, and nothing ever gets worse."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.tuning import ranges_of


class Net(nn.Module):
    """Products, a sum, a concatenation and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(3, 8, 3, padding=1), nn.Conv1d(8, 8, 3, padding=1)
        self.rnn = nn.LSTM(8, 6, batch_first=True)
        self.last = nn.Linear(14, 4)
        with torch.no_grad():  # so that the recurrent layer matters
            for parameter in self.rnn.parameters():
                parameter.mul_(3)
            self.last.weight[:, 8:] *= 4

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x = (x + self.second(x)).transpose(1, 2)
        return self.last(torch.cat([x, self.rnn(x)[0]], 2))


def made() -> tuple[nn.Module, nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    reference = Net().eval()
    data = [torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    model = linger.init(copy.deepcopy(reference)).eval()
    with torch.no_grad(), linger.calibration():
        for batch in data:
            model(batch)
    return model, reference, data


SUM = "_linger_round_tensor_iqadd__default_index_0.o"
JOINED = "_linger_round_tensor_iqcat_1.o"


@pytest.mark.parametrize("key", ["first.x", "second.w", "second.o", SUM, JOINED, "rnn.iw", "rnn.o", "last.w"])
@pytest.mark.thin
def test_a_range_that_is_too_wide_is_mended(key: str) -> None:
    model, reference, data = made()
    error = linger.compare_layers(reference, model, data).output_db
    planted = ranges_of(model)[key]
    wrong = planted.scale / 32
    planted.choose(wrong)
    result = linger.choose_exponents(model, reference, data, max_trials=60)
    assert result.before_db < error - 3
    assert result.after_db > error - 1
    change = next(change for change in result.changes if change.name == key)
    assert change.before == wrong
    assert change.after == ranges_of(model)[key].scale >= 4 * wrong
    assert linger.compare_layers(reference, model, data).output_db == pytest.approx(result.after_db, abs=0.1)


def test_an_input_is_never_cut() -> None:
    """A rare large number, which the smallest error would give up: other data may have more of them."""
    reference = nn.Sequential(nn.Linear(1, 1, bias=False)).eval()
    nn.init.ones_(reference[0].weight)
    x = torch.linspace(-0.1, 0.1, 8192).unsqueeze(1)
    x[:2] = 1.15
    model = linger.init(copy.deepcopy(reference)).eval()
    with linger.calibration():
        model(x)
    linger.choose_exponents(model, reference, [x, x])
    assert ranges_of(model)["0.x"].scale == 64.0  # 1.15·64 ≤ 127 < 1.15·128
    # a range that was chosen too wide is made finer all the same
    ranges_of(model)["0.x"].choose(8.0)
    linger.choose_exponents(model, reference, [x, x])
    assert ranges_of(model)["0.x"].scale == 64.0


def test_a_range_that_is_too_narrow_is_mended() -> None:
    model, reference, data = made()
    planted = ranges_of(model)["second.o"]
    right = planted.scale
    planted.choose(right * 16)
    result = linger.choose_exponents(model, reference, data)
    assert ranges_of(model)["second.o"].scale <= right * 2
    assert result.after_db > result.before_db + 3


def test_trials_are_bounded_and_shown() -> None:
    model, reference, data = made()
    ranges_of(model)["first.w"].choose(1.0)
    whole = linger.choose_exponents(copy.deepcopy(model), reference, data)
    few = linger.choose_exponents(model, reference, data, max_trials=3)
    assert few.trials == 3 < whole.trials < 300
    assert "after 3 trials" in few.summary()
    assert whole.after_db >= few.after_db >= few.before_db


def test_the_result_is_the_same_every_time() -> None:
    model, reference, data = made()
    other = copy.deepcopy(model)
    assert linger.choose_exponents(model, reference, data) == linger.choose_exponents(other, reference, data)
    state = other.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_choice_that_hurts_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model, reference, data = made()
    result = linger.choose_exponents(model, reference, data)
    again = linger.choose_exponents(model, reference, data)
    assert again.changes == ()
    assert again.after_db == again.before_db == pytest.approx(result.after_db)
    # planted: choices that are tried are not taken back
    monkeypatch.setattr("linger.quantization.core.ranges.Range.restore", lambda *_: None)
    assert linger.choose_exponents(model, reference, data).after_db < again.after_db - 1


def test_checkpoints_and_files_hold_the_choices(tmp_path: Path) -> None:
    model, reference, data = made()
    for key in ("first.w", "second.o", "rnn.iw"):
        found = ranges_of(model)[key]
        found.choose(found.scale / 8)
    linger.choose_exponents(model, reference, data, max_trials=40)
    linger.correct_biases(model, reference, data)
    other, _, _ = made()
    other.load_state_dict(model.state_dict())
    x = data[0]
    assert torch.equal(other(x).dequantize(), model(x).dequantize())
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).differing == 0


def test_bad_input_leaves_the_model_as_it_was() -> None:
    model, reference, data = made()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for bad, message in (
        ([], "the data are empty"),
        (torch.full((1, 3, 8), math.nan), "holds NaN"),
        (torch.rand(1, 2, 8), "forward pass fails"),
    ):
        with pytest.raises(linger.UsageError, match=message):
            linger.choose_exponents(model, reference, bad)
    for trials in (0, -1, 2.5, True):
        with pytest.raises(linger.UsageError, match="max_trials"):
            linger.choose_exponents(model, reference, data, max_trials=trials)
    with pytest.raises(linger.UsageError, match="not quantized"):
        linger.choose_exponents(reference, reference, data)
    with pytest.raises(linger.UsageError, match="quantized already"):
        linger.choose_exponents(model, model, data)
    with pytest.raises(linger.UsageError, match="has no layer"):
        linger.choose_exponents(model, nn.Linear(4, 2), data)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
