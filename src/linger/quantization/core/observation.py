# SPDX-License-Identifier: Apache-2.0
"""What forward passes of a calibration block have seen, kept until the block ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.errors import listing

_MANTISSA_BITS = 4
_DROPPED = 23 - _MANTISSA_BITS
_HALF = 1 << (8 + _MANTISSA_BITS)  # bins of each sign; the last ones of each hold infinity and NaN

PLACES = 2 * _HALF
"""Bins of both signs."""

_FIRST_NOT_FINITE = 255 << _MANTISSA_BITS

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram in which numbers lie, from the lowest to the highest, for a method of calibration to look at.

    Attributes:
        low: Lower ends.
        high: Upper ends; equal to the lower end where every number of the bin is the same.
        counts: How many numbers lie in each.
        smallest: The smallest number of each item (a slice along the first axis: an image of a batch), in bins; None in
            these themselves.
        greatest: The largest number of each item.
    """

    low: Numbers
    high: Numbers
    counts: Numbers
    smallest: Bins | None = None
    greatest: Bins | None = None

    @property
    def largest(self) -> float:
        """The largest magnitude: exact, not the end of a bin."""
        return float(max(-self.low[0], self.high[-1])) if len(self.counts) else 0.0

    def magnitudes(self) -> Bins:
        """The same numbers without their signs, from the smallest."""
        is_negative = self.high <= 0.0
        low = np.where(is_negative, -self.high, self.low)
        high = np.where(is_negative, -self.low, self.high)
        order = np.lexsort((high, low))
        return Bins(low[order], high[order], self.counts[order])


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the numbers of a tensor by sign and size, with the exact smallest and largest one.

    Attributes:
        places: The bins that hold numbers.
        counts: Three rows of one int64 per such bin: of all numbers, of the smallest ones of each item, of the largest ones.
        low: The smallest number; +∞ where there are none.
        high: The largest number.
        earlier: A range that was known before anything was counted, from a checkpoint or from training; 0: none.
        method: The method that the range was last found by, as a user writes it.
    """

    places: Tensor
    counts: Tensor
    low: float = math.inf
    high: float = -math.inf
    earlier: float = 0.0
    method: str = "max"

    @classmethod
    def of(cls, *tensors: Tensor) -> Histogram:
        """The numbers of some tensors."""
        counter = Counter()
        for x in tensors:
            counter.add(x)
        return histograms_of([counter])[0]

    @property
    def count(self) -> int:
        """How many numbers were counted."""
        return int(self.counts[0].sum())

    @property
    def is_finite(self) -> bool:
        """Whether every number is one: neither infinity nor NaN."""
        return bool((self.places % _HALF < _FIRST_NOT_FINITE).all())

    def merged(self, other: Histogram) -> Histogram:
        """The numbers of both."""
        places, of_each = torch.cat([self.places, other.places]).unique(return_inverse=True)
        counts = torch.zeros(3, len(places), dtype=torch.int64)
        return Histogram(
            places,
            counts.index_add_(1, of_each, torch.cat([self.counts, other.counts], 1)),
            min(self.low, other.low),
            max(self.high, other.high),
            max(self.earlier, other.earlier),
            self.method,
        )

    def bins(self, low: float = -math.inf, high: float = math.inf) -> Bins:
        """The bins that hold numbers, with what lies beyond `low` and `high` moved to these ends."""
        numbers, smallest, greatest = (self._used(row, low, high) for row in self.counts.numpy())
        return replace(numbers, smallest=smallest, greatest=greatest)

    def _used(self, row: NDArray[np.int64], low: float, high: float) -> Bins:
        is_used = row > 0
        # the exact ends are known, so the outermost bins end there
        places = self.places.numpy()[is_used]
        below, above = (np.clip(np.clip(ends[places], self.low, self.high), low, high) for ends in _ends())
        order = np.lexsort((above, below))
        return Bins(below[order], above[order], row[is_used].astype(np.float64)[order])


@cache
def _ends() -> tuple[Numbers, Numbers]:
    """Lower and upper end of every bin, in the order of the counts: negative numbers first."""
    edges = np.full(_HALF + 1, math.inf)
    places = np.arange(_FIRST_NOT_FINITE, dtype=np.uint32)
    edges[:_FIRST_NOT_FINITE] = (places << _DROPPED).view(np.float32)
    return np.concatenate([-edges[1:], edges[:-1]]), np.concatenate([-edges[:-1], edges[1:]])


class Counter:
    """Counts the numbers of tensors where they are: a device is asked for what it has counted once, by `histograms_of`."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3, PLACES, dtype=torch.int64)
        self.ends = torch.tensor([math.inf, -math.inf])

    def add(self, x: Tensor) -> None:
        """Count a tensor, whose items lie along the first axis."""
        if not x.numel():
            return
        rows = x.detach().reshape(x.shape[0] if x.dim() > 1 else 1, -1)
        rows = rows if rows.dtype == torch.float32 else rows.float()
        low, high = torch.aminmax(rows, dim=1)
        counts = torch.stack([_count(part) for part in (rows.reshape(-1), low, high)])
        self.counts = self.counts.to(counts.device).add_(counts)
        before = self.ends.to(rows.device)
        self.ends = torch.stack([torch.minimum(before[0], low.amin()), torch.maximum(before[1], high.amax())])


def _count(numbers: Tensor) -> Tensor:
    places = (numbers.view(torch.int32) >> _DROPPED) + _HALF  # the sign bit is the sign of the integer
    if places.is_cpu:
        return torch.bincount(places, minlength=PLACES)
    # bincount would ask the device how large its result is
    ones = torch.ones_like(places, dtype=torch.int64)
    return torch.zeros(PLACES, dtype=torch.int64, device=places.device).index_add_(0, places, ones)


def histograms_of(counters: Sequence[Counter]) -> list[Histogram]:
    """What was counted; every device is asked once, for all counters."""
    histograms: dict[int, Histogram] = {}
    by_device: dict[torch.device, list[int]] = {}
    for number, counter in enumerate(counters):
        by_device.setdefault(counter.counts.device, []).append(number)
    for numbers in by_device.values():
        # the bits of the ends travel as integers beside the counts
        rows = [torch.cat([counters[n].counts.reshape(-1), counters[n].ends.view(torch.int32)]) for n in numbers]
        together = torch.stack(rows).cpu()
        counts = together[:, :-2].reshape(len(numbers), 3, PLACES)
        ends = together[:, -2:].to(torch.int32).view(torch.float32)
        for number, own, (low, high) in zip(numbers, counts, ends.tolist(), strict=True):
            places = own[0].nonzero().reshape(-1)
            histograms[number] = Histogram(places, own[:, places], low, high)
    return [histograms[number] for number in range(len(counters))]


class _Judgment(Protocol):
    """Something about a place that is known only when the ranges are."""

    def finding(self) -> tuple[str, str] | None:
        """A sentence that holds for several `{places}`, and this place with its figures; None: nothing is to be said."""


@dataclass
class Calibration:
    """What one calibration block has seen, and the warnings that it gives when it ends.

    Attributes:
        passes: Forward passes of quantized models.
        begin: Called with the module whose forward begins a pass.
        judgments: What is asked when the block has ended, by runtime and place.
        sentences: Warnings for the end of the block, by place.
        is_silent: Whether another process gives the warnings.
    """

    passes: int = 0
    begin: Callable[[nn.Module], None] = lambda _: None
    judgments: dict[tuple[int, str], _Judgment] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)
    is_silent: bool = False
    _counted: dict[int, tuple[Any, Counter]] = field(default_factory=dict)
    # smallest and largest number of float tensors, kept as tensors so that a device is read only when the block ends, and counts
    _inputs: dict[str, tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def say(self, place: str, sentence: str) -> None:
        """Keep a warning for the end of the block; a later one for the same place replaces it."""
        self.sentences[place] = sentence

    def see_input(self, place: str, x: Tensor) -> None:
        """Remember the smallest and the largest number of a float tensor that is quantized."""
        if x.numel():
            self._join(place, *torch.aminmax(x.detach()), x.numel())

    def _join(self, place: str, low: Tensor, high: Tensor, count: int) -> None:
        if place in self._inputs:
            other_low, other_high, other_count = self._inputs[place]
            low, high, count = torch.minimum(low, other_low), torch.maximum(high, other_high), count + other_count
        self._inputs[place] = low, high, count

    def input_ends(self) -> dict[str, tuple[float, float, int]]:
        """The smallest and the largest number of every float tensor that was quantized, and how many there were."""
        # reading a number from a GPU stalls it, so each tensor is read once, at the end
        return {place: (*torch.stack([low, high]).tolist(), n) for place, (low, high, n) in self._inputs.items()}

    def join(
        self, inputs: Iterable[Mapping[str, tuple[float, float, int]]], sentences: Iterable[Mapping[str, str]]
    ) -> None:
        """Know what all processes have seen, this one among them."""
        self._inputs.clear()
        for seen in inputs:
            for place, (low, high, count) in seen.items():
                self._join(place, torch.tensor(low), torch.tensor(high), count)
        for said in sentences:
            self.sentences = {**said, **self.sentences}

    def count(self, range_: Any, x: Tensor, *, is_whole: bool = False) -> None:
        """Count the numbers of a tensor that belong to a range; `is_whole`: they are all that the range has."""
        if is_whole and id(range_) in self._counted:
            return  # weights stay as they are
        self._counted.setdefault(id(range_), (range_, Counter()))[1].add(x)

    @property
    def counted(self) -> list[tuple[Any, Counter]]:
        """The ranges (`linger.quantization.core.ranges.Range`) whose numbers were counted, in the order in which they were first seen."""
        return list(self._counted.values())

    def findings(self) -> list[str]:
        """Everything that is worth a warning."""
        if self.is_silent:
            return []
        if not self.passes:
            return [
                "calibration: no quantized model ran inside the block, so no scale was set. "
                "Call the model that linger.init returned, with typical data."
            ]
        places: dict[str, list[str]] = {}  # by a sentence that holds for all of them
        for sentence, place in filter(None, (judgment.finding() for judgment in self.judgments.values())):
            places.setdefault(sentence, []).append(place)
        judged = [sentence.format(places=listing(each)) for sentence, each in places.items()]
        return [*self._without_numbers(), *self.sentences.values(), *judged]

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
