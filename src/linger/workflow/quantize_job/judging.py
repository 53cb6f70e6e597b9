# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is on data that no step has seen, beside plain calibration, and whether a goal is reached."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from linger.analysis.batches import Batch, fresh, run_batch
from linger.errors import UsageError, counted
from linger.notation import PERCENT, value_and_unit
from linger.reporting.facts import Quality
from linger.reporting.verdict import FEW_SAMPLES
from linger.workflow.model_quality import AGREEMENT, SIGNAL, QualityPass, Variety
from linger.workflow.quantize_job.samples import Samples, limited, without_labels

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


_ACCURACY = "accuracy"
_MANY = 10
"""With fewer samples an accuracy like that of a guess says nothing."""

_SURE = 3.0
"""A difference of so many standard errors is not by chance."""

_SEEN_DB = 0.1
"""A smaller loss does not show in figures with one decimal."""


def judged(
    reference: nn.Module,
    plain: nn.Module,
    tuned: nn.Module,
    samples: Samples,
    *,
    batch: int,
    data: str,
    seen: Samples | None = None,
) -> tuple[Quality, ...]:
    """The figures of a model beside those of the float model and of plain calibration, the most telling first.

    Accuracy where there are labels, agreement of decisions where the output looks like scores, and signal to noise. With data that
    tuning has `seen`, the last two are measured on as many of these, too.

    Raises:
        UsageError: The labels are not decisions that the model makes, or a model does not accept the data.
    """
    labels = [piece.labels for piece in samples.batches(batch)] if samples.has_labels else None
    passes = [_measured(model, reference, samples, batch) for model in (plain, tuned)]
    before, figures = (list(measured.figures(labels)) for measured in passes)
    gaps: dict[str, tuple[float, float | None]] = {}
    if seen is not None:
        known = _measured(tuned, reference, limited(seen, len(samples)), batch)
        gaps = {f.name: (f.after, _chance(f.name, passes[1], known)) for f in known.figures()}
    made = [replace(f, plain=other.after, data=data) for other, f in zip(before, figures, strict=True)]
    return tuple(replace(f, seen=gaps[f.name][0], chance=gaps[f.name][1]) if f.name in gaps else f for f in made)


def _measured(model: nn.Module, reference: nn.Module, samples: Samples, batch: int) -> QualityPass:
    made = QualityPass(model, reference, most_kept=0)
    made.run([piece.arguments for piece in samples.batches(batch)])
    return made


def _chance(name: str, judged_by: QualityPass, known: QualityPass) -> float | None:
    """By how much a figure may be better on data that are known, by chance alone; None where that cannot be told."""
    if name == AGREEMENT:
        counts = [one.samples for one in (judged_by, known)]
        shares = [next(f.after for f in one.figures() if f.name == name) / 100.0 for one in (judged_by, known)]
        share = sum(s * n for s, n in zip(shares, counts, strict=True)) / sum(counts)
        return 100.0 * _SURE * math.sqrt(share * (1.0 - share) * sum(1.0 / n for n in counts))
    first, second = judged_by.noise_ratio, known.noise_ratio
    if name != SIGNAL or first is None or second is None or not first[0]:
        return None
    left = 1.0 - _SURE * math.hypot(first[1], second[1]) / first[0]
    return -10.0 * math.log10(left) if left > 0 else math.inf


def data_cautions(seen: Samples, kept: Samples) -> list[str]:
    """What there is to say of data that hardly differ."""
    found = []
    named = {"the data to tune on": seen, "the data to judge by": kept}
    for what, samples in ({"the data": seen} if seen.pieces is kept.pieces else named).items():
        variety = Variety()
        for piece in samples.pieces:
            variety.add(piece.arguments)
        found += variety.cautions(what)
    return found


def with_fitting_labels(reference: nn.Module, seen: Samples, kept: Samples) -> tuple[Samples, Samples]:
    """The data without what stands beside the inputs of a loader, where that is no decision of the model; a note says so.

    So it is with a mask of pixels, and with a class beside a picture that is reconstructed.

    Raises:
        UsageError: The model does not accept the data.
    """
    if kept.are_labels_sure or not kept.has_labels:
        return seen, kept
    problem = _labels_problem(reference, kept)
    if not problem:
        return seen, kept
    note = f"What stands beside the inputs was not used: {problem}"
    return without_labels(seen), replace(without_labels(kept), notes=(*kept.notes, note))


def _labels_problem(reference: nn.Module, kept: Samples) -> str:
    """Why labels are not the decisions of a model; empty where they are."""
    piece = kept.batches(2)[0]
    measured = QualityPass(reference, None, most_kept=0)
    measured.run([piece.arguments])
    try:
        list(measured.figures([piece.labels]))
    except UsageError as error:
        return str(error).removeprefix("report: ")
    return ""


def require_decisions(reference: nn.Module, seen: Samples, kept: Samples, goal: str | float | None) -> int | None:
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
        if problem := _labels_problem(reference, kept):
            raise UsageError(f"labels: {problem} Leave them out with --labels none.")
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
    counts = {f.samples for f in figures if f.unit == "%" and f.samples and f.samples < FEW_SAMPLES}
    return [
        f"A figure in percent is coarse here: one of {counted(count, 'sample')} is {100.0 / count:.1f} points."
        for count in sorted(counts)
    ]


def is_goal_met(goal: str | None, figures: Sequence[Quality]) -> bool | None:
    """Whether figures reach a goal: percent of equal decisions, decibels at every output, a value of the metric where there is one.

    None without a goal or a figure for it.
    """
    if not goal:
        return None
    least, unit = value_and_unit("quantize", goal, has_metric=any(not figure.unit for figure in figures))
    found = [f.after >= least for f in figures if f.unit == unit and (f.before is None or not unit)]
    return all(found) if found else None
