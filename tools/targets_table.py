# SPDX-License-Identifier: Apache-2.0
"""Write the tables of docs/targets.md from the chips' files: what came of each op, and every number of each limit.

    python tools/targets_table.py

The tables stand between two marks in the page; a test fails when they are older than the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from linger.dialect import ops
from linger.targets import CHIPS, FLOAT, Status, Target

REPOSITORY = Path(__file__).resolve().parent.parent
PAGE = REPOSITORY / "docs" / "targets.md"
SHARED = REPOSITORY / "src" / "linger" / "targets" / "packer.toml"
BEGIN, END = "<!-- begin: made by tools/targets_table.py -->", "<!-- end -->"
SIGNS = {Status.EXACT: "**exact**", Status.DIFFERS: "differs", Status.REFUSED: "refused", Status.UNTRIED: "not tried"}
_OP_LISTS = ("ops", "exact_ops", "differing_ops", "refused_ops", "unpacked_ops")


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def op_rows() -> list[list[str]]:
    """One row for each op that linger writes or a packer lists: what each chip made of it."""
    listed = {name for target in CHIPS.values() for key in _OP_LISTS for name in getattr(target, key)}
    names = sorted(listed | set(ops()), key=lambda name: (name.startswith(FLOAT), name.lower()))
    return [[f"`{name}`", *(SIGNS[_status(target, name)] for target in CHIPS.values())] for name in names]


def _status(target: Target, name: str) -> Status:
    return target.status_of(name.removeprefix(FLOAT), is_float=name.startswith(FLOAT))


def meanings() -> Iterator[tuple[str, str, str]]:
    """Table, key and meaning of every value, as the comments of the shared file have them."""
    section = ""
    for line in SHARED.read_text(encoding="utf-8").splitlines():
        if heading := re.match(r"\[(\w+)\]", line):
            section = heading[1]
        elif section and (given := re.match(r"(\w+) = .*?\s#\s*(.*)$", line) or re.match(r"#\s*(\w+): (.*)$", line)):
            yield section, given[1], given[2]
        elif section and (plain := re.match(r"(\w+) = ", line)):
            yield section, plain[1], ""


def limit_rows() -> list[list[str]]:
    """One row for each number of a limit, with its meaning and its value on each chip."""
    rows = []
    for section, key, meaning in meanings():
        values = [_shown(target.limits[section].get(key)) for target in CHIPS.values()]
        rows.append([f"`{section}.{key}`", meaning.replace("|", r"\|"), *values])
    return rows


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ("; " if any(isinstance(entry, list) for entry in value) else ", ").join(map(_shown, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_shown(entry)}" for key, entry in value.items()) or "–"
    return str(value)


def tables() -> str:
    """Both tables, as they stand in the page."""
    chips = list(CHIPS)
    return "\n\n".join(
        [
            BEGIN,
            table(["op", *chips], op_rows()),
            "Every number of a limit, and where it comes from (– is not asked):",
            table(["value", "meaning", *chips], limit_rows()),
            END,
        ]
    )


def page(text: str) -> str:
    """The page with today's tables."""
    before, rest = text.split(BEGIN)
    return before + tables() + rest.split(END)[1]


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
