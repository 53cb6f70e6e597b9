# SPDX-License-Identifier: Apache-2.0
"""A metric that no longer improves, found alike by every process of a group."""

from __future__ import annotations

import math

import torch

from linger.errors import UsageError, in_one_line
from linger.quantization.core.distributed.group import Group, GroupError
from linger.quantization.core.runtime import is_in_group

PLATEAU = "plateau"
"""What a user writes instead of a step."""

_MARK = -2.0
"""The first number of a row that holds a metric, so that it is not taken for what a training pass has seen."""


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
            UsageError: The processes of a group are at different steps, or one does not answer.
        """
        if self.found_at is not None:
            return False
        value = self._of_all(metric, step)
        if value is None or step < self._begins:
            return False
        is_better = self.best is None or (value < self.best if self._mode == "min" else value > self.best)
        if is_better and not math.isnan(value):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self._patience

    def _of_all(self, metric: float | None, step: int) -> float | None:
        """The mean of the metrics that the processes give, in the order of their ranks; None where none gives any."""
        distributed = torch.distributed
        if not is_in_group() or distributed.get_world_size() == 1:
            return metric
        told = [_MARK, step, metric is not None, 0.0 if metric is None else metric]
        own = torch.tensor(told, dtype=torch.float64, device=Group.device_for(torch.device("cpu")))
        try:
            rows = Group.of_all().gather(own, len(told))[1].tolist()
        except GroupError as error:
            raise UsageError(
                "Schedule.step: while a plateau is waited for, the processes compare their metrics, and one did not answer "
                f"({in_one_line(error.__cause__ or error)}). Call it equally often in each; go on from a checkpoint."
            ) from error
        steps = [str(int(row[1])) if row[0] == _MARK else "none" for row in rows]
        if len(set(steps)) > 1:
            raise UsageError(
                f"Schedule.step: the processes are at the steps {', '.join(steps)}. Call it equally often in each."
            )
        given = [row[3] for row in rows if row[2]]
        return math.fsum(given) / len(given) if given else None
