# SPDX-License-Identifier: Apache-2.0
"""What calibration observes in forward passes: histograms of tensors, ranges of inputs, and warnings for the end of the block."""

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
_DROPPED_BITS = 23 - _MANTISSA_BITS
_BINS_PER_SIGN = 1 << (8 + _MANTISSA_BITS)  # the last bins of each sign hold infinity and NaN

BIN_COUNT = 2 * _BINS_PER_SIGN
"""Number of bins, of both signs together."""

_FIRST_NOT_FINITE = 255 << _MANTISSA_BITS

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Bins:
    """The bins of a histogram that are not empty, in ascending order; a calibration method computes a range from them.

    Attributes:
        low: Lower edges.
        high: Upper edges; equal to the lower edge where every number of the bin is the same.
        counts: How many numbers lie in each bin.
        smallest: A histogram of the minimum of each item (a slice along the first axis, such as an image of a batch); None in
            such a histogram itself.
        greatest: The same of the maximum of each item.
    """

    low: Numbers
    high: Numbers
    counts: Numbers
    smallest: Bins | None = None
    greatest: Bins | None = None

    @property
    def largest(self) -> float:
        """The largest magnitude: exact, not the edge of a bin."""
        return float(max(-self.low[0], self.high[-1])) if len(self.counts) else 0.0

    def magnitudes(self) -> Bins:
        """The bins of the absolute values, in ascending order."""
        is_negative = self.high <= 0.0
        low = np.where(is_negative, -self.high, self.low)
        high = np.where(is_negative, -self.low, self.high)
        order = np.lexsort((high, low))
        return Bins(low[order], high[order], self.counts[order])


@dataclass(frozen=True, eq=False)
class Histogram:
    """A histogram of a tensor by sign and magnitude, with the exact minimum and maximum.

    Attributes:
        places: The indices of the bins that are not empty.
        counts: Three rows with one int64 per such bin: all numbers, the minimum of each item, the maximum of each item.
        low: The smallest number; +∞ if there are none.
        high: The largest number; −∞ if there are none.
        earlier: A range that was known before this histogram, from a checkpoint or from training; 0: none.
        method: The calibration method that last computed the range, as a user writes it.
    """

    places: Tensor
    counts: Tensor
    low: float = math.inf
    high: float = -math.inf
    earlier: float = 0.0
    method: str = "max"

    @classmethod
    def of(cls, *tensors: Tensor) -> Histogram:
        """The histogram of the numbers of all given tensors."""
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
        """Whether no number is infinite or NaN."""
        return bool((self.places % _BINS_PER_SIGN < _FIRST_NOT_FINITE).all())

    def merged(self, other: Histogram) -> Histogram:
        """The histogram of the numbers of both."""
        places, inverse = torch.cat([self.places, other.places]).unique(return_inverse=True)
        counts = torch.zeros(3, len(places), dtype=torch.int64)
        return Histogram(
            places,
            counts.index_add_(1, inverse, torch.cat([self.counts, other.counts], 1)),
            min(self.low, other.low),
            max(self.high, other.high),
            max(self.earlier, other.earlier),
            self.method,
        )

    def bins(self, low: float = -math.inf, high: float = math.inf) -> Bins:
        """The bins that are not empty, with numbers below `low` or above `high` clipped to these."""
        numbers, smallest, greatest = (self._nonempty_bins(row, low, high) for row in self.counts.numpy())
        return replace(numbers, smallest=smallest, greatest=greatest)

    def _nonempty_bins(self, row: NDArray[np.int64], low: float, high: float) -> Bins:
        is_nonempty = row > 0
        # the exact minimum and maximum are known, so the outermost bins end there
        places = self.places.numpy()[is_nonempty]
        lower, upper = (np.clip(np.clip(edges[places], self.low, self.high), low, high) for edges in _bin_edges())
        order = np.lexsort((upper, lower))
        return Bins(lower[order], upper[order], row[is_nonempty].astype(np.float64)[order])


@cache
def _bin_edges() -> tuple[Numbers, Numbers]:
    """Lower and upper edge of every bin, in the order of the counts: negative numbers first."""
    edges = np.full(_BINS_PER_SIGN + 1, math.inf)
    places = np.arange(_FIRST_NOT_FINITE, dtype=np.uint32)
    edges[:_FIRST_NOT_FINITE] = (places << _DROPPED_BITS).view(np.float32)
    return np.concatenate([-edges[1:], edges[:-1]]), np.concatenate([-edges[:-1], edges[1:]])


class Counter:
    """Counts the numbers of tensors on their own device; `histograms_of` copies the counts to the host once."""

    def __init__(self) -> None:
        self.counts = torch.zeros(3, BIN_COUNT, dtype=torch.int64)
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
    places = (numbers.view(torch.int32) >> _DROPPED_BITS) + _BINS_PER_SIGN  # the sign bit is the sign of the integer
    if places.is_cpu:
        return torch.bincount(places, minlength=BIN_COUNT)
    # bincount would synchronize with the device to learn the size of its result
    ones = torch.ones_like(places, dtype=torch.int64)
    return torch.zeros(BIN_COUNT, dtype=torch.int64, device=places.device).index_add_(0, places, ones)


def histograms_of(counters: Sequence[Counter]) -> list[Histogram]:
    """The histograms of all counters, with one copy from each device to the host."""
    histograms: dict[int, Histogram] = {}
    by_device: dict[torch.device, list[int]] = {}
    for number, counter in enumerate(counters):
        by_device.setdefault(counter.counts.device, []).append(number)
    for numbers in by_device.values():
        # the bits of the ends travel as integers beside the counts
        rows = [torch.cat([counters[n].counts.reshape(-1), counters[n].ends.view(torch.int32)]) for n in numbers]
        together = torch.stack(rows).cpu()
        counts = together[:, :-2].reshape(len(numbers), 3, BIN_COUNT)
        ends = together[:, -2:].to(torch.int32).view(torch.float32)
        for number, own, (low, high) in zip(numbers, counts, ends.tolist(), strict=True):
            places = own[0].nonzero().reshape(-1)
            histograms[number] = Histogram(places, own[:, places], low, high)
    return [histograms[number] for number in range(len(counters))]


class _Judgment(Protocol):
    """A check of one place in the model that needs the final ranges."""

    def finding(self) -> tuple[str, str] | None:
        """A warning about `{places}`, which several places can share, and this place with its figures; None: no warning."""


@dataclass
class Calibration:
    """What one calibration block has observed, and the warnings that it gives when it ends.

    Attributes:
        passes: Forward passes of quantized models.
        begin: Called with the module whose forward begins a pass.
        judgments: Checks that run when the block has ended, by runtime and place.
        sentences: Warnings for the end of the block, by place.
        is_silent: Whether this process gives no warnings, because another one does.
    """

    passes: int = 0
    begin: Callable[[nn.Module], None] = lambda _: None
    judgments: dict[tuple[int, str], _Judgment] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)
    is_silent: bool = False
    _counted: dict[int, tuple[Any, Counter]] = field(default_factory=dict)
    # minimum, maximum and count of float tensors; the first two stay on their device until the block ends
    _inputs: dict[str, tuple[Tensor, Tensor, int]] = field(default_factory=dict)

    def say(self, place: str, sentence: str) -> None:
        """Keep a warning for the end of the block; a later one for the same place replaces it."""
        self.sentences[place] = sentence

    def observe_input(self, place: str, x: Tensor) -> None:
        """Record the minimum and the maximum of a float tensor that is quantized."""
        if x.numel():
            self._merge_input(place, *torch.aminmax(x.detach()), x.numel())

    def _merge_input(self, place: str, low: Tensor, high: Tensor, count: int) -> None:
        if place in self._inputs:
            other_low, other_high, other_count = self._inputs[place]
            low, high, count = torch.minimum(low, other_low), torch.maximum(high, other_high), count + other_count
        self._inputs[place] = low, high, count

    def input_ranges(self) -> dict[str, tuple[float, float, int]]:
        """Minimum, maximum and count of the numbers of every float tensor that was quantized, by place."""
        # reading a number from a GPU stalls it, so each tensor is read once, at the end
        return {place: (*torch.stack([low, high]).tolist(), n) for place, (low, high, n) in self._inputs.items()}

    def join(
        self, inputs: Iterable[Mapping[str, tuple[float, float, int]]], sentences: Iterable[Mapping[str, str]]
    ) -> None:
        """Merge what all processes, this one included, have observed."""
        self._inputs.clear()
        for ranges in inputs:
            for place, (low, high, count) in ranges.items():
                self._merge_input(place, torch.tensor(low), torch.tensor(high), count)
        for warnings in sentences:
            self.sentences = {**warnings, **self.sentences}

    def count(self, range_: Any, x: Tensor, *, is_whole: bool = False) -> None:
        """Add the numbers of a tensor to the histogram of a range; `is_whole`: the tensor is all that the range covers, as a weight is."""
        key = id(range_)
        if key not in self._counted:  # a counter is large: only the first tensor makes one
            self._counted[key] = range_, Counter()
        elif is_whole:
            return  # weights do not change, so they are counted once
        self._counted[key][1].add(x)

    @property
    def counted(self) -> list[tuple[Any, Counter]]:
        """The ranges (`linger.quantization.core.ranges.Range`) that were counted, in the order of their first count."""
        return list(self._counted.values())

    def findings(self) -> list[str]:
        """All warnings of the block."""
        if self.is_silent:
            return []
        if not self.passes:
            return [
                "calibration: no quantized model ran inside the block, so no scale was set. "
                "Call the model that linger.init returned, with typical data."
            ]
        places: dict[str, list[str]] = {}  # by their common warning
        for sentence, place in filter(None, (judgment.finding() for judgment in self.judgments.values())):
            places.setdefault(sentence, []).append(place)
        judged = [sentence.format(places=listing(each)) for sentence, each in places.items()]
        return [*self._input_warnings(), *self.sentences.values(), *judged]

    def _input_warnings(self) -> list[str]:
        """Warnings about inputs without information: all zeros, or all the same number."""
        ranges = self.input_ranges()
        zero = [place for place, (low, high, _) in ranges.items() if low == high == 0.0]
        if zero:
            return [
                f"calibration: {listing(zero)} saw nothing but zeros, so its scale is set for a range of ±1."
                " Calibrate again with typical data."
            ]
        if ranges and all(low == high and count > 1 for low, high, count in ranges.values()):
            return [
                f"calibration: {listing(ranges)} saw one and the same number everywhere, so the scales are set for that "
                "number alone. Calibrate again with typical data."
            ]
        return []


CALIBRATION: ContextVar[Calibration | None] = ContextVar("linger_calibration", default=None)
"""The calibration block around the running code; None outside of one."""


def is_calibrating() -> bool:
    """Whether the caller runs inside `calibration()`."""
    return CALIBRATION.get() is not None
