# SPDX-License-Identifier: Apache-2.0
"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NARROW = 16
"""A tensor with fewer distinct values than this proves little, and is listed."""


@dataclass(frozen=True)
class Divergence:
    """The first place where two computations differ."""

    tensor: str
    batch: int
    index: tuple[int, ...]
    expected_by: str
    expected: Any
    found_by: str
    found: Any

    def __str__(self) -> str:
        where = f"{self.tensor}{list(self.index)} of batch {self.batch}"
        return f"{where}: {self.expected_by} has {self.expected}, {self.found_by} has {self.found}"


@dataclass
class TensorRow:
    """One tensor over all batches."""

    name: str
    dtype: str = ""
    values: int = 0
    differing: int = 0
    saturated: int = 0
    seen: NDArray[Any] = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def distinct(self) -> int:
        """How many different values the tensor took."""
        return int(self.seen.size)

    def add(self, array: NDArray[Any]) -> None:
        """Count one batch."""
        self.dtype = str(array.dtype)
        self.values += array.size
        if array.dtype.kind == "i":
            ends = np.iinfo(array.dtype)
            self.saturated += int(np.count_nonzero((array == ends.min) | (array == ends.max)))
            self.seen = np.union1d(self.seen, array)


@dataclass
class Verification:
    """Every integer of every batch, compared with equality.

    `missing` names tensors that only one side has. `float_error` is the largest difference of outputs that a float
    op computes: those may differ by a thousandth of the largest value, beyond that they count as differing.
    """

    rows: list[TensorRow]
    batches: int
    first: Divergence | None
    missing: tuple[str, ...]
    output_differences: int
    float_error: float

    @property
    def integers(self) -> int:
        """How many integers were compared."""
        return sum(row.values for row in self.rows)

    @property
    def differing(self) -> int:
        """How many of them differ in any of the computations."""
        return sum(row.differing for row in self.rows)

    @property
    def ok(self) -> bool:
        """Whether everything agrees, and something was compared."""
        return self.integers > 0 and not self.differing and not self.missing and not self.output_differences

    @property
    def narrow(self) -> list[TensorRow]:
        """Tensors that took too few values to prove much."""
        return [row for row in self.rows if row.distinct < NARROW]

    def summary(self) -> str:
        """The verdict in one or two sentences."""
        text = f"{self.differing} of {self.integers} integers differ ({_count(len(self.rows), 'tensor')}, {_count(self.batches, 'batch')})."
        if self.missing:
            text += f" Only one side has {', '.join(self.missing)}."
        if self.output_differences:
            text += f" {self.output_differences} output values differ."
        if self.first is not None:
            text += f" First: {self.first}."
        return text


def _count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> _count(1, "batch"), _count(3, "batch"), _count(2, "tensor")
    ('1 batch', '3 batches', '2 tensors')
    """
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
