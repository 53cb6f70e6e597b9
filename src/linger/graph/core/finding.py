# SPDX-License-Identifier: Apache-2.0
"""What a check finds in a model, and what a pass changes in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""It is wrong; it may go wrong, depending on the data; it is worth knowing, or could not be checked."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a model, may go wrong, or could not be checked.

    Attributes:
        severity: "error", "warning" or "note".
        node: Name and type of the node; empty for the model as a whole.
        reason: What is wrong, and what the limit is.
        remedy: What to do about it.
        rule: Id of the rule that was broken (`linger.graph.core.check_rules`); empty for a finding without a rule.
        tensor: The tensor that it is about; empty where it is about the node.
    """

    severity: str
    node: str
    reason: str
    remedy: str
    rule: str = ""
    tensor: str = ""

    @property
    def place(self) -> str:
        """The node, else the tensor."""
        return self.node or self.tensor

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.reason}. {self.remedy}"


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
