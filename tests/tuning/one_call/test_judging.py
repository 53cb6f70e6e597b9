# SPDX-License-Identifier: Apache-2.0
"""What is held out, and when a step is kept."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import linger
from linger.tuning.one_call.judging import Judge, Score, checked_metric, is_better, split


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y


def test_one_batch_in_four_is_held_out() -> None:
    parts = split(nn.Linear(2, 2), [(torch.full((1, 2), float(i)),) for i in range(8)])
    assert [float(b[0][0, 0]) for b in parts.held_out] == [3.0, 7.0]
    assert len(parts.tuning) == 6
    assert not parts.note


def test_a_single_batch_is_split_by_rows() -> None:
    x = torch.arange(16.0).reshape(8, 2)
    parts = split(nn.Linear(2, 2), [(x,)])
    assert torch.equal(torch.cat([parts.tuning[0][0], parts.held_out[0][0]]), x)
    assert len(parts.held_out[0][0]) == 2


def test_a_single_input_serves_for_both_and_it_is_said() -> None:
    parts = split(nn.Linear(2, 2), [(torch.ones(1, 2),)])
    assert parts.tuning == parts.held_out
    assert "a single input" in parts.note
    # tensors of other sizes are not one batch of rows
    assert split(Two(), [(torch.ones(4, 2), torch.ones(2))]).note


def test_data_of_another_shape_are_refused() -> None:
    with pytest.raises(linger.UsageError, match=r"the forward pass fails on the input \[\(4, 3\)\]"):
        split(nn.Linear(2, 2), [(torch.ones(4, 3),), (torch.ones(4, 3),)])


def test_the_metric_decides_and_where_it_stays_the_error() -> None:
    assert is_better(Score(0.1), Score(0.2))
    assert not is_better(Score(0.2), Score(0.2))
    assert is_better(Score(0.9, 0.8), Score(0.1, 0.7))
    assert not is_better(Score(0.1, 0.7), Score(0.9, 0.8))
    assert is_better(Score(0.1, 0.7), Score(0.2, 0.7))


def test_a_model_without_a_number_is_the_worst() -> None:
    reference = nn.Linear(2, 2)
    broken = nn.Linear(2, 2)
    nn.init.constant_(broken.weight, math.nan)
    assert Judge(reference, [(torch.ones(1, 2),)])(broken).error == math.inf


def test_a_metric_that_fails_or_gives_no_number() -> None:
    def fails(model: nn.Module) -> float:
        raise KeyError("labels")

    with pytest.raises(linger.UsageError, match=r"tune: fails\(model\) failed with KeyError"):
        checked_metric(fails)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match=r"returned nan\. Return a finite number"):
        checked_metric(lambda model: math.nan)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match="cannot be called"):
        checked_metric(0.5)  # type: ignore[arg-type]
