# SPDX-License-Identifier: Apache-2.0
"""Pieces of Markdown for the pages that are made."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

MADE = "<!-- made by tools/site; edit what it is made from -->"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty without rows."""
    lines = [[cell(text) for text in row] for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *lines))


def cell(text: str) -> str:
    """A text on one line, in which no sign ends the cell; code is safe from that."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part.startswith("`") else re.sub(r"\\?\|", r"\\|", part) for part in parts)


def code(text: object) -> str:
    """A text as code."""
    shown = str(text)
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def plain(text: str) -> str:
    """A sentence of the source as Markdown: signs that would become markup outside of code stay what they are."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", html.escape(text, quote=False))


def formula(text: str) -> str:
    """A formula on a line of its own."""
    return f'<p class="formula"><code>{html.escape(text, quote=False)}</code></p>'


def page(*parts: str) -> str:
    """A page of its parts, those that are empty left out."""
    return "\n\n".join([*(part for part in parts if part), MADE]) + "\n"


def section(heading: str, *parts: str) -> str:
    """A section; empty if nothing stands in it."""
    kept = [part for part in parts if part]
    return "\n\n".join([heading, *kept]) if kept else ""


def bullets(items: Iterable[str]) -> str:
    """A list."""
    return "\n".join(f"- {item}" for item in items)
