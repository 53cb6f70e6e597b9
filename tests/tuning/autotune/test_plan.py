# SPDX-License-Identifier: Apache-2.0
"""The order of steps and what they may cost: plans of sessions in which every step is free, or none can be paid."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import linger
from linger.tuning.autotune.steps import ALWAYS, affordable, expected_seconds, training_steps, usual_plan
from tests.support.tuning import (
    EQUALIZED,
    FOLDED,
    HEADROOM,
    PLAIN,
    TOGETHER,
    Score,
    Search,
    Step,
    Trial,
    ranges_of,
)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Two layers: five ranges."""
    made = linger.init(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))).eval()
    with linger.calibration():
        made(torch.randn(8, 4))
    return made


def session_of(model: nn.Module, *, seconds: float = 1000.0, **others: Any) -> Any:
    """A session with 8 batches of a second's tenth, whose branches have 20, 20 and 30.22 dB."""
    scores = {PLAIN: Score(0.01), FOLDED: Score(0.01), TOGETHER: Score(0.01), EQUALIZED: Score(0.00095)}
    branches = {name: Trial(model, model, score=score) for name, score in scores.items()}
    known: Mapping[str, Any] = {
        "is_mixed": False,
        "goal": None,
        "is_reached": None,
        "branches": branches,
        "best": branches[EQUALIZED],
        "best_branch": EQUALIZED,
        "metric": None,
        "steps": [],
        "costs": {},
        "batch_seconds": 0.1,
        "parts": SimpleNamespace(tuning=[None] * 8, is_few=False),
        "budget": SimpleNamespace(seconds_left=seconds, trials_left=10**6),
    }
    return SimpleNamespace(**{**known, **others})


def steps_of(session: Search, name: str) -> list[Step]:
    return [step for step in usual_plan(session) if step.name == name]


def test_mixed_widths_without_a_goal_aim_at_ten_decibels_more(model: nn.Module) -> None:
    session = session_of(model, is_mixed=True)
    found = steps_of(session, "find_bits")
    # the best branch has 30.22 dB, and wider weights do not bring it to 40.2 dB
    assert [(step.branch, step.settings["goal"], step.settings.get("widen")) for step in found] == [
        (EQUALIZED, 40.2, ["weights"]),
        (EQUALIZED, 40.2, None),
        (FOLDED, 40.2, ["weights"]),
        (FOLDED, 40.2, None),
    ]
    assert not any(step.settings["is_of_metric"] for step in found)


def test_a_goal_of_the_user_is_the_goal_of_the_search(model: nn.Module) -> None:
    session = session_of(model, is_mixed=True, goal=25.0, is_reached=lambda trial: trial.score.db >= 25)
    found = steps_of(session, "find_bits")
    assert [(step.branch, step.settings["goal"], step.settings.get("widen")) for step in found] == [
        (EQUALIZED, 25.0, ["weights"]),  # its 30 dB are enough
        (FOLDED, 25.0, ["weights"]),
        (FOLDED, 25.0, None),
    ]


@pytest.mark.parametrize("goal", [None, "99 %"], ids=["none", "of the metric"])
def test_a_goal_is_of_the_metric_where_the_user_gave_both(model: nn.Module, goal: str | None) -> None:
    session = session_of(model, is_mixed=True, goal=goal, is_reached=lambda trial: True, metric=lambda given: 1.0)
    found = steps_of(session, "find_bits")
    assert {step.settings["is_of_metric"] for step in found} == {goal is not None}


def test_narrow_plans_begin_with_what_gains_most_and_finish_the_best(model: nn.Module) -> None:
    names = [(step.name, step.branch) for step in usual_plan(session_of(model))]
    assert ("find_bits", PLAIN) not in names
    assert names[:3] == [("fuse", FOLDED), ("equalize", EQUALIZED), ("choose_ranges", TOGETHER)]
    assert [name for name, branch in names if branch == FOLDED] == ["fuse"]  # 10 dB behind: nothing more is tried there
    assert [branch for name, branch in names if name == "choose_exponents"] == [EQUALIZED]
    # nothing helped: headroom is tried at two sizes, training once and for a short time, and biases are not corrected again
    assert names[-6:] == [
        ("round_weights", EQUALIZED),
        ("correct_biases", EQUALIZED),
        ("choose_exponents", EQUALIZED),
        (HEADROOM, EQUALIZED),
        (HEADROOM, EQUALIZED),
        ("distill", EQUALIZED),
    ]


def followed(session: Any, *helpful: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The steps of the usual plan where those of these names help."""
    found = []
    for step in usual_plan(session):
        found.append((step.name, step.settings))
        note = {"name": step.name, "branch": step.branch, "seconds": 0.0, "settings": step.settings}
        note["is_kept"] = step.name in helpful
        session.steps.append(SimpleNamespace(**note))
    return found


def test_training_is_long_only_where_a_short_trial_pays(model: nn.Module) -> None:
    short = [settings for name, settings in followed(session_of(model)) if name == "distill"]
    assert [settings["steps"] for settings in short] == [20]
    steps = followed(session_of(model), "distill")
    assert [settings["steps"] for name, settings in steps if name == "distill"] == [20, 400, 400, 400]
    assert steps[-1][0] == "correct_biases"


def test_biases_are_corrected_again_after_what_helped(model: nn.Module) -> None:
    names = [name for name, _ in followed(session_of(model), "choose_exponents", HEADROOM)]
    assert names[-6:-4] == ["round_weights", "correct_biases"]
    assert names[-4:] == ["choose_exponents", "correct_biases", HEADROOM, "distill"]


def test_few_data_make_fewer_choices(model: nn.Module) -> None:
    session = session_of(model, parts=SimpleNamespace(tuning=[None] * 8, is_few=True))
    names = [name for name, _ in followed(session)]
    assert "choose_exponents" not in names
    assert "distill" not in names
    assert names.count("choose_ranges") == 3  # of the nearest branch two, and those that are tried as one
    assert HEADROOM in names


def test_branches_are_gone_on_with_that_are_near_the_nearest(model: nn.Module) -> None:
    session = session_of(model)

    def continued() -> list[str]:
        return [step.branch for step in steps_of(session, "choose_ranges") if step.settings == {"outputs": "mse"}]

    assert continued() == [EQUALIZED]
    session.branches[TOGETHER] = Trial(model, model, score=Score(0.00094))  # 30.3 dB
    assert continued() == [TOGETHER, EQUALIZED]
    del session.branches[TOGETHER]
    session.branches[PLAIN] = Trial(model, model, score=Score(0.0011))  # 29.6 dB, where folding costs something
    assert continued() == [EQUALIZED, PLAIN]
    session.branches[PLAIN] = Trial(
        model, model, score=Score(0.0009)
    )  # 30.5 dB: the nearest begins what is tried as one
    session.branches[FOLDED] = Trial(model, model, score=Score(0.001))
    assert next(step.source for step in steps_of(session, "choose_ranges")) == PLAIN
    assert continued() == [PLAIN, EQUALIZED, FOLDED]
    session.budget.seconds_left = 0.0  # the nearest alone
    assert continued() == [PLAIN]


def test_rounding_takes_fewer_samples_and_positions_where_all_would_take_too_long(model: nn.Module) -> None:
    session = session_of(model)
    (whole, *_) = steps_of(session, "round_weights")
    assert (whole.branch, whole.settings) == (EQUALIZED, {})
    # 22 passes of 0.8 s, of which 30 % do not depend on the data; 90 % of the time may be used
    session.budget.seconds_left = 22 * 0.8 * (0.3 + 0.7 * 0.5) / 0.9 + 1e-6
    (half, *_) = steps_of(session, "round_weights")
    assert half.settings == {"batches": 4, "positions": 2048}
    assert expected_seconds(session, half) == 0.0  # it was made to fit
    session.budget.seconds_left = 1.0  # too little even for a part: it is left out by its estimate
    (none, *_) = steps_of(session, "round_weights")
    assert none.settings == {}
    assert expected_seconds(session, none) > 1.0


def test_mixed_plans_without_time_widen_the_nearest_branch_only(model: nn.Module) -> None:
    # wider weights, biases and rounding take 90 passes of 0.8 s
    session = session_of(model, is_mixed=True, seconds=90 * 0.8 - 0.1)
    assert {step.branch for step in steps_of(session, "find_bits")} == {EQUALIZED}
    session.budget.seconds_left = 90 * 0.8 + 0.1
    assert {step.branch for step in steps_of(session, "find_bits")} == {FOLDED, EQUALIZED}


def test_a_search_needs_a_trial_of_every_range(model: nn.Module) -> None:
    count = len(ranges_of(model))
    assert count > 1
    # 0.2 of the time, in trials of one batch each
    enough = session_of(model, seconds=count * 0.1 / 0.2 + 0.01)
    (found, *_) = steps_of(enough, "choose_exponents")
    assert found.settings == {"max_trials": count, "batches": 1}
    assert steps_of(session_of(model, seconds=count * 0.1 / 0.2 - 0.01), "choose_exponents") == []


def test_trials_on_fewer_batches_where_all_would_take_too_long(model: nn.Module) -> None:
    assert affordable(session_of(model), 20) == (8, 20)
    assert affordable(session_of(model, seconds=50.0), 20) == (5, 20)  # 100 passes
    assert affordable(session_of(model, seconds=5.0), 20) == (1, 10)
    assert affordable(session_of(model, seconds=0.0), 20) == (1, 1)
    few = session_of(model, budget=SimpleNamespace(seconds_left=1000.0, trials_left=7))
    assert affordable(few, 20) == (8, 7)


def test_training_takes_a_part_of_the_time_left(model: nn.Module) -> None:
    assert training_steps(session_of(model)) == 400
    assert training_steps(session_of(model, seconds=50.0)) == 60  # 30 s of 0.5 s each
    done = [
        SimpleNamespace(name="distill", seconds=20.0, settings={"steps": 20}),
        SimpleNamespace(name="distill", seconds=0.0, settings={"steps": 20}),
        SimpleNamespace(name="fuse", seconds=9.0, settings={}),
    ]
    assert training_steps(session_of(model, seconds=50.0, steps=done)) == 30  # a second each, as measured
    few = [step for step in usual_plan(session_of(model, seconds=17.0)) if step.name == "distill"]
    assert [step.settings["steps"] for step in few] == [20]
    assert [step for step in usual_plan(session_of(model, seconds=16.0)) if step.name == "distill"] == []


def test_a_step_costs_what_it_has_cost_or_a_number_of_passes(model: nn.Module) -> None:
    session = session_of(model, costs={"fuse": 7.0})
    assert expected_seconds(session, Step("fuse", PLAIN, PLAIN)) == 7.0
    assert expected_seconds(session, Step("equalize", PLAIN, PLAIN)) == pytest.approx(8 * 0.8)
    assert expected_seconds(session, Step("of a user", PLAIN, PLAIN)) == pytest.approx(0.8)
    assert expected_seconds(session, Step("distill", PLAIN, PLAIN)) == 0.0
    assert set(ALWAYS) == {"fuse", "choose_ranges"}
