# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is on data that nothing has seen: accuracy, decisions and signal to noise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from linger.analysis.attributes import evaluating
from linger.analysis.batches import float_tensors, fresh, run_batch
from linger.errors import UsageError
from linger.quantization.core.qtensor import unwrap
from linger.reporting.facts import Quality
from linger.tuning.measure import OutputError, error_db
from linger.workflow.samples import Piece, Samples

HELD_OUT = "held-out data"
ACCURACY, AGREEMENT, NOISE = "accuracy", "agreement with the float model", "signal to noise at the outputs"

_PICTURE_AXES = 4
_SCORE_AXES = 2


def measured(
    reference: nn.Module,
    plain: nn.Module | None,
    tuned: nn.Module,
    samples: Samples,
    *,
    batch: int,
    data: str = HELD_OUT,
) -> tuple[Quality, ...]:
    """The figures of a model beside those of the float model and of plain calibration, the most telling first.

    Accuracy where there are labels, agreement of decisions where the first output is a row of scores for each sample (or
    labels say so), and signal to noise always.

    Raises:
        UsageError: The labels are not decisions that the model makes, or a model does not accept the data.
    """
    pieces = samples.batches(batch)
    error = OutputError(reference, [piece.arguments for piece in pieces])
    count = len(samples) if samples.are_rows else None
    in_db = [None if model is None else error_db(error(model)) for model in (plain, tuned)]
    assert in_db[1] is not None  # the tuned model is given
    noise = Quality(NOISE, in_db[1], plain=in_db[0], unit="dB", samples=count, data=data)
    if not _has_scores(reference, pieces[0], is_labelled=samples.has_labels):
        return (noise,)
    expected = _decisions(reference, pieces)
    found = [None if model is None else _decisions(model, pieces) for model in (plain, tuned)]
    labels = [piece.labels for piece in pieces if piece.labels is not None] if samples.has_labels else []
    figures = []
    if labels:
        _require_labels(labels, expected)
        figures.append(_shares(ACCURACY, labels, [expected, *found], count, data))
    figures.append(_shares(AGREEMENT, expected, [None, *found], count, data))
    return (*figures, noise)


def is_reached(goal: str | float | None, figures: Sequence[Quality]) -> bool:
    """Whether the figures of a model reach a goal in percent of equal decisions, or in decibels; True without a goal."""
    if goal is None:
        return True
    text = str(goal).strip()
    name = AGREEMENT if text.endswith("%") else NOISE
    least = float(text.removesuffix("%").removesuffix("dB").strip())
    return all(figure.after >= least for figure in figures if figure.name == name)


def _shares(
    name: str, wanted: Sequence[Tensor], found: Sequence[Sequence[Tensor] | None], count: int | None, data: str
) -> Quality:
    """The share of right decisions of the float model, of plain calibration and of the tuned model."""
    before, plain, after = (None if one is None else _share(wanted, one) for one in found)
    assert after is not None
    return Quality(name, after, before=before, plain=plain, unit="%", samples=count, data=data)


def _share(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    same = sum(int((w.to(f.device) == f).sum()) for w, f in zip(wanted, found, strict=True))
    return 100.0 * same / max(1, sum(w.numel() for w in wanted))


def _scores(model: nn.Module, piece: Piece) -> Tensor | None:
    """The first output of real numbers."""
    with torch.no_grad(), evaluating(model):
        return next(iter(float_tensors(unwrap(run_batch(model, fresh(piece.arguments))))), None)


def _has_scores(model: nn.Module, piece: Piece, *, is_labelled: bool) -> bool:
    scores = _scores(model, piece)
    if scores is None or not scores.dim() or scores.shape[_class_axis(scores)] < 2:
        return False
    return is_labelled or (scores.dim() == _SCORE_AXES and len(scores) == len(piece.arguments[0]))


def _class_axis(scores: Tensor) -> int:
    """Axis 1 of pictures, else the last one, as `linger.tune` counts decisions."""
    return 1 if scores.dim() >= _PICTURE_AXES else -1


def _decisions(model: nn.Module, pieces: Sequence[Piece]) -> list[Tensor]:
    found = [_scores(model, piece) for piece in pieces]
    return [scores.argmax(_class_axis(scores)) for scores in found if scores is not None]


def _require_labels(labels: Sequence[Tensor], decisions: Sequence[Tensor]) -> None:
    if any(label.is_floating_point() or label.is_complex() for label in labels):
        raise UsageError(
            "labels: they are real numbers. Give the number of the right class for each sample, from 0 on."
        )
    if any(label.shape != decision.shape for label, decision in zip(labels, decisions, strict=True)):
        shapes = [list(tensors[0].shape[1:]) for tensors in (labels, decisions)]
        raise UsageError(
            f"labels: a label of the shape {shapes[0]} for a decision of the shape {shapes[1]}. Give one whole number for each "
            "decision of the model's first output, or leave the labels out with --labels none."
        )
