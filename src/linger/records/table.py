# SPDX-License-Identifier: Apache-2.0
"""Results as JSON, CSV, plain text, HTML and a rich table, and the base of those that have a table."""

from __future__ import annotations

import csv
import io
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from linger.files import write_atomically
from linger.records.html import table_html

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

NOTHING = "-"
"""Shown where a row has no value."""


class Row(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


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

    @property
    def is_text(self) -> bool:
        """Whether the field is shown as it is."""
        return self.form == "{}"


def to_json(facts: Mapping[str, Any], rows: Iterable[Row], path: str | Path | None) -> str:
    """Facts and rows (dataclasses) as JSON text, also written to `path` if one is given.

    JSON has no infinity: it is the text "inf" or "-inf", which Python's float() reads.
    """
    content = {**facts, "rows": list(rows)}
    return written(json.dumps(finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)


def to_csv(row_type: type[Row], rows: Iterable[Row], path: str | Path | None) -> str:
    """Rows as CSV text with every field, also written to `path` if one is given. What is None is left empty."""
    return dicts_to_csv(list(row_type.__dataclass_fields__), (asdict(row) for row in rows), path)


def dicts_to_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]], path: str | Path | None) -> str:
    """Dictionaries as CSV text, also written to `path` if one is given."""
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return written(file.getvalue(), path)


def to_text(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """An aligned table in plain text, without a line break at its end."""
    cells = [[column.show(row) for column in columns] for row in rows]
    return aligned([column.heading for column in columns], cells, [column.is_text for column in columns])


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

    return NarrowTable(
        title,
        [column.heading for column in columns],
        [[column.show(row) for column in columns] for row in rows],
        [column.is_text for column in columns],
    )


def to_html(
    title: str, columns: Sequence[Column], rows: Iterable[Any], *, image: str = "", notes: Iterable[str] = ()
) -> str:
    """The rows as an HTML table for a notebook, with a image above and sentences below."""
    return table_html(
        title,
        [column.heading for column in columns],
        [[column.show(row) for column in columns] for row in rows],
        is_text=[column.is_text for column in columns],
        image=image,
        notes=notes,
    )


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
    return [finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def picked(source: object, *names: str) -> dict[str, Any]:
    """Attributes by name, and what methods return, for JSON; a text may hold several names."""
    found = {name: getattr(source, name) for text in names for name in text.split()}
    return {name: value() if isinstance(value, MethodType) else value for name, value in found.items()}


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
        """HTML of a image above the table."""
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

    _row_type: type[Row]
    _fact_names: Sequence[str] = ()
    """Attributes that JSON has beside the rows; empty: every field but the rows."""

    def _facts(self) -> dict[str, Any]:
        own = self.__dataclass_fields__  # type: ignore[attr-defined]  # a dataclass
        names = self._fact_names or [name for name in own if name != self._rows_name]
        return picked(self, *names)

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; infinity is "inf"."""
        return to_json(self._facts(), self._rows(), path)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The rows as CSV text, also written to `path` if one is given."""
        return to_csv(self._row_type, self._rows(), path)

    def __str__(self) -> str:
        return "\n".join([self._title(), to_text(self._shown_columns(), self._rows()), *self._notes()])
