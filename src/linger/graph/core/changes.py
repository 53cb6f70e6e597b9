# SPDX-License-Identifier: Apache-2.0
"""The list of changes that a pass made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple


class Change(NamedTuple):
    """One edit: where and what."""

    where: str
    what: str


@dataclass
class Changes:
    """Edits in the order they were made; empty means that nothing changed."""

    entries: list[Change] = field(default_factory=list)

    def note(self, where: str, what: str) -> None:
        """Add one edit."""
        self.entries.append(Change(where, what))

    def rows(self) -> list[tuple[str, str]]:
        """The edits as (where, what)."""
        return [(c.where, c.what) for c in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.entries)
