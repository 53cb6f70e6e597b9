# SPDX-License-Identifier: Apache-2.0
"""Data in two parts: what a remedy learns from, and what it is judged by."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from linger.analysis.batches import Batch, rows_of_batch, values_of
from linger.errors import UsageError

_ONE_IN = 4
"""One batch in so many is held out."""


def split_data(where: str, batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """Batches to learn from, and batches to judge by: every fourth one, at least one.

    A single batch is split along its first axis, the last quarter of which is held out.

    Raises:
        UsageError: There is one batch alone, and its tensors have no common first axis of at least two.
    """
    if len(batches) > 1:
        held = list(range(len(batches) - 1, -1, -_ONE_IN))
        return [b for i, b in enumerate(batches) if i not in held], [batches[i] for i in sorted(held)]
    count = _common_rows(batches[0])
    if count <= 1:
        raise UsageError(
            f"{where}: one batch that cannot be split is too little: a part of the data is held out to judge the result. "
            "Give at least two batches."
        )
    learned = count - max(1, count // _ONE_IN)
    return [rows_of_batch(batches[0], slice(learned))], [rows_of_batch(batches[0], slice(learned, None))]


def _common_rows(batch: Batch) -> int:
    """The size of the first axis, if all tensors have the same; else 0."""
    sizes = {tuple(part.shape[:1]) for part in values_of(batch) if isinstance(part, Tensor)}
    size = sizes.pop() if len(sizes) == 1 else ()
    return size[0] if size else 0
