# SPDX-License-Identifier: Apache-2.0
"""Data in three parts: what steps learn from, what chooses between them, and what the reported figure is measured on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, BoundBatch, joined_rows, keywords_of, rows_of_batch, values_of
from linger.errors import UsageError, refuse_if
from linger.tuning.remedy import OutputError

_ONE_IN = 4
"""One batch in so many is held out."""

_SHARE, _SHARE_OF_FEW = 5, 4
"""One sample in so many chooses, and as many are reported on; of fewer than `ENOUGH` samples one in four, as two tell little."""

ENOUGH = 32
"""With fewer different samples the search makes fewer choices."""

_FEW = (
    "The data are few: {} different samples of {}, without those that look like another or continue it. So fewer steps are tried, their "
    "gains must be larger, and ranges have more headroom."
)
_ALIKE, _LONG, _LOOKED_AT, _COMPARED = 0.98, 32, 4096, 512
"""The correlation of samples that look alike; from how many numbers on, by how many of them, and of how many samples it is asked."""

_CONTINUED = 0.1
"""A piece of a recording begins this near to where the last one ended, in units of the usual distance."""

_STRETCHES = 8
"""A few large batches are taken as so many stretches, each of which gives samples to every part: sorted data keep their classes."""

_LARGEST, _AT_ONCE = 32, 2**20
_SAME = 1e-3
"""Rows beside others give the same up to this share of the largest number: batched products round differently."""

_ONE_INPUT = "The data are one input that cannot be split, so every step was judged on the data that it saw."
_TWO_INPUTS = "The data are two inputs, so the reported figure is measured on the one by which steps were chosen."

Interval = tuple[float, float]
"""The lowest and the highest number that an input may have."""


@dataclass(frozen=True)
class Parts:
    """The data in three parts."""

    tuning: tuple[Batch, ...]  # what steps learn from
    choosing: tuple[Batch, ...]  # what chooses between them; never given to a step
    reported: tuple[Batch, ...]  # what the reported figure is measured on; seen once, at the end
    are_rows: bool = False  # whether batches are rows side by side, each a sample
    notes: tuple[str, ...] = ()  # sentences where a part had to be another one, or the data are few
    intervals: tuple[Interval, ...] = ()  # what real inputs may be
    are_joined: bool = True  # whether the model takes the rows of several batches as one
    is_few: bool = False  # whether there are so few different samples that a search must be careful

    @property
    def samples(self) -> tuple[int, int, int]:
        """How many samples each part has; none is reported on where that is what chooses."""
        learned, chosen, told = (sum(map(self._count, part)) for part in (self.tuning, self.choosing, self.reported))
        return learned, chosen, 0 if self.reported is self.choosing else told

    def _count(self, batch: Batch) -> int:
        return len(values_of(batch)[0]) if self.are_rows else 1

    def whole(self, part: Sequence[Batch]) -> list[Batch]:
        """All samples of a part, joined."""
        return self.drawn(part, sum(map(self._count, part)))

    def drawn(self, part: Sequence[Batch], count: int) -> list[Batch]:
        """About so many samples of a part: an even draw of the rows of every batch, joined, or of batches where these are no rows."""
        sizes = list(map(self._count, part))
        total = sum(sizes)
        if not self.are_rows:
            return list(part) if count >= total else [part[i * total // count] for i in range(count)]
        each = [max(1, size * min(count, total) // total) for size in sizes]
        rows = (slice(None, n * (size // n), size // n) for n, size in zip(each, sizes, strict=True))
        alike = itertools.groupby(map(rows_of_batch, part, rows), lambda some: [t.shape[1:] for t in values_of(some)])
        # a pass has its price, and so has memory for large tensors
        most = (
            min(_LARGEST, _AT_ONCE // max(1, sum(t[:1].numel() for t in values_of(part[0])))) if self.are_joined else 1
        )
        at_once = max(1, most // max(each, default=1))
        return [
            joined_rows(own[i : i + at_once])
            for _, some in alike
            for own in [list(some)]
            for i in range(0, len(own), at_once)
        ]


def split_data(where: str, batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches to learn from, and batches to judge by: every fourth one, at least one.

    A single batch is split along its first axis, the last quarter of which is held out; it is refused where its tensors have
    no common first axis of at least two.
    """
    if len(batches) > 1:
        held = list(range(len(batches) - 1, -1, -_ONE_IN))
        return [b for i, b in enumerate(batches) if i not in held], [batches[i] for i in sorted(held)]
    sizes = {tuple(part.shape[:1]) for part in values_of(batches[0]) if isinstance(part, Tensor)}
    count = max(sizes.pop(), default=0) if len(sizes) == 1 else 0
    if count <= 1:
        raise UsageError(
            f"{where}: one batch that cannot be split is too little: a part of the data is held out to judge the result. "
            "Give at least two batches."
        )
    learned = count - max(1, count // _ONE_IN)
    return [rows_of_batch(batches[0], slice(learned))], [rows_of_batch(batches[0], slice(learned, None))]


def split(
    reference: nn.Module,
    batches: Sequence[Batch],
    reported: Sequence[Batch] = (),
    input_range: object = None,
    choosing: Sequence[Batch] = (),
) -> Parts:
    """One sample in five chooses, and one in five is reported on; of fewer than 32 samples one in four.

    Samples are the rows of all batches where rows are independent, else whole batches. They are taken from the end of every
    stretch of the data, so every batch is represented in what steps learn from, and few neighbors, which may be alike, are parted.
    What is `reported` on, or chooses, may be given; then nothing is taken for it. One input that cannot be split serves for everything.
    """
    OutputError(reference, [*batches[:1], *reported[:1]])  # what the model refuses is named before anything else
    every = [*batches, *choosing]
    intervals = tuple(read_interval(input_range, every))
    are_rows = has_rows(reference, every)
    count, total = _independent(every, are_rows=are_rows), sum(row_count(b) if are_rows else 1 for b in every)
    notes = () if count >= ENOUGH else (_FEW.format(count, total),)
    whole = Parts(tuple(batches), tuple(choosing), tuple(reported), are_rows, notes, intervals, is_few=bool(notes))
    whole = replace(whole, are_joined=are_rows and joins(reference, every))
    return whole if choosing and reported else _divided(whole)


def _divided(whole: Parts) -> Parts:
    """Data of which everything is to be learned from, divided."""
    parts = _allotted(_stretches(whole), needs_report=not whole.reported)
    if parts is None:
        every, notes = whole.tuning, (_ONE_INPUT, *whole.notes)
        return replace(whole, choosing=every, reported=whole.reported or every, notes=notes, is_few=True)
    join = _grouped if whole.are_joined else _own if whole.are_rows else _apart
    choosing, told = (tuple(join(part)) for part in parts[1:])
    reported = whole.reported or told
    # remedies hold out a part of a few batches in their turn, so these become several
    is_whole = whole.are_rows and len(whole.tuning) >= _STRETCHES
    learned = _own(parts[0]) if is_whole else join(parts[0])
    made = replace(whole, tuning=tuple(learned), choosing=choosing, reported=reported or choosing)
    return made if reported else replace(made, notes=(_TWO_INPUTS, *whole.notes))


def _stretches(whole: Parts) -> list[list[Batch]]:
    """The samples of all batches, a list for each of several batches, or for each stretch of a few."""
    if not whole.are_rows:
        return [[batch] for batch in whole.tuning]
    own = [[rows_of_batch(b, slice(i, i + 1)) for i in range(row_count(b))] for b in whole.tuning]
    if len(own) >= _STRETCHES:
        return own
    size = max(_SHARE, math.ceil(sum(map(len, own)) / _STRETCHES))
    return [rows[i : i + size] for rows in own for i in range(0, len(rows), size)]


_KNOWN = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Intervals of images and sounds: data within the first that fits may reach all of it."""

_LEAST_BYTE = 16.0
"""Data of no more are taken for no bytes: what else may be in them nobody knows."""

_WIDER = 1.5
"""Other data are taken to reach so much farther from their middle than those that were given."""

GAINS, _OFFSETS = (0.5, 1.5, 2.0), (-0.125, 0.125)
"""What other data may be: darker or brighter, quieter or louder, and shifted by an eighth of the interval."""


def read_interval(input_range: object, batches: Sequence[Batch]) -> list[Interval]:
    """The interval of each real input: the one that the user states, or the one that the data show.

    Raises:
        UsageError: It is no pair of numbers, the smaller one first, or the data go beyond it.
    """
    seen = [(min(float(t.min()) for t in ts), max(float(t.max()) for t in ts)) for ts in _columns(batches)]
    if input_range is None:
        return [_shown(low, high) for low, high in seen]
    low, high = _ends(input_range)
    beyond = [f"{least:.4g} … {most:.4g}" for least, most in seen if least < low or most > high]
    refuse_if(
        beyond,
        f"input_range={input_range!r}: the data hold {', '.join(beyond)}. Give the interval that inputs really have, after scaling "
        "and normalizing.",
    )
    return [(low, high)] * len(seen)


def _ends(input_range: object) -> Interval:
    try:
        low, high = map(float, input_range)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = math.nan
    refuse_if(
        not (math.isfinite(low + high) and low < high),
        f"input_range={input_range!r} is no interval. Give its two ends, the smaller one first: (0, 1).",
    )
    return low, high


def _shown(low: float, high: float) -> Interval:
    for least, most in _KNOWN:
        if least <= low and high <= most and (most <= 1.0 or high > _LEAST_BYTE):
            return least, most
    middle, half = (low + high) / 2, _WIDER * (high - low) / 2
    return middle - half if low < 0 else 0.0, middle + half


def _columns(batches: Sequence[Batch]) -> list[list[Tensor]]:
    """The real inputs, each as the tensors of all batches."""
    columns: dict[int, list[Tensor]] = {}
    for batch in batches:
        for place, part in enumerate(values_of(batch)):
            if isinstance(part, Tensor) and part.is_floating_point() and part.numel():
                columns.setdefault(place, []).append(part)
    return list(columns.values())


def shifted(
    batches: Sequence[Batch], intervals: Sequence[Interval], gains: Sequence[float] = GAINS
) -> dict[str, list[Batch]]:
    """Batches as other data may be, clipped to the intervals of the inputs, by what was done to them."""
    done = [(f"gain {gain:g}", gain, 0.0) for gain in gains] + [(f"offset {o:+g}", 1.0, o) for o in _OFFSETS]
    return {name: [_moved(batch, intervals, gain, offset) for batch in batches] for name, gain, offset in done}


def _moved(batch: Batch, intervals: Sequence[Interval], gain: float, offset: float) -> Batch:
    ends = iter(intervals)

    def move(part: Any) -> Any:
        if not (isinstance(part, Tensor) and part.is_floating_point() and part.numel()):
            return part
        low, high = next(ends)
        return (part * gain + offset * (high - low)).clamp(low, high)

    return BoundBatch(map(move, batch), {name: move(part) for name, part in keywords_of(batch).items()})


def some_of_each(reference: nn.Module, batches: Sequence[Batch], one_in: int) -> list[Batch] | None:
    """One sample of so many, of every batch where rows are independent; None where there is only one sample or batch."""
    whole = Parts(tuple(batches), (), (), has_rows(reference, batches), are_joined=False)
    count = whole.samples[0]
    return None if count < 2 else whole.drawn(batches, max(1, count // one_in))


def _independent(batches: Sequence[Batch], *, are_rows: bool) -> int:
    """How many samples say something of their own: without those that look like another one, or continue the one before.

    Two samples look alike where their correlation is above 0.98, so one of them may be brighter; a few numbers are compared as
    they are, for their correlation is large by chance. Where most samples begin as the one before ended, they are pieces of
    recordings, which count instead.
    """
    first: dict[int, list[Tensor]] = {}
    for part in (part for b in batches for part in values_of(b)[:1] if isinstance(part, Tensor) and part.numel()):
        rows = part.detach().reshape(len(part) if are_rows else 1, -1).float()
        first.setdefault(rows.shape[1], []).append(rows)
    return sum(_different(torch.cat(rows)[:_COMPARED]) for rows in first.values())


def _different(rows: Tensor) -> int:
    numbers = rows.shape[1]
    if numbers < _LONG:
        return len(rows.unique(dim=0))
    ends = (rows[:-1, -1] - rows[1:, 0]).abs()
    follow = ends < _CONTINUED * (rows[:, -1:] - rows[:, 0]).abs().mean()
    if len(rows) > 2 and float(follow.float().mean()) > 0.5:
        return 1 + int((~follow).sum())
    some = rows[:, :: max(1, numbers // _LOOKED_AT)]
    some = some - some.mean(1, keepdim=True)
    size = some.norm(dim=1, keepdim=True)
    unit = some / size.where(size > 0, torch.ones(()))
    is_flat = size.squeeze(1) == 0
    is_new = ~(unit @ unit.T > _ALIKE).tril(-1).any(1) & ~is_flat
    return int(is_new.sum()) + int(is_flat.any())


def _allotted(stretches: Sequence[list[Batch]], *, needs_report: bool) -> tuple[list[list[Batch]], ...] | None:
    """The samples of stretches that are learned from, choose, and are reported on; None where there is only one."""
    total = sum(map(len, stretches))
    if total < 2:
        return None
    share = _SHARE if total >= ENOUGH else _SHARE_OF_FEW
    parts: tuple[list[list[Batch]], ...] = ([], [], [])
    chosen = kept = seen = 0
    for rows in stretches:
        seen += len(rows)
        most = max(1, len(rows) - 1)  # a stretch of several keeps one to learn from
        last = min(seen // share - kept, most) * needs_report
        middle = min((seen + share // 2) // share - chosen, most - last)
        first, second = len(rows) - last - middle, len(rows) - last
        for part, some in zip(parts, (rows[:first], rows[first:second], rows[second:]), strict=True):
            part.extend([some] * bool(some))
        chosen, kept = chosen + middle, kept + last
    for part in parts[1 : 3 if needs_report else 2]:
        if not part and sum(map(len, parts[0])) > 1:  # two or three samples
            part.append([parts[0][-1].pop()])
            parts[0][:] = filter(None, parts[0])
    return parts


def _apart(stretches: Sequence[Sequence[Batch]]) -> list[Batch]:
    return [batch for stretch in stretches for batch in stretch]


def _own(stretches: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Rows as many batches as they come from: a model may want them in their order."""
    return list(map(joined_rows, stretches))


def has_rows(reference: nn.Module, batches: Sequence[Batch]) -> bool:
    """Whether batches are rows side by side: the model gives for one of them what it gives for it among the others."""
    if not all(map(row_count, batches)):
        return False
    batch = max(batches, key=row_count)
    if row_count(batch) == 1:
        return joins(reference, batches)
    last = slice(row_count(batch) - 1, None)
    return _is_same(reference, batch, [rows_of_batch(batch, slice(last.start)), rows_of_batch(batch, last)])


def joins(reference: nn.Module, batches: Sequence[Batch]) -> bool:
    """Whether the model gives for joined batches what it gives for each, in either order: it may want rows sorted by their length."""
    alike = [b for b in batches if [t.shape[1:] for t in values_of(b)] == [t.shape[1:] for t in values_of(batches[0])]]
    pair = [rows_of_batch(batch, slice(_SHARE)) for batch in (alike[0], alike[-1])]
    return all(_is_same(reference, joined_rows(order), order) for order in (pair, pair[::-1]))


def _is_same(reference: nn.Module, whole: Batch, parts: Sequence[Batch]) -> bool:
    try:
        together, *apart = OutputError(reference, [whole, *parts]).expected
    except UsageError:
        return False
    return all(_are_rows(w, each) for w, *each in zip(together, *apart, strict=True))


def row_count(batch: Batch) -> int:
    """The common size of the first axis of all arguments; 0 where they have none."""
    counts = {len(part) if isinstance(part, Tensor) and part.dim() else 0 for part in values_of(batch)}
    return counts.pop() if len(counts) == 1 else 0


def _are_rows(whole: Tensor, parts: Sequence[Tensor]) -> bool:
    if not whole.dim() or sum(map(len, parts)) != len(whole) or any(p.shape[1:] != whole.shape[1:] for p in parts):
        return False
    return torch.allclose(whole, torch.cat(list(parts)), rtol=_SAME, atol=_SAME * float(whole.abs().max()))


def _grouped(stretches: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Rows as about eight batches, none of more than 32 rows, each of rows of one shape."""
    rows = _apart(stretches)
    size = min(_LARGEST, max(1, len(rows) // (2 * _ONE_IN)))
    alike = (list(some) for _, some in itertools.groupby(rows, lambda row: [part.shape for part in values_of(row)]))
    return [joined_rows(some[i : i + size]) for some in alike for i in range(0, len(some), size)]
