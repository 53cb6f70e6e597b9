# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is on data that no step has seen, beside plain calibration, and whether a goal is reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from linger.errors import UsageError, counted
from linger.reporting.facts import Quality
from linger.tuning.widths.goals import PERCENT, value_and_unit
from linger.workflow.model_quality import QualityPass
from linger.workflow.quantizing.samples import Samples

HELD_OUT, TEST, SEEN = "held-out data", "test data", "data that tuning has seen"

_ACCURACY = "accuracy"
_MANY = 10
"""With fewer samples an accuracy like that of a guess says nothing."""

_FEW = 50
"""With fewer samples one decision is more than two points."""

_SEEN_DB = 0.1
"""A smaller loss does not show in figures with one decimal."""


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


def require_decisions(reference: nn.Module, seen: Samples, kept: Samples, goal: str | None) -> int | None:
    """Refuse labels and goals that are not about the decisions of a model, before any work.

    Returns:
        The number of classes that the model tells apart; None where nobody asks for it.

    Raises:
        UsageError: They are not, or the model does not accept the data.
    """
    is_share = goal is not None and value_and_unit("quantize", goal)[1] == PERCENT
    if not is_share and not kept.has_labels:
        return None
    piece = kept.batches(2)[0]
    measured = QualityPass(reference, None, most_kept=0)
    measured.run([piece.arguments])
    if is_share and measured.decisions is None:
        raise UsageError(
            f"goal {goal!r}: a share of equal decisions needs a model whose output is one tensor of scores, and this one's is "
            "not. Give decibels, as in '30 dB'."
        )
    if kept.has_labels:
        try:
            list(measured.figures([piece.labels]))
        except UsageError as error:
            text = str(error).removeprefix("report: ")
            raise UsageError(f"labels: {text} Leave them out with --labels none.") from error
        assert measured.classes is not None  # the labels fit the decisions
        _require_classes([seen, kept], measured.classes)
    return measured.classes


def _require_classes(given: Sequence[Samples], classes: int) -> None:
    """Refuse labels that name no class of the model."""
    found = [piece.labels.reshape(-1) for samples in given for piece in samples.pieces if piece.labels is not None]
    labels = torch.cat(found)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UsageError(
            f"labels: {len(wrong)} of {len(labels)} are not among the classes 0 to {classes - 1} that the model tells apart, "
            f"such as {int(wrong[0])}. Give the numbers of these classes, or leave the labels out with --labels none."
        )


def guessing_note(figures: Sequence[Quality], classes: int | None) -> str:
    """A sentence where the float model is no better than a guess, so that its accuracy is no yardstick; else nothing."""
    first = figures[0]
    if first.name != _ACCURACY or first.before is None or classes is None or (first.samples or 0) < _MANY:
        return ""
    chance = 1.0 / classes
    spread = math.sqrt(chance * (1.0 - chance) / (first.samples or 1))
    if first.before > 100.0 * (chance + 2.0 * spread):
        return ""
    return (
        f"The float model is right in {first.before:.1f} % of {first.samples} samples, which is no better than a guess among "
        f"{classes} classes: the labels may be of another kind. The verdict is about the agreement with the float model."
    )


def unhelpful_notes(figures: Sequence[Quality]) -> list[str]:
    """A sentence where plain calibration is better: tuning chose by other data, so its choice stays."""
    return [
        f"Tuning did not help on {figure.data or 'these data'}: {figure.name} is {figure.plain:.1f} dB with plain calibration, "
        f"{figure.after:.1f} dB tuned."
        for figure in figures
        if figure.unit == "dB" and figure.plain is not None and figure.plain - figure.after >= _SEEN_DB
    ]


def coarse_notes(figures: Sequence[Quality]) -> list[str]:
    """A sentence where a figure in percent is about so few samples that it is coarse."""
    counts = {f.samples for f in figures if f.unit == "%" and f.samples and f.samples < _FEW}
    return [
        f"A figure in percent is coarse here: one of {counted(count, 'sample')} is {100.0 / count:.1f} points."
        for count in sorted(counts)
    ]


def is_goal_met(goal: str | None, figures: Sequence[Quality]) -> bool | None:
    """Whether figures reach a goal in percent of equal decisions or in decibels; None without a goal or a figure for it."""
    if not goal:
        return None
    least, unit = value_and_unit("quantize", goal)
    found = [figure.after >= least for figure in figures if figure.unit == unit and figure.before is None]
    return all(found) if found else None
