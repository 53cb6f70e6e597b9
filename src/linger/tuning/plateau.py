# SPDX-License-Identifier: Apache-2.0
"""A metric that no longer improves, found alike by every process of a group."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from linger.errors import UsageError

PLATEAU = "plateau"
"""What a user writes instead of a step."""


class Plateau:
    """Waits until a metric has not improved for a number of metrics.

    Attributes:
        found_at: The step at which that was so; None before.
        best: The best metric so far.
        waited: Metrics since then.
    """

    def __init__(self, begins: int, patience: int, mode: str) -> None:
        self._begins, self._patience, self._mode = begins, patience, mode
        self.found_at: int | None = None
        self.best: float | None = None
        self.waited = 0

    def restore(self, best: float | None, waited: int, found_at: float | None) -> None:
        """Go on where another one was."""
        self.best, self.waited = best, waited
        self.found_at = None if found_at is None else int(found_at)

    def sees(self, metric: float | None, step: int) -> bool:
        """Take the metric after so many steps, of all processes; True where this one makes it a plateau.

        Raises:
            UsageError: The processes of a group are at different steps.
        """
        if self.found_at is not None or step < self._begins:
            return False
        value = _of_all(metric, step)
        if value is None:
            return False
        is_better = self.best is None or (value < self.best if self._mode == "min" else value > self.best)
        if is_better and not math.isnan(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._patience


def _of_all(metric: float | None, step: int) -> float | None:
    """The mean of the metrics that the processes give, in the order of their ranks; None where none gives any."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return metric
    on_gpu = "nccl" in distributed.get_backend()
    own = torch.tensor([step, metric is not None, 0.0 if metric is None else metric], dtype=torch.float64)
    own = own.to(torch.device("cuda", torch.cuda.current_device())) if on_gpu else own
    everywhere = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(everywhere, own)
    rows: Sequence[Sequence[float]] = torch.stack(everywhere).tolist()
    steps = [int(row[0]) for row in rows]
    if len(set(steps)) > 1:
        raise UsageError(
            f"Schedule.step: the processes are at the steps {', '.join(map(str, steps))}. Call it equally often in each."
        )
    given = [row[2] for row in rows if row[1]]
    return math.fsum(given) / len(given) if given else None
