# SPDX-License-Identifier: Apache-2.0
"""Results as JSON, CSV, plain text, HTML and a rich table, and the base of those that have a table.

HTML is for notebooks: tables and small images, without scripts and style sheets, readable on light and dark.
"""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from html import escape
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

from linger.files import write_atomically

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NOTHING = "-"
"""Shown where a row has no value."""

_MOST_ROWS = 200
_MOST_BARS = 60
_MOST_BLOCKS = 400
_LONGEST_LABEL = 48
_BAR, _WORST = "#4c8dc7", "#d9694f"
_FILLS = {"input": "#d99a2b", "tensor": "#4c8dc7", "output": "#4fa35a", "scratch": "#a274a2"}
_LINE = "1px solid rgba(128,128,128,.4)"
_CELL = f"padding:2px 10px;border-bottom:{_LINE};color:inherit;background:transparent"
_WIDTH = 640.0


@dataclass(frozen=True)
class Column:
    """One field of a row: its heading, and the format that it is shown in. Numbers are aligned right."""

    name: str
    heading: str
    form: str = "{}"

    def show(self, row: object) -> str:
        """The field of this row as text."""
        value = getattr(row, self.name)
        return NOTHING if value is None else self.form.format(value)


def to_json(facts: Mapping[str, Any], rows: Iterable[Any], path: str | Path | None) -> str:
    """Facts and rows (dataclasses) as JSON text, also written to a path; infinity, which JSON has not, is the text "inf"."""
    content = {**facts, "rows": list(rows)}
    return written(json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)


def to_csv(row_type: type[Any], rows: Iterable[Any], path: str | Path | None) -> str:
    """Rows as CSV text with every field, also written to `path` if one is given. What is None is left empty."""
    return dicts_to_csv([field.name for field in fields(row_type)], (asdict(row) for row in rows), path)


def dicts_to_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], path: str | Path | None) -> str:
    """Dictionaries as CSV text, also written to `path` if one is given."""
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written(file.getvalue(), path)


def _cells(columns: Sequence[Column], rows: Iterable[Any]) -> tuple[list[str], list[list[str]], list[bool]]:
    """The headings, the texts of each row, and which columns are texts."""
    cells = [[column.show(row) for column in columns] for row in rows]
    return [column.heading for column in columns], cells, [column.form == "{}" for column in columns]


def to_text(columns: Sequence[Column], rows: Iterable[Any]) -> str:
    """An aligned table in plain text, without a line break at its end."""
    return aligned(*_cells(columns, rows))


def aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], is_text: Sequence[bool] | None = None) -> str:
    """Texts in columns as wide as they need; numbers to the right where it is said which columns are texts."""
    lines = [headings, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    sides = [str.ljust if is_left else str.rjust for is_left in is_text or [True] * len(headings)]
    filled = ([side(text, width) for side, text, width in zip(sides, line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in filled)


def to_rich(title: str, columns: Sequence[Column], rows: Iterable[Any]) -> Table:
    """The rows as a rich table; on a terminal too narrow for it, each row under its own name, so that nothing is cut off."""
    from linger.records.rich_table import NarrowTable  # a library that draws is loaded when something is drawn

    return NarrowTable(title, *_cells(columns, rows))


def to_html(
    title: str, columns: Sequence[Column], rows: Iterable[Any], *, image: str = "", notes: Iterable[str] = ()
) -> str:
    """The rows as an HTML table for a notebook, with an image above and sentences below."""
    headings, cells, is_text = _cells(columns, rows)
    return table_html(title, headings, cells, is_text=is_text, image=image, notes=notes)


def written(text: str, path: str | Path | None) -> str:
    """The text, after it was written to a file, all or nothing, if one is given."""
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text


def finite(value: object) -> object:
    """A value as plain data for JSON, which has neither infinities nor NaN: they are texts, which Python's float() reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: finite(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    return list(map(finite, value)) if isinstance(value, (list, tuple)) else value


def picked(source: object, *names: str) -> dict[str, Any]:
    """Attributes by name, and what methods return, for JSON; a text may hold several names."""
    values = {name: getattr(source, name) for text in names for name in text.split()}
    return {name: value() if isinstance(value, MethodType) else value for name, value in values.items()}


def table_html(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    is_text: Sequence[bool] | None = None,
    image: str = "",
    notes: Iterable[str] = (),
) -> str:
    """A title, an image (HTML), a table and sentences below it. Every text is escaped; a long table is cut, the rest counted.

    Columns of text (`is_text`; None: all) are aligned left.
    """
    content = list(rows)
    sides = ["left" if is_left else "right" for is_left in (is_text or [True] * len(headings))]
    head = "".join(_cell("th", text, side) for text, side in zip(headings, sides, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', text, side) for text, side in zip(row, sides, strict=True))}</tr>"
        for row in content[:_MOST_ROWS]
    )
    below = [*([f"… and {len(content) - _MOST_ROWS} more rows"] if len(content) > _MOST_ROWS else []), *notes]
    lines = "".join(f'<div style="white-space:pre-wrap">{escape(line)}</div>' for line in below)
    table = (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;color:inherit;font-size:inherit;font-variant-numeric:tabular-nums">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
    heading = f'<div style="margin:4px 0;white-space:pre-wrap"><b>{escape(title)}</b></div>'
    return f'<div style="font-size:13px">{heading}{image}{table if content else ""}{lines}</div>'


def _cell(tag: str, text: str, side: str) -> str:
    return f'<{tag} style="{_CELL};text-align:{side}">{escape(text)}</{tag}>'


def bars_html(names: Sequence[str], values: Sequence[float | None], unit: str, *, low_is_bad: bool = True) -> str:
    """A bar for every row, the worst in another color; what has no finite value is left out, and of many the first are drawn."""
    pairs = zip(names, values, strict=True)
    shown = [(name, value) for name, value in pairs if value is not None and math.isfinite(value)][:_MOST_BARS]
    if len(shown) < 2:
        return ""
    _, numbers = zip(*shown, strict=True)
    low, high = min(*numbers, 0.0), max(*numbers, 0.0)
    span, worst = (high - low) or 1.0, min(numbers) if low_is_bad else max(numbers)
    left, height = 0.42 * _WIDTH, 16 * len(shown)
    parts = []
    for number, (name, value) in enumerate(shown):
        x = left + (min(value, 0.0) - low) / span * (0.36 * _WIDTH)
        width = max(abs(value) / span * (0.36 * _WIDTH), 1.0)
        fill, y = _WORST if value == worst else _BAR, 16 * number
        label = name if len(name) <= _LONGEST_LABEL else f"…{name[1 - _LONGEST_LABEL :]}"
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + 12}" text-anchor="end" fill="currentColor">{escape(label)}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="10" fill="{fill}"/>'
            f'<text x="{x + width + 5:.1f}" y="{y + 12}" fill="currentColor">{value:,.4g} {escape(unit)}</text>'
        )
    return _svg("".join(parts), height)


def blocks_html(blocks: Sequence[Any], steps: int, peak: int) -> str:
    """Blocks of memory over time: steps from left to right, addresses from below; of many the largest are drawn.

    A block has a name, a kind, the first and the last step that need it, an offset and a number of bytes.
    """
    if not blocks or steps < 1 or peak < 1:
        return ""
    height = 200.0
    parts = []
    for block in sorted(blocks, key=lambda block: -block.bytes)[:_MOST_BLOCKS]:
        x, right = block.first / steps * _WIDTH, (block.last + 1) / steps * _WIDTH
        y, tall = height - (block.offset + block.bytes) / peak * height, max(block.bytes / peak * height, 1.0)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(right - x - 0.5, 0.5):.1f}" height="{tall:.1f}" '
            f'fill="{_FILLS.get(block.kind, _BAR)}" fill-opacity=".7" stroke="currentColor" stroke-opacity=".4" '
            f'stroke-width=".5"><title>{escape(f"{block.name}: {block.bytes:,} bytes")}</title></rect>'
        )
    return _svg("".join(parts), height)


def _svg(content: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" style="max-width:{_WIDTH:.0f}px;width:100%;display:block;margin:6px 0" '
        f'font-size="11" font-family="system-ui,sans-serif" role="img">{content}</svg>'
    )


class Shown(ABC):
    """A result with a table for notebooks and terminals: a dataclass that says what its columns and rows are."""

    _columns: Sequence[Column] = ()
    _rows_name = "rows"
    """The field that holds the rows."""

    @abstractmethod
    def summary(self) -> str:
        """The result in a sentence."""

    def _rows(self) -> Sequence[Any]:
        rows: Sequence[Any] = getattr(self, self._rows_name)
        return rows

    def _shown_columns(self) -> Sequence[Column]:
        """The columns of the table; a result leaves out those that would be empty."""
        return self._columns

    def _title(self) -> str:
        return self.summary()

    def _image(self) -> str:
        """HTML of an image above the table."""
        return ""

    def _notes(self) -> Iterable[str]:
        """Sentences below the table."""
        return ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def _repr_html_(self) -> str:
        return to_html(self._title(), self._shown_columns(), self._rows(), image=self._image(), notes=self._notes())

    def __rich__(self) -> RenderableType:
        return to_rich(self._title(), self._shown_columns(), self._rows())


class Summed(Shown):
    """A result whose sentence stands below the table."""

    def _notes(self) -> Iterable[str]:
        return (self.summary(),)

    def __str__(self) -> str:
        return "\n".join([to_text(self._shown_columns(), self._rows()), self.summary()])

    def __rich__(self) -> RenderableType:
        from rich.console import Group  # a library that draws is loaded when something is drawn
        from rich.text import Text

        return Group(to_rich(self._title(), self._shown_columns(), self._rows()), Text(self.summary()))


class Result(Shown):
    """A result as text, JSON and CSV, too."""

    _row_type: type[Any]
    _fact_names: Sequence[str] = ()
    """Attributes that JSON has beside the rows; empty: every field but the rows."""

    def _facts(self) -> dict[str, Any]:
        own = fields(self)  # type: ignore[arg-type]  # a dataclass
        names = self._fact_names or [field.name for field in own if field.name != self._rows_name]
        return picked(self, *names)

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; infinity is "inf"."""
        return to_json(self._facts(), self._rows(), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to `path` if one is given."""
        return to_csv(self._row_type, self._rows(), path)

    def __str__(self) -> str:
        return "\n".join([self._title(), to_text(self._shown_columns(), self._rows()), *self._notes()])
