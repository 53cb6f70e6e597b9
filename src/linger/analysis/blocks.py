# SPDX-License-Identifier: Apache-2.0
"""Numbers that are read block by block: what every statistic is computed from. Knows no torch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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


def is_floating(array: Array) -> bool:
    """Whether an array holds floats (else integers or bools)."""
    return bool(np.issubdtype(array.dtype, np.floating))
