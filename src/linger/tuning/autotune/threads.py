# SPDX-License-Identifier: Apache-2.0
"""How many threads a search runs on: all that torch has, or one where the others would only wait for each other."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.analysis.trace import unaffected

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

    Args:
        model: Is run on the batch a few times.
        batch: A typical one.
        clock: Measures a pass on a number of threads, as seconds on the wall and of CPU; None: by the clocks of this machine.
    """
    every = torch.get_num_threads()
    if every == 1:
        return 1
    measure = clock or _seconds
    if measure(model, batch, 1)[1] < _SHORT:
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
