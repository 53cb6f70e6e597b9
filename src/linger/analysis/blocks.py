# SPDX-License-Identifier: Apache-2.0
"""Numbers that are read block by block, from which every statistic is computed, and their histogram. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 1 << 16
"""The largest array that is read, and summed, at once."""


class Values(Protocol):
    """A flat sequence of numbers that is read in pieces."""

    @property
    def size(self) -> int:
        """How many numbers there are to read."""

    @property
    def implicit_zeros(self) -> int:
        """How many zeros there are besides them (sparse tensors store none)."""

    def read(self, start: int, stop: int) -> Array:
        """Numbers start … stop−1: float32, float64, integers or bools, exactly."""

    def release(self, start: int, stop: int) -> None:
        """These numbers will not be read again soon: memory that holds them may go."""


def read_blocks(values: Values, size: int = BLOCK) -> Iterator[Array]:
    """All numbers in blocks of at most `size`; each block is released when the next one is asked for."""
    for start in range(0, values.size, size):
        stop = min(start + size, values.size)
        yield values.read(start, stop)
        values.release(start, stop)


def is_floating(array: Array) -> bool:
    """Whether an array holds floats (else integers or bools)."""
    return bool(np.issubdtype(array.dtype, np.floating))


def finite_magnitudes(block: Array, out: Array | None = None) -> tuple[Array, int, int]:
    """|x| of the finite numbers, how many were NaN, and how many infinite; `out` is memory for the result.

    Those of integers and bools are unsigned.
    """
    if not is_floating(block):
        is_signed = np.issubdtype(block.dtype, np.signedinteger)
        # |−2^63| wraps to itself, and is 2^63 when its bits are read as an unsigned number
        return (np.abs(block.astype(np.int64)).view(np.uint64) if is_signed else block.astype(np.uint64)), 0, 0
    size = np.abs(block, out=out)
    if np.isfinite(size.max()):
        return size, 0, 0
    return size[np.isfinite(size)], int(np.isnan(size).sum()), int(np.isinf(size).sum())


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values between equally spaced edges from −largest to largest."""

    edges: Array
    counts: Array


def histogram(values: Values, largest: float, bins: int = 256) -> Histogram:
    """Counts over −largest … largest, in one pass; zeros that a sparse tensor does not store are counted too."""
    reach = largest if largest > 0 else 1.0
    edges = np.linspace(-reach, reach, bins + 1)
    counts = np.zeros(bins, np.int64)
    for block in read_blocks(values):
        counts += np.histogram(block[np.isfinite(block)].astype(np.float64), edges)[0]
    counts[bins // 2] += values.implicit_zeros
    return Histogram(edges, counts)
