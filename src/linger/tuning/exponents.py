# SPDX-License-Identifier: Apache-2.0
"""Exponents by the error at the output: each range is made finer or coarser, and keeps what brings the model nearer to float."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from linger.analysis.batches import Batch
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.quantized import ranges_of
from linger.tuning.local_scales import local_scales
from linger.tuning.measure import OutputError, error_db
from linger.tuning.remedy import Change, Remedy, checked_data, require_pair, undone_on_error

_WHERE = "choose_exponents"

_SCREENED = 4
"""A candidate must first win on one batch in so many; most lose there, at a quarter of the cost."""

_LEAST_GAIN = 1e-3
"""Part of the error that a candidate must take away, 0.004 dB; less is chance."""


def choose_exponents(model: nn.Module, reference: nn.Module, data: object, *, max_trials: int = 300) -> Remedy:
    """Choose the scales of weights, inputs, outputs and sums by the error at the model's outputs, one after the other.

    The first candidate of a tensor is the scale with the smallest squared error of that tensor alone. Then every range is
    tried twice as fine (numbers beyond it saturate), twice as coarse, and further in a direction that helped; again and again,
    until nothing helps any more or the trials are used up. A choice is kept only if the error on all of the data falls. Where
    there are several batches, a candidate is first tried on a quarter of them.

    The result is the same for the same model and data.

    Args:
        model: Quantized and calibrated; changed in place.
        reference: The float model that was quantized.
        data: Typical inputs in any form of the page "Inputs".
        max_trials: Candidates that are measured at most.

    Returns:
        Before and after on these data, the ranges with another scale, and how many candidates were measured.

    Raises:
        UsageError: The data are empty or not finite, the model is not calibrated, the reference is not its float model, or
            `max_trials` is no positive number. The model is as it was.
    """
    if isinstance(max_trials, bool) or not isinstance(max_trials, int) or max_trials < 1:
        raise UsageError(f"{_WHERE}: max_trials={max_trials!r}. Give a positive number of trials.")
    batches = checked_data(_WHERE, model, data)
    require_pair(_WHERE, model, reference)
    with undone_on_error(_WHERE, model), torch.no_grad():
        search = _Search(model, reference, batches)
        before = search.error
        scales = {key: found.scale for key, found in search.ranges.items()}
        bounded = (step for step, _ in zip(range(max_trials), search.trials(), strict=False))
        for _ in progress(bounded, _WHERE, total=max_trials):
            pass
        search.finish()
    changes = [
        Change(key, "scale", scales[key], found.scale)
        for key, found in search.ranges.items()
        if found.scale != scales[key]
    ]
    return Remedy(_WHERE, error_db(before), error_db(search.error), tuple(changes), trials=search.count)


class _Search:
    """A model and the smallest error that was reached so far."""

    def __init__(self, model: nn.Module, reference: nn.Module, batches: Sequence[Batch]) -> None:
        self.count = 0
        self._model, self._batches = model, batches
        self._all = OutputError(reference, batches)
        self._few = OutputError(reference, batches[: len(batches) // _SCREENED or 1]) if len(batches) > 1 else None
        self.error = self._all(model)
        self.error_of_few = 0.0 if self._few is None else self._few(model)
        self.ranges = {key: found for key, found in ranges_of(model).items() if found.scale > 0}
        self._without_effect: set[str] = set()

    def trials(self) -> Iterator[None]:
        """Measure one candidate after the other, until a whole round brings nothing."""
        for key, scale in local_scales(self._model, self._batches[0], self.ranges).items():
            yield from self._try(key, scale)
        error = None
        while error != self.error:
            error = self.error
            for key in self.ranges:
                yield from self._move(key)

    def _move(self, key: str) -> Iterator[None]:
        """Make a range finer as long as that helps; if it does not at all, coarser."""
        for factor in (2.0, 0.5):
            before, error = self.error, None
            while error != self.error:
                error = self.error
                yield from self._try(key, self.ranges[key].scale * factor)
            if self.error != before:
                return

    def _try(self, key: str, scale: float) -> Iterator[None]:
        """Measure a candidate, and keep it if the error falls."""
        if key in self._without_effect:
            return
        found = self.ranges[key]
        saved = found.save()
        self.count += 1
        found.choose(scale)
        few = self.error_of_few if self._few is None else self._few(self._model)
        error = self._all(self._model) if few < self.error_of_few or self._few is None else math.inf
        if error < self.error * (1 - _LEAST_GAIN):
            self.error, self.error_of_few = error, few
        else:
            found.restore(saved)
            if error == self.error or (self._few is not None and few == self.error_of_few):
                self._without_effect.add(key)
        yield

    def finish(self) -> None:
        """One more pass, so that every buffer belongs to the scales that were chosen."""
        self.error = self._all(self._model)
