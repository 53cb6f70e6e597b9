# SPDX-License-Identifier: Apache-2.0
"""The documented log: a bordered table whose cells look like torch's scalars."""

from __future__ import annotations

import math
from collections.abc import Sequence

ALARM = "!" * 14
"""Every cell of the row under an abnormal one."""

_LARGE, _SMALL = 1e8, 1e-4
"""Beyond these a number is written with an exponent."""


def cell(value: float) -> str:
    """A number as torch prints a scalar tensor, whatever the process's print options are.

    >>> cell(0.80931), cell(1.0), cell(6185962), cell(1.5e-5)
    ('tensor(0.8093)', 'tensor(1.)', 'tensor(6185962)', 'tensor(1.5000e-05)')
    """
    return f"tensor({_number(value)})"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    is_plain = size == 0 or _SMALL <= size <= _LARGE
    if value == int(value):
        return f"{value:.0f}." if is_plain else f"{value:.4e}"
    return f"{value:.4f}" if is_plain else f"{value:.4e}"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Centred columns between borders of + and -."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [_line(row, widths) for row in rows]
    return "\n".join([border, _line(header, widths), border, *lines, border]) + "\n"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "|" + "|".join(f" {_centred(text, width)} " for text, width in zip(row, widths, strict=True)) + "|"


def _centred(text: str, width: int) -> str:
    """Where the space is odd, the larger half goes right of a text of odd length and left of an even one."""
    space = width - len(text)
    left = space // 2 + (space % 2 if len(text) % 2 == 0 else 0)
    return " " * left + text + " " * (space - left)
