# SPDX-License-Identifier: Apache-2.0
"""The result of an analysis: a row per tensor, as the documented log, as JSON, CSV and a table. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from linger.analysis.magnitudes import Magnitudes
from linger.files import write_atomically
from linger.records.table import dicts_to_csv, table_html, written

if TYPE_CHECKING:
    from rich.table import Table

ABNORMAL_VERSU = 10.0
"""Max/Dynamic above this marks an abnormal tensor."""

SHORT_HEADER = ("Layer_name", "Mean", "Max", "Multiple", "Dynamic 0.99", "Versu")
LONG_HEADER = ("Layer_name", "Mean", "Max", "Multiple(Max/Mean)", "Dynamic 0.99", "Versu(Max/Dynamic)")

ALARM = "!" * 14
"""The text of every cell in the row below an abnormal one."""

_LARGE, _SMALL = 1e8, 1e-4
"""Beyond these a number is written with an exponent."""


@dataclass(frozen=True)
class Row:
    """Statistics of one tensor's magnitudes.

    Attributes:
        name: The key in the checkpoint, or `root.` and the layer's path.
        mean: Mean magnitude.
        max: Largest magnitude.
        multiple: max/mean.
        dynamic: The magnitude that 99 % of the values do not exceed.
        versu: max/dynamic.
        count: How many finite values there are.
        shape: Sizes, `64×3×7×7`.
        dtype: Element type.
        call: Which call of the layer in a forward pass, from 0.
        note: Anything unusual: NaN, infinities, all zero, empty, values that could not be read.
    """

    name: str
    mean: float
    max: float
    multiple: float
    dynamic: float
    versu: float
    count: int
    shape: str = ""
    dtype: str = ""
    call: int = 0
    note: str = ""
    is_abnormal: bool = False

    @classmethod
    def of(cls, name: str, magnitudes: Magnitudes, *, shape: str, dtype: str, call: int = 0, note: str = "") -> Row:
        """The row of a measured tensor."""
        m = magnitudes
        if m.count == 1:  # as documented: the value itself, which may be an integer that no float32 holds
            m = replace(m, mean=m.maximum)
        missing = " and ".join(f"{n} {what}" for n, what in ((m.nans, "NaN"), (m.infinities, "infinite")) if n)
        notes = [note, f"{missing}, left out of the statistics" if missing else ""]
        if m.count:
            notes.append("all zero" if m.maximum == 0 else "")
        elif not note:
            notes.append("no finite values" if missing else "empty")
        is_abnormal = m.versu > ABNORMAL_VERSU or bool(missing)
        numbers = (m.mean, m.maximum, m.multiple, m.dynamic, m.versu, m.count)
        return cls(name, *numbers, shape, dtype, call, "; ".join(filter(None, notes)), is_abnormal)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers in the order of the log's columns."""
        return (self.mean, self.max, self.multiple, self.dynamic, self.versu)

    def cells(self) -> list[str]:
        """The row of the log; an empty tensor has no numbers."""
        return [self.name, *(cell(n) if self.count else "-" for n in self.numbers)]


def _notes(rows: tuple[Row, ...]) -> tuple[str, ...]:
    return tuple(f"{row.name}: {row.note}" for row in rows if row.note)


@dataclass(frozen=True)
class Analysis:
    """The rows of an analysis, in the order of the checkpoint or of the calls."""

    rows: tuple[Row, ...]
    header: tuple[str, ...] = SHORT_HEADER
    title: str = "magnitudes"
    folded: tuple[Row, ...] = ()
    """Weights with batch norms folded in, which the names of a checkpoint give: `conv1.weight with bn1`."""

    @property
    def abnormal(self) -> tuple[Row, ...]:
        """Rows whose Versu exceeds 10, or that hold NaN or infinities."""
        return tuple(row for row in self.rows if row.is_abnormal)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the rows, a sentence per tensor."""
        return _notes((*self.rows, *self.folded))

    def to_log(self) -> str:
        """The documented table and the notes below it; then the same of the folded weights if there are any."""
        heading = "Folded, as they will be quantized:\n"
        return self._table(self.rows) + (f"{heading}{self._table(self.folded)}" if self.folded else "")

    def _table(self, rows: tuple[Row, ...]) -> str:
        alarm = [ALARM] * len(self.header)
        lines = [line for row in rows for line in ([row.cells(), alarm] if row.is_abnormal else [row.cells()])]
        return table_text(self.header, lines) + "".join(f"{note}\n" for note in _notes(rows))

    def save_log(self, path: str | Path) -> None:
        """Write the documented table, all or nothing."""
        write_atomically(Path(path), self.to_log().encode())

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary per row; numbers that are not finite are None."""
        return [{key: _plain(value) for key, value in asdict(row).items()} for row in self.rows]

    def to_json(self, path: str | Path | None = None) -> str:
        """The rows as JSON text, also written to `path` if one is given. What is not finite is null."""
        return written(json.dumps(self.to_dicts(), indent=2, ensure_ascii=False) + "\n", path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to `path` if one is given. What is not finite is left empty."""
        return dicts_to_csv(list(Row.__dataclass_fields__), self.to_dicts(), path)

    def __repr__(self) -> str:
        return f"Analysis({len(self.rows)} tensors, {len(self.abnormal)} abnormal)"

    def __str__(self) -> str:
        return self.to_log()

    @property
    def _headings(self) -> tuple[tuple[str, ...], list[bool]]:
        """The headings of the table, and which columns are text."""
        headings = (*self.header, "note")
        return headings, [heading in (headings[0], headings[-1]) for heading in headings]

    def _repr_html_(self) -> str:
        headings, is_text = self._headings
        return table_html(self.title, headings, map(_shown, (*self.rows, *self.folded)), is_text=is_text)

    def __rich__(self) -> Table:
        from linger.records.rich_table import NarrowTable  # a library that draws is loaded when something is drawn

        headings, is_text = self._headings
        rows = (*self.rows, *self.folded)
        styles = ["bold red" if row.is_abnormal else "" for row in rows]
        return NarrowTable(self.title, headings, [_shown(row) for row in rows], is_text, styles)


def _shown(row: Row) -> tuple[str, ...]:
    numbers = (f"{n:.4g}" if isinstance(n, float) else str(n) for n in row.numbers)
    return (row.name, *(n if row.count else "-" for n in numbers), row.note)


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def cell(value: float) -> str:
    """A number as torch prints a scalar tensor, whatever the process's print options are.

    >>> cell(0.80931), cell(1.0), cell(6185962), cell(1.5e-5)
    ('tensor(0.8093)', 'tensor(1.)', 'tensor(6185962)', 'tensor(1.5000e-05)')
    """
    if isinstance(value, int) or not math.isfinite(value):
        text = str(value)
    elif value != 0 and not _SMALL <= abs(value) <= _LARGE:
        text = f"{value:.4e}"
    else:
        text = f"{value:.0f}." if value == int(value) else f"{value:.4f}"
    return f"tensor({text})"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Centered columns between borders of + and -."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    top, *lines = (
        "|" + "|".join(f" {text.center(width)} " for text, width in zip(row, widths, strict=True)) + "|"
        for row in (header, *rows)
    )
    return "\n".join([border, top, border, *lines, border]) + "\n"
