# SPDX-License-Identifier: Apache-2.0
"""Results as HTML for notebooks: tables and small images, without scripts and style sheets, readable on light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

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
class Strip:
    """A piece of memory in a image: from which step to which it is needed, and where it lies."""

    name: str
    kind: str
    first: int
    last: int
    offset: int
    bytes: int


def table_html(
    title: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    is_text: Sequence[bool] | None = None,
    image: str = "",
    notes: Iterable[str] = (),
) -> str:
    """A title, a image, a table and sentences below it. Every text is escaped; a long table is cut, and the rest counted.

    Args:
        title: Stands above.
        headings: Of the columns.
        rows: Texts, as many in each as there are headings.
        is_text: Which columns are aligned left; None: all.
        image: HTML of a image.
        notes: Sentences below the table.
    """
    content = [list(row) for row in rows]
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
    numbers = [value for _, value in shown]
    low, high = min(*numbers, 0.0), max(*numbers, 0.0)
    span, worst = (high - low) or 1.0, min(numbers) if low_is_bad else max(numbers)
    left, height = 0.42 * _WIDTH, 16 * len(shown)
    parts = []
    for number, (name, value) in enumerate(shown):
        x = left + (min(value, 0.0) - low) / span * (0.36 * _WIDTH)
        width = max(abs(value) / span * (0.36 * _WIDTH), 1.0)
        fill, y = _WORST if value == worst else _BAR, 16 * number
        parts.append(
            f'<text x="{left - 6:.0f}" y="{y + 12}" text-anchor="end" fill="currentColor">{escape(_label(name))}</text>'
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="10" fill="{fill}"/>'
            f'<text x="{x + width + 5:.1f}" y="{y + 12}" fill="currentColor">{value:,.4g} {escape(unit)}</text>'
        )
    return _svg("".join(parts), height)


def strips_html(strips: Sequence[Strip], steps: int, peak: int) -> str:
    """Pieces of memory over time: steps from left to right, addresses from below; of many the largest are drawn."""
    if not strips or steps < 1 or peak < 1:
        return ""
    height = 200.0
    shown = sorted(strips, key=lambda strip: -strip.bytes)[:_MOST_BLOCKS]
    parts = []
    for strip in shown:
        x, right = strip.first / steps * _WIDTH, (strip.last + 1) / steps * _WIDTH
        y, tall = height - (strip.offset + strip.bytes) / peak * height, max(strip.bytes / peak * height, 1.0)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(right - x - 0.5, 0.5):.1f}" height="{tall:.1f}" '
            f'fill="{_FILLS.get(strip.kind, _BAR)}" fill-opacity=".7" stroke="currentColor" stroke-opacity=".4" '
            f'stroke-width=".5"><title>{escape(f"{strip.name}: {strip.bytes:,} bytes")}</title></rect>'
        )
    return _svg("".join(parts), height)


def _svg(content: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" style="max-width:{_WIDTH:.0f}px;width:100%;display:block;margin:6px 0" '
        f'font-size="11" font-family="system-ui,sans-serif" role="img">{content}</svg>'
    )


def _label(name: str) -> str:
    return name if len(name) <= _LONGEST_LABEL else f"…{name[1 - _LONGEST_LABEL :]}"
