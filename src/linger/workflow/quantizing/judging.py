# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is on data that no step has seen, beside plain calibration, and whether that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from linger.errors import UsageError
from linger.reporting.facts import Quality
from linger.reporting.page import is_low
from linger.workflow.model_quality import QualityPass
from linger.workflow.quantizing.samples import Samples

HELD_OUT, TEST = "held-out data", "test data"


def judged(
    reference: nn.Module, plain: nn.Module, tuned: nn.Module, samples: Samples, *, batch: int, data: str
) -> tuple[Quality, ...]:
    """The figures of a model beside those of the float model and of plain calibration, the most telling first.

    Accuracy where there are labels, agreement of decisions where the output looks like scores, and signal to noise.

    Raises:
        UsageError: The labels are not decisions that the model makes, or a model does not accept the data.
    """
    pieces = samples.batches(batch)
    labels = [piece.labels for piece in pieces] if samples.has_labels else None
    figures = []
    for model in (plain, tuned):
        measured = QualityPass(model, reference, most_kept=0)
        measured.run([piece.arguments for piece in pieces])
        figures.append(list(measured.figures(labels)))
    return tuple(
        replace(after, plain=before.after, data=data) for before, after in zip(figures[0], figures[1], strict=True)
    )


def require_labels(reference: nn.Module, samples: Samples) -> None:
    """Refuse labels that are not about the decisions of a model, before any work.

    Raises:
        UsageError: They are not, or the model does not accept the data.
    """
    if not samples.has_labels:
        return
    piece = samples.batches(2)[0]
    measured = QualityPass(reference, None, most_kept=0)
    measured.run([piece.arguments])
    try:
        list(measured.figures([piece.labels]))
    except UsageError as error:
        text = str(error).removeprefix("report: ")
        raise UsageError(f"labels: {text} Leave them out with --labels none.") from error


def is_enough(goal: str | None, figures: Sequence[Quality]) -> bool:
    """Whether a network is good enough: by the goal in percent of equal decisions or in decibels.

    Without a goal the most telling figure decides, by what the report calls low: more than one point of accuracy lost, less
    than 99 % of equal decisions, or less than 20 dB. Without figures nothing is known to be too little.
    """
    if goal is None:
        return not figures or not is_low(figures[0], figures)
    unit = "%" if goal.strip().endswith("%") else "dB"
    least = float(goal.strip().removesuffix("%").lower().removesuffix("db"))
    return all(figure.after >= least for figure in figures if figure.unit == unit and figure.before is None)
