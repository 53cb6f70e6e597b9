# SPDX-License-Identifier: Apache-2.0
"""Calibration: forward passes that set the scales."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

from linger.errors import listing


@dataclass
class _Seen:
    """Smallest and largest number of a float tensor, kept as tensors so that the device is read only when the block ends."""

    low: Tensor
    high: Tensor
    count: int


@dataclass
class Calibration:
    """What one calibration block has seen, and the warnings that it gives when it ends.

    Attributes:
        passes: Forward passes of quantised models.
    """

    passes: int = 0
    _sentences: dict[str, str] = field(default_factory=dict)
    _inputs: dict[str, _Seen] = field(default_factory=dict)

    def say(self, place: str, sentence: str) -> None:
        """Keep a warning for the end of the block; a later one for the same place replaces it."""
        self._sentences[place] = sentence

    def see_input(self, place: str, x: Tensor) -> None:
        """Remember the smallest and the largest number of a float tensor that is quantised."""
        if not x.numel():
            return
        low, high = torch.aminmax(x.detach())
        before = self._inputs.get(place)
        if before is not None:
            low, high = torch.minimum(low, before.low), torch.maximum(high, before.high)
        self._inputs[place] = _Seen(low, high, x.numel() + (0 if before is None else before.count))

    def findings(self) -> list[str]:
        """Everything that is worth a warning."""
        if not self.passes:
            return [
                "calibration: no quantised model ran inside the block, so no scale was set. "
                "Call the model that linger.init returned, with typical data."
            ]
        return [*self._without_numbers(), *self._sentences.values()]

    def _without_numbers(self) -> list[str]:
        # reading a number from a GPU stalls it, so each tensor is read once, at the end
        ends = {place: (*torch.stack([s.low, s.high]).tolist(), s.count) for place, s in self._inputs.items()}
        zero = [place for place, (low, high, _) in ends.items() if low == high == 0.0]
        if zero:
            return [
                f"calibration: {listing(zero)} saw nothing but zeros, so its scale is that of ±1, whatever comes later."
                " Calibrate again with typical data."
            ]
        if ends and all(low == high and count > 1 for low, high, count in ends.values()):
            return [
                f"calibration: {listing(ends)} saw one and the same number everywhere, so the scales are those of that "
                "number alone. Calibrate again with typical data."
            ]
        return []


CALIBRATION: ContextVar[Calibration | None] = ContextVar("linger_calibration", default=None)
"""The calibration block around the running code; None outside of one."""


@contextmanager
def calibration() -> Iterator[None]:
    """Forward passes inside this block set the scales of every quantised layer they reach.

    Any number of batches; a range is the largest magnitude seen in all of them (activations are rounded at the scale
    known so far, so a deep range may differ in its last digits with the order of the batches). Gradients are off. A second block widens what the first one found.

    Warns at its end where no model ran, where data were all zero or constant, and where an input left the device's format.

    >>> import linger, torch
    >>> model = linger.init(torch.nn.Sequential(torch.nn.Linear(4, 2)))
    >>> with linger.calibration():
    ...     _ = model(torch.rand(8, 4))
    """
    with collecting() as seen:
        yield
    for sentence in seen.findings():
        warnings.warn(sentence, stacklevel=3)


@contextmanager
def collecting() -> Iterator[Calibration]:
    """`calibration()` without warnings, for passes that linger runs on its own account."""
    made, around = Calibration(), CALIBRATION.get()
    token = CALIBRATION.set(made)
    try:
        with torch.no_grad():
            yield made
    finally:
        CALIBRATION.reset(token)
        if around is not None:
            around.passes += made.passes


def is_calibrating() -> bool:
    """Whether the caller runs inside `calibration()`."""
    return CALIBRATION.get() is not None
