# SPDX-License-Identifier: Apache-2.0
"""The memory of a chip, what its packer must be told about a file, and `linger.memory`, which shows both layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.checks.limits.limit import NO_EXACT_FORM, OPEN_SIZE, limit_rule
from linger.checks.limits.whole_file import UNSHARED_OPTION, open_batch_option, sharing_nodes
from linger.checks.memory_use import MemoryUse, amount, use_of
from linger.errors import listing, printable
from linger.graph.core.dialects import packed_name
from linger.graph.core.finding import ERROR, NOTE, WARNING, Finding
from linger.graph.core.nodes import all_nodes, describe
from linger.graph.costs import Lifetime
from linger.graph.lowering.bodies import Shape
from linger.graph.network import Network, NetworkLike, open_batch_axes
from linger.targets import Target, find_target

_SHOWN = 3
"""Tensors of the peak that a message names, the largest first."""

_WITHOUT_ENDS = (
    "Pack without keeping the float ends, as the packer does by default; or make inputs and outputs integers: "
    "linger.onnx.export(…, is_input_quant=True)."
)
_SMALLER = "Use a smaller picture or fewer channels here."
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

    A fully connected layer with a bias has scratch for its results, a layer norm for the numbers that it normalises, an LSTM
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
