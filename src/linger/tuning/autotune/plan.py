# SPDX-License-Identifier: Apache-2.0
"""The order of steps: what is cheap and helps most first, each on the best that there is so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from linger.quantization.core.quantized import ranges_of
from linger.tuning.autotune.result import Step
from linger.tuning.autotune.search import FOLDED, HEADROOM, PLAIN, Search

Plan = Callable[[Search], Iterator[Step]]
"""Gives the steps one after the other, each after the one before was judged."""

EQUALIZED, TOGETHER = "equalized", "together"
"""The branches that begin with equalization, and with the methods that help most networks, tried as one."""

_PASSES: Mapping[str, float] = {
    "fuse": 4.0,
    "choose_ranges": 1.0,
    "equalize": 20.0,
    "correct_biases": 8.0,
    "find_bits": 60.0,
    "round_weights": 30.0,
    "choose_exponents": 10.0,
    "distill": 20.0,
    "headroom": 2.0,
    HEADROOM: 4.0,
}
"""What a step costs at least, in passes over the tuning data, before it was measured."""

ALWAYS = ("fuse", "choose_ranges")
"""Steps so cheap that no estimate, which begins with one cold pass, may leave them out while time is left."""

_METHODS: tuple[Mapping[str, str], ...] = (
    {"weights": "mse"},
    {"outputs": "topk"},
    {"outputs": "mse"},
    {"outputs": "percentile:99.9"},
    {"inputs": "mse"},
)
"""Methods of calibration, tried one after the other on top of what helped; the first two are enough for few data."""

_TOGETHER: Mapping[str, str] = {"weights": "mse", "outputs": "topk"}
"""What helps most networks together, tried as one: one of them alone may lose, and greed would never see what both gain."""

_WIDE_LAYERS = 6
"""At most so many layers get 16-bit weights at first."""

GAIN_DB = 10.0
"""What wider tensors should gain where no goal is given."""

_TRIALS_EACH = 3
_SEARCH_SHARE = 0.2
"""Trials of a search for each range, and the part of the time left that they may take."""

_TRAININGS: tuple[Mapping[str, float | bool], ...] = ({}, {"learning_rate": 0.01}, {"learn_ranges": True})
"""Ways to train, one after the other on top of what helped, where a short trial of the first has gained something."""

_FASTEST = 1e-4

_STEP_COST = 5.0
"""A step of training costs about as much as so many forward passes of its batch."""

_SHARE = 0.6
"""Of the time left that training may take."""

_MOST_STEPS, _LEAST_STEPS = 400, 20


def usual_plan(session: Search) -> Iterator[Step]:
    """Folded first, then branches with and without equalization; wider tensors, if wished; the best of all is rounded and trained.

    The order is that of value: what gains most for its time comes first, so that a short budget has most of a long one's gain.
    """
    yield Step("fuse", FOLDED, PLAIN)
    base = FOLDED if FOLDED in session.branches else PLAIN
    if not session.is_mixed:
        yield Step("choose_ranges", TOGETHER, base, _TOGETHER)
        if TOGETHER in session.branches:
            yield Step("correct_biases", TOGETHER, TOGETHER)
        yield from _ranges(session, base)
        yield Step("correct_biases", base, base)
    yield Step("equalize", EQUALIZED, base)
    yield from _mixed(session, base) if session.is_mixed else _narrow(session, base)
    yield from _polished(session, session.best_branch)


def _narrow(session: Search, base: str) -> Iterator[Step]:
    """Every other branch at 8 bits: ranges and biases; what is not folded only where folding costs something."""
    branches = [EQUALIZED] * (EQUALIZED in session.branches)
    if base != PLAIN and session.branches[PLAIN].score.error < session.branches[base].score.error:
        branches.append(PLAIN)
    for branch in branches:
        yield from _ranges(session, branch)
        yield Step("correct_biases", branch, branch)


def _polished(session: Search, best: str) -> Iterator[Step]:
    """Dearer steps on the best branch; biases are corrected again only where something has changed since."""
    yield Step("round_weights", best, best)
    if not (session.is_mixed or session.parts.is_few):
        yield from _exponents(session, best)
        if _was_kept(session, "choose_exponents"):
            yield Step("correct_biases", best, best)
    for gain in (2.0, 1.5):
        yield Step(HEADROOM, best, best, {"gain": gain})
        if _was_kept(session, HEADROOM):
            break
    if session.parts.is_few:
        return
    steps = training_steps(session)
    if steps < _LEAST_STEPS:
        return
    yield Step("distill", best, best, {"steps": _LEAST_STEPS})
    if not _was_kept(session, "distill"):
        return
    for settings in _TRAININGS:
        steps = training_steps(session)
        if steps >= _LEAST_STEPS:
            yield Step("distill", best, best, {"steps": steps, **settings})
    yield Step("correct_biases", best, best)


def _was_kept(session: Search, name: str) -> bool:
    """Whether the step that was tried last is this one, and helped."""
    return bool(session.steps) and session.steps[-1].name == name and session.steps[-1].is_kept


def _mixed(session: Search, base: str) -> Iterator[Step]:
    """Wider tensors first: scales and biases that were fitted to narrow ones would hide what wide ones gain."""
    branches = [base, *([EQUALIZED] * (EQUALIZED in session.branches))]
    for branch in branches:
        yield from _ranges(session, branch)
    goal = session.goal if session.goal is not None else round(session.best.score.db + GAIN_DB, 1)
    for branch in branches:
        if branch == base or _leaves_time(session, branch, "find_bits", "correct_biases"):
            yield from _widened(session, branch, goal)
            yield Step("headroom", branch, branch, {"bits": 2})
            yield Step("correct_biases", branch, branch)
    best = session.best_branch
    if _leaves_time(session, best, "choose_exponents", "correct_biases"):
        yield from _exponents(session, best)
        yield Step("correct_biases", best, best)


def _ranges(session: Search, branch: str) -> Iterator[Step]:
    for methods in _METHODS[: 2 if session.parts.is_few else None]:
        yield Step("choose_ranges", branch, branch, methods)


def _exponents(session: Search, branch: str) -> Iterator[Step]:
    """Exponents by the error at the output, where the time allows a trial of every range at least."""
    count = len(ranges_of(session.branches[branch].model))
    batches, trials = affordable(session, _TRIALS_EACH * count)
    if trials >= count:
        yield Step("choose_exponents", branch, branch, {"max_trials": trials, "batches": batches})


def _widened(session: Search, branch: str, goal: float | str) -> Iterator[Step]:
    """16-bit weights of a few layers; where that is not enough, any activation, too."""
    batches, trials = affordable(session, _TRIALS_EACH * len(ranges_of(session.branches[branch].model)))
    settings = {
        "goal": goal,
        "is_of_metric": session.goal is not None and session.metric is not None,
        "max_wide_layers": _WIDE_LAYERS,
        "max_trials": trials,
        "batches": batches,
    }
    yield Step("find_bits", branch, branch, settings | {"widen": ["weights"]})
    after = session.branches[branch]
    is_enough = session.is_reached(after) if session.is_reached is not None else after.score.db >= float(goal)
    if not is_enough and _leaves_time(session, branch, "find_bits", "correct_biases"):
        yield Step("find_bits", branch, branch, settings)


def _leaves_time(session: Search, branch: str, *names: str) -> bool:
    """Whether steps can be run and weights still be rounded after them."""
    steps = [Step(name, branch, branch) for name in (*names, "round_weights")]
    return sum(expected_seconds(session, step) for step in steps) <= session.budget.seconds_left


def affordable(session: Search, wanted: int) -> tuple[int, int]:
    """Batches and trials of a search: as many trials as wanted, on fewer batches where all of them would take too long."""
    allowed = session.budget.seconds_left * _SEARCH_SHARE / max(session.batch_seconds, _FASTEST)  # passes of one batch
    batches = int(max(1, min(len(session.parts.tuning), allowed / wanted)))  # as many samples, drawn from every batch
    return batches, int(max(1, min(wanted, allowed / batches, session.budget.trials_left)))


def training_steps(session: Search) -> int:
    """As many steps as fit into a part of the time that is left."""
    before = [s.seconds / s.settings["steps"] for s in session.steps if s.name == "distill" and s.seconds]
    each = max(before, default=_STEP_COST * max(session.batch_seconds, _FASTEST))
    return int(min(_MOST_STEPS, session.budget.seconds_left * _SHARE / each))


def expected_seconds(session: Search, step: Step) -> float:
    """What a step will cost: as much as before, or a number of passes."""
    if step.name == "distill":
        return 0.0  # its number of steps was chosen by the time, and it keeps what it has when the clock ends it
    one_pass = session.batch_seconds * len(session.parts.tuning)
    return session.costs.get(step.name, _PASSES.get(step.name, 1.0) * one_pass)
