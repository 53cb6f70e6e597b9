# SPDX-License-Identifier: Apache-2.0
"""One verdict: how good a model is on held-out data, and when a step is kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from linger.analysis.batches import Batch
from linger.tuning.measure import OutputError, error_db
from linger.tuning.mixed_precision.goals import Metric, checked_metric


@dataclass(frozen=True)
class Score:
    """How good a model is on held-out data.

    Attributes:
        error: Noise at the outputs, relative to the signal.
        metric: The user's figure, if there is one.
    """

    error: float
    metric: float | None = None

    @property
    def db(self) -> float:
        """The error as a signal-to-noise ratio."""
        return error_db(self.error)


def is_better(found: Score, best: Score) -> bool:
    """Whether a step is kept: the metric rises or, where there is none or it stays equal, the error falls.

    >>> is_better(Score(0.2), Score(0.1)), is_better(Score(0.2, metric=0.9), Score(0.1, metric=0.8))
    (False, True)
    """
    if found.metric is not None and best.metric is not None and found.metric != best.metric:
        return found.metric > best.metric
    return found.error < best.error


class Judge:
    """Measures models on held-out data against the float model, whose outputs are computed once."""

    def __init__(self, reference: nn.Module, held_out: Sequence[Batch], metric: Metric | None = None) -> None:
        self._error = OutputError(reference, held_out)
        self._metric = None if metric is None else checked_metric("tune", metric)

    def __call__(self, model: nn.Module) -> Score:
        """The score of a model.

        Raises:
            UsageError: The metric fails or returns no number.
        """
        error = self._error(model)
        metric = None if self._metric is None else self._metric(model)
        return Score(error if math.isfinite(error) else math.inf, metric)
