# SPDX-License-Identifier: Apache-2.0
"""`linger.check`: everything that is wrong with a file, at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx
import onnx_ir as ir

from linger.checks.check_result import RULES, CheckResult
from linger.checks.findings.node_places import CheckedModel, model_finding
from linger.checks.findings.parameters import number_findings
from linger.checks.findings.scales import (
    dequant_findings,
    input_range_findings,
    propagation_findings,
    qdq_findings,
    saturation_findings,
    scale_findings,
)
from linger.checks.findings.schemas import onnx_verdict, schema_findings, setting_findings, without_weights
from linger.checks.findings.structure import (
    name_findings,
    open_size_findings,
    size_findings,
    structure_findings,
    tensor_findings,
    usage_findings,
)
from linger.checks.limits.target_findings import target_findings
from linger.errors import GraphError, UsageError, listing
from linger.graph.core.check_rules import BIAS_RANGE, BROKEN_TENSOR, NOT_CHECKED, PARAMETER_RANGE, PARAMETER_TYPE
from linger.graph.core.finding import ERROR, SEVERITIES, Finding
from linger.graph.network import Network, NetworkLike
from linger.targets import Target, find_target

__all__ = ["CheckResult", "check"]


def check(path: NetworkLike, target: str | Target | None = None, *, ignore: Iterable[str] = ()) -> CheckResult:
    """Every finding of a file: schema, structure, types, scales, overflow, Dequants, names, and the limits of a chip.

    Args:
        path: The file, a model in memory, or a `Network`. It is not changed.
        target: The chip that it is for (`"venus"`, `"arcs"`, `"venusA"`); None asks no chip.
        ignore: Ids or names of rules whose findings are left out.

    Returns:
        All findings, the worst first; `result.ok` where none is an error.

    Raises:
        UsageError: There is no such file, chip or rule.
        GraphError: The file is no complete ONNX model, or nothing can be said of it (endless functions, names that are no
            text, external data outside of its folder).
    """
    chip = target if target is None or isinstance(target, Target) else find_target(target)
    left_out = rule_ids(ignore)
    network = Network.of(path)
    checked = CheckedModel.of(network.listed)
    light = without_weights(_proto(network))
    found = _ordered(checked, _collected(checked, light, chip))
    kept = tuple(f for f in found if f.rule not in left_out)
    return CheckResult(kept, network.path, None if chip is None else chip.name)


def rule_ids(given: Iterable[str]) -> frozenset[str]:
    """The rules that are meant, by their ids or names.

    Raises:
        UsageError: Rules that do not exist; all of them are named.
    """
    by_name = {rule.name: rule.id for rule in RULES.values()}
    wanted = [given] if isinstance(given, str) else list(given)
    unknown = [name for name in wanted if name not in by_name and name not in RULES]
    if unknown:
        raise UsageError(
            f"ignore: there is no rule {listing(unknown)}. Every finding shows its rule: {RULES_SPAN}, or their names."
        )
    return frozenset(by_name.get(name, name) for name in wanted)


_ONLY_NUMBERS = frozenset({PARAMETER_TYPE.id, PARAMETER_RANGE.id, BIAS_RANGE.id})
"""Errors that do not keep a chip from judging the rest of the node."""

RULES_SPAN = f"{min(RULES)} … {max(RULES)}"


def _proto(network: Network) -> onnx.ModelProto:
    """The content as the file has it; onnx_ir would change some of it."""
    try:
        return network.proto
    except (ir.serde.SerdeError, ValueError, TypeError) as error:
        raise GraphError(f"check: the given model cannot be written as a file ({error}). Repair it first.") from error


def _collected(checked: CheckedModel, light: onnx.ModelProto, chip: Target | None) -> Iterator[Finding]:
    broken = list(tensor_findings(checked))
    found = [*schema_findings(checked), *structure_findings(checked), *broken]
    found += number_findings(checked, skip=_unfit(checked, found))
    yield from found
    unfit = _unfit(checked, found)
    yield from onnx_verdict(light, checked, {f.node for f in found if f.severity == ERROR})
    yield from usage_findings(checked)
    yield from open_size_findings(checked)
    yield from name_findings(checked)
    yield from size_findings(checked)
    yield from input_range_findings(checked, skip=unfit)
    yield from scale_findings(checked, for_target=chip is not None and not broken)
    yield from propagation_findings(checked, light)
    yield from dequant_findings(checked)
    yield from qdq_findings(checked, skip=unfit)
    yield from saturation_findings(checked)
    skipped = []
    if any(f.severity == ERROR for f in found):
        skipped.append("whether linger could run every node")
    else:
        yield from setting_findings(light, checked)
    if chip is not None and broken:
        skipped.append(f"the limits of {chip.name}")
    elif chip is not None:
        yield from target_findings(checked.model, chip, skip=unfit)
    if skipped:
        yield model_finding(
            NOT_CHECKED,
            f"because of the errors it was not checked {' nor '.join(skipped)}",
            "Repair these and check again.",
        )


def _unfit(checked: CheckedModel, found: Iterable[Finding]) -> frozenset[str]:
    """Nodes, as findings name them, whose attributes, operands or constants cannot be read as those of their op."""
    found = list(found)
    wrong = {f.node for f in found if f.severity == ERROR and f.rule not in _ONLY_NUMBERS}
    broken = {f.tensor for f in found if f.rule == BROKEN_TENSOR.id} - {""}
    return frozenset(wrong | (_readers(checked, broken) if broken else set()))


def _readers(checked: CheckedModel, tensors: Collection[str]) -> set[str]:
    """The nodes that read one of these tensors."""
    return {str(place) for place in checked.places if any(v and v.name in tensors for v in place.node.inputs)}


def _ordered(checked: CheckedModel, found: Iterable[Finding]) -> Collection[Finding]:
    """The findings without repetitions: the worst first, those of the model before those of its nodes, nodes in their order."""
    position: dict[str, int] = {"": -1}
    for index, place in enumerate(checked.places):
        position.setdefault(str(place), index)
    last = len(checked.places)
    return sorted(
        dict.fromkeys(found), key=lambda f: (SEVERITIES.index(f.severity), position.get(f.node, last), f.rule)
    )
