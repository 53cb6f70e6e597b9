# SPDX-License-Identifier: Apache-2.0
"""`linger.check`: everything that is wrong with a file, at once.

What a check found, and its forms for people and for programs: JSON and SARIF 2.1.0.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from urllib.parse import quote

import onnx
import onnx_ir as ir

from linger.checks.findings.parameters import input_range_findings, number_findings, scale_findings
from linger.checks.findings.schemas import (
    dequant_findings,
    onnx_verdict,
    propagation_findings,
    qdq_findings,
    saturation_findings,
    schema_findings,
    setting_findings,
    without_weights,
)
from linger.checks.findings.structure import (
    CheckedModel,
    model_finding,
    name_findings,
    open_size_findings,
    size_findings,
    structure_findings,
    tensor_findings,
    usage_findings,
)
from linger.checks.limits.target_findings import TARGET_RULES, target_findings
from linger.errors import GraphError, UsageError, listing
from linger.graph.core.check_rules import (
    BIAS_RANGE,
    BROKEN_TENSOR,
    GENERAL_RULES,
    NOT_CHECKED,
    PARAMETER_RANGE,
    PARAMETER_TYPE,
    CheckRule,
)
from linger.graph.core.nodes import ERROR, NOTE, SEVERITIES, WARNING, Finding
from linger.graph.network import Network, NetworkLike
from linger.records.table import Column, Shown, picked
from linger.targets import Target, find_target
from linger.version import __version__

FORMAT_VERSION = 1
"""Version of the JSON form. Keys may be added; one that is removed or changes its meaning raises it."""

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_FINGERPRINT = "lingerFinding/v1"
"""A hash of rule, node and tensor, so that it stays the same where numbers in the message change."""

RULES: dict[str, CheckRule] = {
    rule.id: rule for rule in sorted((*GENERAL_RULES, *TARGET_RULES), key=lambda rule: rule.id)
}
"""Every rule, by its id."""


_COLUMNS = (
    Column("severity", "severity"),
    Column("rule", "rule"),
    Column("place", "where"),
    Column("reason", "what"),
    Column("remedy", "remedy"),
)


@dataclass(frozen=True, repr=False)
class CheckResult(Shown):
    """Every finding of one file.

    Attributes:
        findings: The worst first, then in the order of the nodes.
        path: The file; None for a model in memory.
        target: The chip that was asked; None for none.
    """

    findings: tuple[Finding, ...]
    path: Path | None = None
    target: str | None = None

    _columns, _rows_name = _COLUMNS, "findings"

    @property
    def errors(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return self._of(ERROR)

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What may go wrong, or is useless."""
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
        """The path for reports that are sent elsewhere: relative, with `/`; only the file's name where it lies outside this folder."""
        return None if self.path is None else relative_location(self.path)

    def counts(self) -> dict[str, int]:
        """How many findings of each severity."""
        return {severity: len(self._of(severity)) for severity in SEVERITIES}

    def summary(self) -> str:
        """The verdict in one sentence."""
        where = "the model" if self.path is None else str(self.path)
        chip = "" if self.target is None else f" for {self.target}"
        listed = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for name, count in self.counts().items())
        return f"{where}{chip}: {listed if self.findings else 'nothing found'}."

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """The findings as (severity, rule, node or tensor, reason, remedy)."""
        return [(f.severity, f.rule, f.place, f.reason, f.remedy) for f in self.findings]

    def to_json(self) -> str:
        """The result as JSON text; the page on `linger.check` describes the keys."""
        return json_report([self])

    def to_sarif(self) -> str:
        """The result as a SARIF 2.1.0 log."""
        return sarif_report([self])


def relative_location(path: PurePath) -> str:
    """A path that reveals nothing about the machine.

    >>> relative_location(PurePath("models/a b.onnx")), relative_location(PurePath("../elsewhere/m.onnx"))
    ('models/a b.onnx', 'm.onnx')
    """
    if path.is_absolute():
        here = Path.cwd()
        path = path.relative_to(here) if path.is_relative_to(here) else PurePath(path.name)
    return path.name if ".." in path.parts else path.as_posix()


def json_report(results: Iterable[CheckResult]) -> str:
    """Several results as one JSON text, the same for the same findings."""
    files = [
        {
            "path": result.location,
            "target": result.target,
            "ok": result.ok,
            "counts": result.counts(),
            "findings": [
                {"rule": f.rule, "name": RULES[f.rule].name, **picked(f, "severity node tensor reason remedy")}
                for f in result.findings
            ],
        }
        for result in results
    ]
    head = {"format": "linger-check", "version": FORMAT_VERSION, "linger": __version__}
    document = {**head, "ok": all(file["ok"] for file in files), "files": files}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def sarif_report(results: Iterable[CheckResult]) -> str:
    """One run with the findings of all files; the same text for the same findings."""
    results = list(results)
    index = {rule: number for number, rule in enumerate(RULES)}
    uris = dict.fromkeys(_uri(result.location) for result in results if result.location is not None)
    names = {"name": "linger", "version": __version__, "semanticVersion": __version__}
    run = {
        "tool": {"driver": {**names, "rules": [_rule(rule) for rule in RULES.values()]}},
        "invocations": [{"executionSuccessful": True}],
        "artifacts": [{"location": {"uri": uri}} for uri in uris],
        "results": [entry for result in results for entry in _entries(result, index)],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False) + "\n"


def _uri(location: str) -> str:
    """A relative URI: special characters are written as %XX, `:` too, which would look like a scheme."""
    return quote(location, safe="/")


def _rule(rule: CheckRule) -> dict[str, object]:
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": f"{rule.summary} {rule.help}"},
        "help": {"text": rule.help},
        "defaultConfiguration": {"level": rule.severity},
    }


def _entries(result: CheckResult, index: dict[str, int]) -> Iterable[dict[str, object]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for finding in result.findings:
        identity = (finding.rule, finding.node, finding.tensor)
        fingerprint = hashlib.sha256("\0".join((*identity, str(counts[identity]))).encode()).hexdigest()
        yield {
            "ruleId": finding.rule,
            "ruleIndex": index[finding.rule],
            "level": finding.severity,
            "message": {"text": str(finding)},
            "locations": [_location(result, finding)],
            "partialFingerprints": {_FINGERPRINT: fingerprint},
        }
        counts[identity] += 1


def _location(result: CheckResult, finding: Finding) -> dict[str, object]:
    location: dict[str, object] = {}
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


def worst(results: Sequence[CheckResult]) -> str | None:
    """The worst severity that was found; None for no finding."""
    return next((severity for severity in SEVERITIES if any(result.counts()[severity] for result in results)), None)


__all__ = ["CheckResult", "check"]


def check(path: NetworkLike, target: str | Target | None = None, *, ignore: Iterable[str] = ()) -> CheckResult:
    """Every finding of a file: schema, structure, types, scales, overflow, Dequants, names, and the limits of a chip.

    Args:
        path: The file, a model in memory, or a `Network`. It is not changed.
        target: What it is for: a chip (`"venus"`, `"arcs"`, `"venusA"`), or `"c"`, `"onnxruntime"`; None asks nothing.
        ignore: Ids or names of rules whose findings are left out.

    Returns:
        All findings, the worst first; `result.ok` where none is an error.

    Raises:
        UsageError: There is no such file, chip or rule.
        GraphError: The file is no complete ONNX model, or nothing can be said of it (endless functions, names that are no
            text, external data outside of its folder).
    """
    chip = target if target is None or isinstance(target, Target) else find_target(target)
    ignored = rule_ids(ignore)
    network = Network.of(path)
    checked = CheckedModel.of(network.listed)
    try:
        light = without_weights(network.proto)  # as the file has it; onnx_ir would change some of it
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        raise GraphError(f"check: the given model cannot be written as a file ({error}). Repair it first.") from error
    findings = tuple(f for f in _ordered(checked, _collected(checked, light, chip)) if f.rule not in ignored)
    return CheckResult(findings, network.path, None if chip is None else chip.name)


def rule_ids(names: Iterable[str]) -> frozenset[str]:
    """The rules that are meant, by their ids or names; a UsageError names all that do not exist."""
    by_name = {rule.name: rule.id for rule in RULES.values()}
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in by_name and name not in RULES]
    if unknown:
        raise UsageError(
            f"ignore: there is no rule {listing(unknown)}. Every finding shows its rule: {RULES_SPAN}, or their names."
        )
    return frozenset(by_name.get(name, name) for name in names)


_ONLY_NUMBERS = frozenset({PARAMETER_TYPE.id, PARAMETER_RANGE.id, BIAS_RANGE.id})
"""Errors that do not keep a chip from judging the rest of the node."""

RULES_SPAN = f"{min(RULES)} … {max(RULES)}"


def _collected(checked: CheckedModel, light: onnx.ModelProto, chip: Target | None) -> Iterator[Finding]:
    broken = list(tensor_findings(checked))
    found = [*schema_findings(checked), *structure_findings(checked), *broken]
    found += number_findings(checked, skip=_unfit(checked, found))
    yield from found
    unfit = _unfit(checked, found)
    wrong = {f.node for f in found if f.severity == ERROR}
    yield from onnx_verdict(light, checked, wrong)
    for find in (usage_findings, open_size_findings, name_findings, size_findings):
        yield from find(checked)
    yield from input_range_findings(checked, skip=unfit)
    yield from scale_findings(checked, for_target=chip is not None and not broken)
    yield from propagation_findings(checked, light)
    yield from dequant_findings(checked)
    yield from qdq_findings(checked, skip=unfit)
    yield from saturation_findings(checked)
    skipped = []
    if wrong:
        skipped.append("whether linger could run every node")
    else:
        yield from setting_findings(light, checked)
    if chip is not None and broken:
        skipped.append(f"the limits of {chip.name}")
    elif chip is not None:
        yield from target_findings(checked.model, chip, skip=unfit)
    if skipped:
        reason = f"because of the errors it was not checked {' nor '.join(skipped)}"
        yield model_finding(NOT_CHECKED, reason, "Repair these and check again.")


def _unfit(checked: CheckedModel, findings: Collection[Finding]) -> frozenset[str]:
    """Nodes, as findings name them, whose attributes, operands or constants cannot be read as those of their op."""
    wrong = {f.node for f in findings if f.severity == ERROR and f.rule not in _ONLY_NUMBERS}
    broken = {f.tensor for f in findings if f.rule == BROKEN_TENSOR.id} - {""}
    for place in checked.places:
        if not broken.isdisjoint(value.name or "" for value in filter(None, place.node.inputs)):
            wrong.add(str(place))
    return frozenset(wrong)


def _ordered(checked: CheckedModel, findings: Iterable[Finding]) -> list[Finding]:
    """The findings without repetitions: the worst first, those of the model before those of its nodes, nodes in their order."""
    last = len(checked.places)
    position = {str(place): last - index for index, place in enumerate(reversed(checked.places), start=1)} | {"": -1}
    return sorted(
        dict.fromkeys(findings), key=lambda f: (SEVERITIES.index(f.severity), position.get(f.node, last), f.rule)
    )
