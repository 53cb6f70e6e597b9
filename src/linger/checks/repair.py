# SPDX-License-Identifier: Apache-2.0
"""`linger.repair`: put a broken file right, rule after rule, and list every change."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from linger.checks.proto_repair import repair_proto
from linger.checks.repair_rules import RepairRule, choose_rules
from linger.errors import GraphError, VerificationError, listing
from linger.files import write_atomically
from linger.graph.core.nodes import ERROR, Changes, Finding, all_graphs
from linger.graph.files.model_io import ModelLike, external_tensors, load, load_own, save
from linger.graph.formats.propagation import Formats, OutputPolicy
from linger.graph.network import Network, NetworkLike
from linger.graph.passes.declared_types import correct_types
from linger.graph.passes.dequants import rescale_dequant
from linger.graph.passes.well_formed import fix_versions, remove_identity
from linger.records.table import Column, Shown
from linger.targets import find_chip
from linger.version import __version__

if TYPE_CHECKING:
    from linger.verification.proof.result import Verification

_SUFFIX = ".onnx"
_PRODUCER = "linger"
_SEEDS = (0, 1)

_MOST_ROUNDS = 4

_INTEGER_INPUTS = (ir.DataType.INT8, ir.DataType.INT16)
"""Types of quantized inputs; wider integers are indices."""


@dataclass(frozen=True)
class RuleChange:
    """One edit: the rule that made it, the place, and what was done."""

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} [{self.rule}]"


@dataclass(frozen=True, repr=False)
class Repair(Shown):
    """What `linger.repair` did.

    Attributes:
        model: The repaired model.
        path: The file it was written to; None where the model was given in memory.
        changes: Every edit, in order, with its rule.
        findings: What could not be repaired, or is doubtful; nothing was changed there.
        check: The comparison of ONNX Runtime with the numpy reference, where one was asked for.
    """

    model: ir.Model
    path: Path | None
    changes: tuple[RuleChange, ...]
    findings: tuple[Finding, ...]
    check: Verification | None = None

    _columns = (Column("rule", "rule"), Column("where", "where"), Column("what", "what"))
    _rows_name = "changes"

    @property
    def ok(self) -> bool:
        """Whether no error is left."""
        return not any(f.severity == ERROR for f in self.findings)

    def summary(self) -> str:
        """The verdict in a few sentences."""
        text = f"{len(self.changes)} changes" if len(self.changes) != 1 else "1 change"
        text += f", written to {self.path}." if self.path is not None else "."
        errors = [f for f in self.findings if f.severity == ERROR]
        if errors:
            text += f" {len(errors)} left to repair by hand: {listing(map(str, errors))}"
        if self.check is not None:
            text += f" {self.check.summary()}"
        return text

    def _notes(self) -> Iterator[str]:
        return map(str, self.findings)


def repair(
    model_name: NetworkLike,
    is_check: bool = False,  # noqa: FBT001, FBT002 - the documented signature
    *,
    outputs: OutputPolicy | None = "declared",
    rules: Iterable[str] | str | None = None,
    target: str | None = None,
) -> Repair:
    """Repair a file whose Dequants are misplaced or whose graph is broken, and list every change.

    Args:
        model_name: A file, whose repaired copy is written to `<name>_fix.onnx` beside it; or bytes, a ModelProto or an
            onnx_ir model, which is not changed: nothing is written. Of a `Network`, its file is read again, since what it
            could not load is repaired first.
        is_check: Run the result, on generated inputs, in ONNX Runtime and with the numpy reference, before anything is written.
        outputs: Quantized outputs of the model become real numbers where the file does not declare an integer type
            ("declared"), always ("float"), or never ("integer"). None: always, unless an input takes quantized integers, too.
        rules: Names of the rules to apply; None for all that are on by default.
        target: The chip that the file is for: without `rules`, those that mend what its packer gets wrong run, too.

    Raises:
        UsageError: There is no such file, rule or chip.
        GraphError: The content is no model, or cannot be sorted.
        VerificationError: The check found a difference.
    """
    is_for_chip = target is not None and find_chip(target) is not None
    source = model_name.source if isinstance(model_name, Network) else model_name
    with uncollected():
        model, before = load_broken(source)
        if outputs is None:  # real ones, except in a model that was exported with integers at both ends
            has_integers = any(value.dtype in _INTEGER_INPUTS for value in model.graph.inputs)
            outputs = "declared" if has_integers else "float"
        changes, findings = apply_rules(model, outputs=outputs, rules=rules, is_for_chip=is_for_chip)
    verdict = _checked(model) if is_check else None
    path, all_changes = None, (*before, *changes)
    if isinstance(source, (str, os.PathLike)):
        file = Path(source)
        path = file.with_name(f"{file.name.removesuffix(_SUFFIX)}_fix{_SUFFIX}")
        if all_changes or external_tensors(model):
            save(model, path)
        else:
            write_atomically(path, file.read_bytes())  # the same bytes, however another tool ordered them
    return Repair(model, path, all_changes, tuple(findings), verdict)


def fix_dequant(
    model_name: ModelLike,
    is_check: bool = False,  # noqa: FBT001, FBT002 - the documented signature
    *,
    outputs: OutputPolicy | None = None,
    rules: Iterable[str] | str | None = None,
) -> Repair:
    """`repair` under its inherited name; as the documents say, it makes outputs real that the file declares as integers.

    The arguments and errors are those of `repair`. Files with integer inputs, which `is_input_quant` writes, keep their outputs.
    """
    return repair(model_name, is_check, outputs=outputs, rules=rules)


def parser_dequant(onnx_model: ModelLike, is_change_in_out_type: bool) -> onnx.ModelProto | ir.Model:  # noqa: FBT001 - the documented signature
    """Put Dequants where they belong, and return a model of the kind that was given, which is not changed.

    The producer's name then begins with `linger_<version>_`, once.

    Args:
        onnx_model: A ModelProto (or an onnx_ir model, bytes, a path: those give an onnx_ir model).
        is_change_in_out_type: Quantized outputs stay integers, and are declared so; otherwise they become real numbers.

    Raises:
        GraphError: The content is no model, or holds contradictions; all of them are named.
    """
    with uncollected():
        model, _ = load_broken(onnx_model)
        _, findings = apply_rules(model, outputs="integer" if is_change_in_out_type else "float")
    errors = [finding for finding in findings if finding.severity == ERROR]
    if errors:
        raise GraphError(f"parser_dequant: the model contradicts itself: {listing(map(str, errors))}")
    if not (model.producer_name or "").startswith(_PRODUCER):
        model.producer_name = f"{_PRODUCER}_{__version__}_{model.producer_name or ''}".rstrip("_")
    return ir.to_proto(model) if isinstance(onnx_model, onnx.ModelProto) else model


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch the garbage collector off for a while; afterwards, also after an error, it is as it was.

    A graph is a web of references that the collector would walk again and again: a third of the time of a large repair.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def load_broken(source: ModelLike) -> tuple[ir.Model, list[RuleChange]]:
    """A model that may be changed, and the repairs that had to be made before it could be read as a graph without loss.

    There may be no such file (UsageError), or its content is no model, or cannot be repaired (GraphError).
    """
    if isinstance(source, ir.Model):
        return load_own(source), []
    changes: list[RuleChange] = []

    def prepare(proto: onnx.ModelProto) -> bool:
        changes.extend(_named("repair_proto", repair_proto(proto)))
        return bool(changes)

    return load(source, prepare=prepare), changes


def apply_rules(
    model: ir.Model,
    *,
    outputs: OutputPolicy = "declared",
    rules: Iterable[str] | str | None = None,
    is_for_chip: bool = False,
) -> tuple[list[RuleChange], list[Finding]]:
    """Run rules (None: those that are on by default, or for a chip) on a model, in place, until none of them finds anything.

    Returns:
        What was changed, and what could not be repaired.

    Raises:
        UsageError: Names of no rule.
        GraphError: Nodes depend on each other in a circle.
    """
    chosen, run = choose_rules(rules, is_for_chip=is_for_chip), _Run(model, outputs)
    changes = run.apply(chosen)
    if not run.facts.found.is_settled or _may_find_more(chosen, model, changes):
        changes += _settle(chosen, run)
    # completed types may show more wrong declarations, and corrected ones may give every rule new work
    late = run.apply(rule for rule in chosen if rule.apply is correct_types)
    if late:
        changes += [*late, *_settle(chosen, run)]
    findings = list(run.facts.found.findings)
    if any(change.rule == "complete_types" for change in changes):  # newer types need a newer version of the format
        changes += run.apply(rule for rule in chosen if rule.apply is fix_versions)
    return changes, [*findings, *_findings(chosen, model)]


def _findings(rules: Iterable[RepairRule], model: ir.Model) -> list[Finding]:
    """What the rules see and leave as it is."""
    return [finding for rule in rules if rule.find is not None for finding in rule.find(model)]


def _may_find_more(chosen: Iterable[RepairRule], model: ir.Model, changes: Iterable[RuleChange]) -> bool:
    """Whether rules made work for others that have run already."""
    names = {change.rule for change in changes}
    active = [rule for rule in chosen if rule.name in names]
    has_moved = any(rule.moves_dequants for rule in active)
    has_identity = has_moved and any(n.op_type == "Identity" for place in all_graphs(model) for n in place.graph)
    return has_identity or any(rule.joins_tensors for rule in active)


class _Run:
    """Applies rules to a model, one after the other; what is known of the model is found again only after a change."""

    def __init__(self, model: ir.Model, outputs: OutputPolicy) -> None:
        self._model, self._outputs = model, outputs
        self.facts = Formats(model, outputs)

    def apply(self, rules: Iterable[RepairRule]) -> list[RuleChange]:
        """Run some rules; returns what they changed."""
        return [change for rule in rules for change in _named(rule.name, self._apply(rule))]

    def _apply(self, rule: RepairRule) -> Changes:
        changes = rule.apply(self._model, facts=self.facts) if rule.reads_facts else rule.apply(self._model)
        if changes:
            is_rescaled = rule.apply is rescale_dequant
            self.facts = self.facts.after_rescaling() if is_rescaled else Formats(self._model, self._outputs)
        return changes


def _settle(chosen: Iterable[RepairRule], run: _Run) -> list[RuleChange]:
    """Run the rules again until they find nothing: what one of them repairs may be work for another."""
    first = [rule for rule in chosen if rule.moves_dequants or rule.apply is remove_identity]
    others = [rule for rule in chosen if rule not in first]
    changes: list[RuleChange] = []
    for _ in range(_MOST_ROUNDS):
        more = [*run.apply(first), *run.apply(others)]
        changes += more
        if not more:
            break
    return changes


def _named(rule: str, changes: Changes) -> list[RuleChange]:
    return [RuleChange(rule, change.where, change.what) for change in changes]


def _checked(model: ir.Model) -> Verification:
    # a runtime is started only where one is asked for
    from linger.runtime.session import Session
    from linger.verification.feeds import generated_feeds
    from linger.verification.proof import causes
    from linger.verification.proof.comparison import verify_file
    from linger.verification.recording import Recording

    network = Network(model, is_checked=True)
    session = Session(network, as_written=True)
    recordings = [Recording(inputs=list(generated_feeds(session, seed).values())) for seed in _SEEDS]
    result = verify_file(network, recordings, explainer=causes)
    if result.differing or result.output_differences:
        raise VerificationError(f"the repaired model: {result.summary()} Nothing was written.")
    return result
