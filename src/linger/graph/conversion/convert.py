# SPDX-License-Identifier: Apache-2.0
"""Convert a model from one dialect to the other: domain `thinker` (Int and iq names), domain `linger` (Q names)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import onnx_ir as ir

from linger.dialect import DOMAIN_VERSION
from linger.errors import GraphError, UnsupportedError, UsageError, listing
from linger.graph.conversion.node_rewriter import NodeRewriter, NoEquivalent, Plan
from linger.graph.conversion.plans import plan_newer, plan_older
from linger.graph.core.dialects import DIALECTS, NEWER, NEWER_VERSION, OLDER, is_node_of, scope_nodes, user_scopes
from linger.graph.core.nodes import ERROR, WARNING, Changes, Finding, Names, describe, is_dialect_domain
from linger.graph.files.model_io import ModelLike, load_own, save
from linger.graph.formats.propagation import propagate

_VERSIONS = {OLDER: DOMAIN_VERSION, NEWER: NEWER_VERSION}
_PLANNERS: Mapping[str, Callable[[ir.Node, NodeRewriter], Plan]] = {OLDER: plan_older, NEWER: plan_newer}


@dataclass(frozen=True, repr=False)
class Conversion:
    """A converted model, with every change and what could not be converted.

    Attributes:
        model: The converted model.
        changes: Every node that was rewritten.
        findings: Errors are nodes that could not be converted; warnings are remarks on nodes that were.
        path: The file that was written, if one was.
    """

    model: ir.Model
    changes: Changes
    findings: tuple[Finding, ...]
    path: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether every node was converted."""
        return not any(finding.severity == ERROR for finding in self.findings)

    def summary(self) -> str:
        """The result in one sentence."""
        left = sum(finding.severity == ERROR for finding in self.findings)
        return f"{len(self.changes)} nodes converted, {left} left as they are."

    def __repr__(self) -> str:
        return f"Conversion({self.summary()})"


def convert_dialect(
    model: ModelLike, to: str, *, path: str | os.PathLike[str] | None = None, partial: bool = False
) -> Conversion:
    """Turn a file of the domain `linger` (QConv2d, QAdd, …) into one of `thinker` (Conv2dInt, iqAdd, …), or back.

    Names of tensors, inputs and outputs stay. A file with nodes of both comes out with one kind. Nodes that are of the
    wanted dialect already, and nodes of standard ONNX, stay as they are.

    Args:
        model: A path, bytes, a ModelProto or an onnx_ir model; it is not changed.
        to: "thinker" or "linger".
        path: Write the result to this file; None: write nothing.
        partial: Leave nodes without an equivalent as they are and list them, instead of refusing the model.

    Returns:
        The new model, with what was changed and what was found.

    Raises:
        UsageError: There is no such file or dialect.
        GraphError: The content is not a complete ONNX model.
        UnsupportedError: Nodes have no equivalent; all of them are named.
    """
    if to not in DIALECTS:
        raise UsageError(f"convert_dialect: there is no dialect {to!r}. Choose {' or '.join(map(repr, DIALECTS))}.")
    own = load_own(model)
    changes, findings = convert_nodes(own, to, partial=partial)
    if path is not None:
        save(own, path)
    return Conversion(own, changes, findings, None if path is None else Path(path))


def convert_nodes(model: ir.Model, to: str, *, partial: bool = False) -> tuple[Changes, tuple[Finding, ...]]:
    """Convert in place; a model with nodes that have no equivalent is refused, unless `partial`, and stays unchanged."""
    source = NEWER if to == OLDER else OLDER
    plans, findings = _plan_nodes(model, source, to)
    obstacles = [finding for finding in findings if finding.severity == ERROR]
    if obstacles and not partial:
        raise UnsupportedError(
            f"{len(obstacles)} of {len(plans) + len(obstacles)} nodes cannot be written in the domain {to!r}: "
            f"{listing(map(str, obstacles))}"
        )
    changes = Changes()
    for node, plan in plans:
        where = describe(node)
        plan.edit()
        changes.note(where, plan.what)
    if plans:
        _tidy(model, source, to)
    return changes, tuple(sorted(findings, key=lambda finding: finding.severity != ERROR))


def _plan_nodes(model: ir.Model, source: str, to: str) -> tuple[list[tuple[ir.Node, Plan]], list[Finding]]:
    """Return a plan for every node that can be converted, and the findings; change nothing."""
    nodes = {scope: list(scope_nodes(model, scope)) for scope in user_scopes(model)}
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in chain.from_iterable(nodes.values()):
        values += filter(None, (*node.inputs, *node.outputs))
    names, widths = Names(value.name for value in values if value.name), _widths(model, to)
    plans: list[tuple[ir.Node, Plan]] = []
    findings: list[Finding] = []
    for scope, own in nodes.items():
        rewriter = NodeRewriter(model, scope, names, widths)
        for node in own:
            if is_node_of(node, source, model):
                try:
                    plans.append((node, _PLANNERS[to](node, rewriter)))
                except NoEquivalent as obstacle:
                    findings.append(Finding(ERROR, describe(node), obstacle.reason, obstacle.remedy))
    findings += [Finding(WARNING, describe(node), *doubt) for node, plan in plans for doubt in plan.doubts]
    return plans, findings


def _widths(model: ir.Model, to: str) -> dict[ir.Value, int]:
    """The widths of quantized tensors, also in branches and loops, for nodes that state them; empty for an unsorted model."""
    try:
        facts = propagate(model).facts if to == NEWER else {}
    except GraphError:
        return {}
    return {value: fact.bits for value, fact in facts.items() if fact.is_quantized and fact.bits is not None}


def _tidy(model: ir.Model, source: str, to: str) -> None:
    """Import the domains in use; remove domains and bodies of dialect ops that are no longer used."""
    called = {scope: {node.op_identifier() for node in scope_nodes(model, scope)} for scope in user_scopes(model)}
    if source == OLDER:
        _drop_bodies(model, set().union(*called.values()))
    standard = model.graph.opset_imports.get("")
    versions = {to: _VERSIONS[to]} | ({} if standard is None else {"": standard})
    called[None] |= model.functions.keys()  # the model imports the domains of the functions it calls
    for scope, identifiers in called.items():
        used = {domain for domain, *_ in identifiers}
        _update_imports((model.graph if scope is None else scope).opset_imports, used, versions)


def _drop_bodies(model: ir.Model, called: set[ir.OperatorIdentifier]) -> None:
    """Remove the functions of dialect nodes that nothing calls any more."""
    for identifier in [i for i in model.functions if is_dialect_domain(i[0]) and i not in called]:
        del model.functions[identifier]


def _update_imports(imports: dict[str, int], used: set[str], versions: Mapping[str, int]) -> None:
    """Drop domains of either dialect that are not used, add those that are."""
    for domain in [d for d in imports if d not in used and (is_dialect_domain(d) or d == NEWER)]:
        del imports[domain]
    for domain in versions.keys() & used:
        imports.setdefault(domain, versions[domain])
