# SPDX-License-Identifier: Apache-2.0
"""The result of comparing two files, or a file and a device: how each pair of tensors differs, in units of the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from linger.errors import counted, listing
from linger.records.table import Column, Shown, finite, picked
from linger.verification.array_files import Array

_SHOWN_NAMES = 5

_WIDEST_SATURATING = 4
"""Bytes: integers of 64 bits are counts and indices, which do not saturate."""


@dataclass(frozen=True)
class DifferingElement:
    """The first element in which two tensors differ, with both values as they are stored."""

    batch: int
    index: tuple[int, ...]
    a: Any
    b: Any

    def __str__(self) -> str:
        return f"{list(self.index)} of batch {self.batch}: a has {self.a}, b has {self.b}"


@dataclass
class TensorDifference:
    """One pair of tensors over all batches.

    Attributes:
        name: The tensor in a.
        other: The tensor, or the dump, in b.
        matched: How the two were matched: "name", "normalized name", "structure", …
        op_type: The type of the node that computes it in a.
        scale: The factor from real values to the integers that are compared; None where no scale is known.
        values: How many numbers were compared.
        differing: How many of them differ.
        largest: The largest |difference| in LSB (in real numbers where no scale is known).
        largest_real: The same as a real number; None for integers whose scale is not known.
        first: Where they differ first.
        saturated_a: How many integers of a are the smallest or the largest of their width.
        saturated_b: The same of b.
        notes: Remarks on types, shapes and scales that differ.
    """

    name: str
    other: str
    matched: str = "name"
    op_type: str = ""
    scale: float | None = None
    dtype_a: str = ""
    dtype_b: str = ""
    shape: tuple[int, ...] = ()
    values: int = 0
    differing: int = 0
    largest: float = 0.0
    largest_real: float | None = None
    first: DifferingElement | None = None
    saturated_a: int = 0
    saturated_b: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    _sum: float = field(default=0.0, repr=False)

    @property
    def ok(self) -> bool:
        """Whether all numbers are equal."""
        return self.differing == 0

    @property
    def mean(self) -> float:
        """The mean |difference| of all numbers, in the unit of `largest`."""
        return self._sum / self.values if self.values else 0.0

    @property
    def unit(self) -> str:
        """The unit of `largest` and `mean`."""
        return "LSB" if self.scale is not None or not self._is_float else "real"

    @property
    def _is_float(self) -> bool:
        return self.dtype_a.startswith("float") and self.dtype_b.startswith("float")

    @property
    def remarks(self) -> str:
        """The notes as one text."""
        return "; ".join(self.notes)

    def note(self, text: str) -> None:
        """Add a remark, unless it is there already."""
        self.notes[text] = None

    def add(
        self,
        batch: int,
        a: Array,
        b: Array,
        *,
        scale_a: float | None = None,
        scale_b: float | None = None,
        bits: int | None = None,
        tolerance: float = 0.0,
    ) -> None:
        """Count one batch.

        `bits` is the width of the integers, where it is less than that of their type; `tolerance`, a part of the largest |a|, is
        how far two floats without a scale may lie apart.
        """
        self.dtype_a, self.dtype_b, self.shape = str(a.dtype), str(b.dtype), a.shape
        self._note_types(a, b, scale_a, scale_b)
        self.saturated_a += saturated(a, bits)
        self.saturated_b += saturated(b, bits)
        if not _same_shape(a, b):
            self._count_shapes(batch, a, b)
            return
        b = b.reshape(a.shape)
        unit = _unit(a, b, scale_a, scale_b)
        self.scale = unit
        in_a, in_b = in_units(a, scale_a, unit), in_units(b, scale_b, unit)
        is_equal = _equal(in_a, in_b)
        distance = _distance(in_a, in_b, is_equal)
        if unit is None and a.dtype.kind == "f" and b.dtype.kind == "f" and tolerance:
            finite = np.abs(in_a[np.isfinite(in_a)])
            is_equal |= distance <= tolerance * float(finite.max(initial=0.0))
        self._count(batch, a, b, ~is_equal, distance)

    def _count(self, batch: int, a: Array, b: Array, differs: Array, distance: Array) -> None:
        self.values += a.size
        count = int(np.count_nonzero(differs))
        self.differing += count
        self._sum += float(distance.sum())
        self.largest = max(self.largest, float(distance.max(initial=0.0)))
        if self.scale is not None:
            self.largest_real = self.largest / self.scale
        elif self._is_float:
            self.largest_real = self.largest
        if count and self.first is None:
            index = tuple(int(i) for i in np.unravel_index(int(np.argmax(differs)), differs.shape))
            self.first = DifferingElement(batch, index, a[index].item(), b[index].item())

    def _count_shapes(self, batch: int, a: Array, b: Array) -> None:
        """Count all numbers as differing: in different shapes they cannot be subtracted from each other."""
        self.values += max(a.size, b.size)
        self.differing += max(a.size, b.size, 1)
        self.note(f"shape {times(a.shape)} against {times(b.shape)}")
        if self.first is None:
            self.first = DifferingElement(batch, (), f"shape {times(a.shape)}", f"shape {times(b.shape)}")

    def _note_types(self, a: Array, b: Array, scale_a: float | None, scale_b: float | None) -> None:
        if a.dtype != b.dtype:
            self.note(f"{a.dtype} against {b.dtype}")
        if scale_a is not None and scale_b is not None and scale_a != scale_b:
            self.note(f"scale {scale_a:g} against {scale_b:g}")
        if a.shape != b.shape and _same_shape(a, b):
            self.note(f"shape {times(a.shape)} against {times(b.shape)}")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        said = picked(self, "name other matched op_type dtype_a dtype_b shape scale unit values differing largest mean")
        said |= picked(self, "largest_real first saturated_a saturated_b")
        return {key: finite(value) for key, value in said.items()} | {"notes": list(self.notes)}


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


_COLUMNS = (
    Column("name", "tensor"),
    Column("op_type", "op"),
    Column("values", "values", "{:,}"),
    Column("differing", "differ", "{:,}"),
    Column("largest", "largest", "{:g}"),
    Column("unit", "unit"),
    Column("remarks", "notes"),
)


@dataclass(frozen=True, repr=False)
class FileComparison(Shown):
    """Every pair of tensors, in the order of execution.

    Attributes:
        a: The file that was compared.
        b: The file, or the dumps, that it was compared with.
        rows: A row per pair.
        batches: How many inputs were run.
        only_a: Tensors of a without a partner.
        only_b: Tensors of b without a partner.
        missing_outputs: Outputs without a partner; if there are any, the comparison is not `ok`.
        notes: Further remarks.
    """

    a: str
    b: str
    rows: tuple[TensorDifference, ...]
    batches: int
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    missing_outputs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    _columns = _COLUMNS

    def __repr__(self) -> str:
        verdict = "ok" if self.ok else "not ok"
        differ = f"{self.differing} of {self.values} values differ"
        return f"FileComparison({verdict}, {counted(len(self.rows), 'tensor')}, {differ})"

    def _title(self) -> str:
        return f"{self.a} against {self.b}: {self.summary()}"

    @property
    def first(self) -> FirstDivergence | None:
        """The first divergence in the order of execution."""
        return next((FirstDivergence(row) for row in self.rows if not row.ok), None)

    @property
    def ok(self) -> bool:
        """Whether something was compared, all of it is equal, and every output has a partner."""
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
        total = f"{counted(self.values, 'value')}, {counted(self.batches, 'batch')}."
        if wrong:
            said = [f"{len(wrong)} of {counted(len(self.rows), 'tensor')} differ: {self.differing} of {total}"]
        else:
            said = [
                f"Equal: {counted(len(self.rows), 'tensor')}, {total}"
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
        rest = {key: list(value) for key, value in picked(self, "only_a only_b missing_outputs notes").items()}
        first, rows = None if self.first is None else self.first.tensor, [row.as_dict() for row in self.rows]
        return {**picked(self, "a b ok batches values differing"), "first": first, "rows": rows, **rest}


def in_units(array: Array, scale: float | None, unit: float | None) -> Array:
    """The numbers of a tensor in units of 1/`unit`: integers of that scale are unchanged, real values are multiplied."""
    if array.dtype.kind in "iub":
        is_same = scale is None or unit is None or scale == unit
        return array if is_same else array.astype(np.float64) * (unit / scale)  # type: ignore[operator]  # both known
    wide = array.astype(np.float64) if array.dtype.kind == "f" else array
    return wide if unit is None else wide * unit


def saturated(array: Array, bits: int | None = None) -> int:
    """How many integers are the smallest or the largest of their width; by default the width of their type."""
    if array.dtype.kind != "i" or array.dtype.itemsize > _WIDEST_SATURATING:
        return 0
    largest = 2 ** ((bits or array.dtype.itemsize * 8) - 1) - 1
    return int(np.count_nonzero((array <= -largest - 1) | (array >= largest)))


def _unit(a: Array, b: Array, scale_a: float | None, scale_b: float | None) -> float | None:
    """The scale in which both are compared: an integer tensor's before a float tensor's, then a's before b's."""
    if a.dtype.kind == "f" and b.dtype.kind != "f" and scale_b is not None:
        return scale_b
    return scale_a if scale_a is not None else scale_b


def _equal(a: Array, b: Array) -> Array:
    is_equal = np.asarray(a == b)
    if a.dtype.kind == "f" and b.dtype.kind == "f":
        is_equal |= np.isnan(a) & np.isnan(b)
    return is_equal


def _distance(a: Array, b: Array, is_equal: Array) -> Array:
    """|a − b|; infinite where only one of them is a number."""
    if a.dtype.kind not in "iufb" or b.dtype.kind not in "iufb":
        return np.where(is_equal, 0.0, math.inf)
    with np.errstate(invalid="ignore"):  # ∞ − ∞
        distance = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return np.where(is_equal, 0.0, np.where(np.isnan(distance), math.inf, distance))


def _same_shape(a: Array, b: Array) -> bool:
    """Whether the sizes are equal apart from sizes of 1, which do not move any number."""
    return [n for n in a.shape if n != 1] == [n for n in b.shape if n != 1]


def times(shape: tuple[int, ...]) -> str:
    """Sizes as messages have them."""
    return "x".join(map(str, shape)) or "scalar"
