# SPDX-License-Identifier: Apache-2.0
"""The order of steps: what is cheap and helps most first, each on the best that there is so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from linger.tuning.one_call.result import Step
from linger.tuning.one_call.session import PLAIN, Session

Plan = Callable[[Session], Iterator[Step]]
"""Gives the steps one after the other, each after the one before was judged."""

_PASSES: Mapping[str, float] = {"fuse": 4.0, "correct_biases": 8.0, "round_weights": 30.0}
"""What a step costs at least, in passes over the tuning data, before it was measured."""


def usual_plan(session: Session) -> Iterator[Step]:
    """Fuse; correct biases; round weights."""
    yield Step("fuse", PLAIN, PLAIN)
    for branch in list(session.branches):
        yield Step("correct_biases", branch, branch)
    best = session.best_branch
    for name in ("round_weights", "correct_biases"):
        yield Step(name, best, best)


def expected_seconds(session: Session, step: Step, pass_seconds: float) -> float:
    """What a step will cost: as much as before, or a number of passes."""
    return session.costs.get(step.name, _PASSES.get(step.name, 1.0) * pass_seconds)
