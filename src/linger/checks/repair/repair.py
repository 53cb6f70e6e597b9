# SPDX-License-Identifier: Apache-2.0
"""Mend a model: rules one after the other, each with the list of what it changed."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir

from linger.checks.repair.proto_repair import repair_proto
from linger.checks.repair.rules import Rule, choose_rules
from linger.graph.core.changes import Changes
from linger.graph.core.finding import Finding
from linger.graph.core.walking import all_graphs
from linger.graph.facts.propagation import OutputPolicy, propagate
from linger.graph.files.model_io import ModelLike, load, load_own
from linger.graph.passes.declared_types import correct_types
from linger.graph.passes.dequants import insert_dequant

_MOST_ROUNDS = 4
_MOVING = frozenset({"remove_dequant", "rescale_dequant", "insert_dequant"})
"""Rules that change what others of them see."""

_JOINING = frozenset({"cancel_dq_q", "fill_float_islands", "merge_duplicates", "merge_initializers"})
"""Rules after which a tensor may have two Dequants again."""

_UNTANGLING = frozenset({"remove_identity"})
"""Rules that find more to do where outputs have got Dequants of their own."""


@dataclass(frozen=True)
class RuleChange:
    """One edit: which rule made it, where and what."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.rule}]"


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the garbage collector for a while: a graph is a web of references, which it would walk again and again.

    That is a third of the time of a large repair. Python then works as before, also after an error.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load_broken(source: ModelLike) -> tuple[ir.Model, list[RuleChange]]:
    """A model of its own, to be mended: what reading it as a graph would lose is mended before.

    Raises:
        UsageError: There is no such file.
        GraphError: The content is no model, or contradicts itself in a way that cannot be mended.
    """
    if isinstance(source, ir.Model):
        return load_own(source), []
    found: list[Changes] = []
    model = load(source, prepare=lambda proto: found.append(repair_proto(proto)))
    return model, [change for changes in found for change in _named("repair_proto", changes)]


def repair(
    model: ir.Model, *, outputs: OutputPolicy = "declared", rules: Iterable[str] | str | None = None
) -> tuple[list[RuleChange], list[Finding]]:
    """Run the rules on a model, in place.

    Args:
        model: The model.
        outputs: As for `propagate`.
        rules: Names of the rules to run; None for all that are on by default.

    Returns:
        What was changed, and what could not be mended.

    Raises:
        UsageError: Names of no rule.
        GraphError: Nodes depend on each other in a circle.
    """
    chosen = choose_rules(rules)
    findings: list[Finding] = []
    changes = _run(chosen, model, outputs)
    found = propagate(model, outputs=outputs)
    if not found.is_settled or _may_find_more(model, changes):
        changes += _settle(chosen, model, outputs)
        found = propagate(model, outputs=outputs)
    if any(rule.apply is correct_types for rule in chosen):  # types that were completed may tell more
        late = _named("correct_types", correct_types(model, found))
        if late:  # and so may types that were corrected
            changes += [*late, *_settle(chosen, model, outputs)]
            found = propagate(model, outputs=outputs)
    if any(change.rule == "complete_types" for change in changes):  # newer types need a newer version of the format
        changes += _run([rule for rule in chosen if rule.name == "fix_versions"], model, outputs)
    for rule in chosen:
        findings += rule.find(model) if rule.find is not None else ()
    return changes, [*found.findings, *findings]


def _may_find_more(model: ir.Model, changes: Iterable[RuleChange]) -> bool:
    """Whether rules made work for others that have run already."""
    made = {change.rule for change in changes}
    if made & _JOINING:
        return True
    return bool(made & _MOVING) and any(n.op_type == "Identity" for place in all_graphs(model) for n in place.graph)


def _settle(chosen: Iterable[Rule], model: ir.Model, outputs: OutputPolicy) -> list[RuleChange]:
    """Run rules again until they find nothing: what one of them mends may be work for another."""
    first = [rule for rule in chosen if rule.name in _MOVING | _UNTANGLING]
    others = [rule for rule in chosen if rule not in first]
    changes: list[RuleChange] = []
    for _ in range(_MOST_ROUNDS):
        made = [*_run(first, model, outputs), *_run(others, model, outputs)]
        if not made:
            break
        changes += made
    return changes


def _run(rules: Iterable[Rule], model: ir.Model, outputs: OutputPolicy) -> list[RuleChange]:
    return [change for rule in rules for change in _named(rule.name, _apply(rule, model, outputs))]


def _apply(rule: Rule, model: ir.Model, outputs: OutputPolicy) -> Changes:
    return insert_dequant(model, outputs) if rule.apply is insert_dequant else rule.apply(model)


def _named(rule: str, changes: Changes) -> list[RuleChange]:
    return [RuleChange(rule, change.where, change.what) for change in changes]
