# SPDX-License-Identifier: Apache-2.0
"""What a chip's packer asks of a file as a whole: the chip that it names, its dialect, its batch, its size."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from linger.checks.limits.limit import KB, limit_rule
from linger.dialect import ops
from linger.errors import listing, printable
from linger.graph.core.dialects import NEWER, OLDER, is_newer
from linger.graph.core.finding import ERROR, NOTE, WARNING, Finding
from linger.graph.core.nodes import all_nodes, describe, is_dialect, platform_of
from linger.graph.lowering.bodies import Shape
from linger.graph.passes.chip_windows import parameters_of
from linger.targets import DEFAULT_TARGET, Target

_ONE_BLOCK = "the packer copies weight and bias of a node as one block, so the engine reads other numbers"
_ONE_SAMPLE = "Export with one sample (args of the shape [1, …]), and join no samples along the first axis."
QUANTISE_FOR = "Quantise the model for this chip: linger.init(model, target={!r})."

MODEL = limit_rule(901, "model", "The model has constants and fits into the chip's memory.")
PLATFORM = limit_rule(903, "platform", "The file names the chip, and no other.")
DIALECT = limit_rule(908, "dialect", "The file is of a dialect that the chip's packer reads.")
BATCH = limit_rule(909, "batch", "The batch has one sample.")
PLAIN_NODE = limit_rule(910, "plain-node", "Standard nodes name no chip.")
OPTION = limit_rule(954, "option", "The packer needs no option for an op.", WARNING)
SHARED = limit_rule(955, "own-parameters", "Every node has a weight and a bias of its own.")

UNSHARED_OPTION = "--dma_prefetch False"
"""The packer's option with which nodes may share parameters. (ran)"""


def model_findings(model: ir.Model, target: Target, model_bytes: int) -> Iterator[Finding]:
    """The model as a whole: not empty of constants, not too large."""
    graph = model.graph
    has_constants = bool(graph.initializers) or any(n.op_type == "Constant" for n in all_nodes(model))
    if not has_constants:
        reason = "the graph holds no constants, and the packer refuses such a graph"
        yield Finding(ERROR, "", reason, "Add a layer with weights.", MODEL.id)
    tensors = [v.const_value for v in graph.initializers.values() if v.const_value is not None]
    size = sum(t.nbytes for t in tensors if t.dtype != ir.DataType.STRING)  # words have no fixed width
    if size > model_bytes:
        reason = (
            f"the parameters have {size} bytes; {target.name} has room for {model_bytes} ({model_bytes // KB // KB} MB)"
        )
        remedy = (
            "Use fewer or narrower parameters; kernels and groups that an export fills up with zeros count in full."
        )
        yield Finding(ERROR, "", reason, remedy, MODEL.id)


def name_findings(model: ir.Model, target: Target) -> Iterator[Finding]:
    """The chip that the file is for, by the names in its nodes, and the dialect that they are of."""
    nodes = [node for node in all_nodes(model) if is_dialect(node) or is_newer(node)]
    newer = [node for node in nodes if is_newer(node)]
    yield from _platform_findings(nodes, target)
    nameless = [describe(n) for n in nodes if platform_of(n) == target.name and "quant_mode" not in n.attributes]
    if nameless and not newer and not target.is_default:
        reason = f"{target.name}'s packer asks for quant_mode, which {len(nameless)} nodes lack: {listing(nameless)}"
        yield Finding(ERROR, "", reason, QUANTISE_FOR.format(target.name), PLATFORM.id)
    if newer and not target.reads_newer:
        refused = "was not tried with" if target.refuses_untried else "refuses"
        reason = f"{target.name}'s packer {refused} files of the domain {NEWER!r}"
        remedy = f"linger.convert_dialect(model, to={OLDER!r}) writes the older one."
        yield Finding(ERROR, "", reason, remedy, DIALECT.id)


def _platform_findings(nodes: Sequence[ir.Node], target: Target) -> Iterator[Finding]:
    """The packer wants one name in all nodes that have one, and takes a file without names for the default chip."""
    named = Counter(name for node in nodes if (name := platform_of(node)) is not None)
    others = [name for name in named if name != target.name]
    severity, remedy = ERROR, QUANTISE_FOR.format(target.name)
    if others:
        count = sum(named[name] for name in others)
        reason = f"the file is for {listing(others)}, not for {target.name}: {count} of {len(nodes)} nodes say so"
    elif named or not nodes:
        return
    elif target.is_default:
        reason = f"the file names no chip; the packer takes it for {target.name}"
        severity, remedy = NOTE, "Nothing is to be done."
    else:
        reason = (
            f"the file names no chip, so {target.name}'s packer refuses it; others take it for {DEFAULT_TARGET.name}"
        )
    yield Finding(severity, "", reason, remedy, PLATFORM.id)


def plain_node_findings(model: ir.Model, target: Target) -> Iterator[Finding]:
    """Standard nodes with an attribute that ONNX does not have, at which the packer stops."""
    for node in all_nodes(model):
        if node.domain in ("", "ai.onnx") and platform_of(node) is not None:
            reason = "a standard node with the attribute 'platform', at which the packer stops"
            remedy = f"Export again with linger.onnx.export(…, target={target.name!r}), which writes none."
            yield Finding(ERROR, describe(node), reason, remedy, PLAIN_NODE.id)


def open_batch_option(template: str, name: str) -> str:
    """The packer's option for a batch axis of this name, which comes from a file, so that it can be copied into a shell."""
    return template.format(shlex.quote(printable(name)))


def batch_findings(
    model: ir.Model, target: Target, batch_option: str, shapes: Mapping[str, Shape]
) -> Iterator[Finding]:
    """Inputs with an open batch, and layers with a window that get several samples; rows of a matrix are no batch."""
    for value in model.graph.inputs:
        first = None if value.shape is None or not len(value.shape) else value.shape[0]
        if first is None or isinstance(first, int) or value.name in model.graph.initializers:
            continue
        export = f"Export with linger.onnx.export(…, target={target.name!r}), which fixes it to 1"
        if first.value is None:
            reason, remedy = "the batch is open and has no name, which the packer refuses", f"{export}."
        else:
            option = open_batch_option(batch_option, first.value)
            reason, remedy = (
                f"the batch is open; the packer takes it with {option} only",
                f"{export}, or pack with {option}.",
            )
        yield Finding(ERROR, str(value.name), reason, remedy, BATCH.id)
    several = [(node, count) for node in all_nodes(model) if (count := _samples(node, shapes)) > 1]
    if several:
        (node, count), more = several[0], len(several) - 1
        where = f", here and in {more} other {'layer' if more == 1 else 'layers'}" if more else ""
        reason = f"a batch of {count}{where}; {target.name} computes one sample at a time"
        yield Finding(ERROR, describe(node), reason, _ONE_SAMPLE, BATCH.id)


def _samples(node: ir.Node, shapes: Mapping[str, Shape]) -> int:
    """How many samples a layer with a window gets; 0 for other layers, and where that is not known."""
    op, x = ops().get(node.op_type), node.inputs[0] if node.inputs else None
    shape = None if x is None else shapes.get(x.name or "")
    if op is None or not op.window_axes or shape is None or len(shape) != op.window_axes + 2:
        return 0
    return shape[0] or 0


def option_findings(model: ir.Model, target: Target, command: str, options: Mapping[str, str]) -> Iterator[Finding]:
    """Ops that the packer takes with an option only; with it they are exact."""
    found = Counter(node.op_type for node in all_nodes(model) if node.op_type in options)
    for op_type, count in found.items():
        reason = f"{target.name}'s packer takes {op_type} ({count} in this file) with {options[op_type]} only"
        yield Finding(WARNING, "", reason, f"Pack it with: {command} … {options[op_type]}", OPTION.id)


def sharing_nodes(model: ir.Model) -> dict[ir.Node, tuple[str, ir.Node]]:
    """Nodes that share a part of their parameters with another one, with the parameter and that node.

    Nodes that share all of them are exact: the block that the packer copies is the same for both.
    """
    first: dict[ir.Value, ir.Node] = {}
    found: dict[ir.Node, tuple[str, ir.Node]] = {}
    for node in model.graph:
        own = parameters_of(node)
        for value in own:
            other = first.setdefault(value, node)
            if parameters_of(other) != own:
                found.setdefault(node, (str(value.name), other))
    return found


def sharing_findings(model: ir.Model, target: Target, command: str) -> Iterator[Finding]:
    """Parameters that two nodes share: the packer copies those of a node as one block, so it takes a stranger's bytes."""
    for node, (name, other) in sharing_nodes(model).items():
        reason = f"shares {printable(name)} with {describe(other)}, and not all of its parameters; {_ONE_BLOCK}"
        export = f"linger.onnx.export(…, target={target.name!r})"
        remedy = f"linger repair --target {target.name} gives every node its own, as {export} does; or pack with: "
        yield Finding(ERROR, describe(node), reason, f"{remedy}{command} … {UNSHARED_OPTION}", SHARED.id)
