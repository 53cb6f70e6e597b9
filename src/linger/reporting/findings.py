# SPDX-License-Identifier: Apache-2.0
"""Findings of a check as tables, one for each severity."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from linger.checks.check_result import RULES, CheckResult
from linger.graph.core.finding import SEVERITIES, Finding
from linger.records.rich_table import table

SHOWN = 3
"""Findings of one rule that are shown before the rest is counted."""

_COLUMNS = ("rule", "where", "what", "remedy")


def finding_tables(result: CheckResult, *, shown: int | None = SHOWN) -> Iterator[Table]:
    """A table for each severity: the first `shown` findings of each rule (None: all), and the number of the others."""
    for severity in SEVERITIES:
        found = [f for f in result.findings if f.severity == severity]
        if found:
            title = f"{len(found)} {severity}{'' if len(found) == 1 else 's'}"
            yield table(title, _COLUMNS, _rows(found, shown))


def _rows(found: list[Finding], shown: int | None) -> Iterator[tuple[str, str, str, str]]:
    by_rule: dict[str, list[Finding]] = {}
    for finding in found:
        by_rule.setdefault(finding.rule, []).append(finding)
    for rule, findings in by_rule.items():
        # one finding more takes no more room than the line that counts it
        count = len(findings) if shown is None or len(findings) <= shown + 1 else shown
        for f in findings[:count]:
            yield f"{rule} {RULES[rule].name}", f.node or f.tensor, f.reason, f.remedy
        if count < len(findings):
            yield (
                f"{rule} {RULES[rule].name}",
                f"… {len(findings) - count} more",
                RULES[rule].summary,
                "--all shows them.",
            )
