# SPDX-License-Identifier: Apache-2.0
"""Find everything in a model that a chip does not take, or computes otherwise. The model is not changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import onnx_ir as ir

from linger.checks.findings.structure import places_of
from linger.checks.limits import op_status, packing, products, whole_file, windows
from linger.checks.limits.limit import Limit, Site
from linger.checks.memory_use import memory_use
from linger.dialect import ops
from linger.errors import UsageError
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.check_rules import CheckRule
from linger.graph.core.dialects import NEWER, NEWER_OPS, OLDER, has_nodes_of, is_newer
from linger.graph.core.nodes import ERROR, SEVERITIES, Finding
from linger.graph.files.model_io import copied
from linger.graph.lowering.bodies import Tensors, declared_tensors, known_tensors
from linger.graph.passes.constants import fix_shapes
from linger.records.reading import read_with_problems
from linger.targets import COMPARE, Target

TABLES: dict[str, type] = {
    "windows": windows.WindowLimits,
    "products": products.ProductLimits,
    "operands": products.OperandLimits,
    "packing": packing.PackingLimits,
    "memory": whole_file.MemoryLimits,
}
"""The tables of a chip's file, and what each becomes."""

LIMITS: tuple[Limit, ...] = tuple(
    sorted(
        (
            found
            for module in (op_status, windows, products, packing)
            for found in vars(module).values()
            if isinstance(found, Limit)
        ),
        key=lambda found: (found.op_types is not None, found.rule.id),
    )
)
"""Every limit of those modules: first those that ask every node."""

TARGET_RULES: tuple[CheckRule, ...] = (
    *(whole_file.MODEL, whole_file.PLATFORM, whole_file.DIALECT, whole_file.BATCH, whole_file.PLAIN_NODE),
    *(whole_file.OPTION, whole_file.SHARED, whole_file.MEMORY, whole_file.PRODUCT_MEMORY, whole_file.SCRATCH),
    *(found.rule for found in LIMITS),
)
"""The rule of each limit."""


def target_findings(model: ir.Model, target: Target, *, skip: Collection[str] = ()) -> tuple[Finding, ...]:
    """The findings of a chip about a model, the worst first, in the order of the nodes.

    Sizes come from shape inference through the bodies of the dialect's ops. A limit that depends on an open size gives a
    finding of the severity "note". Nodes of the domain `linger` are judged as the older ops that the packer takes them
    for. The model is not changed.

    Args:
        model: The model.
        target: The chip.
        skip: Nodes, as findings name them, that are not asked: their attributes or operands are not those of their op.

    Raises:
        UsageError: The chip's file has values that no limit reads, lacks some, or has some of another type.
    """
    tables = tables_of(target)
    found = [*whole_file.name_findings(model, target), *whole_file.plain_node_findings(model, target)]
    if has_nodes_of(model, NEWER):
        found += _unpacked_names(model, target)
        model = copied(model)
        convert_nodes(model, OLDER, partial=True)
    if not skip:
        model = copied(model)
        fix_shapes(model)  # the packer computes shapes that do not depend on an open size
    tensors = declared_tensors(model) if skip else known_tensors(model)
    found += _findings_of_the_whole(model, target, tables, tensors, is_sound=not skip)
    known = ops()
    for place in places_of(model.graph):
        if str(place) in skip:
            continue
        site = Site(place.node, tensors.shapes, tensors.types, target, tables)
        if site.is_foreign:
            found.append(replace(op_status.foreign(site), node=str(place)))
            continue
        op = known.get(site.op_type)
        named = () if op is None else op.chip_limits
        for limit in LIMITS:
            if limit.concerns(site.op_type, named):
                found += (replace(f, rule=limit.rule.id, node=str(place)) for f in limit.check(site))
    return tuple(sorted(_once_per_op(found), key=lambda f: SEVERITIES.index(f.severity)))


def _once_per_op(found: Iterable[Finding]) -> Iterator[Finding]:
    """Findings without those that say the same of another node of an op that nobody has compared."""
    said: set[str] = set()
    for finding in found:
        if finding.rule != op_status.check_compared.rule.id:
            yield finding
        elif finding.reason not in said:
            said.add(finding.reason)
            yield finding


def _findings_of_the_whole(
    model: ir.Model, target: Target, tables: Mapping[type, object], tensors: Tensors, *, is_sound: bool
) -> Iterator[Finding]:
    """Findings that concern no single node; those about memory only where the nodes are sound."""
    packing_limits, memory_limits = tables[packing.PackingLimits], tables[whole_file.MemoryLimits]
    assert isinstance(packing_limits, packing.PackingLimits)
    assert isinstance(memory_limits, whole_file.MemoryLimits)
    yield from whole_file.model_findings(model, target, packing_limits.model_bytes)
    yield from whole_file.batch_findings(model, target, memory_limits.batch_option, tensors.shapes)
    if is_sound:
        use = whole_file.with_scratch(memory_use(model, tensors), model, tensors.shapes, memory_limits)
        yield from whole_file.memory_findings(use, target, memory_limits)
        yield from whole_file.scratch_findings(model, target, tensors.shapes, memory_limits)
    yield from whole_file.sharing_findings(model, target, memory_limits.command)
    yield from whole_file.option_findings(model, target, memory_limits.command, memory_limits.op_options)


def tables_of(target: Target) -> dict[type, object]:
    """The tables of a chip's file, each by the type that it became.

    Raises:
        UsageError: Values that no limit reads, that are missing, or of another type; all of them are named.
    """
    problems = [f"there is no table [{name}]" for name in target.limits if name not in TABLES]
    found: dict[type, object] = {}
    for name, kind in TABLES.items():
        wrong, found[kind] = read_with_problems(kind, target.limits.get(name, {}), place=f"[{name}]")
        problems += wrong
    if problems:
        raise UsageError(f"the chip file of {target.name}: {'; '.join(problems)}. {COMPARE}")
    return found


def _unpacked_names(model: ir.Model, target: Target) -> list[Finding]:
    """Names of the newer dialect that the packer does not know, although it knows an op that computes the same."""
    found = []
    for place in places_of(model.graph):
        op = NEWER_OPS.get(place.node.op_type) if is_newer(place.node) else None
        if op is not None and not op.is_packed and op.older is not None and target.takes(op.older):
            reason = f"{target.name}'s packer does not know the name {op.name}"
            remedy = f"linger.convert_dialect(model, to={OLDER!r}) writes it as {op.older}."
            found.append(Finding(ERROR, str(place), reason, remedy, op_status.check_known.rule.id))
    return found
