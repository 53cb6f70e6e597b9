# SPDX-License-Identifier: Apache-2.0
"""What tuning may cost, seconds of CPU time or a number of trials, and how many threads it runs on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.analysis.trace import unaffected
from linger.errors import LingerError
from linger.notation import read_allowance

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


def read_budget(budget: object, clock: Callable[[], float] | None = None) -> Budget:
    """The budget that a user gave; what is none, or nothing, is refused."""
    allowed = read_allowance(budget, "tune")
    return Budget(allowed.text, allowed.seconds, allowed.trials, clock)


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
