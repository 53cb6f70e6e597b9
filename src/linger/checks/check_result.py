# SPDX-License-Identifier: Apache-2.0
"""What a check found, and its forms for people and for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from linger.checks.limits.target_rules import TARGET_RULES
from linger.graph.core.check_rules import GENERAL_RULES, CheckRule
from linger.graph.core.finding import ERROR, NOTE, SEVERITIES, WARNING, Finding
from linger.version import __version__

FORMAT_VERSION = 1
"""Version of the JSON form. Keys may be added; one that is removed or changes its meaning raises it."""

RULES: dict[str, CheckRule] = {
    rule.id: rule for rule in sorted((*GENERAL_RULES, *TARGET_RULES.values()), key=lambda rule: rule.id)
}
"""Every rule, by its id."""


@dataclass(frozen=True)
class CheckResult:
    """Every finding of one file.

    Attributes:
        findings: The worst first, then in the order of the nodes.
        path: The file; None for a model in memory.
        target: The chip that was asked; None for none.
    """

    findings: tuple[Finding, ...]
    path: Path | None = None
    target: str | None = None

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return self._of(ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What may go wrong, or is of no use."""
        return self._of(WARNING)

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing, or could not be checked."""
        return self._of(NOTE)

    def _of(self, severity: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.severity == severity)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    @property
    def location(self) -> str | None:
        """The file for reports that travel: relative, with `/`; only its name where it lies outside of this folder."""
        return None if self.path is None else relative_location(self.path)

    def counts(self) -> dict[str, int]:
        """How many findings of each severity."""
        found = Counter(f.severity for f in self.findings)
        return {severity: found[severity] for severity in SEVERITIES}

    def summary(self) -> str:
        """The verdict in one sentence."""
        where = "the model" if self.path is None else str(self.path)
        chip = "" if self.target is None else f" for {self.target}"
        if not self.findings:
            return f"{where}{chip}: nothing found."
        listed = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in self.counts().items())
        return f"{where}{chip}: {listed}."

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The findings as (severity, rule, node or tensor, reason, remedy)."""
        return [(f.severity, f.rule, f.node or f.tensor, f.reason, f.remedy) for f in self.findings]

    def to_json(self) -> str:
        """The result as JSON text; the page on `linger.check` describes the keys."""
        return json_report([self])

    def to_sarif(self) -> str:
        """The result as a SARIF 2.1.0 log."""
        from linger.checks.sarif import sarif_report

        return sarif_report([self])


def relative_location(path: PurePath) -> str:
    """A path that tells nothing of the machine.

    >>> relative_location(PurePath("models/a b.onnx")), relative_location(PurePath("../elsewhere/m.onnx"))
    ('models/a b.onnx', 'm.onnx')
    """
    if path.is_absolute():
        here = Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else PurePath(path.name)
    return path.name if ".." in path.parts else path.as_posix()


def json_report(results: Iterable[CheckResult]) -> str:
    """Several results as one JSON text, the same for the same findings."""
    files = [_file(result) for result in results]
    document = {
        "format": "linger-check",
        "version": FORMAT_VERSION,
        "linger": __version__,
        "ok": all(file["ok"] for file in files),
        "files": files,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _file(result: CheckResult) -> dict[str, Any]:
    return {
        "path": result.location,
        "target": result.target,
        "ok": result.ok,
        "counts": result.counts(),
        "findings": [_finding(f) for f in result.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "name": RULES[finding.rule].name,
        "severity": finding.severity,
        "node": finding.node,
        "tensor": finding.tensor,
        "reason": finding.reason,
        "remedy": finding.remedy,
    }


def worst(results: Sequence[CheckResult]) -> str | None:
    """The worst severity that was found; None for no finding."""
    found = {f.severity for result in results for f in result.findings}
    return next((severity for severity in SEVERITIES if severity in found), None)
