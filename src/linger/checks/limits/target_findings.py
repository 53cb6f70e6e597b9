# SPDX-License-Identifier: Apache-2.0
"""Find everything in a model that a chip does not take, or computes otherwise. The model is not changed.

What a packer asks of a file as a whole (the chip that it names, its dialect, its batch, its size), and what is known of single
ops: whether the packer takes them, and whether the engine gives linger's integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from linger.checks.findings.structure import places_of
from linger.checks.limits import products, windows
from linger.checks.limits.limit import KB, QUANTIZE_FOR, Limit, Site, limit
from linger.checks.memory_use import (
    MEMORY,
    PRODUCT_MEMORY,
    SCRATCH,
    UNSHARED_OPTION,
    MemoryLimits,
    memory_findings,
    memory_use,
    open_batch_option,
    scratch_findings,
    sharing_nodes,
    with_scratch,
)
from linger.dialect import Op, extensions_of, ops
from linger.errors import UsageError, counted, listing, printable
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.check_rules import NO_EXACT_FORM, CheckRule, limit_rule
from linger.graph.core.dialects import NEWER, NEWER_OPS, OLDER, has_nodes_of, is_newer, is_quantizing
from linger.graph.core.nodes import (
    ERROR,
    NOTE,
    SEVERITIES,
    WARNING,
    Finding,
    all_nodes,
    describe,
    is_dialect,
    platform_of,
)
from linger.graph.files.model_io import copied
from linger.graph.lowering.bodies import Shape, Tensors, declared_tensors, known_tensors
from linger.graph.passes.constants import fix_shapes
from linger.records.reading import read_with_problems
from linger.targets import COMPARE, DEFAULT_TARGET, FLOAT, Status, Target, chips_with

_ONE_BLOCK = "the packer copies weight and bias of a node as one block, so the engine reads other numbers"
_ONE_SAMPLE = "Export with one sample (args of the shape [1, …]), and join no samples along the first axis."


MODEL = limit_rule(901, "model", "The model has constants and fits into the chip's memory.")
PLATFORM = limit_rule(903, "platform", "The file names the chip, and no other.")
DIALECT = limit_rule(908, "dialect", "The file is of a dialect that the chip's packer reads.")
BATCH = limit_rule(909, "batch", "The batch has one sample.")
PLAIN_NODE = limit_rule(910, "plain-node", "Standard nodes name no chip.")
OPTION = limit_rule(954, "option", "The packer needs no option for an op.", WARNING)
SHARED = limit_rule(955, "own-parameters", "Every node has a weight and a bias of its own.")


def _model_findings(model: ir.Model, target: Target, model_bytes: int) -> Iterator[Finding]:
    """The model as a whole: not empty of constants, not too large."""
    graph = model.graph
    if not graph.initializers and all(n.op_type != "Constant" for n in all_nodes(model)):
        reason = "the graph holds no constants, and the packer refuses such a graph"
        yield Finding(ERROR, "", reason, "Add a layer with weights.", MODEL.id)
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    size = sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING)  # words have no fixed width
    if size > model_bytes:
        room = f"{target.name} has room for {model_bytes} ({model_bytes // KB // KB} MB)"
        remedy = (
            "Use fewer or narrower parameters; kernels and groups that an export fills up with zeros count in full."
        )
        yield Finding(ERROR, "", f"the parameters have {size} bytes; {room}", remedy, MODEL.id)


def _name_findings(model: ir.Model, target: Target) -> Iterator[Finding]:
    """The chip that the file is for, by the names in its nodes, and the dialect that they are of."""
    nodes = [node for node in all_nodes(model) if is_quantizing(node)]
    has_newer = any(map(is_newer, nodes))
    yield from _platform_findings(nodes, target)
    nameless = [describe(n) for n in nodes if platform_of(n) == target.name and "quant_mode" not in n.attributes]
    if nameless and not has_newer and not target.is_default:
        reason = f"{target.name}'s packer asks for quant_mode, which {len(nameless)} nodes lack: {listing(nameless)}"
        yield Finding(ERROR, "", reason, QUANTIZE_FOR.format(target.name), PLATFORM.id)
    yield from _dialect_findings(target) if has_newer else ()


def _dialect_findings(target: Target) -> Iterator[Finding]:
    if not target.reads_newer:
        refused = "was not tried with" if target.refuses_untried else "refuses"
        reason = f"{target.name}'s packer {refused} files of the domain {NEWER!r}"
        remedy = f"linger.convert_dialect(model, to={OLDER!r}) writes the older one."
        yield Finding(ERROR, "", reason, remedy, DIALECT.id)


def _platform_findings(nodes: Sequence[ir.Node], target: Target) -> Iterator[Finding]:
    """The packer wants one name in all nodes that have one, and takes a file without names for the default chip."""
    named = Counter(name for node in nodes if (name := platform_of(node)) is not None)
    others = [name for name in named if name != target.name]
    severity, remedy = ERROR, QUANTIZE_FOR.format(target.name)
    if others:
        count = sum(named[name] for name in others)
        reason = f"the file is for {listing(others)}, not for {target.name}: {count} of {len(nodes)} nodes say so"
    elif named or not nodes:
        return
    elif target.is_default:
        reason = f"the file names no chip; the packer takes it for {target.name}"
        severity, remedy = NOTE, "Nothing is to be done."
    else:
        refused = f"the file names no chip, so {target.name}'s packer refuses it"
        reason = f"{refused}; others take it for {DEFAULT_TARGET.name}"
    yield Finding(severity, "", reason, remedy, PLATFORM.id)


def _plain_node_findings(model: ir.Model, target: Target) -> Iterator[Finding]:
    """Standard nodes with an attribute that ONNX does not have, at which the packer stops."""
    for node in all_nodes(model):
        if node.domain in ("", "ai.onnx") and platform_of(node) is not None:
            reason = "a standard node with the attribute 'platform', at which the packer stops"
            remedy = f"Export again with linger.onnx.export(…, target={target.name!r}), which writes none."
            yield Finding(ERROR, describe(node), reason, remedy, PLAIN_NODE.id)


def _batch_findings(
    model: ir.Model, target: Target, batch_option: str, shapes: Mapping[str, Shape]
) -> Iterator[Finding]:
    """Inputs with an open batch, and layers with a window that get several samples; rows of a matrix are no batch."""
    for value in model.graph.inputs:
        first = next(iter(value.shape or ()), 0)
        if isinstance(first, int) or value.name in model.graph.initializers:
            continue
        export = f"Export with linger.onnx.export(…, target={target.name!r}), which fixes it to 1"
        reason, remedy = "the batch is open and has no name, which the packer refuses", f"{export}."
        if first.value is not None:
            option = open_batch_option(batch_option, first.value)
            reason, remedy = (
                f"the batch is open; the packer takes it with {option} only",
                f"{export}, or pack with {option}.",
            )
        yield Finding(ERROR, str(value.name), reason, remedy, BATCH.id)
    several = [(node, count) for node in all_nodes(model) if (count := _samples(node, shapes)) > 1]
    if several:
        (node, count), more = several[0], len(several) - 1
        where = f", here and in {counted(more, 'other layer')}" if more else ""
        reason = f"a batch of {count}{where}; {target.name} computes one sample at a time"
        yield Finding(ERROR, describe(node), reason, _ONE_SAMPLE, BATCH.id)


def _samples(node: ir.Node, shapes: Mapping[str, Shape]) -> int:
    """How many samples a layer with a window gets; 0 for other layers, and where that is not known."""
    op, x = ops().get(node.op_type), node.inputs[0] if node.inputs else None
    shape = None if x is None else shapes.get(x.name or "")
    if op is None or not op.window_axes or shape is None or len(shape) != op.window_axes + 2:
        return 0
    return shape[0] or 0


def _option_findings(model: ir.Model, target: Target, command: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Ops that the packer takes with an option only; with it they are exact."""
    counts = Counter(node.op_type for node in all_nodes(model) if node.op_type in options)
    for op_type, count in counts.items():
        reason = f"{target.name}'s packer takes {op_type} ({count} in this file) with {options[op_type]} only"
        yield Finding(WARNING, "", reason, f"Pack it with: {command} … {options[op_type]}", OPTION.id)


def _sharing_findings(model: ir.Model, target: Target, command: str) -> Iterator[Finding]:
    """Parameters that two nodes share: the packer copies those of a node as one block, so it takes a stranger's bytes."""
    for node, (name, other) in sharing_nodes(model).items():
        reason = f"shares {printable(name)} with {describe(other)}, and not all of its parameters; {_ONE_BLOCK}"
        export = f"linger.onnx.export(…, target={target.name!r})"
        remedy = f"linger repair --target {target.name} gives every node its own, as {export} does; or pack with: "
        yield Finding(ERROR, describe(node), reason, f"{remedy}{command} … {UNSHARED_OPTION}", SHARED.id)


_OUTSIDE = f"{NO_EXACT_FORM} Compute it outside of the model."
_AS_INTEGERS = "Let linger compute it on integers: quantize what it reads (linger.quant_tensor), or move it behind the first layer."
_INTEGER_FORMS = frozenset({"Add", "Concat", "MaxPool", "Mul", "Pad", "Relu", "Sigmoid", "Tanh", "Transpose"})
"""Standard ops that linger computes on integers, where what they read is quantized."""


@limit(902, "op", "The chip's packer takes the op.", everywhere=True)
def check_known(site: Site) -> Iterator[Finding]:
    """The packer stops at an op that it does not know, and at some that it lists."""
    target, op = site.target, _op(site.op_type)
    if target.status_of(site.op_type, is_float=site.is_of_floats) is not Status.REFUSED:
        if site.op_type in target.unpacked_ops:
            reason = f"{target.name} runs {site.op_type}, but the public packer does not know it"
            yield site.warning(reason, "Ask the vendor for a packer that does.")
    elif op is not None and "clip" in op.chip_limits:  # what it says of Clip is a rule of its own
        return
    elif site.op_type not in target.ops:
        yield site.error(f"{target.name}'s packer has no {site.op_type}", _remedy(site, op))
    else:
        what = f"a float {site.op_type}" if site.is_of_floats else site.op_type
        yield site.error(f"{target.name}'s packer or engine stops at {what}", _remedy(site, op))


def _op(op_type: str) -> Op | None:
    """The op of this name in either dialect."""
    newer = NEWER_OPS.get(op_type)
    return ops().get(op_type if newer is None else newer.older or "")


def _remedy(site: Site, op: Op | None) -> str:
    """What was seen to be exact instead; a float op as integers, another op that the op's file names."""
    if site.is_of_floats and site.op_type in _INTEGER_FORMS:
        return _AS_INTEGERS
    if site.op_type == "Identity":
        return "Export with linger, which leaves no Identity in the middle of a graph."
    if op is None or site.is_of_floats:
        return _OUTSIDE
    chips = [chip for chip in chips_with(op.name) if chip != site.chip]
    return f"{op.if_missing or _OUTSIDE}{f' Other chips have it: {listing(chips)}.' if chips else ''}"


@limit(907, "differs", "The chip computes the op as linger does.", everywhere=True)
def check_differs(site: Site) -> Iterator[Finding]:
    """Ops that run on the chip, with other numbers; some only where the packer keeps the float ends."""
    if site.is_of_floats and f"{FLOAT}{site.op_type}" in site.target.exact_without_ends:
        reason = f"{site.chip} computes something else for a float {site.op_type} where the packer keeps the float ends"
        yield site.warning(reason, "Pack without keeping them, as the packer does by default.")
    if site.target.status_of(site.op_type, is_float=site.is_of_floats) is not Status.DIFFERS:
        return
    op, kind = _op(site.op_type), "float " if site.is_of_floats else ""
    if op is not None and op.if_differs and not kind:
        remedy = op.if_differs.format(target=site.chip)
    else:
        remedy = _AS_INTEGERS if kind and site.op_type in _INTEGER_FORMS else _OUTSIDE
    yield site.error(f"{site.chip} runs {kind}{site.op_type} and was seen to compute something else", remedy)


@limit(953, "variant", "Nodes compute as the chip does.", everywhere=True)
def check_variant(site: Site) -> Iterator[Finding]:
    """An op that chips compute in different ways names the chip; without a name it computes as the default one does."""
    op = ops().get(site.op_type)
    if op is None or not op.variants or not is_dialect(site.node) or site.target.is_default:
        return
    if platform_of(site.node) is None:
        reason = f"the node computes as {DEFAULT_TARGET.name} does, not as {site.chip}"
        yield site.error(reason, QUANTIZE_FOR.format(site.chip))


@limit(956, "numbers", "The chip has the numbers: its weights one scale, its activations a sign.", everywhere=True)
def check_numbers(site: Site) -> Iterator[Finding]:
    """One scale for each output channel, and unsigned bytes, are ours: the documents of chips have neither."""
    values = {name: site.attribute(name) for name in site.node.attributes}
    used = sorted(extensions_of({name: value for name, value in values.items() if value is not None}))
    found = [f"the attribute {name}" for name in used if not getattr(site.target, _NUMBERS.get(name, "per_channel"))]
    if not site.target.unsigned:
        found += [f"unsigned bytes in {printable(name)}" for name in site.unsigned]
    if found:
        reason = f"{listing(found)}, of numbers that {site.chip} does not have"
        yield site.error(reason, QUANTIZE_FOR.format(site.chip))


_NUMBERS = {"o_unsigned": "unsigned"}
"""What a target says of an extension of the numbers; of all others whether it has a scale for each channel."""


@limit(904, "compared", "The op's numbers were compared with the chip's.", severity=WARNING, everywhere=True)
def check_compared(site: Site) -> Iterator[Finding]:
    """Ops whose results were never compared with those of this chip: a warning, or an error where the chip takes no such op."""
    if site.target.status_of(site.op_type, is_float=site.is_of_floats) is Status.UNTRIED:
        reason = (
            f"nobody has compared {'float ' if site.is_of_floats else ''}{site.op_type} with what {site.chip} computes"
        )
        remedy = "Compare a few outputs on the chip."
        yield site.untried(reason, _remedy(site, _op(site.op_type)) if site.target.refuses_untried else remedy)


TABLES: dict[str, type] = {
    "windows": windows.WindowLimits,
    "products": products.ProductLimits,
    "operands": products.OperandLimits,
    "packing": products.PackingLimits,
    "memory": MemoryLimits,
}
"""The tables of a chip's file, and what each becomes."""

LIMITS: tuple[Limit, ...] = tuple(
    sorted(
        (
            each
            for names in (globals(), vars(windows), vars(products))
            for each in names.values()
            if isinstance(each, Limit)
        ),
        key=lambda each: (each.op_types is not None, each.rule.id),
    )
)
"""Every limit of these modules: first those that ask every node."""

TARGET_RULES: tuple[CheckRule, ...] = (
    *(MODEL, PLATFORM, DIALECT, BATCH, PLAIN_NODE, OPTION, SHARED, MEMORY, PRODUCT_MEMORY, SCRATCH),
    *(each.rule for each in LIMITS),
)
"""The rule of each limit."""


def target_findings(model: ir.Model, target: Target, *, skip: Collection[str] = ()) -> tuple[Finding, ...]:
    """The findings of a chip about a model, the worst first, in the order of the nodes.

    Sizes come from shape inference through the bodies of the dialect's ops. A limit that depends on an open size gives a
    finding of the severity "note". Nodes of the domain `linger` are judged as the older ops that the packer takes them
    for. The model is not changed.

    Args:
        model: The model.
        target: The chip; of what is none, only the numbers are asked.
        skip: Nodes, as findings name them, that are not asked: their attributes or operands are not those of their op.

    Raises:
        UsageError: The chip's file has values that no limit reads, lacks some, or has some of another type.
    """
    if not target.is_chip:
        return tuple(_number_findings(model, target))
    tables = tables_of(target)
    findings = [*_name_findings(model, target), *_plain_node_findings(model, target)]
    if has_nodes_of(model, NEWER):
        findings += _unpacked_names(model, target)
        model = copied(model)
        convert_nodes(model, OLDER, partial=True)
    if not skip:
        model = copied(model)
        fix_shapes(model)  # the packer computes shapes that do not depend on an open size
    tensors = declared_tensors(model) if skip else known_tensors(model)
    findings += _findings_of_the_whole(model, target, tables, tensors, is_sound=not skip)
    for place in places_of(model.graph):
        if str(place) not in skip:
            site = Site(place.node, tensors.shapes, tensors.types, target, tables)
            findings += (replace(finding, node=str(place)) for finding in _site_findings(site))
    return tuple(sorted(_once_per_op(findings), key=lambda f: SEVERITIES.index(f.severity)))


def _number_findings(model: ir.Model, target: Target) -> Iterator[Finding]:
    """What a target without a packer says: it has no limits but for the numbers that it lacks."""
    types = declared_tensors(model).types
    for place in places_of(model.graph):
        found = check_numbers.check(Site(place.node, {}, types, target, {}))
        yield from (replace(finding, node=str(place), rule=check_numbers.rule.id) for finding in found)


def _site_findings(site: Site) -> Iterator[Finding]:
    """What every limit that concerns a node says about it."""
    if site.is_foreign:
        name = printable(f"{site.node.domain}::{site.op_type}")
        yield replace(site.error(f"{site.chip}'s packer has no {name}", _OUTSIDE), rule=check_known.rule.id)
        return
    op = ops().get(site.op_type)
    for each in LIMITS:
        if each.concerns(site.op_type, () if op is None else op.chip_limits):
            yield from (replace(finding, rule=each.rule.id) for finding in each.check(site))


def _once_per_op(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Findings without those that say the same of another node of an op that nobody has compared."""
    reasons: set[str] = set()
    for finding in findings:
        if finding.rule != check_compared.rule.id or finding.reason not in reasons:
            yield finding
        reasons.add(finding.reason)


def _findings_of_the_whole(
    model: ir.Model, target: Target, tables: Mapping[type, object], tensors: Tensors, *, is_sound: bool
) -> Iterator[Finding]:
    """Findings that concern no single node; those about memory only where the nodes are sound."""
    packing, limits = tables[products.PackingLimits], tables[MemoryLimits]
    assert isinstance(packing, products.PackingLimits)
    assert isinstance(limits, MemoryLimits)
    yield from _model_findings(model, target, packing.model_bytes)
    yield from _batch_findings(model, target, limits.batch_option, tensors.shapes)
    if is_sound:
        use = with_scratch(memory_use(model, tensors), model, tensors.shapes, limits)
        yield from memory_findings(use, target, limits)
        yield from scratch_findings(model, target, tensors.shapes, limits)
    yield from _sharing_findings(model, target, limits.command)
    yield from _option_findings(model, target, limits.command, limits.op_options)


def tables_of(target: Target) -> dict[type, object]:
    """The tables of a chip's file, each by the type that it became; a UsageError names all values that are wrong or missing."""
    problems = [f"there is no table [{name}]" for name in target.limits if name not in TABLES]
    tables: dict[type, object] = {}
    for name, kind in TABLES.items():
        wrong, tables[kind] = read_with_problems(kind, target.limits.get(name, {}), place=f"[{name}]")
        problems += wrong
    if problems:
        raise UsageError(f"the chip file of {target.name}: {'; '.join(problems)}. {COMPARE}")
    return tables


def _unpacked_names(model: ir.Model, target: Target) -> Iterator[Finding]:
    """Names of the newer dialect that the packer does not know, although it knows an op that computes the same."""
    for place in places_of(model.graph):
        op = NEWER_OPS.get(place.node.op_type) if is_newer(place.node) else None
        if op is not None and not op.declared.is_packed and op.older is not None and target.takes(op.older):
            reason = f"{target.name}'s packer does not know the name {op.name}"
            remedy = f"linger.convert_dialect(model, to={OLDER!r}) writes it as {op.older}."
            yield Finding(ERROR, str(place), reason, remedy, check_known.rule.id)
