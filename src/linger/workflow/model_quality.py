# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is against its float model: one pass over the data, which may be any number of batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.analysis.batches import Batch, as_batches, float_tensors, fresh, run_batch, tensors_of, values_of
from linger.analysis.decisions import class_axis
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.qtensor import unwrap
from linger.quantization.diagnosis.signal_noise import SignalNoise, as_real, mismatch
from linger.reporting.facts import Quality

DATA = "the data given"
AGREEMENT, SIGNAL = "agreement with the float model", "signal to noise at the output"


@dataclass
class Variety:
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
    """Runs both models over the data, and keeps the first batches for the figures of layers.

    Attributes:
        model: The quantised model, in evaluation mode.
        reference: The float model; None where it is not known.
        most_kept: How many batches are kept.
        kept: The first batches.
        decisions: Of both models, the largest number of each row; None where the output is not of scores.
        classes: How many numbers a decision is the largest of.
        samples: How many rows the data have.
        variety: Whether they differ.
    """

    model: nn.Module
    reference: nn.Module | None
    most_kept: int
    kept: list[Batch] = field(default_factory=list)
    decisions: dict[str, list[NDArray[Any]]] | None = field(default_factory=dict)
    classes: int | None = None
    samples: int = 0
    variety: Variety = field(default_factory=Variety)
    _noises: dict[int, SignalNoise] = field(default_factory=dict)
    _powers: list[NDArray[Any]] = field(default_factory=list)
    _batches: int = 0

    def run(self, data: object) -> None:
        """One pass over the data.

        Raises:
            UsageError: The data are empty, a model does not take them, or the outputs of the models differ in shape.
        """
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
        places, found = _outputs(self.model, batch)
        expected = None if self.reference is None else _outputs(self.reference, batch)[1]
        if expected is not None:
            problem = mismatch(expected, found)
            if problem is not None:
                raise UsageError(f"report: {problem}. Give the float model that the quantised one was made from.")
            for place, one, other in zip(places, expected, found, strict=True):
                self._noises.setdefault(place, SignalNoise()).add(one, other)
            self._powers.append(_powers(expected, found, rows))
        self._decide("after", found)
        if expected is not None:
            self._decide("before", expected)

    def _decide(self, which: str, outputs: list[Tensor]) -> None:
        axis = class_axis(outputs)
        if self.decisions is None or axis is None:
            self.decisions = None
        else:
            self.classes = int(outputs[0].shape[axis])
            self.decisions.setdefault(which, []).append(outputs[0].argmax(axis).cpu().numpy().reshape(-1))

    def figures(self, labels: object = None) -> Iterator[Quality]:
        """The figures that follow from the pass, the most telling first.

        Raises:
            UsageError: The labels do not fit the outputs.
        """
        made = {} if self.decisions is None else {k: np.concatenate(v) for k, v in self.decisions.items()}
        if labels is not None:
            yield self._accuracy(made, _flat(labels))
        if "after" in made and "before" in made:
            same = 100.0 * float(np.mean(made["after"] == made["before"]))
            yield Quality(AGREEMENT, same, unit="%", samples=int(made["after"].size), data=DATA)
        if self.reference is not None:
            yield from self._signals()

    def _signals(self) -> Iterator[Quality]:
        """Signal to noise of all outputs together, and of each one where there are several."""
        every = SignalNoise(*(sum(getattr(n, key) for n in self._noises.values()) for key in ("signal", "noise")))
        yield Quality(SIGNAL, every.db, unit="dB", samples=self.samples, data=DATA)
        if len(self._noises) > 1:
            for place, noise in self._noises.items():
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
        shares = {which: 100.0 * float(np.mean(found == labels)) for which, found in made.items()}
        return Quality("accuracy", shares["after"], shares.get("before"), unit="%", samples=int(labels.size), data=DATA)


def output_name(place: int) -> str:
    """How an output is called that has no other name."""
    return f"output_{place}" if place else "output"


def _outputs(model: nn.Module, batch: Batch) -> tuple[list[int], list[Tensor]]:
    """The outputs that hold real numbers, and their places among all."""
    every = list(tensors_of(unwrap(run_batch(model, fresh(batch)))))
    places = [place for place, tensor in enumerate(every) if float_tensors(tensor)]
    return places, [every[place].detach() for place in places]


def _powers(expected: list[Tensor], found: list[Tensor], rows: int) -> NDArray[Any]:
    """Signal and noise of every row; of the batch as a whole where the outputs have other rows."""
    count = rows if all(t.dim() and len(t) == rows for t in expected) else 1
    pairs = [
        (as_real(f).reshape(count, -1), as_real(q).reshape(count, -1)) for f, q in zip(expected, found, strict=True)
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
