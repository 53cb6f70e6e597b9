# SPDX-License-Identifier: Apache-2.0
"""Check results as a SARIF 2.1.0 log, the form that code hosts and editors read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from linger.checks.check_result import RULES, CheckResult
from linger.graph.core.check_rules import CheckRule
from linger.graph.core.finding import Finding
from linger.version import __version__

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINGERPRINT = "lingerFinding/v1"
"""Rule, node and tensor: stays the same where numbers in the message change. A new recipe gets a new name."""


def sarif_report(results: Iterable[CheckResult]) -> str:
    """One run with the findings of all files; the same text for the same findings."""
    results = list(results)
    index = {rule: number for number, rule in enumerate(RULES)}
    run = {
        "tool": {
            "driver": {
                "name": "linger",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(rule) for rule in RULES.values()],
            }
        },
        "invocations": [{"executionSuccessful": True}],
        "artifacts": [{"location": {"uri": uri}} for uri in dict.fromkeys(_uris(results))],
        "results": [entry for result in results for entry in _entries(result, index)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _rule(rule: CheckRule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.help}"},
        "help": {"text": rule.help},
        "defaultConfiguration": {"level": rule.severity},
    }


def _uri(location: str) -> str:
    """A relative reference: every byte that is not plain is written as %XX, `:` too, which would look like a scheme."""
    return quote(location, safe="/")


def _uris(results: Iterable[CheckResult]) -> Iterable[str]:
    return (_uri(result.location) for result in results if result.location is not None)


def _entries(result: CheckResult, index: dict[str, int]) -> Iterable[dict[str, Any]]:
    seen: Counter[tuple[str, str, str]] = Counter()
    for finding in result.findings:
        identity = (finding.rule, finding.node, finding.tensor)
        yield {
            "ruleId": finding.rule,
            "ruleIndex": index[finding.rule],
            "level": finding.severity,
            "message": {"text": str(finding)},
            "locations": [_location(result, finding)],
            "partialFingerprints": {_FINGERPRINT: _fingerprint(*identity, str(seen[identity]))},
        }
        seen[identity] += 1


def _location(result: CheckResult, finding: Finding) -> dict[str, Any]:
    location: dict[str, Any] = {}
    if result.location is not None:
        location["physicalLocation"] = {"artifactLocation": {"uri": _uri(result.location)}}
    places = []
    if finding.node:
        path = finding.node.rpartition(" (")[0]
        places.append({"name": path.rpartition("/")[2] or path, "fullyQualifiedName": path, "kind": "member"})
    if finding.tensor:
        places.append({"name": finding.tensor, "fullyQualifiedName": finding.tensor, "kind": "variable"})
    if places:
        location["logicalLocations"] = places
    return location


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
