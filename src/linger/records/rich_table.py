# SPDX-License-Identifier: Apache-2.0
"""Rich tables: of plain values, and one that shows every name whole, on a narrow terminal each row under its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_SENTENCE = 24
"""A last column of text may be broken into lines of this width."""


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table of plain values; numbers to the right."""
    result = Table(title=Text(title), title_justify="left")
    content = [list(row) for row in rows]
    for i, column in enumerate(columns):
        is_number = all(isinstance(row[i], (int, float)) for row in content)
        result.add_column(column, justify="right" if is_number and content else "left", overflow="fold")
    for row in content:
        result.add_row(*(Text(str(cell)) for cell in row))  # plain: a name may look like markup
    return result


class NarrowTable(Table):
    """A table of plain texts; the first column is the name of its row."""

    def __init__(
        self,
        title: str,
        headings: Sequence[str],
        rows: Sequence[Sequence[str]],
        is_text: Sequence[bool],
        styles: Sequence[str] | None = None,
    ) -> None:
        super().__init__(title=Text(title), title_justify="left")
        self._headings, self._cells = list(headings), [list(row) for row in rows]
        ends_in_text = len(headings) > 1 and is_text[-1]
        for name, is_words in zip(headings, is_text, strict=True):
            self.add_column(name, justify="left" if is_words else "right", no_wrap=True, overflow="fold")
        self.columns[-1].no_wrap = not ends_in_text
        self._styles = [""] * len(self._cells) if styles is None else list(styles)
        for row, style in zip(self._cells, self._styles, strict=True):
            self.add_row(*map(Text, row), style=style)  # plain: a name may look like markup
        longest = [max(map(len, column)) for column in zip(self._headings, *self._cells, strict=True)]
        if ends_in_text:
            longest[-1] = min(longest[-1], _SENTENCE)
        self._needed = sum(longest) + 3 * len(longest) + 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, or the rows one after the other."""
        if self._needed <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        yield Text(str(self.title), style="bold")
        for (name, *values), style in zip(self._cells, self._styles, strict=True):
            yield Text(name, style=style, overflow="fold")
            shown = [f"{heading} {value}" for heading, value in zip(self._headings[1:], values, strict=True) if value]
            yield Padding(Text(", ".join(shown), overflow="fold"), (0, 0, 0, 4))
