# SPDX-License-Identifier: Apache-2.0
"""The threads of a search: chosen by cost, the same during all of it, and as before after it; what a budget counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from unittest import mock

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import fitting_threads, on_threads, read_budget

BATCH = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)),)
CHOICE = "linger.tuning.autotune.tune.fitting_threads"


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(("one", "every", "chosen"), [(1.0, 2.0, 1), (2.0, 1.0, 3), (1.0, 0.9, 1)])
def test_the_cheaper_number_is_chosen(one: float, every: float, chosen: int) -> None:
    assert fitting_threads(net(), BATCH, lambda _m, _b, count: (1.0, one if count == 1 else every)) == chosen


def test_a_short_pass_has_one_thread_whatever_the_clock_says_of_more() -> None:
    """The choice is then the same in every run, and so are the sums."""
    asked = []

    def clock(_model: nn.Module, _batch: object, count: int) -> tuple[float, float]:
        asked.append(count)
        return (0.019, 0.019) if count == 1 else (0.001, 0.001)

    assert fitting_threads(net(), BATCH, clock) == 1
    assert asked == [1]


def test_the_cheapest_round_counts() -> None:
    """A round in which the machine was busy elsewhere says nothing."""
    costs = {1: iter([9.0, 9.0, 2.0, *[9.0] * 6]), 3: iter([3.0, *[8.0] * 7])}
    assert fitting_threads(net(), BATCH, lambda _m, _b, count: (1.0, next(costs[count]))) == 1


def test_nothing_is_measured_where_there_is_one_thread() -> None:
    with on_threads(1):
        assert fitting_threads(net(), BATCH, mock.Mock(side_effect=AssertionError)) == 1


def test_measuring_leaves_threads_random_numbers_and_the_model_as_they_were() -> None:
    model = net().train()
    model.append(nn.Dropout(0.5))
    state = torch.random.get_rng_state()
    assert fitting_threads(model, BATCH) == 1
    assert torch.get_num_threads() == 3
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training


@pytest.mark.filterwarnings("error")
def test_measuring_asks_no_graphics_card_for_its_random_numbers() -> None:
    with mock.patch.object(torch.cuda, "device_count", return_value=2):
        assert fitting_threads(net(), BATCH) == 1


@pytest.mark.parametrize("chosen", [1, 2])
def test_a_search_runs_on_the_chosen_threads_and_leaves_them_as_before(chosen: int) -> None:
    seen = set()

    def metric(model: nn.Module) -> float:
        seen.add(torch.get_num_threads())
        return 1.0

    with mock.patch(CHOICE, return_value=chosen):
        linger.tune(net(), BATCH[0].repeat(4, 1), metric=metric, budget="2 trials")
    assert seen == {chosen}
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_threads_are_as_before_after_an_error_too(error: BaseException) -> None:
    with mock.patch(CHOICE, return_value=1), pytest.raises((linger.UsageError, KeyboardInterrupt)):
        linger.tune(net(), BATCH[0].repeat(4, 1), metric=mock.Mock(side_effect=error, __name__="m"), budget="2 trials")
    assert torch.get_num_threads() == 3


def test_training_by_the_user_has_the_users_threads() -> None:
    seen = set()

    def train(model: nn.Module) -> None:
        seen.add(torch.get_num_threads())

    model = net()
    with torch.no_grad():
        model[0].weight[0] *= 100  # something to limit, or nothing would be trained
    with mock.patch(CHOICE, return_value=1):
        linger.tune(model, BATCH[0].repeat(4, 1), finetune=train, budget="1 trials")
    assert seen == {3}


def test_a_budget_does_not_count_what_other_threads_burn() -> None:
    budget = read_budget("10 s")

    def burn() -> None:
        while time.thread_time() < 0.1:
            pass

    other = threading.Thread(target=burn)
    other.start()
    other.join()
    assert budget.spent < 0.05  # this thread has only waited
