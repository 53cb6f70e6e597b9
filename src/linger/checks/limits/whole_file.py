# SPDX-License-Identifier: Apache-2.0
"""What a chip's packer asks of a file as a whole: the chip that it names, its dialect, its batch, its size.

The memory of a chip, what its packer must be told about a file, and `linger.memory`, which shows both layer by layer.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.checks.limits.limit import KB, NO_EXACT_FORM, OPEN_SIZE, limit_rule
from linger.checks.memory_use import MemoryUse, amount, use_of
from linger.dialect import ops
from linger.errors import listing, printable
from linger.graph.core.dialects import NEWER, OLDER, is_newer, packed_name
from linger.graph.core.nodes import ERROR, NOTE, WARNING, Finding, all_nodes, describe, is_dialect, platform_of
from linger.graph.lowering.bodies import Shape
from linger.graph.network import Lifetime, Network, NetworkLike, open_batch_axes
from linger.graph.passes.chip_windows import parameters_of
from linger.targets import DEFAULT_TARGET, Target, find_target

_ONE_BLOCK = "the packer copies weight and bias of a node as one block, so the engine reads other numbers"
_ONE_SAMPLE = "Export with one sample (args of the shape [1, …]), and join no samples along the first axis."
QUANTIZE_FOR = "Quantize the model for this chip: linger.init(model, target={!r})."

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
        yield Finding(ERROR, "", reason, QUANTIZE_FOR.format(target.name), PLATFORM.id)
    if newer and not target.reads_newer:
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


_SHOWN = 3
"""Tensors of the peak that a message names, the largest first."""

_WITHOUT_ENDS = (
    "Pack without keeping the float ends, as the packer does by default; or make inputs and outputs integers: "
    "linger.onnx.export(…, is_input_quant=True)."
)
_SMALLER = "Use a smaller image or fewer channels here."
_SPLIT = "Use fewer inputs or outputs, or let several layers compute the outputs and join them."


@dataclass(frozen=True)
class MemoryLimits:
    """The table [memory] of a chip's file; `targets/packer.toml` explains each value."""

    command: str
    op_options: Mapping[str, str]
    batch_option: str
    tensor_bytes: int | None = None
    product_bytes: int | None = None
    scratch_reserved: Mapping[str, int] = field(default_factory=dict)
    scratch_written: Mapping[str, int] = field(default_factory=dict)
    has_two_layers: bool = False


MEMORY = limit_rule(951, "memory", "The tensors alive at one time fit into the chip's memory.")
PRODUCT_MEMORY = limit_rule(
    952, "product-memory", "Weights, input and output of a fully connected layer fit into the chip's memory."
)
SCRATCH = limit_rule(928, "scratch", "The packer reserves as much scratch as the engine writes.")


def memory(path: NetworkLike, target: str | Target | None = None) -> MemoryUse:
    """What a network needs, layer by layer: memory for tensors and weights, multiplications, and whether a chip has that.

    Args:
        path: The file, a model in memory, or a `Network`. It is not changed.
        target: The chip that it is for (`"venus"`, `"arcs"`, `"venusA"`); None asks no chip.

    Returns:
        The layers with their totals; `result.ok` where nothing was found that does not fit the chip.

    Raises:
        UsageError: There is no such file or chip, or the chip's file has a wrong table [memory].
        GraphError: The file is no complete ONNX model, or contradicts itself.
    """
    chip = target if target is None or isinstance(target, Target) else find_target(target)
    limits = None if chip is None else chip.table("memory", MemoryLimits)
    network = Network.of(path)
    use = network.once(use_of)
    if chip is None or limits is None:
        return use
    sized, tensors = network.sized
    use = with_scratch(use, sized, tensors.shapes, limits)
    return replace(
        use,
        target=chip.name,
        tensor_bytes=limits.tensor_bytes,
        findings=tuple(memory_findings(use, chip, limits)),
        packer_line=packer_line(packer_options(network.model, limits), limits),
    )


def memory_findings(use: MemoryUse, target: Target, limits: MemoryLimits) -> Iterator[Finding]:
    """What of a network does not fit into a chip's memory; a note where open sizes leave that undecided."""
    found = [*_peak_findings(use, target, limits.tensor_bytes), *_product_findings(use, target, limits.product_bytes)]
    if limits.has_two_layers and not any(finding.severity == ERROR for finding in found):
        found += _parameter_findings(use, target, limits.tensor_bytes)
    yield from found
    if limits.tensor_bytes is not None and use.is_lower_bound and not any(f.rule == MEMORY.id for f in found):
        reason = f"a size is open, so the memory for tensors could not be checked ({amount(use.peak_bytes)} are known)"
        yield Finding(NOTE, "", reason, OPEN_SIZE, MEMORY.id)


def _peak_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Tensors that are alive at one time: as many bytes as the chip has are refused already."""
    peak = use.peak_layer
    if room is None or peak is None or use.peak_bytes < room:
        return
    inner = [_inner_bytes(use, i) for i in range(len(use.layers))]
    is_inside = max(inner) >= room
    peak, live = (inner.index(max(inner)), inner) if is_inside else (peak, [each.live_bytes for each in use.layers])
    layer, alive = use.layers[peak], [t for t in use.alive_at(peak) if not (is_inside and _is_float_end(t))]
    least = "at least " if layer.is_lower_bound else ""
    others = listing([use.layers[i].node for i, size in enumerate(live) if size >= room and i != peak], limit=_SHOWN)
    reason = (
        f"{least}{live[peak]} bytes of tensors are alive here ({_largest(alive)}); {target.name} has {room}, "
        f"and they must take less{f', as at {others}' if others else ''}"
    )
    if not is_inside:
        reason = f"where the packer keeps the float ends, {reason}"
    severity, remedy = (ERROR, _SMALLER) if is_inside else (WARNING, _WITHOUT_ENDS)
    yield Finding(severity, layer.node, reason, remedy, MEMORY.id)


def _is_float_end(tensor: Lifetime) -> bool:
    """Whether a tensor is a float input or output, which the packer leaves out together with Quant and Dequant."""
    return tensor.is_float and (tensor.is_input or tensor.is_output)


def _inner_bytes(use: MemoryUse, layer: int) -> int:
    """The tensors that are alive while a layer runs, without float ends."""
    return sum(tensor.bytes or 0 for tensor in use.alive_at(layer) if not _is_float_end(tensor))


def _parameter_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Parameters lie beside the tensors, in two places that layers take in turn, each as large as its largest layer."""
    layers = [layer for layer in use.layers if layer.weight_bytes]
    turns = [max(part, key=lambda layer: layer.weight_bytes) for part in (layers[::2], layers[1::2]) if part]
    parts = {
        **{f"parameters of {layer.node}": layer.weight_bytes for layer in turns},
        "tensors": max((_inner_bytes(use, i) for i in range(len(use.layers))), default=0),
        "scratch": max((layer.scratch_bytes for layer in use.layers), default=0),
    }
    size = sum(parts.values())
    if room is not None and turns and size >= room:
        listed = listing((f"{what} {amount}" for what, amount in parts.items()), limit=len(parts))
        has = f"{target.name} has {room} for tensors and the parameters of two layers in turn"
        worst = max(turns, key=lambda layer: layer.weight_bytes)
        yield Finding(ERROR, worst.node, f"{size} bytes ({listed}); {has}", _SPLIT, MEMORY.id)


def scratch_of(node: ir.Node, shapes: Mapping[str, Shape], bytes_of: Mapping[str, int]) -> int:
    """Bytes of scratch for a node, as many for each number as a chip's file says of its op; 0 where a size is open.

    A fully connected layer with a bias has scratch for its results, a layer norm for the numbers that it normalizes, an LSTM
    for its state.
    """
    name = packed_name(node)
    per_number = bytes_of.get(name, 0)
    if name == "LSTMInt":
        hidden = node.attributes.get("hidden_size")
        return per_number * hidden.value if hidden is not None and isinstance(hidden.value, int) else 0
    inputs = (*node.inputs, None, None, None)  # a broken node may lack some
    result = node.outputs[0] if node.outputs and inputs[2] is not None else None
    value = result if name == "LinearInt" else inputs[1]
    return 0 if value is None else per_number * (product_of(shapes.get(value.name or "")) or 0)


def with_scratch(use: MemoryUse, model: ir.Model, shapes: Mapping[str, Shape], limits: MemoryLimits) -> MemoryUse:
    """The same, with the scratch that a chip's packer reserves for each layer."""
    found = {describe(node): scratch_of(node, shapes, limits.scratch_reserved) for node in all_nodes(model)}
    return replace(use, layers=tuple(replace(each, scratch_bytes=found.get(each.node, 0)) for each in use.layers))


def scratch_shortage(model: ir.Model, shapes: Mapping[str, Shape], limits: MemoryLimits) -> dict[ir.Node, int]:
    """Nodes for which the engine writes more scratch than the packer reserves for any node, with the bytes written."""
    reserved = max((scratch_of(node, shapes, limits.scratch_reserved) for node in all_nodes(model)), default=0)
    written = {node: scratch_of(node, shapes, limits.scratch_written) for node in all_nodes(model)}
    return {node: size for node, size in written.items() if size > reserved}


def scratch_findings(
    model: ir.Model, target: Target, shapes: Mapping[str, Shape], limits: MemoryLimits
) -> Iterator[Finding]:
    """Layers whose scratch overlaps other tensors, because no layer of the file makes the packer reserve enough."""
    linear = [node for node in all_nodes(model) if packed_name(node) == "LinearInt"]
    is_open = any(product_of(shapes.get(output.name or "")) is None for node in linear for output in node.outputs)
    for node, size in scratch_shortage(model, shapes, limits).items():
        own = scratch_of(node, shapes, limits.scratch_reserved)
        reason = f"the engine writes {size} bytes of scratch, and {target.name}'s packer reserves {own} for it and no more for another layer"
        export = f"linger.onnx.export(…, target={target.name!r}) puts a layer before it that reserves enough"
        remedy = f"{export}, where it reads 8-bit integers of a fixed size. {NO_EXACT_FORM}"
        if is_open:  # whose scratch may suffice
            reason, remedy = "a size is open, so its scratch could not be checked", OPEN_SIZE
        yield Finding(NOTE if is_open else ERROR, describe(node), reason, remedy, SCRATCH.id)


def _largest(alive: Sequence[Lifetime]) -> str:
    """The largest tensors with their bytes."""
    ordered = sorted(alive, key=lambda tensor: -(tensor.bytes or 0))
    return listing((f"{printable(t.tensor)} {'?' if t.bytes is None else t.bytes}" for t in ordered), limit=_SHOWN)


def _product_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Fully connected layers, which the chip does not split."""
    for layer in use.layers if room is not None else ():
        size = layer.weight_bytes + layer.input_bytes + layer.output_bytes
        if room is not None and layer.op_type == "LinearInt" and size > room:
            reason = (
                f"{layer.weight_bytes} bytes of weights, {layer.input_bytes} of input and {layer.output_bytes} of output "
                f"are {size}; {target.name} has {room}"
            )
            yield Finding(ERROR, layer.node, reason, _SPLIT, PRODUCT_MEMORY.id)


def packer_options(model: ir.Model, limits: MemoryLimits) -> tuple[str, ...]:
    """What the packer must be told about this file, each once: because of ops in it, shared parameters, open batch axes."""
    present = {packed_name(node) for node in all_nodes(model)}
    of_ops = [option for op_type, option in limits.op_options.items() if op_type in present]
    of_parameters = [UNSHARED_OPTION] if sharing_nodes(model) else []
    of_axes = [open_batch_option(limits.batch_option, name) for name in open_batch_axes(model)]
    return tuple(dict.fromkeys([*of_ops, *of_parameters, *of_axes]))


def packer_line(options: tuple[str, ...], limits: MemoryLimits) -> str:
    """A line to copy, with … for what only the user knows, such as the file; empty without options.

    >>> packer_line(("--dynamic_shape batch=1:1",), MemoryLimits("tpacker", {}, "--dynamic_shape {}=1:1"))
    'tpacker … --dynamic_shape batch=1:1'
    """
    return " ".join([limits.command, "…", *options]) if options else ""
