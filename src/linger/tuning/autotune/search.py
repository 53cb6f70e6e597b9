# SPDX-License-Identifier: Apache-2.0
"""The loop of tuning, and its one decision: run a step on a copy, judge it on held-out data, keep it or drop it, remember both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.errors import LingerError
from linger.tuning.autotune.budget import Budget
from linger.tuning.autotune.result import Settings, Step, TuneStep
from linger.tuning.held_out import Parts
from linger.tuning.mixed_precision.goals import Metric, checked_metric
from linger.tuning.remedy import OutputError, error_db

_PASSES_AT_THE_END = 15.0
"""Passes of a batch that finding the remaining problems takes, about."""

PLAIN = "direct"
"""The branch that begins with plain calibration."""


@dataclass(frozen=True)
class Score:
    """How good a model is on held-out data: noise at the outputs relative to the signal, and the user's metric if there is one."""

    error: float
    metric: float | None = None

    @property
    def db(self) -> float:
        """The error as a signal-to-noise ratio."""
        return error_db(self.error)


def is_better(score: Score, best: Score) -> bool:
    """Whether a step is kept: the metric rises or, where there is none or it stays equal, the error falls.

    >>> is_better(Score(0.2), Score(0.1)), is_better(Score(0.2, metric=0.9), Score(0.1, metric=0.8))
    (False, True)
    """
    if score.metric is not None and best.metric is not None and score.metric != best.metric:
        return score.metric > best.metric
    return score.error < best.error


def _reason(score: Score, before: Score) -> str:
    """The decision in words."""
    if score.metric is not None and before.metric is not None and score.metric != before.metric:
        return "the metric rises" if score.metric > before.metric else "the metric falls"
    if score.error == before.error:
        return "the error stays"
    return "the error falls" if score.error < before.error else "the error rises"


class Judge:
    """Measures models on held-out data against the float model, whose outputs are computed once."""

    def __init__(self, reference: nn.Module, held_out: Sequence[Batch], metric: Metric | None = None) -> None:
        self._error = OutputError(reference, held_out)
        self._metric = None if metric is None else checked_metric("tune", metric)

    def __call__(self, model: nn.Module) -> Score:
        """The score of a model. A metric that fails or returns no number is a UsageError."""
        error = self._error(model)
        metric = None if self._metric is None else self._metric(model)
        return Score(error if math.isfinite(error) else math.inf, metric)


class NothingToDoError(LingerError):
    """A step found nothing to change."""


@dataclass(frozen=True)
class Trial:
    """A model that a step made."""

    model: nn.Module  # quantized, in evaluation mode
    reference: nn.Module  # the float model that it stands for, layer by layer: traced and equalized as it is
    trials: int = 1  # models that were measured on the way
    score: Score = Score(math.inf)  # how good it is; the worst of all until it is judged
    note: str = ""  # what the step did, for its row


@dataclass
class Search:
    """Everything that steps share."""

    parts: Parts  # the data; steps may see the tuning part, and the judge has the other
    judge: Judge  # measures models on the held-out part
    budget: Budget  # what is left
    known: Mapping[str, StepFunction]  # the steps that there are, by name
    target: str | None = None  # the chip
    seed: int = 0  # of everything random
    metric: Metric | None = None  # the user's metric, if there is one
    is_mixed: bool = False  # whether tensors may have 16 bits
    goal: float | str | None = None  # enough dB, decisions in %, or a value of the metric; None: as good as possible
    is_reached: Callable[[Trial], bool] | None = None  # tells a model that reaches the goal
    batch_seconds: float = 0.0  # CPU time of one forward pass of a tuning batch
    branches: dict[str, Trial] = field(default_factory=dict)  # the best model of each branch so far
    steps: list[TuneStep] = field(default_factory=list)  # what was tried
    costs: dict[str, float] = field(default_factory=dict)  # the most CPU seconds that each step has taken
    plain: Score = Score(math.inf)  # the score of plain calibration

    def begin(self, trial: Trial) -> None:
        """Judge plain calibration, with which everything is compared."""
        self.plain = self.judge(trial.model)
        self.branches[PLAIN] = replace(trial, score=self.plain)
        begun = self.budget.spent
        with torch.no_grad():
            run_batch(trial.model, fresh(self.parts.tuning[0]))
        self.batch_seconds = self.budget.spent - begun
        self.budget.reserve(_PASSES_AT_THE_END * self.batch_seconds)

    @property
    def is_good_enough(self) -> bool:
        """Whether the goal is reached."""
        return self.is_reached is not None and self.is_reached(self.best)

    @property
    def tuning(self) -> list[Batch]:
        """What remedies see."""
        return list(self.parts.tuning)

    @property
    def best_branch(self) -> str:
        """The branch that is best now; the older one where two are equal."""
        best = PLAIN
        for name, trial in self.branches.items():
            if is_better(trial.score, self.branches[best].score):
                best = name
        return best

    @property
    def best(self) -> Trial:
        """The best of all branches."""
        return self.branches[self.best_branch]

    def run(self, step: Step) -> None:
        """Try a step. What it makes is kept in its branch if it is better there, and always where it begins a branch."""
        begun = self.budget.spent
        rival = self.branches.get(step.branch)
        before = (rival or self.branches[step.source]).score
        trial, why = self._tried(step, self.branches[step.source])
        if trial is None:
            self._note(step, before, why, self.budget.spent - begun)
            return
        score = self.judge(trial.model)
        self.budget.use(trial.trials)
        is_kept = rival is None or is_better(score, before)
        if is_kept:
            self.branches[step.branch] = replace(trial, score=score)
        seconds = self.budget.spent - begun
        self.costs[step.name] = max(self.costs.get(step.name, 0.0), seconds)
        why = _reason(score, before) + trial.note
        self._note(step, before, why, seconds, score, trial.trials, is_kept=is_kept)

    def skip(self, step: Step, why: str) -> None:
        """Remember a step that was not tried."""
        self._note(step, self.branches[step.source].score, why)

    def _note(
        self,
        step: Step,
        before: Score,
        why: str,
        seconds: float = 0.0,
        after: Score | None = None,
        trials: int = 0,
        *,
        is_kept: bool = False,
    ) -> None:
        self.steps.append(
            TuneStep(
                name=step.name,
                settings=dict(step.settings),
                branch=step.branch,
                source=step.source,
                before_db=before.db,
                after_db=None if after is None else after.db,
                before_metric=before.metric,
                after_metric=None if after is None else after.metric,
                seconds=seconds,
                trials=trials,
                is_complete=after is not None,
                is_kept=is_kept,
                why=why,
            )
        )

    def _tried(self, step: Step, start: Trial) -> tuple[Trial | None, str]:
        """What a step makes of a copy; None and the reason where it makes nothing."""
        try:
            with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
                warnings.simplefilter("ignore")  # what there is to say about the result is said at the end
                torch.manual_seed(self.seed)
                return self.known[step.name](self, start, step.settings), ""
        except NothingToDoError as error:
            return None, f"nothing to do: {error}"
        except LingerError as error:
            return None, str(error)
        except Exception as error:  # noqa: BLE001 - a model's code may raise anything, and the other steps go on
            return None, f"it failed: {type(error).__name__}: {error}"

    def settled(self) -> tuple[TuneStep, ...]:
        """The steps, with those that the best model does not have marked as dropped."""
        branch, until = self.best_branch, len(self.steps)
        note = f", but the branch {branch} ended better"
        history: set[int] = set()
        while True:  # back through the branches that the best one grew from
            own = [i for i, step in enumerate(self.steps[:until]) if step.branch == branch]
            history.update(own)
            if not own or self.steps[own[0]].source == branch:
                break
            until, branch = own[0], self.steps[own[0]].source
        return tuple(
            step if i in history or not step.is_kept else replace(step, is_kept=False, why=step.why + note)
            for i, step in enumerate(self.steps)
        )


StepFunction = Callable[[Search, Trial, Settings], Trial]
"""Makes a model from another, which stays as it is."""
