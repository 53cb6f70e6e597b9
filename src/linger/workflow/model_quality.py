# SPDX-License-Identifier: Apache-2.0
"""How good a quantised model is against its float model: one pass over the data, which may be any number of batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.analysis.batches import Batch, as_batches, float_tensors, fresh, run_batch, tensors_of
from linger.analysis.decisions import class_axis
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.qtensor import unwrap
from linger.quantization.diagnosis.signal_noise import SignalNoise, mismatch
from linger.reporting.facts import Quality

DATA = "the data given"


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
    """

    model: nn.Module
    reference: nn.Module | None
    most_kept: int
    kept: list[Batch] = field(default_factory=list)
    decisions: dict[str, list[NDArray[Any]]] | None = field(default_factory=dict)
    classes: int | None = None
    _noise: SignalNoise = field(default_factory=SignalNoise)
    _batches: int = 0
    _samples: int = 0

    def run(self, data: object) -> None:
        """One pass over the data.

        Raises:
            UsageError: The data are empty, a model does not take them, or the outputs of the models differ in shape.
        """
        with torch.random.fork_rng(), torch.no_grad():
            for batch in progress(as_batches(data), "quality"):
                if len(self.kept) < self.most_kept:
                    self.kept.append(fresh(batch))
                self._add(batch)
        if not self._batches:
            raise UsageError("report: the data are empty. Give at least one batch.")

    def _add(self, batch: Batch) -> None:
        self._batches += 1
        first = next(tensors_of(batch), None)
        self._samples += int(first.shape[0]) if first is not None and first.dim() else 1
        found = _outputs(self.model, batch)
        expected = None if self.reference is None else _outputs(self.reference, batch)
        if expected is not None:
            problem = mismatch(expected, found)
            if problem is not None:
                raise UsageError(f"report: {problem}. Give the float model that the quantised one was made from.")
            self._noise.add_all(expected, found)
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
            yield Quality("agreement with the float model", same, unit="%", samples=int(made["after"].size), data=DATA)
        if self.reference is not None:
            yield Quality("signal to noise at the output", self._noise.db, unit="dB", samples=self._samples, data=DATA)

    def _accuracy(self, made: dict[str, NDArray[Any]], labels: NDArray[Any]) -> Quality:
        if "after" not in made:
            raise UsageError("report: labels need a model whose output is one tensor of scores. Give a metric instead.")
        if labels.shape != made["after"].shape:
            raise UsageError(
                f"report: {labels.size} labels for {made['after'].size} decisions. Give one label for every row of the data."
            )
        shares = {which: 100.0 * float(np.mean(found == labels)) for which, found in made.items()}
        return Quality("accuracy", shares["after"], shares.get("before"), unit="%", samples=int(labels.size), data=DATA)


def _outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    return [tensor.detach() for tensor in float_tensors(unwrap(run_batch(model, fresh(batch))))]


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
