# SPDX-License-Identifier: Apache-2.0
"""Wider tensors of a tuned model: which, what they gain and cost, and that none stays that a later search does without."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import linger
from tests.support.noisy_layers import net_with_outlier, vectors
from tests.support.tuning import PLAIN, STEPS, Search, Step, Trial, front, layers_of, quantized, session_of, split

SETTINGS = {"is_of_metric": False, "max_wide_layers": 6, "max_trials": 200, "batches": 8}
X = vectors(160)


def only_wider(goal: float | None) -> object:
    def steps(session: Search) -> Iterator[Step]:
        yield Step("find_bits", PLAIN, PLAIN, {**SETTINGS, "goal": 30.0 if goal is None else goal})

    return steps


@pytest.mark.parametrize("goal", [None, 30.0], ids=["no goal", "a goal"])
def test_the_result_names_each_wide_tensor_with_gain_and_cost(
    goal: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "usual_plan", only_wider(goal))
    made, result = linger.tune(net_with_outlier(), X, bits="mixed", goal=goal, budget="1 h")
    assert [row.tensor for row in result.wide][:1] == ["weights of bad"]
    widths = {path: layer.widths for path, layer in layers_of(made).items()}
    for what, wide in (
        ("weights", {path for path, own in widths.items() if own.parameter == 16}),
        ("activations", {path for path, own in widths.items() if own.output == 16}),
    ):
        assert {row.name for row in result.wide if row.what == what} == wide
    assert all(row.gain is not None and row.gain > 0 for row in result.wide)
    assert result.wide[0].added_bytes == 16 * 16
    assert "bytes added" in str(result)
    assert json.loads(result.to_json())["wide"][0]["added_bytes"] == 16 * 16
    said = "No goal was given, so wider tensors were to gain 10 dB: 30.0 dB."
    assert any(note.startswith(said) for note in result.notes) == (goal is None)


def test_at_8_bits_nothing_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "usual_plan", lambda _: iter([Step("choose_ranges", PLAIN, PLAIN, {"weights": "mse"})]))
    _, result = linger.tune(net_with_outlier(), X, budget="1 h")
    assert result.wide == ()
    assert not any("No goal was given" in note for note in result.notes)


class Mixture(nn.Module):
    """Weights that cost much at 8 bits, and an activation that costs more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.stretched, self.last = net_with_outlier(), nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
        with torch.no_grad():
            self.stretched.weight.copy_(torch.eye(4))
            self.stretched.bias.copy_(torch.tensor([60.0, 0.0, 0.0, 0.0]))  # nothing reads this number
            self.last.weight.copy_(torch.eye(4)[1:])

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.stretched(self.inner(x)))


def test_a_search_after_another_begins_with_narrow_tensors() -> None:
    reference = Mixture().eval()
    parts = split(reference, [(X,)])
    session, start = session_of(reference, parts), Trial(quantized(reference, parts.tuning, None), reference)
    goal = {**SETTINGS, "goal": 8.0}
    weights = STEPS["find_bits"](session, start, {**goal, "widen": ["weights"]})
    assert {row.what for row in weights.wide} == {"weights"}  # the goal is out of reach, and these are the best
    after, alone = STEPS["find_bits"](session, weights, goal), STEPS["find_bits"](session, start, goal)
    assert [row.tensor for row in after.wide] == [row.tensor for row in alone.wide] == ["output of stretched"]
    assert {path for path, layer in layers_of(after.model).items() if layer.widths.parameter > 8} == set()
