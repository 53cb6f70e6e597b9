# SPDX-License-Identifier: Apache-2.0
"""How much work a job is given where the user does not say: CPU time for tuning, and samples of a batch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch

_PASSES = 600
"""Tuning Efficientnet-lite0 to its end took as long as about 500 passes of the float network over the same data."""

_LEAST, _MOST = 120, 900
"""Seconds. Small networks are done before; a large one that needs more is for the user to decide."""

_BATCHES = 8
"""Remedies hold out a part of their data in their turn, so a few large batches would leave too little on one side."""


def usual_budget(model: nn.Module, batches: Sequence[Batch], clock: Callable[[], float] = time.thread_time) -> str:
    """The CPU time for tuning, by what one pass of the float model over the data costs: `2 min` to `15 min`.

    One batch is run, and the others are taken to cost as much.
    """
    with torch.no_grad(), torch.random.fork_rng():
        run_batch(model, fresh(batches[0]))  # the first pass also allocates
        start = clock()
        run_batch(model, fresh(batches[0]))
        seconds = _PASSES * len(batches) * (clock() - start)
    return f"{math.ceil(min(max(seconds, _LEAST), _MOST) / 60)} min"


def batch_size(samples: int, most: int) -> int:
    """How many samples run together: at most so many, and few enough for several batches.

    >>> batch_size(34, 32), batch_size(1000, 32), batch_size(5, 32)
    (5, 32, 1)
    """
    return min(most, max(1, math.ceil(samples / _BATCHES)))
