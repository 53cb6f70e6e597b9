# SPDX-License-Identifier: Apache-2.0
"""The loop of tuning, and its one decision: run a step on a copy, judge it by data that it has not seen, keep it or drop it."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.errors import LingerError, UsageError, counted
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.stored import Kind
from linger.tuning.autotune.result import Budget, Numbers, Settings, Step, TuneStep
from linger.tuning.held_out import Parts, shifted
from linger.tuning.mixed_precision.find_bits import BitRow
from linger.tuning.mixed_precision.goals import Metric, checked_metric
from linger.tuning.remedy import OutputError, error_db

HEADROOM = "widen_ranges"
"""The step that gives ranges room for other data; it is judged by what that costs and gains."""

_PASSES_AT_THE_END = 15.0  # passes of a batch that finding the remaining problems takes, about
PLAIN, FOLDED = "direct", "folded"
"""The branches that begin with plain calibration, and with batch norms folded."""

_SURE_DB = 0.1  # a step must not make the error on the data that it learned from larger by more: less does not show in figures with one decimal
_SINGLE_DB = 0.15  # of a single sample no noise is known; a gain must then be larger


@dataclass(frozen=True)
class Score:
    """How good a model is: noise at the outputs relative to the signal on the choosing part, and the user's metric if there is one."""

    error: float
    metric: float | None = None
    samples: tuple[float, ...] = ()  # each sample's part of the error, which is their mean
    learned: float | None = None  # the error on data that steps learn from; None where it was not measured
    shifted: tuple[tuple[str, Score], ...] = ()  # the same on data that are brighter, darker or shifted

    @property
    def db(self) -> float:
        """The error as a signal-to-noise ratio."""
        return error_db(self.error)

    @property
    def learned_db(self) -> float:
        """The same of the error on data that steps learn from."""
        return error_db(self.learned or 0.0)

    def harm(self, before: Score) -> float:
        """By how many dB that is larger than before; 0 where it was not measured."""
        return 0.0 if self.learned is None or before.learned is None else before.learned_db - self.learned_db

    def is_clearly_below(self, other: Score, care: float = 1.0) -> bool:
        """Whether the error is smaller than another model's by more than noise.

        Each sample is compared with itself. The mean of the differences must be larger than its standard error times `care` (and
        Student's t where samples are few), or that of the differences in dB, as samples are of many sizes; or all samples gain, and
        are too many for chance.
        """
        if not self.samples or len(self.samples) != len(other.samples):
            return self.error < other.error
        own, others = (torch.tensor(score.samples, dtype=torch.float64) for score in (self, other))
        if len(own) == 1:
            return error_db(self.error) - error_db(other.error) > _SINGLE_DB * care
        if bool((own < others).all()) and 0.5 ** len(own) < NormalDist().cdf(-care):
            return True  # the sign test: so many samples do not all gain by chance, whatever the size of each
        wide = care * t_quantile(_ONE_SIGMA, len(own) - 1) / math.sqrt(len(own))
        return any(float(gain.mean()) > wide * float(gain.std()) for gain in (others - own, _gains(other, self)))


def _gains(before: Score, after: Score) -> Tensor:
    """By how many dB the error of each sample is smaller."""
    errors = torch.tensor([before.samples, after.samples], dtype=torch.float64)
    errors = errors.clamp_min(max(_EXACT * float(errors[0].mean()), sys.float_info.min))
    return 10 * (errors[0] / errors[1]).log10()


_EXACT = 1e-4
"""Errors below this part of the mean count as it: the logarithm of an exact sample has no end."""

_ONE_SIGMA = 0.8413
"""The share of a normal distribution below one standard deviation."""


def t_quantile(share: float, freedom: float) -> float:
    """Student's t by its expansion around the normal distribution (Abramowitz and Stegun, 26.7.5).

    >>> round(t_quantile(0.975, 10), 3), round(t_quantile(0.8413, 1), 1)
    (2.228, 1.8)
    """
    z, n = NormalDist().inv_cdf(share), freedom
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / n ** (i + 1) for i, term in enumerate(terms))


_RELEVANT_DB = 1.0
"""A gap that is smaller is not told, even where chance does not explain it."""


def gap_of(choosing: tuple[Score, Score], reported: tuple[Score, Score]) -> str:
    """A warning where plain calibration and the tuned model differ more on what chose the steps than on what did not; else nothing.

    Each sample is paired with itself: its gain in dB says nothing of how hard it is. The two means may differ by chance by Welch's
    95 % interval of a difference, with the variance of each part.
    """
    gains = [_gains(*choosing), _gains(*reported)]
    if min(map(len, gains)) < 2 or not all(bool(g.isfinite().all()) for g in gains):
        return ""
    first, second = (float(g.mean()) for g in gains)
    parts = [float(g.var()) / len(g) for g in gains]
    chance = 0.0
    if sum(parts):
        freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, gains, strict=True))
        chance = t_quantile(0.975, freedom) * math.sqrt(sum(parts))
    if first - second <= max(chance, _RELEVANT_DB):
        return ""
    gains_told = f"{first:.1f} dB on samples that chose its steps and {second:.1f} dB on the others"
    return f"tuning gains {gains_told}, where chance explains {chance:.1f} dB"


def objection(score: Score, before: Score, *, is_cut: bool = False, care: float = 1.0) -> str:
    """Why a step is dropped; nothing where it is kept.

    The metric decides where it differs. Else the error must fall by more than the noise of the samples that choose, as one lucky
    sample alone moves the mean by exactly its own standard error; by twice as much (`care`) where the data are few. On learning data
    it must not rise by more than 0.1 dB; not at all where a range was cut (`is_cut`), as numbers that it lost are lost.

    >>> objection(Score(0.1), Score(0.2)), objection(Score(0.2, metric=0.9), Score(0.1, metric=0.8))
    ('', '')
    """
    if score.metric is not None and before.metric is not None and score.metric != before.metric:
        return "" if score.metric > before.metric else "the metric falls"
    gain = before.error - score.error
    if not gain > 0:
        return "the error stays" if gain == 0 else "the error rises"
    if not score.is_clearly_below(before, care):
        return f"the error falls by less than the noise of {counted(len(score.samples), 'sample')}"
    return "the error rises on data that steps learn from" if score.harm(before) > (0.0 if is_cut else _SURE_DB) else ""


def is_better(score: Score, best: Score) -> bool:
    """Whether a model is better than another one beyond doubt."""
    return not objection(score, best)


_HEADROOM_DB, _LARGE_DB, _PART = 0.3, 1.0, 0.25
"""On brighter, darker and shifted data a step must not fall below plain calibration by more than the first where that is no noise, nor
by more than the second; or than this part of what it gains on data as they are, as long as the worst of all does not fall."""


def _least(plain: Score, before: Score | None) -> dict[str, Score]:
    """What a step must not fall below, by what was done to the data: plain calibration, or a branch that began below it."""
    pairs = zip(plain.shifted, (before or plain).shifted, strict=False)
    return {name: max(one, old, key=lambda score: score.error) for (name, one), (_, old) in pairs}


def below_plain(score: Score, plain: Score, before: Score | None = None) -> str:
    """Why a step is dropped that leaves too little room for data unlike those that were given; nothing where it is kept.

    A branch that began below plain calibration may come nearer to it.
    """
    losses = {}
    worst_db = min((one.db for one in _least(plain, before).values()), default=math.inf)
    for (name, after), least in zip(score.shifted, _least(plain, before).values(), strict=False):
        allowed = _HEADROOM_DB if least.is_clearly_below(after) else _LARGE_DB
        if after.db > worst_db - _HEADROOM_DB:
            allowed = max(allowed, _PART * (score.db - plain.db))
        if least.db - after.db > allowed:
            losses[name] = least.db - after.db
    worst = max(losses, key=losses.__getitem__, default="")
    return f"{losses[worst]:.1f} dB below plain calibration where the input has {worst}" if worst else ""


_PRICE_DB = 0.5
"""What headroom may cost on data like those that were given."""


def unpaid(score: Score, before: Score, *, care: float = 1.0) -> tuple[str, str]:
    """Why wider ranges are dropped, or nothing; and what they cost and gain, in words.

    They may cost half a decibel on data like those given, twice as much where these are few, and must gain more than that on the mean of all that other data may be.
    """
    pairs = zip(before.shifted, score.shifted, strict=False)
    gains = [own.db - other.db for (_, other), (_, own) in pairs if other.error and own.error]
    gain, price = sum(gains) / max(1, len(gains)), before.db - score.db
    price = max(price, score.harm(before))
    told = f"headroom costs {max(price, 0.0):.1f} dB here and gains {gain:.1f} dB on brighter, darker and shifted data"
    return told if price > care * _PRICE_DB or gain <= max(price, _SURE_DB) else "", told


_SHIFTED, _WATCHED = 16, 64
"""Samples of the choosing part that are made brighter, darker and shifted; those of the learning part that no step may harm."""


class Judge:
    """Measures models against the float model, whose outputs are computed once, on data that choose and data that steps learn from."""

    def __init__(self, reference: nn.Module, parts: Parts, metric: Metric | None = None) -> None:
        self._reference, self._parts = reference, parts
        self._error = OutputError(reference, parts.whole(parts.choosing))
        self._learned = OutputError(reference, parts.drawn(parts.tuning, _WATCHED))
        self._metric = None if metric is None else checked_metric("tune", metric)
        self._shifted: dict[str, OutputError] = {}
        for name, batches in shifted(parts.drawn(parts.choosing, _SHIFTED), parts.intervals).items():
            with suppress(UsageError):  # what the float model itself cannot compute is no data
                self._shifted[name] = OutputError(reference, batches)

    def __call__(self, model: nn.Module) -> Score:
        """The score of a model. A metric that fails or returns no number is a UsageError."""
        metric = None if self._metric is None else self._metric(model)
        return replace(_score(self._error, model), metric=metric)

    def reported(self, trial: Trial) -> Score:
        """The score on what no step has seen and none was chosen by, if there is such a part."""
        if self._parts.reported is self._parts.choosing:
            return trial.score
        return _score(OutputError(self._reference, self._parts.reported), trial.model)

    def completed(self, model: nn.Module, score: Score) -> Score:
        """A score with what only models need that may be kept."""
        others = tuple((name, _score(error, model)) for name, error in self._shifted.items())
        return replace(score, learned=self._learned(model), shifted=others)


def _score(error: OutputError, model: nn.Module) -> Score:
    samples = error.of_samples(model)
    mean = float(samples.mean())
    return Score(mean if math.isfinite(mean) else math.inf, samples=tuple(samples.tolist()))


class NothingToDoError(LingerError):
    """A step found nothing to change."""


@dataclass(frozen=True)
class Trial:
    """A model that a step made."""

    model: nn.Module  # quantized, in evaluation mode
    reference: nn.Module  # the float model that it stands for, layer by layer: traced and equalized as it is
    trials: int = 1  # models that were measured on the way
    score: Score = Score(math.inf)  # how good it is; the worst of all until it is judged
    wide: tuple[BitRow, ...] = ()  # the tensors that were widened on the way
    narrow: nn.Module | None = None  # the model before that, where it was the last step
    note: str = ""  # what the step did, for its row


@dataclass
class Search:
    """Everything that steps share."""

    parts: Parts  # the data; steps may see the tuning part
    judge: Judge  # measures models on the others
    budget: Budget  # what is left
    known: Mapping[str, StepFunction]  # the steps that there are, by name
    target: str | None = None  # the chip
    numbers: Numbers = field(default_factory=dict)  # whether weights have scales of channels, and activations 0 … 255
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
    begun: Trial | None = None  # plain calibration itself

    def judged(self, model: nn.Module) -> Score:
        """The whole score of a model."""
        return self.judge.completed(model, self.judge(model))

    def begin(self, trial: Trial) -> None:
        """Judge plain calibration, with which everything is compared."""
        self.plain = self.judged(trial.model)
        self.begun = self.branches[PLAIN] = replace(trial, score=self.plain)
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
    def whole(self) -> list[Batch]:
        """The same in as few passes as can be."""
        return self.parts.whole(self.parts.tuning)

    def some(self, batches: int | None) -> list[Batch]:
        """As many samples as so many batches have, drawn from every batch; None: all of them."""
        every = self.tuning
        count = len(every) if batches is None else batches
        return self.parts.drawn(every, max(1, self.parts.samples[0] * count // len(every)))

    @property
    def best_branch(self) -> str:
        """The branch that is best now; the older one where the noise hides which is better. What is folded counts as the oldest."""
        best = FOLDED if FOLDED in self.branches else PLAIN
        for name, trial in self.branches.items():
            if is_better(trial.score, self.branches[best].score) and not below_plain(trial.score, self.plain):
                best = name
        return PLAIN if below_plain(self.branches[best].score, self.plain) else best

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
        score, why, is_kept = self._decided(step, trial, before, is_first=rival is None)
        self.budget.use(trial.trials)
        if is_kept:
            wide = trial.wide or self.branches[step.source].wide
            self.branches[step.branch] = replace(trial, score=score, wide=wide)
        seconds = self.budget.spent - begun
        self.costs[step.name] = max(self.costs.get(step.name, 0.0), seconds)
        self._note(step, before, why + trial.note, seconds, score, trial.trials, is_kept=is_kept)

    def _decided(self, step: Step, trial: Trial, before: Score, *, is_first: bool) -> tuple[Score, str, bool]:
        """The score of what a step made, the decision in words, and whether it is kept, as it is where it begins a branch."""
        score = self.judge(trial.model)
        if not is_first and step.name != HEADROOM and (why := objection(score, before, care=self._care)):
            return score, why, False  # the rest is measured only where it can matter
        score = self.judge.completed(trial.model, score)
        why, told = self._weighed(step, trial, score, before)
        if is_first and why:
            return score, f"it begins a branch: {why}", True
        return score, why or told, not why

    def _weighed(self, step: Step, trial: Trial, score: Score, before: Score) -> tuple[str, str]:
        """Why a step is dropped, by everything; and the reason in words where it is not."""
        if step.name == HEADROOM:
            base = self.plain if below_plain(before, self.plain) else before  # a branch without room is no choice
            why, told = unpaid(score, base, care=self._care)
        else:
            is_cut = _is_cut(trial.model, self.branches[step.source].model)
            why, told = objection(score, before, is_cut=is_cut, care=self._care), "the error falls"
        if score.metric != before.metric:
            return why, "the metric rises"
        return why or below_plain(score, self.plain, before), told

    @property
    def _care(self) -> float:
        """How many times a gain must be larger than its noise."""
        return 2.0 if self.parts.is_few else 1.0

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


def _is_cut(model: nn.Module, before: nn.Module) -> bool:
    """Whether a range of the data ends earlier than before."""
    ranges = ranges_of(before)
    own = {key: one for key, one in ranges_of(model).items() if one.kind is not Kind.WEIGHT and key in ranges}
    return any(one.scale > ranges[key].scale for key, one in own.items())


StepFunction = Callable[[Search, Trial, Settings], Trial]
"""Makes a model from another, which stays as it is."""

Plan = Callable[[Search], Iterator[Step]]
"""Gives the steps one after the other, each after the one before was judged."""
