# SPDX-License-Identifier: Apache-2.0
"""Pooling to a size that does not divide the picture's: several pools over slices, joined.

Output i of n over a side of s covers the pixels from ⌊i·s/n⌋ to ⌈(i+1)·s/n⌉. Neighbours of one size and one distance are
one ordinary pool, so a size that divides (and many that do not) needs a single one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from linger.numeric.fixed import WindowRun, adaptive_runs

MOST_POOLS = 64
"""More slices than this are not worth their nodes."""

_POOLS: dict[Any, Any] = {F.adaptive_avg_pool2d: F.avg_pool2d, F.adaptive_max_pool2d: F.max_pool2d}


def pool_runs(x: Any, output_size: Any) -> tuple[list[WindowRun], list[WindowRun]] | None:
    """Runs of rows and of columns; None where there are too many, or where torch has something to complain about."""
    wanted = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if x.dim() != 4 or len(wanted) != 2:
        return None
    sides = [int(n) for n in x.shape[-2:]]
    counts = [side if n is None else int(n) for side, n in zip(sides, wanted, strict=True)]
    if min(*sides, *counts) < 1:
        return None
    rows, columns = (adaptive_runs(side, n) for side, n in zip(sides, counts, strict=True))
    return (rows, columns) if len(rows) * len(columns) <= MOST_POOLS else None


def pool_adaptively(func: Any, x: Any, output_size: Any, run: Callable[[Any, tuple[Any, ...]], Any]) -> Any:
    """The pooling as other calls, each made by `run(function, arguments)`; None if there is no such form."""
    found = pool_runs(x, output_size)
    if found is None:
        return None
    rows, columns = found
    bands = [_join([_pooled(_POOLS[func], x, row, column, run) for column in columns], -1, run) for row in rows]
    return _join(bands, -2, run)


def _pooled(pool: Any, x: Any, row: WindowRun, column: WindowRun, run: Callable[..., Any]) -> Any:
    if (row.start, column.start) != (0, 0) or (row.end, column.end) != tuple(x.shape[-2:]):
        x = run(torch.Tensor.__getitem__, (x, (..., slice(row.start, row.end), slice(column.start, column.end))))
    return run(pool, (x, (row.size, column.size), (row.stride, column.stride)))


def _join(parts: list[Any], axis: int, run: Callable[..., Any]) -> Any:
    return parts[0] if len(parts) == 1 else run(torch.cat, (parts, axis))


ADAPTIVE = frozenset(_POOLS)
"""Functions that are pools over slices."""
