# SPDX-License-Identifier: Apache-2.0
"""When a step is kept, and metrics that fail."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import Judge, Score, checked_metric, is_better


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
        checked_metric("tune", fails)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match=r"returned nan\. Return a finite number"):
        checked_metric("tune", lambda model: math.nan)(nn.Linear(1, 1))
    with pytest.raises(linger.UsageError, match="cannot be called"):
        checked_metric("tune", 0.5)
