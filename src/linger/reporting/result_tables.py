# SPDX-License-Identifier: Apache-2.0
"""A comparison of two files as a rich table, and as a image.

Findings of a check as tables, one for each severity.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from linger.checks.check import RULES, CheckResult
from linger.graph.core.nodes import SEVERITIES, Finding
from linger.records.rich_table import table
from linger.reporting.plots import draw_differences

if TYPE_CHECKING:
    from linger.verification.devices.comparison_result import FileComparison, TensorDifference

SHOWN_ROWS = 20
_COLUMNS = (
    *("tensor", "op", "type", "values", "differ", "largest", "mean", "first at", "a", "b", "real", "scale"),
    *("saturated", "matched by", "notes"),
)
_TEXTS = frozenset({"tensor", "op", "type", "matched by", "notes"})


def comparison_table(result: FileComparison, *, is_whole: bool = False) -> Table:
    """A table of the tensors that differ, the first in the order of execution on top, then the worst; then equal ones.

    A long table is cut. With `is_whole` it has every tensor, in the order of execution. Empty columns are left out.
    """
    rows = list(result.rows) if is_whole else _most_important(result)
    made = Table(title=Text(f"a: {result.a}\nb: {result.b}"), title_justify="left")
    cells = [_cells(row) for row in rows]
    used = _used_columns(cells)
    for column in (_COLUMNS[i] for i in used):
        made.add_column(column, justify="left" if column in _TEXTS else "right")
    for row, texts in zip(rows, cells, strict=True):
        made.add_row(*(Text(texts[i]) for i in used), style="" if row.ok else "red")
    if len(rows) < len(result.rows):
        made.caption = Text(f"… {len(result.rows) - len(rows)} more tensors; --all shows them")
    return made


def _used_columns(cells: Sequence[Sequence[str]]) -> list[int]:
    """The names of the tensors, and every other column with some content."""
    return [0, *(i for i in range(1, len(_COLUMNS)) if any(texts[i] for texts in cells))]


def unmatched_table(result: FileComparison, *, is_whole: bool = False) -> Table | None:
    """The tensors without a partner; None where there are none."""
    names = [("a", name) for name in result.only_a] + [("b", name) for name in result.only_b]
    if not names:
        return None
    shown = names if is_whole else names[:SHOWN_ROWS]
    made = table("without a partner", ("only in", "tensor"), shown)
    if len(shown) < len(names):
        made.caption = Text(f"… {len(names) - len(shown)} more; --all shows them")
    return made


def draw_comparison(result: FileComparison, path: Path) -> None:
    """The largest difference of every tensor along the graph, as a .png or .svg file.

    Raises:
        UsageError: Nothing to draw, matplotlib is missing, or the file is neither .png nor .svg.
    """
    rows = result.rows
    draw_differences(
        [row.name for row in rows],
        [row.largest if row.largest or row.ok else math.inf for row in rows],
        path,
        title=f"{Path(result.a).name} against {Path(result.b).name}: largest difference of each tensor",
        are_real=[row.unit != "LSB" for row in rows],
    )


def _most_important(result: FileComparison) -> list[TensorDifference]:
    first = [] if result.first is None else [result.first.row]
    others = [row for row in result.worst if row not in first]
    equal = [row for row in result.rows if row.ok]
    return [*first, *others, *equal][:SHOWN_ROWS]


def _cells(row: TensorDifference) -> tuple[str, ...]:
    types = row.dtype_a if row.dtype_a == row.dtype_b else f"{row.dtype_a} / {row.dtype_b}"
    first = row.first
    return (
        row.name if row.name == row.other else f"{row.name} / {row.other}",
        row.op_type,
        types,
        str(row.values),
        str(row.differing),
        f"{row.largest:g} {row.unit}",
        f"{row.mean:.3g}" if row.differing else "",
        "" if first is None else f"{first.batch}: {list(first.index)}",
        "" if first is None else _number(first.a),
        "" if first is None else _number(first.b),
        f"{row.largest_real:g}" if row.largest_real else "",
        "" if row.scale is None else f"{row.scale:g}",
        _shares(row),
        "" if row.matched == "name" else row.matched,
        "; ".join(row.notes),
    )


def _number(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _shares(row: TensorDifference) -> str:
    """The saturated share of both sides, once if it is the same."""
    parts = dict.fromkeys(_share(count, row.values) for count in (row.saturated_a, row.saturated_b))
    return " / ".join(parts) if row.saturated_a or row.saturated_b else ""


def _share(count: int, values: int) -> str:
    """A share of all values, in percent.

    >>> _share(0, 10), _share(1, 1000), _share(5, 10)
    ('0%', '0.1%', '50%')
    """
    return f"{100 * count / values:.3g}%" if values else "0%"


SHOWN = 3
"""Findings of one rule that are shown before the rest is counted."""

_FINDING_COLUMNS = ("rule", "where", "what", "remedy")


def finding_tables(result: CheckResult, *, shown: int | None = SHOWN) -> Iterator[Table]:
    """A table for each severity: the first `shown` findings of each rule (None: all), and the number of the others."""
    for severity in SEVERITIES:
        found = [f for f in result.findings if f.severity == severity]
        if found:
            title = f"{len(found)} {severity}{'' if len(found) == 1 else 's'}"
            yield table(title, _FINDING_COLUMNS, _rows(found, shown))


def _rows(found: list[Finding], shown: int | None) -> Iterator[tuple[str, str, str, str]]:
    by_rule: dict[str, list[Finding]] = {}
    for finding in found:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, findings in by_rule.items():
        # one finding more takes no more room than the line that counts it
        count = len(findings) if shown is None or len(findings) <= shown + 1 else shown
        for f in findings[:count]:
            yield f"{rule} {RULES[rule].name}", f.node or f.tensor, f.reason, f.remedy
        if count < len(findings):
            yield (
                f"{rule} {RULES[rule].name}",
                f"… {len(findings) - count} more",
                RULES[rule].summary,
                "--all shows them.",
            )
