# SPDX-License-Identifier: Apache-2.0
"""What forward passes of a calibration block have seen, kept until the block ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from linger.errors import listing
from linger.quantization.core.histogram import Counter


@dataclass
class _Seen:
    """Smallest and largest number of a float tensor, kept as tensors so that the device is read only when the block ends."""

    low: Tensor
    high: Tensor
    count: int


@dataclass
class Counted:
    """The numbers of one range: of an activation in all passes, or of weights that are no layer's."""

    layer: nn.Module
    name: str
    counter: Counter


class Judgement(Protocol):
    """Something about a place that is known only when the ranges are."""

    def finding(self) -> tuple[str, str] | None:
        """A sentence that holds for several `{places}`, and this place with its figures; None: nothing is to be said."""


def _ignore(model: nn.Module) -> None:
    """Does nothing."""


@dataclass
class Calibration:
    """What one calibration block has seen, and the warnings that it gives when it ends.

    Attributes:
        passes: Forward passes of quantised models.
        begin: Called with the module whose forward begins a pass.
        judgements: What is asked when the block has ended, by runtime and place.
        sentences: Warnings for the end of the block, by place.
        is_silent: Whether another process gives the warnings.
    """

    passes: int = 0
    begin: Callable[[nn.Module], None] = _ignore
    judgements: dict[tuple[int, str], Judgement] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)
    is_silent: bool = False
    _counted: dict[tuple[int, str], Counted] = field(default_factory=dict)
    _inputs: dict[str, _Seen] = field(default_factory=dict)

    def say(self, place: str, sentence: str) -> None:
        """Keep a warning for the end of the block; a later one for the same place replaces it."""
        self.sentences[place] = sentence

    def see_input(self, place: str, x: Tensor) -> None:
        """Remember the smallest and the largest number of a float tensor that is quantised."""
        if not x.numel():
            return
        low, high = torch.aminmax(x.detach())
        before = self._inputs.get(place)
        if before is not None:
            low, high = torch.minimum(low, before.low), torch.maximum(high, before.high)
        self._inputs[place] = _Seen(low, high, x.numel() + (0 if before is None else before.count))

    def input_ends(self) -> dict[str, tuple[float, float, int]]:
        """The smallest and the largest number of every float tensor that was quantised, and how many there were."""
        # reading a number from a GPU stalls it, so each tensor is read once, at the end
        return {place: (*torch.stack([s.low, s.high]).tolist(), s.count) for place, s in self._inputs.items()}

    def join(
        self, inputs: Iterable[Mapping[str, tuple[float, float, int]]], sentences: Iterable[Mapping[str, str]]
    ) -> None:
        """Know what all processes have seen, this one among them."""
        self._inputs.clear()
        for seen in inputs:
            for place, (low, high, count) in seen.items():
                own, new = self._inputs.get(place), _Seen(torch.tensor(low), torch.tensor(high), count)
                if own is not None:
                    new = _Seen(torch.minimum(own.low, new.low), torch.maximum(own.high, new.high), own.count + count)
                self._inputs[place] = new
        for said in sentences:
            self.sentences = {**said, **self.sentences}

    def count(self, layer: nn.Module, name: str, x: Tensor, *, is_whole: bool = False) -> None:
        """Count the numbers of a tensor that belong to a range of a layer; `is_whole`: they are all that the range has."""
        key = (id(layer), name)
        if key not in self._counted:
            self._counted[key] = Counted(layer, name, Counter())
        elif is_whole:
            return  # weights stay as they are
        self._counted[key].counter.add(x)

    @property
    def counted(self) -> list[Counted]:
        """The ranges whose numbers were counted, in the order in which they were first seen."""
        return list(self._counted.values())

    def findings(self) -> list[str]:
        """Everything that is worth a warning."""
        if self.is_silent:
            return []
        if not self.passes:
            return [
                "calibration: no quantised model ran inside the block, so no scale was set. "
                "Call the model that linger.init returned, with typical data."
            ]
        return [*self._without_numbers(), *self.sentences.values(), *self._judged()]

    def _judged(self) -> list[str]:
        """One sentence for all places of which the same is to be said."""
        places: dict[str, list[str]] = {}
        for sentence, place in filter(None, (judgement.finding() for judgement in self.judgements.values())):
            places.setdefault(sentence, []).append(place)
        return [sentence.format(places=listing(found)) for sentence, found in places.items()]

    def _without_numbers(self) -> list[str]:
        ends = self.input_ends()
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


def is_calibrating() -> bool:
    """Whether the caller runs inside `calibration()`."""
    return CALIBRATION.get() is not None
