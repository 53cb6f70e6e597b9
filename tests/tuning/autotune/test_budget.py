# SPDX-License-Identifier: Apache-2.0
"""Budgets: every form, every wrong one, and a clock that runs out."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import read_budget


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("2 min", 120.0),
        ("90 s", 90.0),
        ("1 h", 3600.0),
        ("1.5 minutes", 90.0),
        ("30 seconds", 30.0),
        (12.5, 12.5),
        (3, 3.0),
    ],
)
def test_time(given: object, seconds: float) -> None:
    clock = Clock()
    budget = read_budget(given, clock)
    assert budget.seconds_left == seconds
    assert budget.trials_left == math.inf
    clock.now += seconds - 1
    assert not budget.is_spent
    clock.now += 2
    assert budget.is_spent
    assert budget.seconds_left == 0.0


def test_time_is_kept_for_the_end() -> None:
    clock = Clock()
    budget = read_budget("100 s", clock)
    budget.reserve(4.0)
    assert budget.seconds_left == 96.0
    budget.reserve(40.0)  # a tenth at most
    assert budget.seconds_left == 90.0


def test_trials() -> None:
    budget = read_budget("20 trials")
    assert budget.seconds_left == math.inf
    budget.use(19)
    assert not budget.is_spent
    budget.use(5)
    assert budget.is_spent
    budget.lift()
    assert not budget.is_spent


@pytest.mark.parametrize(
    "given", ["", "fast", "0 s", "-3 s", 0, -1.0, math.nan, math.inf, True, None, "2 weeks", "1.5 trials"]
)
def test_nonsense_is_refused(given: object) -> None:
    with pytest.raises(linger.UsageError, match=r"tune: budget=.*Give CPU time \(.2 min."):
        read_budget(given)


def test_a_model_that_is_watched_stops_in_the_middle_of_a_step() -> None:
    clock = Clock()
    budget, model = read_budget("10 s", clock), nn.Linear(2, 2)
    with budget.watching(model):
        model(torch.ones(1, 2))
        clock.now += 11
        with pytest.raises(linger.LingerError, match="the budget of 10 s ended"):
            copy.deepcopy(model)(torch.ones(1, 2))
    model(torch.ones(1, 2))
