# SPDX-License-Identifier: Apache-2.0
"""The loop: steps that hurt are dropped, branches compete, a step never sees what is held out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import linger
from tests.support.tuning import (
    PLAIN,
    Judge,
    NothingToDoError,
    Parts,
    Score,
    Search,
    Step,
    Trial,
    quantized,
    read_budget,
    repeatable,
    split,
)


def scaled(factor: float) -> Callable[..., Trial]:
    """A step that multiplies the output by a factor."""

    def run(session: Search, start: Trial, settings: Any) -> Trial:
        model = copy.deepcopy(start.model)
        with torch.no_grad():
            model[0].weight.mul_(factor)
            model[0].bias.mul_(factor)
        return Trial(model, start.reference)

    return run


def nothing(session: Search, start: Trial, settings: Any) -> Trial:
    raise NothingToDoError("all is well")


def fails(session: Search, start: Trial, settings: Any) -> Trial:
    raise linger.UsageError("it cannot be done.")


STEPS = {"spoil": scaled(1.3), "mend": scaled(1 / 1.3), "nothing": nothing, "fails": fails}


@pytest.fixture
def session() -> Search:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 3)).eval()
    parts = split(reference, [(x,) for x in torch.randn(8, 5, 4)])
    made = Search(parts, Judge(reference, parts), read_budget("1 h"), STEPS)
    made.begin(Trial(quantized(reference, parts.tuning, None), reference))
    return made


def spoil_and_mend(session: Search) -> None:
    """Two steps: the first hurts, and what the second makes is worse than the beginning, unless the first was kept."""
    session.run(Step("spoil", PLAIN, PLAIN))
    session.run(Step("nothing", PLAIN, PLAIN))
    assert session.best.score.error <= session.plain.error
    assert [step.is_kept for step in session.steps] == [False, False]


def test_a_step_that_hurts_is_dropped(session: Search) -> None:
    spoil_and_mend(session)
    spoiled, other = session.steps
    assert spoiled.why == "the error rises"
    assert spoiled.after_db is not None
    assert spoiled.after_db < spoiled.before_db
    assert spoiled.is_complete
    assert other.why == "nothing to do: all is well"
    assert other.after_db is None


def test_a_loop_that_keeps_what_hurts_is_noticed(session: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("objection", "below_plain"):
        monkeypatch.setattr(f"linger.tuning.autotune.search.{rule}", lambda *scores, **rest: "")
    with pytest.raises(AssertionError):
        spoil_and_mend(session)


def test_a_step_that_fails_is_dropped_with_its_sentence(session: Search) -> None:
    session.known = {**STEPS, "breaks": lambda session, start, settings: 1 / 0}  # type: ignore[dict-item]
    session.run(Step("fails", PLAIN, PLAIN))
    session.run(Step("breaks", PLAIN, PLAIN))
    assert session.steps[0].why == "it cannot be done."
    assert session.steps[1].why == "it failed: ZeroDivisionError: division by zero"
    assert session.best.score == session.plain


def test_branches_compete_and_the_better_one_wins(session: Search) -> None:
    session.run(Step("spoil", "other", PLAIN))
    assert session.best_branch == PLAIN
    session.run(Step("mend", "other", "other"))
    session.run(Step("mend", PLAIN, PLAIN))
    kept = {(step.name, step.branch): step.is_kept for step in session.settled()}
    assert session.best_branch == PLAIN
    assert not any(kept.values())
    assert "but the branch direct ended better" in session.settled()[0].why


def test_steps_of_the_branch_that_another_grew_from_count(session: Search) -> None:
    session.known = {**STEPS, "tiny": scaled(1.0 + 2**-30)}
    session.branches[PLAIN] = replace(session.branches[PLAIN], score=Score(1.0))
    session.run(Step("tiny", PLAIN, PLAIN))
    session.branches[PLAIN] = replace(session.branches[PLAIN], score=Score(1.0))
    session.run(Step("tiny", "other", PLAIN))
    session.run(Step("tiny", PLAIN, PLAIN))
    session.branches[PLAIN] = replace(session.branches[PLAIN], score=Score(1.0))
    assert session.best_branch == "other"
    assert [step.is_kept for step in session.settled()] == [True, True, False]


def seen_by_steps(parts: Parts) -> set[float]:
    """The first numbers of all rows that a step is given."""
    found: set[float] = set()

    def spy(session: Search, start: Trial, settings: Any) -> Trial:
        found.update(float(row[0]) for batch in session.tuning for row in batch[0])
        return start

    reference = nn.Sequential(nn.Linear(4, 3)).eval()
    session = Search(parts, Judge(reference, parts), read_budget("1 h"), {"spy": spy})
    session.begin(Trial(quantized(reference, parts.tuning, None), reference))
    session.run(Step("spy", PLAIN, PLAIN))
    return found


def assert_nothing_leaks(parts: Parts) -> None:
    for part in (parts.choosing, parts.reported):
        held = {float(row[0]) for batch in part for row in batch[0]}
        assert held
        assert not held & seen_by_steps(parts)
    chosen, told = ({float(row[0]) for batch in part for row in batch[0]} for part in (parts.choosing, parts.reported))
    assert not chosen & told  # what is reported on has chosen nothing


def test_parts_of_data_share_no_sample_and_steps_see_only_theirs() -> None:
    torch.manual_seed(0)
    batches = [(x,) for x in torch.randn(8, 5, 4)]
    reference = nn.Linear(4, 3)
    assert_nothing_leaks(split(reference, batches))
    assert_nothing_leaks(split(reference, [(torch.randn(12, 4),)]))
    whole = split(reference, batches)
    leaks = {  # the faults: steps learn from what chooses, or from what is reported on, or the latter chooses
        "learning": replace(whole, tuning=(*whole.tuning, *whole.choosing)),
        "reported": replace(whole, tuning=(*whole.tuning, *whole.reported)),
        "choosing": replace(whole, choosing=(*whole.choosing, *whole.reported)),
    }
    for leaking in leaks.values():
        with pytest.raises(AssertionError):
            assert_nothing_leaks(leaking)


def test_what_ran_to_its_end_can_be_repeated(session: Search) -> None:
    for name in ("spoil", "fails", "mend"):
        session.run(Step(name, PLAIN, PLAIN, {}))
    assert [step.name for step in repeatable(session.steps)] == ["spoil", "mend"]
