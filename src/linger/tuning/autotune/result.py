# SPDX-License-Identifier: Apache-2.0
"""What tuning may cost, what it tried, what each step gained, what was kept, and which tensors stay the problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.analysis.trace import unaffected
from linger.errors import LingerError, counted
from linger.notation import read_allowance
from linger.records.table import Column, Result, bars_html, to_rich, to_text
from linger.tuning.mixed_precision.find_bits import BitRow

if TYPE_CHECKING:
    from rich.table import Table

Settings = Mapping[str, Any]
"""What a step was asked for: plain numbers and names."""

Numbers = Mapping[str, bool | None]
"""`per_channel` and `unsigned` of `linger.init`, where they are said."""

VARIED = "Give more, and more varied, data."


@dataclass(frozen=True)
class Step:
    """One thing to try: a remedy by name with its arguments, the branch that it changes and the one that it starts from."""

    name: str
    branch: str
    source: str
    settings: Settings = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in self.settings.items())})"


@dataclass(frozen=True)
class TuneStep:
    """One step that was tried.

    Attributes:
        name, settings: The remedy and its arguments.
        branch, source: The branch that it belongs to, and the one that it started from.
        before_db, after_db: Signal to noise at the outputs on the data that choose; after is None where the step did not end.
        before_metric, after_metric: The user's metric.
        seconds, trials: CPU time, and models that were measured.
        is_complete: Whether it ran to its end; only then a repetition runs it again.
        is_kept, why: Whether the model has it, and why it was kept or dropped.
    """

    name: str
    settings: Settings
    branch: str
    source: str
    before_db: float
    after_db: float | None
    before_metric: float | None
    after_metric: float | None
    seconds: float
    trials: int
    is_complete: bool
    is_kept: bool
    why: str

    @property
    def shown(self) -> str:
        """The step with its arguments."""
        return str(Step(self.name, self.branch, self.source, self.settings))

    @property
    def kept(self) -> str:
        """Whether it was kept."""
        return "yes" if self.is_kept else "no"


@dataclass(frozen=True)
class Problem:
    """A tensor that still costs much.

    Attributes:
        name: The weight, or the layer whose output it is.
        role: `weight` or `output`, or `layer` where all of its tensors are wide already.
        bits: Its width.
        born_db: Signal to noise of the error that its layer makes itself.
        cause: `outlier`, `channel spread`, `narrow width`, `inside the layer`.
        advice: A sentence about it.
    """

    name: str
    role: str
    bits: int
    born_db: float
    cause: str
    advice: str


@dataclass(frozen=True)
class Round:
    """One round of fine-tuning with labels.

    Attributes:
        number: From 0, which is before any training.
        flagged: Tensors that a limit would help.
        worst, worst_db: The most worrying of them, and its signal to noise at 8 bits.
        loss: What the training step returned, if it did.
    """

    number: int
    flagged: int
    worst: str
    worst_db: float | None
    loss: float | None


_STEP_COLUMNS = (
    Column("shown", "step"),
    Column("branch", "branch"),
    Column("before_db", "before dB", "{:.2f}"),
    Column("after_db", "after dB", "{:.2f}"),
    Column("seconds", "CPU s", "{:.1f}"),
    Column("kept", "kept"),
    Column("why", "why"),
)
_METRIC_COLUMNS = (
    *_STEP_COLUMNS[:4],
    Column("before_metric", "metric before", "{:.4g}"),
    Column("after_metric", "after", "{:.4g}"),
    *_STEP_COLUMNS[4:],
)
_PROBLEM_COLUMNS = (
    Column("name", "stays a problem"),
    Column("role", "role"),
    Column("bits", "bits", "{:d}"),
    Column("born_db", "born dB", "{:.1f}"),
    Column("cause", "cause"),
    Column("advice", "what helps"),
)
_ROUND_COLUMNS = (
    Column("number", "round", "{:d}"),
    Column("flagged", "flagged", "{:d}"),
    Column("worst", "worst"),
    Column("worst_db", "dB", "{:.1f}"),
    Column("loss", "loss", "{:.4g}"),
)


@dataclass(frozen=True, repr=False)
class TuneResult(Result):
    """What `linger.tune` did.

    The data have three parts: what steps learn from, what chooses between them, and what is reported on. Figures of steps are of the
    second part, which no step has seen; a figure by which something was chosen is too good.

    Attributes:
        plain_db, after_db: Signal to noise at the outputs, of plain calibration and of the tuned model, on the third part, by which
            nothing was chosen: the figures to tell.
        choosing_db, learning_db: The same two figures on the second part and on the first (at most 64 samples of it).
        samples: How many samples the parts have, in this order; 0 of the last where it had to be the second.
        warning: A sentence where the gain on the choosing part is larger than on the reported one, by more than chance; else empty.
        plain_metric, after_metric: The user's metric of both.
        steps: What was tried, in its order. `linger.tune(…, steps=result.steps)` does the same again.
        branch: The branch that ended best.
        problems: The tensors that cost most now.
        wide: The tensors that were widened, each with what it gains and costs, as `linger.find_bits` measured them.
        wide_weights, wide_activations: Share of the weight tensors, and of the other tensors, with more than 8 bits.
        seconds, budget, seed: CPU time of everything; the budget as it was given; the seed of everything random.
        rounds: Of fine-tuning with labels.
        notes: Sentences that a reader should know.
        reference: The float model that the tuned one stands for, layer by layer: fused and equalized as it is. No other form of
            the result has it.
    """

    plain_db: float
    after_db: float
    steps: tuple[TuneStep, ...]
    branch: str = ""
    plain_metric: float | None = None
    after_metric: float | None = None
    problems: tuple[Problem, ...] = ()
    wide: tuple[BitRow, ...] = ()
    wide_weights: float = 0.0
    wide_activations: float = 0.0
    seconds: float = 0.0
    budget: str = ""
    seed: int = 0
    rounds: tuple[Round, ...] = ()
    notes: tuple[str, ...] = ()
    reference: nn.Module | None = field(default=None, repr=False, compare=False)
    choosing_db: tuple[float, float] | None = None
    learning_db: tuple[float, float] | None = None
    samples: tuple[int, int, int] | None = None
    warning: str = ""

    _row_type, _rows_name = TuneStep, "steps"

    @property
    def kept(self) -> tuple[TuneStep, ...]:
        """The steps that the model has."""
        return tuple(step for step in self.steps if step.is_kept)

    def summary(self) -> str:
        """The result in one line."""
        metric = ""
        if self.plain_metric is not None and self.after_metric is not None:
            metric = f", metric {self.plain_metric:.4g} → {self.after_metric:.4g}"
        done = ", ".join(step.name for step in self.kept) or "nothing"
        return (
            f"tune: {self.plain_db:.1f} dB by plain calibration → {self.after_db:.1f} dB{self._parts()}{metric}; kept: {done}; "
            f"{self.seconds:.0f} s of CPU time{self.warning and f'. Warning: {self.warning}. {VARIED}'}"
        )

    def _parts(self) -> str:
        """On what the figures were measured, and those of the other parts."""
        if self.samples is None or self.choosing_db is None or self.learning_db is None:
            return ""
        pairs = zip(("learning", "choosing"), (self.learning_db, self.choosing_db), self.samples, strict=False)
        others = (f"{name}: {a:.1f} → {b:.1f} dB on {counted(n, 'sample')}" for name, (a, b), n in pairs)
        alone = f" on {counted(self.samples[2], 'sample')} by which nothing was chosen" if self.samples[2] else ""
        return f"{alone} ({', '.join(others)})"

    def __repr__(self) -> str:
        return f"TuneResult({self.plain_db:.1f} → {self.after_db:.1f} dB, {len(self.kept)} of {len(self.steps)} steps kept)"

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts() | {"summary": self.summary()}
        del facts["reference"]  # a model is not data
        return facts

    @property
    def _columns(self) -> tuple[Column, ...]:  # type: ignore[override]  # two more with a metric
        return _STEP_COLUMNS if self.plain_metric is None else _METRIC_COLUMNS

    def _notes(self) -> list[str]:
        lines = []
        if self.wide_weights or self.wide_activations:
            lines.append(
                f"wider than 8 bits: {self.wide_weights:.1%} of weights, {self.wide_activations:.1%} of other tensors"
            )
        if self.wide:
            lines.append(to_text(BitRow.columns, self.wide))
        if self.rounds:
            lines.append(to_text(_ROUND_COLUMNS, self.rounds))
        if self.problems:
            lines.append(to_text(_PROBLEM_COLUMNS, self.problems))
        return [*lines, *self.notes]

    def __str__(self) -> str:
        return "\n\n".join([self.summary(), to_text(self._columns, self.steps), *self._notes()])

    def _image(self) -> str:
        tried = [step for step in self.steps if step.after_db is not None]
        gains = [step.after_db - step.before_db for step in tried if step.after_db is not None]
        return bars_html([step.shown for step in tried], gains, "dB gained")

    def __rich__(self) -> Table:
        return to_rich("\n\n".join([self.summary(), *self._notes()]), self._columns, self.steps)


# its cost
_MOST_RESERVED = 0.1


class _OutOfBudgetError(LingerError):
    """A step would go beyond the budget; it is given up, and what was there before it stays."""


class Budget:
    """CPU time, of the thread that makes it, and trials that are left; `text` is what the user wrote."""

    def __init__(
        self, text: str, seconds: float = math.inf, trials: float = math.inf, clock: Callable[[], float] | None = None
    ) -> None:
        self.text, self._seconds, self._trials = text, seconds, trials
        self._clock = clock or time.thread_time  # threads that spin for want of work cost nothing here
        self._start = self._clock()
        self._used = 0
        self._reserved = 0.0

    @classmethod
    def read(cls, budget: object, clock: Callable[[], float] | None = None) -> Budget:
        """The budget that a user gave; what is none, or nothing, is refused."""
        allowed = read_allowance(budget, "tune")
        return cls(allowed.text, allowed.seconds, allowed.trials, clock)

    def __deepcopy__(self, memo: object) -> Budget:
        return self  # a copy of a model that is being watched has the same budget

    @property
    def spent(self) -> float:
        """Seconds of CPU time so far."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float:
        """Seconds that are left for steps; infinity where they are not counted."""
        return max(0.0, self._seconds - self._reserved - self.spent)

    @property
    def trials_left(self) -> float:
        """Trials that are left; infinity where they are not counted."""
        return max(0.0, self._trials - self._used)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self.seconds_left <= 0 or self.trials_left <= 0

    def reserve(self, seconds: float) -> None:
        """Keep time for what comes after the last step, at most a tenth of all."""
        if math.isfinite(self._seconds):
            self._reserved = min(seconds, _MOST_RESERVED * self._seconds)

    def lift(self) -> None:
        """Count no longer: a repetition ends by itself."""
        self._seconds = self._trials = math.inf

    def use(self, trials: int) -> None:
        """Count trials: models that were measured."""
        self._used += trials

    def check(self, *_: Any) -> None:
        """Give a step up if the time is over; a forward pre-hook of the models that it runs."""
        if self.seconds_left <= 0:
            raise _OutOfBudgetError(f"the budget of {self.text} ended during this step")

    @contextmanager
    def watching(self, *models: nn.Module) -> Iterator[None]:
        """Check the time at every forward pass of these models and of copies made of them inside the block."""
        handles = [model.register_forward_pre_hook(self.check) for model in models]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


_ROUNDS = 8
_SAVING = 0.75
"""Several threads must cost less than this share of one: noise alone would choose them for layers on which they only wait."""

_SHORT = 0.02
"""Seconds of a pass on one thread below which threads are not tried: its layers take less than waking threads and waiting for them
does, and a choice that noise cannot change gives the same model again."""

_PASSES = 2
"""Passes of a round. The cheapest round counts: what others do on the machine makes rounds dearer, never cheaper."""


def fitting_threads(
    model: nn.Module, batch: Batch, clock: Callable[[nn.Module, Batch, int], tuple[float, float]] | None = None
) -> int:
    """The number of threads that a model's passes should have: torch's own where they clearly pay, else one; a short pass gets one.

    What a pass costs is the time it takes times the CPU time of all threads, so that threads have to save as much as they
    spend. The number of threads of the process is afterwards what it was.

    A clock measures a pass on a number of threads, as seconds on the wall and of CPU; None: the clocks of this machine.
    """
    every, measure = torch.get_num_threads(), clock or _seconds
    if every == 1 or measure(model, batch, 1)[1] < _SHORT:
        return 1
    rounds = [(math.prod(measure(model, batch, 1)), math.prod(measure(model, batch, every))) for _ in range(_ROUNDS)]
    one, all_of_them = (min(costs) for costs in zip(*rounds, strict=True))
    return every if all_of_them < _SAVING * one else 1


def _seconds(model: nn.Module, batch: Batch, threads: int) -> tuple[float, float]:
    """Of a pass, on the wall and of CPU. A single thread is asked for its own, as others may still be spinning."""
    cpu = time.thread_time if threads == 1 else time.process_time
    with on_threads(threads), torch.no_grad(), unaffected(model):
        run_batch(model, fresh(batch))  # the first pass allocates, and wakes the threads
        wall, begun = time.perf_counter(), cpu()
        for _ in range(_PASSES):
            run_batch(model, fresh(batch))
        return (time.perf_counter() - wall) / _PASSES, (cpu() - begun) / _PASSES


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Let torch compute on so many threads inside the block; afterwards, also after an error, on as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
