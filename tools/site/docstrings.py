# SPDX-License-Identifier: Apache-2.0
"""A docstring in Google's style as data: its text, and its sections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_SECTIONS = ("Args", "Attributes", "Raises", "Returns", "Yields")
_HEADER = re.compile(rf"^({'|'.join(_SECTIONS)}):$")
_ENTRY = re.compile(r"^(?P<name>\*{0,2}[\w.]+(?:, \*{0,2}\w+)*): (?P<said>.*)$")


@dataclass(frozen=True)
class Docstring:
    """A docstring's parts.

    Attributes:
        text: What stands before the first section, paragraphs and all.
        entries: By section: names with what is said of each, one line each.
        said: By section: its whole text, one line.
    """

    text: str
    entries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


def read(text: str) -> Docstring:
    """The parts of a docstring whose indentation is removed (`inspect.getdoc`)."""
    before: list[str] = []
    sections: dict[str, list[str]] = {}
    here: list[str] | None = None
    for line in text.splitlines():
        header = _HEADER.match(line)
        if header is not None:
            here = sections.setdefault(header[1], [])
        elif here is not None and line and not line.startswith(" "):
            here = None  # text again, after a section
        if here is None:
            before.append(line)
        elif header is None:
            here.append(line)
    return Docstring(
        "\n".join(before).strip(),
        {name: _entries(lines) for name, lines in sections.items()},
        {name: " ".join(" ".join(lines).split()) for name, lines in sections.items()},
    )


def _entries(lines: list[str]) -> dict[str, str]:
    """Names and what is said of them; deeper lines go on."""
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    found: dict[str, str] = {}
    name = ""
    for line in lines:
        entry = _ENTRY.match(line[depth:])
        if entry is not None:
            name = entry["name"]
            found[name] = entry["said"]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
