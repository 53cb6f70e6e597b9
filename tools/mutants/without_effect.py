# SPDX-License-Identifier: Apache-2.0
"""The list of mutations that change nothing that anybody could see, each with its reason: tests/mutants_without_effect.txt.

An entry is a paragraph. Its key is the text of the line, not its number:

    tuning/autotune/steps.py
        if steps >= _LEAST_STEPS:
        - steps >= _LEAST_STEPS
        + steps > _LEAST_STEPS
        The reason, in a sentence or two.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.mutants.mutations import Mutation, mutations_of

Key = tuple[str, str, str, str]


def read(file: Path) -> dict[Key, str]:
    """The reasons, by the keys of mutations."""
    found: dict[Key, str] = {}
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    for paragraph in text.split("\n\n"):
        lines = [line.strip() for line in paragraph.strip().splitlines() if not line.startswith("#")]
        if not lines:
            continue
        if len(lines) < 5 or not lines[2].startswith("- ") or not lines[3].startswith("+ "):
            raise SystemExit(
                f"{file.name}: an entry is a path, a line, '- before', '+ after' and a reason, not:\n{paragraph}"
            )
        path, line, before, after, *reason = lines
        found[path, line, before[2:], after[2:]] = " ".join(reason)
    return found


def stale(reasons: Mapping[Key, str], root: Path) -> list[Key]:
    """Entries that no mutation of the tree has: the line has changed, or is gone."""
    possible: set[Key] = set()
    for path in {key[0] for key in reasons}:
        file = root / path
        if file.exists():
            possible |= {m.key for m in mutations_of(path, file.read_text(encoding="utf-8"))}
    return [key for key in reasons if key not in possible]


def entry(mutation: Mutation, reason: str) -> str:
    """The paragraph of a mutation."""
    lines = (mutation.text, f"- {mutation.before}", f"+ {mutation.after}", reason)
    return "\n".join((mutation.path, *(f"    {line}" for line in lines)))
