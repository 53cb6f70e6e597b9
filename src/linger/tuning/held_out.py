# SPDX-License-Identifier: Apache-2.0
"""Data in two parts: what remedies may see, and what they are judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, joined_rows, rows_of_batch, values_of
from linger.errors import UsageError
from linger.tuning.remedy import OutputError

_ONE_IN = 4
"""One batch in so many is held out; where there are fewer batches, rows are."""

_LARGEST = 32
_SAME = 1e-3
"""Rows beside others give the same up to this share of the largest number: batched products round differently."""

_ONE_INPUT = "The data are one input that cannot be split, so every step was judged on the data that it saw."


@dataclass(frozen=True)
class Parts:
    """The data in two parts."""

    tuning: tuple[Batch, ...]  # what remedies see
    held_out: tuple[Batch, ...]  # what they are judged by; never given to a remedy
    note: str = ""  # a sentence where both had to be the same


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


def split(reference: nn.Module, batches: Sequence[Batch]) -> Parts:
    """One batch in four is held out, of two or three the last; of a single one the last quarter of its rows.

    Rows that stand beside each other may be alike, so what is held out is never taken from between them. Of fewer than
    sixteen rows the last half is held out; one input that cannot be split is used for both. Where rows are independent, few
    large batches to tune on become several smaller ones, as remedies hold out a part of them in their turn.
    """
    OutputError(reference, batches[:1])  # what the model refuses is named before anything else
    rows = _all_rows(reference, batches) if len(batches) < _ONE_IN else []
    if len(batches) == 1 and len(rows) >= _ONE_IN:
        kept = len(rows) - len(rows) // (_ONE_IN if len(rows) >= _ONE_IN**2 else 2)
        return Parts(tuple(_grouped(rows[:kept])), tuple(_grouped(rows[kept:])))
    try:
        learned, judged = split_data("tune", batches)
        OutputError(reference, [learned[0], judged[0]])  # rows of a single batch may not be what the model accepts
    except UsageError:
        return Parts(tuple(batches), tuple(batches), _ONE_INPUT)
    if len(batches) > 1 and rows:
        learned = _grouped(rows[: sum(len(values_of(batch)[0]) for batch in learned)])
    return Parts(tuple(learned), tuple(judged))


def _all_rows(reference: nn.Module, batches: Sequence[Batch]) -> list[Batch]:
    """Every row of all batches; none where rows depend on each other or differ in shape."""
    if not all(_has_rows(reference, batch) for batch in batches):
        return []
    rows = [rows_of_batch(batch, slice(i, i + 1)) for batch in batches for i in range(len(values_of(batch)[0]))]
    return rows if len({tuple(part.shape for part in values_of(row)) for row in rows}) == 1 else []


def _has_rows(reference: nn.Module, batch: Batch) -> bool:
    """Whether a batch is rows side by side: the model gives for one of them what it gives for it among the others."""
    counts = {len(part) if isinstance(part, Tensor) and part.dim() else 0 for part in values_of(batch)}
    if len(counts) != 1 or counts == {0}:
        return False
    last = slice(max(counts) - 1, None)
    try:
        whole, alone = OutputError(reference, [batch, rows_of_batch(batch, last)]).expected
    except UsageError:
        return False
    return all(_is_row(w, a, last) for w, a in zip(whole, alone, strict=True))


def _is_row(whole: Tensor, alone: Tensor, row: slice) -> bool:
    if not whole.dim() or len(whole) != row.start + 1 or whole[row].shape != alone.shape:
        return False
    return torch.allclose(whole[row], alone, rtol=_SAME, atol=_SAME * float(whole.abs().max()))


def _grouped(rows: Sequence[Batch]) -> list[Batch]:
    """Rows as about eight batches, none of more than 32 rows."""
    size = min(_LARGEST, max(1, len(rows) // (2 * _ONE_IN)))
    return [joined_rows(rows[i : i + size]) for i in range(0, len(rows), size)]
