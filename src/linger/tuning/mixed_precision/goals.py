# SPDX-License-Identifier: Apache-2.0
"""What a search works toward: decibels at the output, agreement with the float model, or a user's own figure."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, class_axis, evaluating, float_tensors, fresh, run_batch
from linger.errors import LingerError, UsageError, in_one_line
from linger.notation import DECIBELS, GOALS, PERCENT, value_and_unit
from linger.quantization.core.qtensor import unwrap
from linger.tuning.remedy import OutputError, error_db

Metric = Callable[[nn.Module], float]
"""A user's figure of a model: the larger, the better."""


@dataclass(frozen=True)
class Goal:
    """A figure that should be reached."""

    value: float  # the least that is enough
    unit: str  # `dB`, `%`, or nothing for a user's metric
    measure: Metric  # the figure of a model

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit}".strip()

    @property
    def most_noise(self) -> float | None:
        """The noise at the output, relative to the signal, that a goal in decibels allows."""
        return 10.0 ** (-self.value / 10.0) if self.unit == DECIBELS else None


def read_goal(
    where: str, goal: object, at_least: object, reference: nn.Module, batches: Sequence[Batch], error: OutputError
) -> Goal:
    """The goal that a user gave; what is none, or cannot be measured, is refused."""
    if callable(goal):
        if not _is_number(at_least):
            raise UsageError(f"{where}: at_least={at_least!r}. Say which value of the metric is enough: at_least=0.95.")
        return Goal(float(at_least), "", checked_metric(where, goal))  # type: ignore[arg-type]  # a number, checked above
    if at_least is not None:
        raise UsageError(f"{where}: at_least={at_least!r} belongs to a metric, and goal={goal!r} is none. {GOALS}")
    value, unit = value_and_unit(where, goal)
    if unit == DECIBELS:
        return Goal(value, DECIBELS, lambda model: error_db(max(error.of_outputs(model), default=0.0)))
    return Goal(value, PERCENT, _Agreement(where, reference, batches))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def checked_metric(where: str, metric: object) -> Metric:
    """A user's metric, whose errors and odd results say what is wrong; what cannot be called with a model is refused."""
    how = "Give a function metric(model) -> float, the larger the better."
    if not callable(metric):
        raise UsageError(f"{where}: metric={metric!r} cannot be called. {how}")
    name = _own_name(metric)
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):  # something in C that does not say
        signature = inspect.Signature([inspect.Parameter("model", inspect.Parameter.POSITIONAL_ONLY)])
    try:
        signature.bind(None)
    except TypeError as error:
        raise UsageError(f"{where}: {name}{signature} cannot be called with a model alone ({error}). {how}") from error

    def measure(model: nn.Module) -> float:
        try:
            with torch.no_grad(), evaluating(model):
                figure = metric(model)
        except LingerError:
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything, and end the program
            said = f"{type(error).__name__}: {in_one_line(error)}".rstrip(".")
            raise UsageError(f"{where}: {name}(model) failed with {said}.") from error
        try:
            value = float(figure)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"{where}: {name}(model) returned a {type(figure).__name__}, which is no number. {how}"
            ) from error
        if not math.isfinite(value):
            raise UsageError(f"{where}: {name}(model) returned {value}. Return a finite number, larger is better.")
        return value

    return measure


def metric_name(metric: object) -> str:
    """What a user's metric is called in tables: the name of the function."""
    return _own_name(metric).replace("_", " ")


def _own_name(metric: object) -> str:
    return getattr(metric, "__name__", type(metric).__name__)


class _Agreement:
    """The share of decisions that are the float model's, in percent.

    A decision is the largest number of the first output. Where this output is of scores, that is along their axis; else along
    axis 1 of images (four axes or more), or along the last.
    """

    def __init__(self, where: str, reference: nn.Module, batches: Sequence[Batch]) -> None:
        self._batches = batches
        first = [self._output(reference, batch) for batch in batches]
        if any(f is None or f.dim() == 0 or f.shape[_axis(f)] < 2 for f in first):
            raise UsageError(
                f"{where}: agreement compares the largest of several numbers, and the first output has no axis of two or "
                "more. Give decibels, or a metric of your own."
            )
        self._axes = [_axis(f) for f in first if f is not None]
        self._expected = [f.argmax(axis) for f, axis in zip(first, self._axes, strict=True) if f is not None]

    @staticmethod
    def _output(model: nn.Module, batch: Batch) -> Tensor | None:
        with torch.no_grad(), evaluating(model):
            return next(iter(float_tensors(unwrap(run_batch(model, fresh(batch))))), None)

    def __call__(self, model: nn.Module) -> float:
        """The share, from 0 to 100."""
        same = total = 0
        for batch, axis, expected in zip(self._batches, self._axes, self._expected, strict=True):
            output = self._output(model, batch)
            assert output is not None  # the quantized model returns what the float one does
            same += int((output.argmax(axis) == expected).sum())
            total += expected.numel()
        return 100.0 * same / max(total, 1)


def _axis(x: Tensor) -> int:
    axis = class_axis([x])
    if axis is not None:
        return axis
    return 1 if x.dim() > 3 else -1
