# SPDX-License-Identifier: Apache-2.0
"""How good a quantized model is against its float model and beside plain calibration, and whether a goal is reached.

One pass over the data, which may be any number of batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.analysis.batches import (
    Batch,
    as_batches,
    class_axis,
    float_tensors,
    fresh,
    run_batch,
    tensors_of,
    values_of,
)
from linger.errors import UsageError, counted
from linger.notation import PERCENT, value_and_unit
from linger.progress import progress
from linger.quantization.core.qtensor import unwrap
from linger.quantization.diagnosis.call_watch import SignalNoise, as_real, mismatch
from linger.reporting.facts import Quality, Run
from linger.reporting.verdict import FEW_SAMPLES, LOW_SIGNAL, verdict_of
from linger.workflow.samples import Piece, Samples, limited, output_name, without_labels

DATA = "the data given"
AGREEMENT, SIGNAL = "agreement with the float model", "signal to noise at the output"


@dataclass
class _Variety:
    """Whether data differ at all: on zeros, or on one sample again and again, every network looks good."""

    _first: list[Tensor] = field(default_factory=list)
    _rows: int = 0
    _is_zero: bool = True
    _is_same: bool = True

    def add(self, batch: Batch) -> None:
        """Look at one batch."""
        tensors = [tensor.detach() for tensor in tensors_of(values_of(batch)) if tensor.numel()]
        self._first = self._first or [tensor[:1] if tensor.dim() else tensor for tensor in tensors]
        self._rows += max((len(tensor) if tensor.dim() else 1 for tensor in tensors), default=0)
        self._is_zero &= not any(bool(tensor.any()) for tensor in tensors)
        self._is_same &= len(tensors) == len(self._first) and all(map(_repeats, tensors, self._first))

    def cautions(self, what: str) -> list[str]:
        """What there is to say: that all of it is zero, or always the same."""
        is_flat = all(bool((tensor == tensor.reshape(-1)[0]).all()) for tensor in self._first)
        if not self._first:
            return []
        if self._is_zero:
            return [f"{what} are all zeros"]
        return [f"{what} are constant"] if self._is_same and (is_flat or self._rows > 1) else []


def _repeats(tensor: Tensor, first: Tensor) -> bool:
    """Whether every row is the first one."""
    return tensor.shape[1:] == first.shape[1:] and bool((tensor == first).all())


@dataclass
class QualityPass:
    """Runs both models over the data, and keeps the first batches for the figures of layers."""

    model: nn.Module  # the quantized model, in evaluation mode, and the float model; None where it is not known
    reference: nn.Module | None
    most_kept: int  # how many batches are kept, and the first batches
    kept: list[Batch] = field(default_factory=list)
    decisions: dict[str, list[NDArray[Any]]] | None = field(default_factory=dict)  # None: the output is not of scores
    classes: int | None = None  # how many numbers a decision is the largest of
    samples: int = 0  # how many rows the data have, and whether they differ
    variety: _Variety = field(default_factory=_Variety)
    _noises: dict[int, SignalNoise] = field(default_factory=dict)
    _powers: list[NDArray[Any]] = field(default_factory=list)
    _batches: int = 0

    def run(self, data: object) -> None:
        """One pass over the data; they are refused if they are empty, or a model does not take them."""
        with torch.random.fork_rng(), torch.no_grad():
            for batch in progress(as_batches(self.model, data, "report"), "quality"):
                if len(self.kept) < self.most_kept:
                    self.kept.append(fresh(batch))
                self._add(batch)
        if not self._batches:
            raise UsageError("report: the data are empty. Give at least one batch.")

    def _add(self, batch: Batch) -> None:
        self._batches += 1
        self.variety.add(batch)
        first = next(tensors_of(values_of(batch)), None)
        rows = int(first.shape[0]) if first is not None and first.dim() else 1
        self.samples += rows
        places, outputs = _outputs(self.model, batch)
        self._decide("after", outputs)
        if self.reference is None:
            return
        expected = _outputs(self.reference, batch)[1]
        problem = mismatch(expected, outputs)
        if problem is not None:
            raise UsageError(f"report: {problem}. Give the float model that the quantized one was made from.")
        for place, one, other in zip(places, expected, outputs, strict=True):
            self._noises.setdefault(place, SignalNoise()).add(one, other)
        self._powers.append(_powers(expected, outputs, rows))
        self._decide("before", expected)

    def _decide(self, which: str, outputs: list[Tensor]) -> None:
        axis = class_axis(outputs)
        if self.decisions is None or axis is None:
            self.decisions = None
        else:
            self.classes = int(outputs[0].shape[axis])
            self.decisions.setdefault(which, []).append(outputs[0].argmax(axis).cpu().numpy().reshape(-1))

    def figures(self, labels: object = None) -> Iterator[Quality]:
        """The figures that follow from the pass, the most telling first; labels that do not fit the outputs are refused."""
        made = {k: np.concatenate(v) for k, v in (self.decisions or {}).items()}
        if labels is not None:
            yield self._accuracy(made, _flat(labels))
        if "after" in made and "before" in made:
            same = 100.0 * float(np.mean(made["after"] == made["before"]))
            yield Quality(AGREEMENT, same, unit="%", samples=int(made["after"].size), data=DATA)
        if self.reference is None:
            return
        every = SignalNoise(*(sum(getattr(n, key) for n in self._noises.values()) for key in ("signal", "noise")))
        yield Quality(SIGNAL, every.db, unit="dB", samples=self.samples, data=DATA)
        for place, noise in self._noises.items() if len(self._noises) > 1 else ():
            output = output_name(place)
            name = f"signal to noise at {output}"
            yield Quality(name, noise.db, unit="dB", samples=self.samples, data=DATA, output=output)

    @property
    def noise_ratio(self) -> tuple[float, float] | None:
        """Noise relative to the signal, and its standard error over the samples; None where that is not known."""
        signal, noise = np.concatenate(self._powers).T if self._powers else np.zeros((2, 0))
        count, total = len(signal), float(signal.sum())
        if count < 2 or not (0 < total < math.inf and math.isfinite(noise.sum())):
            return None
        ratio = float(noise.sum()) / total
        residual = noise - ratio * signal
        return ratio, math.sqrt(float((residual**2).sum()) * count / (count - 1)) / total

    def _accuracy(self, made: dict[str, NDArray[Any]], labels: NDArray[Any]) -> Quality:
        if "after" not in made:
            raise UsageError("report: labels need a model whose output is one tensor of scores. Give a metric instead.")
        if labels.shape != made["after"].shape:
            raise UsageError(
                f"report: {labels.size} labels for {made['after'].size} decisions. Give one label for every row of the data."
            )
        shares = {which: 100.0 * float(np.mean(decisions == labels)) for which, decisions in made.items()}
        return Quality("accuracy", shares["after"], shares.get("before"), unit="%", samples=int(labels.size), data=DATA)


def _outputs(model: nn.Module, batch: Batch) -> tuple[list[int], list[Tensor]]:
    """The outputs that hold real numbers, and their places among all."""
    every = list(tensors_of(unwrap(run_batch(model, fresh(batch)))))
    places = [place for place, tensor in enumerate(every) if float_tensors(tensor)]
    return places, [every[place].detach() for place in places]


def _powers(expected: list[Tensor], outputs: list[Tensor], rows: int) -> NDArray[Any]:
    """Signal and noise of every row; of the batch as a whole where the outputs have other rows."""
    count = rows if all(t.dim() and len(t) == rows for t in expected) else 1
    pairs = [
        (as_real(f).reshape(count, -1), as_real(q).reshape(count, -1)) for f, q in zip(expected, outputs, strict=True)
    ]
    signal = sum(((f**2).sum(1) for f, _ in pairs), torch.zeros(count))
    noise = sum((((f - q) ** 2).sum(1) for f, q in pairs), torch.zeros(count))
    return torch.stack((signal, noise), 1).cpu().numpy()


def _flat(labels: object) -> NDArray[Any]:
    """Labels as one row of whole numbers."""
    parts = labels if isinstance(labels, (list, tuple)) else [labels]
    try:
        arrays = [np.asarray(p.detach().cpu() if isinstance(p, Tensor) else p).reshape(-1) for p in parts]
        made: NDArray[Any] = np.concatenate(arrays) if arrays else np.zeros(0)
    except (TypeError, ValueError) as error:
        raise UsageError(f"report: labels are no numbers ({error}). Give class numbers, one for every row.") from error
    if made.dtype.kind not in "iu":
        raise UsageError(f"report: labels are of type {made.dtype}. Give class numbers, one for every row.")
    return made


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


def figure_of(reference: nn.Module, model: nn.Module, *, samples: Samples, name: str, batch: int) -> float:
    """One figure of another model, as `judged` measures it."""
    labels = [piece.labels for piece in samples.batches(batch)] if samples.has_labels else None
    return {f.name: f.after for f in _measured(model, reference, samples, batch).figures(labels)}[name]


def missed_figure(goal: str, figures: Sequence[Quality]) -> Quality | None:
    """The figure that is not enough, for the goal or for the verdict; None where all are, or none can be raised."""
    if verdict_of(Run("", quality=tuple(figures), goal=goal, is_goal_met=is_goal_met(goal, figures))).is_enough:
        return None
    low = [figure for figure in figures if figure.output and figure.after < LOW_SIGNAL]
    return min(_of_goal(goal, figures)[1] if goal else low or figures[:1], key=attrgetter("after"), default=None)


def _measured(model: nn.Module, reference: nn.Module, samples: Samples, batch: int) -> QualityPass:
    made = QualityPass(model, reference, most_kept=0)
    made.run([piece.arguments for piece in samples.batches(batch)])
    return made


def _chance(name: str, judged_by: QualityPass, known: QualityPass) -> float | None:
    """By how much a figure may be better on data that are known, by chance alone; None where that cannot be told."""
    if name == AGREEMENT:
        a, b = ({f.name: f.after for f in one.figures()}[name] / 100.0 for one in (judged_by, known))
        n, m = judged_by.samples, known.samples
        share = (a * n + b * m) / (n + m)
        return 100.0 * _SURE * math.sqrt(share * (1.0 - share) * (1.0 / n + 1.0 / m))
    first, second = judged_by.noise_ratio, known.noise_ratio
    if name != SIGNAL or first is None or second is None or not first[0]:
        return None
    left = 1.0 - _SURE * math.hypot(first[1], second[1]) / first[0]
    return -10.0 * math.log10(left) if left > 0 else math.inf


def data_cautions(seen: Samples, kept: Samples) -> list[str]:
    """What there is to say of data that hardly differ."""
    cautions = []
    named = {"the data to tune on": seen, "the data to judge by": kept}
    for what, samples in ({"the data": seen} if seen.pieces is kept.pieces else named).items():
        variety = _Variety()
        for piece in samples.pieces:
            variety.add(piece.arguments)
        cautions += variety.cautions(what)
    return cautions


def with_fitting_labels(reference: nn.Module, seen: Samples, kept: Samples) -> tuple[Samples, Samples]:
    """The data without what stands beside the inputs of a loader, where that is no decision of the model; a note says so.

    So it is with a mask of pixels, and with a class beside an image that is reconstructed.
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
    piece, measured = _tried(reference, kept)
    try:
        list(measured.figures([piece.labels]))
    except UsageError as error:
        return str(error).removeprefix("report: ")
    return ""


def _tried(reference: nn.Module, kept: Samples) -> tuple[Piece, QualityPass]:
    """The first two samples, or the first batch, and what the float model makes of them."""
    piece, measured = kept.batches(2)[0], QualityPass(reference, None, most_kept=0)
    measured.run([piece.arguments])
    return piece, measured


def require_decisions(reference: nn.Module, seen: Samples, kept: Samples, goal: str | float | None) -> int | None:
    """Refuse labels and goals that are not about the decisions of a model, before any work.

    Returns the number of classes that the model tells apart; None where nobody asks for it.
    """
    is_share = goal is not None and value_and_unit("quantize", goal)[1] == PERCENT
    if not is_share and not kept.has_labels:
        return None
    measured = _tried(reference, kept)[1]
    if is_share and measured.decisions is None:
        raise UsageError(
            f"goal {goal!r}: a share of equal decisions needs a model whose output is one tensor of scores, and this one's is "
            "not. Give decibels, as in '30 dB'."
        )
    if kept.has_labels:
        if problem := _labels_problem(reference, kept):
            raise UsageError(f"labels: {problem} Leave them out with --labels none.")
        assert measured.classes is not None  # the labels fit the decisions
        _require_classes((*seen.pieces, *kept.pieces), measured.classes)
    return measured.classes


def _require_classes(pieces: Sequence[Piece], classes: int) -> None:
    """Refuse labels that name no class of the model."""
    labels = torch.cat([piece.labels.reshape(-1) for piece in pieces if piece.labels is not None])
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
    least, fitting = _of_goal(goal, figures)
    return all(figure.after >= least for figure in fitting) if fitting else None


def _of_goal(goal: str, figures: Sequence[Quality]) -> tuple[float, list[Quality]]:
    """What is enough, and the figures that it is about."""
    least, unit = value_and_unit("quantize", goal, has_metric=any(not figure.unit for figure in figures))
    return least, [f for f in figures if f.unit == unit and (f.before is None or not unit)]
