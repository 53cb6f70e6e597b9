# SPDX-License-Identifier: Apache-2.0
"""What a comparison of two files, or of a file and a device, found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from linger.errors import listing
from linger.verification.devices.tensor_difference import TensorDifference

_SHOWN_NAMES = 5


@dataclass(frozen=True)
class FirstDivergence:
    """The first tensor in the order of execution that differs, and where it does."""

    row: TensorDifference

    @property
    def tensor(self) -> str:
        """Its name in a."""
        return self.row.name

    def __str__(self) -> str:
        made_by = f" ({self.row.op_type})" if self.row.op_type else ""
        return f"{self.row.name}{made_by} at {self.row.first}"


@dataclass(frozen=True)
class FileComparison:
    """Every pair of tensors, in the order of execution.

    Attributes:
        a: What was compared.
        b: With what.
        rows: A row per pair.
        batches: How many inputs were run.
        only_a: Tensors of a without a partner.
        only_b: Tensors of b without a partner.
        missing_outputs: Outputs of either file among them; then the comparison is not `ok`.
        notes: What else the reader should know.
    """

    a: str
    b: str
    rows: tuple[TensorDifference, ...]
    batches: int
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    missing_outputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> FirstDivergence | None:
        """The first divergence in the order of execution."""
        return next((FirstDivergence(row) for row in self.rows if not row.ok), None)

    @property
    def ok(self) -> bool:
        """Whether something was compared, all of it is equal, and every output took part."""
        return any(row.values for row in self.rows) and not self.differing and not self.missing_outputs

    @property
    def values(self) -> int:
        """How many numbers were compared."""
        return sum(row.values for row in self.rows)

    @property
    def differing(self) -> int:
        """How many numbers differ."""
        return sum(row.differing for row in self.rows)

    @property
    def worst(self) -> list[TensorDifference]:
        """The rows that differ, the largest difference first."""
        return sorted((row for row in self.rows if not row.ok), key=lambda row: (-row.largest, -row.differing))

    def summary(self) -> str:
        """The verdict in a few sentences."""
        return " ".join(self._sentences())

    def _sentences(self) -> list[str]:
        wrong = self.worst
        counted = f"{count(self.values, 'value')}, {count(self.batches, 'batch')}."
        if wrong:
            said = [f"{len(wrong)} of {count(len(self.rows), 'tensor')} differ: {self.differing} of {counted}"]
        else:
            said = [
                f"Equal: {count(len(self.rows), 'tensor')}, {counted}"
                if self.values
                else "No tensor could be compared."
            ]
        largest = max((row.largest for row in wrong if row.unit == "LSB"), default=0.0)
        if largest:
            said.append(f"The largest difference is {largest:g} LSB.")
        if self.first is not None:
            said.append(f"First: {self.first}.")
        if self.missing_outputs:
            said.append(f"Without a partner are the outputs {listing(self.missing_outputs, limit=_SHOWN_NAMES)}.")
        for names, side in ((self.only_a, "a"), (self.only_b, "b")):
            if names:
                said.append(f"Only in {side}: {listing(names, limit=_SHOWN_NAMES)}.")
        return [*said, *self.notes]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "ok": self.ok,
            "batches": self.batches,
            "values": self.values,
            "differing": self.differing,
            "first": None if self.first is None else self.first.tensor,
            "rows": [row.as_dict() for row in self.rows],
            "only_a": list(self.only_a),
            "only_b": list(self.only_b),
            "missing_outputs": list(self.missing_outputs),
            "notes": list(self.notes),
        }


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "batch"), count(3, "batch"), count(2, "tensor")
    ('1 batch', '3 batches', '2 tensors')
    """
    ending = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending}"
