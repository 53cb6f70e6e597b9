# SPDX-License-Identifier: Apache-2.0
"""Results as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from linger.verification.proof.result import TensorRow, Verification


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table of plain values; numbers to the right."""
    made = Table(title=Text(title), title_justify="left")
    content = [list(row) for row in rows]
    for i, column in enumerate(columns):
        is_number = all(isinstance(row[i], (int, float)) for row in content)
        made.add_column(column, justify="right" if is_number and content else "left", overflow="fold")
    for row in content:
        made.add_row(*(Text(str(cell)) for cell in row))  # plain: a name may look like markup
    return made


def verification_table(
    result: Verification, title: str | None = None, rows: Sequence[TensorRow] | None = None
) -> Table:
    """The tensors of a verification, or those that are given; the title is the summary unless another is given."""
    chosen = result.rows if rows is None else rows
    content = [(r.name, r.dtype, r.values, r.distinct, r.saturated, r.differing) for r in chosen]
    heading = result.summary() if title is None else title
    return table(heading, ("tensor", "type", "values", "distinct", "saturated", "differ"), content)
