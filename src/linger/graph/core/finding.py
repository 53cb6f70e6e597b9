# SPDX-License-Identifier: Apache-2.0
"""A finding: one problem that a check reports about a node or a model."""

from __future__ import annotations

from dataclasses import dataclass

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
