# SPDX-License-Identifier: Apache-2.0
"""What the writer of one C function keeps: arrays, places in them, lines of text, tables and helpers that are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from linger.numeric.c.intervals import INT32, hull, literal, size_of, storage_type

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Flat:
    """A place in an array counted from its beginning, for arrays that are walked through in their order."""

    name: str


Index = tuple[str, ...] | Flat
"""One C expression for each axis, or one for all of them."""


@dataclass(frozen=True)
class Buffer:
    """An array of the C function: an input, an output, or scratch that its caller provides."""

    name: str
    ctype: str
    shape: Shape


@dataclass(frozen=True)
class Target:
    """Where a tensor is written: a whole array, or a part of it that begins at `offsets`."""

    buffer: Buffer
    shape: Shape
    offsets: Shape | None = None

    def place(self, index: Index) -> str:
        """The element of the array for an element of the tensor."""
        if isinstance(index, Flat) or self.offsets is None:
            return f"{self.buffer.name}[{position(self.shape, index)}]"
        moved = shifted_index(index, self.offsets)
        return f"{self.buffer.name}[{position(self.shape, moved)}]"


def position(shape: Shape, index: Index) -> str:
    """The place of an element in an array that holds its last axis without gaps.

    >>> position((2, 3, 4), ("i", "0", "j"))
    'i * 12 + j'
    """
    if isinstance(index, Flat):
        return index.name
    parts = []
    for axis, i in enumerate(index):
        step = size_of(shape[axis + 1 :])
        if i != "0":
            parts.append(i if step == 1 else f"{i} * {step}")
    return bare(" + ".join(parts)) if len(parts) == 1 else " + ".join(parts) or "0"


def shifted_index(index: tuple[str, ...], by: Shape) -> tuple[str, ...]:
    """An index with a number added on each axis."""
    return tuple(i if n == 0 else str(n) if i == "0" else f"({i} + {n})" for i, n in zip(index, by, strict=True))


def aligned(index: Index, shape: Shape) -> Index:
    """The index of an operand that broadcasts: its axes are the last ones, those of size 1 are always at 0."""
    if isinstance(index, Flat):
        return index if size_of(shape) != 1 else ("0",) * len(shape)
    tail = index[len(index) - len(shape) :]
    return tuple("0" if n == 1 else i for i, n in zip(tail, shape, strict=True))


def bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


@dataclass
class Tables:
    """Constant arrays of a translation unit; equal ones are kept once."""

    _names: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)

    def name(self, values: Sequence[int]) -> str:
        """The array that holds these numbers, in the smallest type."""
        ctype = storage_type(hull((v, v) for v in values))
        assert ctype is not None  # the writer refuses numbers beyond 64 bits before
        key = (ctype, tuple(values))
        return self._names.setdefault(key, f"linger_table_{len(self._names)}")

    def lines(self, used: frozenset[str]) -> list[str]:
        """The definitions of those that are used."""
        return [
            line
            for (ctype, values), name in self._names.items()
            if name in used
            for line in _definition(name, ctype, values)
        ]


def _definition(name: str, ctype: str, values: tuple[int, ...]) -> list[str]:
    width = ctype if ctype in (INT32, "int64_t") else INT32
    texts = [literal(v, width) for v in values]
    rows, row = [], ""
    for text in texts:
        if len(row) + len(text) > 110:
            rows.append(row)
            row = ""
        row += f" {text},"
    rows.append(row)
    return [f"static const {ctype} {name}[{len(values)}] = {{", *(f"   {r}" for r in rows), "};"]
