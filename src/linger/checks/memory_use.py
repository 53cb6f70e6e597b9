# SPDX-License-Identifier: Apache-2.0
"""What a network needs, layer by layer: bytes of tensors and from when to when each is alive, weights, multiplications.

Nothing is run and no weight is read. What a chip has room for, what its packer must be told, and `linger.memory`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.errors import counted, listing, printable
from linger.graph.core.check_rules import NO_EXACT_FORM, OPEN_SIZE, limit_rule
from linger.graph.core.dialects import packed_name
from linger.graph.core.nodes import ERROR, NOTE, WARNING, Finding, all_nodes, describe
from linger.graph.lowering.bodies import Shape, Tensors, shape_of
from linger.graph.network import (
    Lifetime,
    Lifetimes,
    Liveness,
    Network,
    NetworkLike,
    computing_nodes,
    constant_bytes,
    is_view,
    made_by,
    multiplications_of,
    open_batch_axes,
    with_sizes,
    with_states,
)
from linger.graph.passes.constants import parameters_of
from linger.records.table import Column, Summed, bars_html, picked, to_json, to_text
from linger.targets import Target, find_chip
from linger.version import __version__

FORMAT_VERSION = 1
"""Version of the JSON form. Keys may be added; one that is removed or changes its meaning raises it."""

_KB = 1024


@dataclass(frozen=True)
class LayerMemory:
    """One layer. Tensors of unknown size count nothing.

    Attributes:
        node: Name and type of the node, as findings show them.
        op_type: Its type.
        shapes: Shapes of its outputs; None stands for a size, or a whole shape, that is not known.
        input_bytes: The tensors that it reads, without weights.
        output_bytes: The tensors that it makes.
        live_bytes: Every tensor that is alive while it runs, those that only later layers read included.
        weight_bytes: The constants that it reads, as stored, without shapes, axes and bounds; a byte for each channel with its own scale.
        macs: Multiply-accumulates of convolutions, matrix products and recurrent layers; 0 for everything else.
        is_view: Whether its output lies in the memory of its input, so that it takes none of its own.
        is_lower_bound: Whether something could not be counted.
        has_all_macs: Whether its multiply-accumulates were counted in full.
        scratch_bytes: What the packer of a chip reserves for it beside its tensors; 0 without a target.
        note: What there is to say about it.
        outputs: Names of the tensors that it makes.
    """

    node: str
    op_type: str
    shapes: tuple[Shape | None, ...]
    input_bytes: int
    output_bytes: int
    live_bytes: int
    weight_bytes: int
    macs: int
    is_view: bool = False
    is_lower_bound: bool = False
    note: str = ""
    outputs: tuple[str, ...] = ()
    has_all_macs: bool = True
    scratch_bytes: int = 0

    @property
    def shape(self) -> str:
        """The shapes of its outputs as text."""
        return ", ".join(_shape_text(shape) for shape in self.shapes)

    @property
    def live_kb(self) -> float:
        """The tensors that are alive, in KB."""
        return self.live_bytes / _KB

    @property
    def weight_kb(self) -> float:
        """The weights, in KB."""
        return self.weight_bytes / _KB

    @property
    def scratch_kb(self) -> float:
        """What a chip's packer reserves beside its tensors, in KB."""
        return self.scratch_bytes / _KB


_COLUMNS = (
    Column("node", "layer"),
    Column("shape", "output"),
    Column("live_kb", "live KB", "{:,.1f}"),
    Column("weight_kb", "weights KB", "{:,.1f}"),
    Column("scratch_kb", "scratch KB", "{:,.1f}"),
    Column("macs", "MACs", "{:,d}"),
    Column("note", "note"),
)


@dataclass(frozen=True, repr=False)
class MemoryUse(Summed):
    """What a network needs, in the order of execution.

    Attributes:
        layers: Its nodes, without constants, arithmetic on shapes, and nodes whose results nobody needs.
        lifetimes: The memory of its tensors: sizes, and from when to when each is alive.
        weight_bytes: All weights, each once.
        batch_axes: Names of open batch axes, which are counted as 1.
        path: The file; None for a model in memory.
        target: The chip that was asked; None for none.
        tensor_bytes: What the tensors that are alive at one time must stay below there; None: not known.
        findings: What does not fit there, and what could not be decided.
        packer_line: The options that its packer needs for this file, as a line to copy; empty where there are none.
    """

    layers: tuple[LayerMemory, ...]
    lifetimes: tuple[Lifetime, ...]
    weight_bytes: int
    batch_axes: tuple[str, ...] = ()
    path: Path | None = None
    target: str | None = None
    tensor_bytes: int | None = None
    findings: tuple[Finding, ...] = ()
    packer_line: str = ""

    _rows_name = "layers"

    @property
    def peak_layer(self) -> int | None:
        """The number of the first layer with the most bytes alive; None for a network without layers."""
        return max(range(len(self.layers)), key=lambda i: self.layers[i].live_bytes, default=None)

    @property
    def peak_bytes(self) -> int:
        """The most bytes of tensors that are alive at one time."""
        return max((layer.live_bytes for layer in self.layers), default=0)

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return sum(layer.macs for layer in self.layers)

    @property
    def is_lower_bound(self) -> bool:
        """Whether something could not be counted, so that the totals are lower bounds."""
        return any(layer.is_lower_bound for layer in self.layers)

    @property
    def has_all_macs(self) -> bool:
        """Whether every multiply-accumulate was counted; else `macs` is a lower bound."""
        return all(layer.has_all_macs for layer in self.layers)

    @property
    def ok(self) -> bool:
        """Whether nothing was found that does not fit; True without a target."""
        return not any(finding.severity == ERROR for finding in self.findings)

    def alive_at(self, layer: int) -> tuple[Lifetime, ...]:
        """The tensors that are alive while a layer runs."""
        return Lifetimes(self.lifetimes).alive_at(layer)

    def rows(self) -> list[tuple[str, str, int, int, int, str]]:
        """(layer, shapes of its outputs, bytes alive, bytes of weights, MACs, note), in the order of execution."""
        return [(r.node, r.shape, r.live_bytes, r.weight_bytes, r.macs, r.note) for r in self.layers]

    def _title(self) -> str:
        return "the model" if self.path is None else printable(str(self.path))

    def summary(self) -> str:
        """The totals in a few sentences."""
        return " ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        least = "at least " if self.is_lower_bound else ""
        peak = self.peak_layer
        at = "" if peak is None else f", at {self.layers[peak].node}"
        yield (
            f"{self._title()}: {least}{amount(self.peak_bytes)} of tensors alive at one time{at}; "
            f"{amount(self.weight_bytes)} of weights; {'' if self.has_all_macs else 'at least '}{self.macs:,} "
            "multiply-accumulates."
        )
        if self.is_lower_bound:
            incomplete = sum(layer.is_lower_bound for layer in self.layers)
            yield f"The totals are lower bounds: {counted(incomplete, 'layer')} could not be counted in full."
        if self.batch_axes:
            yield f"Counted as 1: the open batch axis {listing(printable(name) for name in self.batch_axes)}."
        if self.target is not None:
            yield self._verdict()

    def _verdict(self) -> str:
        if self.tensor_bytes is None:
            limit = f"How much memory {self.target} has for them is not known."
        else:
            limit = f"On {self.target} the tensors must take less than {amount(self.tensor_bytes)}."
        if self.ok and (self.tensor_bytes is None or any(finding.severity == NOTE for finding in self.findings)):
            return f"{limit} Whether it fits could not be decided."
        condition = ", if the packer does not keep the float ends" if self.ok and self.findings else ""
        return f"{limit} It {'fits' if self.ok else 'does not fit'}{condition}."

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; the page on `linger.memory` describes the keys."""
        peak = self.peak_layer
        facts: dict[str, Any] = {
            "format": "linger-memory",
            "version": FORMAT_VERSION,
            "linger": __version__,
            **picked(self, "path target ok peak_bytes"),
            "peak_node": None if peak is None else self.layers[peak].node,
            **picked(self, "tensor_bytes weight_bytes macs has_all_macs is_lower_bound batch_axes packer_line"),
            **picked(self, "findings lifetimes"),
        }
        return to_json(facts, self.layers, path)

    def __repr__(self) -> str:
        return (
            f"MemoryUse({counted(len(self.layers), 'layer')}, {amount(self.peak_bytes)} of tensors at one time, "
            f"{amount(self.weight_bytes)} of weights, {self.macs:,} MACs)"
        )

    def __str__(self) -> str:
        return "\n".join([to_text(self._shown_columns(), self.layers), self.summary()])

    def _shown_columns(self) -> tuple[Column, ...]:
        is_used = {"scratch_kb": self.target is not None, "note": any(layer.note for layer in self.layers)}
        return tuple(column for column in _COLUMNS if is_used.get(column.name, True))

    def _image(self) -> str:
        alive = [layer.live_kb for layer in self.layers]
        return bars_html([layer.node for layer in self.layers], alive, "KB alive", low_is_bad=False)


def amount(size: int) -> str:
    """A number of bytes for people, exact.

    >>> amount(655360), amount(96)
    ('655,360 bytes (640.0 KB)', '96 bytes')
    """
    return f"{size:,} bytes ({size / _KB:,.1f} KB)" if size >= _KB else f"{size} bytes"


def _shape_text(shape: Shape | None) -> str:
    if shape is None:
        return "?"
    return "×".join("?" if size is None else str(size) for size in shape) or "1"


def use_of(network: Network) -> MemoryUse:
    """What a network needs, counted once."""
    return replace(memory_use(network.model, network=network), path=network.path)


def memory_use(model: ir.Model, tensors: Tensors | None = None, *, network: Network | None = None) -> MemoryUse:
    """Count what a network needs. The model is not changed.

    A tensor is alive from the layer that makes it to the last one that reads it, an input from the start, an output to the
    end. The result of a view (`VIEWS`) lies in the memory of its input. An open batch axis is counted as 1.

    Args:
        model: The model, of either dialect or of standard ONNX.
        tensors: Shapes and types of its tensors, as `known_tensors` gives them, of a model with fixed sizes; None: they
            are inferred here.
        network: The network of the model, which may know its sizes already.
    """
    axes = open_batch_axes(model)
    if tensors is None or axes:
        model, tensors = with_sizes(model) if network is None else network.sized
    tensors = with_states(model, tensors)
    nodes = list(computing_nodes(model, tensors))
    liveness = Liveness(model, nodes, tensors)
    lifetimes = Lifetimes(liveness.lifetimes())
    live, unknown = ([*counts, *[0] * len(nodes)] for counts in (lifetimes.totals(), lifetimes.unknown()))
    layers = tuple(_layer(liveness, node, live[i], has_unknown=unknown[i] > 0) for i, node in enumerate(nodes))
    weights = dict.fromkeys(weight for node in nodes for weight in liveness.weights_of(node))
    sizes = [*map(constant_bytes, weights), *map(_shift_bytes, nodes)]
    return MemoryUse(layers, tuple(lifetimes.pieces), sum(sizes), axes)


def _shift_bytes(node: ir.Node) -> int:
    """The bytes of the shifts of channels with scales of their own, as C stores them: one for each."""
    own = (
        a for name, a in node.attributes.items() if name.startswith("exponents_") and a.type == ir.AttributeType.INTS
    )
    return sum(len(a.as_ints()) for a in own if not a.is_ref())


def _layer(liveness: Liveness, node: ir.Node, live_bytes: int, *, has_unknown: bool) -> LayerMemory:
    """The row of a node."""
    read, made = liveness.reads(node), made_by(node)
    macs, has_inside = multiplications_of(node, liveness.shape), liveness.has_inside(node)
    return LayerMemory(
        node=describe(node),
        op_type=node.op_type,
        shapes=tuple(liveness.shape(value) for value in made),
        input_bytes=liveness.total(read),
        output_bytes=liveness.total(made),
        live_bytes=live_bytes,
        weight_bytes=sum(map(constant_bytes, liveness.weights_of(node))) + _shift_bytes(node),
        macs=macs or 0,
        is_view=is_view(node),
        is_lower_bound=has_unknown or has_inside or macs is None,
        note="; ".join(_notes(liveness, node, [*read, *made], has_inside=has_inside)),
        outputs=tuple(value.name or "" for value in made),
        has_all_macs=not has_inside and macs is not None,
    )


def _notes(liveness: Liveness, node: ir.Node, values: Sequence[ir.Value], *, has_inside: bool) -> Iterator[str]:
    if is_view(node):
        yield "shares the memory of its input"
    unknown = [printable(value.name or "?") for value in values if liveness.bytes(value) is None]
    if unknown:
        yield f"size not known: {listing(dict.fromkeys(unknown), limit=3)}"
    if has_inside:
        yield "what is inside is not counted"


UNSHARED_OPTION = "--dma_prefetch False"
"""The packer's option with which nodes may share parameters. (ran)"""

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
        target: The chip that it is for (`"venus"`, `"arcs"`, `"venusA"`); None, and what is no chip, asks none.

    Returns:
        The layers with their totals; `result.ok` where nothing was found that does not fit the chip.

    Raises:
        UsageError: There is no such file or chip, or the chip's file has a wrong table [memory].
        GraphError: The file is no complete ONNX model, or contradicts itself.
    """
    chip = find_chip(target)
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
    if room is None or use.peak_layer is None or use.peak_bytes < room:
        return
    inner = _inner_bytes(use)
    if max(inner) >= room:
        node, reason = _peak(use, inner, room, target.name, is_inside=True)
        yield Finding(ERROR, node, reason, _SMALLER, MEMORY.id)
    else:
        node, reason = _peak(use, [layer.live_bytes for layer in use.layers], room, target.name, is_inside=False)
        ends = f"where the packer keeps the float ends, {reason}"
        yield Finding(WARNING, node, ends, _WITHOUT_ENDS, MEMORY.id)


def _peak(use: MemoryUse, live: list[int], room: int, chip: str, *, is_inside: bool) -> tuple[str, str]:
    """The layer with the most bytes alive, and what is alive there; `is_inside`: without float ends."""
    layer = use.layers[live.index(max(live))]
    tensors = [t for t in use.alive_at(live.index(max(live))) if not (is_inside and _is_float_end(t))]

    others = [each.node for each, size in zip(use.layers, live, strict=True) if size >= room and each is not layer]
    alive = f"{'at least ' if layer.is_lower_bound else ''}{max(live)} bytes of tensors are alive here"
    where = f", as at {listing(others, limit=_SHOWN)}" if others else ""
    text = f"{alive} ({_largest(tensors)}); {chip} has {room}, and they must take less{where}"
    return layer.node, text


def _largest(tensors: Sequence[Lifetime]) -> str:
    """The largest tensors with their bytes."""
    ordered = sorted(tensors, key=lambda tensor: -(tensor.bytes or 0))
    return listing((f"{printable(t.tensor)} {'?' if t.bytes is None else t.bytes}" for t in ordered), limit=_SHOWN)


def _is_float_end(tensor: Lifetime) -> bool:
    """Whether a tensor is a float input or output, which the packer leaves out together with Quant and Dequant."""
    return tensor.is_float and (tensor.is_input or tensor.is_output)


def _inner_bytes(use: MemoryUse) -> list[int]:
    """The tensors that are alive while each layer runs, without float ends."""
    alive = map(use.alive_at, range(len(use.layers)))
    return [sum(tensor.bytes or 0 for tensor in tensors if not _is_float_end(tensor)) for tensors in alive]


def _parameter_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Parameters lie beside the tensors, in two places that layers take in turn, each as large as its largest layer."""
    layers = [layer for layer in use.layers if layer.weight_bytes]
    by_weight = attrgetter("weight_bytes")
    turns = [max(part, key=by_weight) for part in (layers[::2], layers[1::2]) if part]
    parts = {
        **{f"parameters of {layer.node}": layer.weight_bytes for layer in turns},
        "tensors": max(_inner_bytes(use), default=0),
        "scratch": max((layer.scratch_bytes for layer in use.layers), default=0),
    }
    size = sum(parts.values())
    if room is not None and turns and size >= room:
        listed = listing((f"{what} {amount}" for what, amount in parts.items()), limit=len(parts))
        has = f"{target.name} has {room} for tensors and the parameters of two layers in turn"
        yield Finding(ERROR, max(turns, key=by_weight).node, f"{size} bytes ({listed}); {has}", _SPLIT, MEMORY.id)


def scratch_of(node: ir.Node, shapes: Mapping[str, Shape], bytes_of: Mapping[str, int]) -> int:
    """Bytes of scratch for a node, as many for each number as a chip's file says of its op; 0 where a size is open.

    A fully connected layer with a bias has scratch for its results, a layer norm for the numbers that it normalizes, an LSTM
    for its state.
    """
    name = packed_name(node)
    if name == "LSTMInt":
        hidden = node.attributes.get("hidden_size")
        return bytes_of.get(name, 0) * (hidden.value if hidden is not None and isinstance(hidden.value, int) else 0)
    inputs = (*node.inputs, None, None, None)  # a broken node may lack some
    result = node.outputs[0] if node.outputs and inputs[2] is not None else None
    value = result if name == "LinearInt" else inputs[1]
    return bytes_of.get(name, 0) * (product_of(shape_of(value, shapes)) or 0)


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
    is_open = any(product_of(shape_of(output, shapes)) is None for node in linear for output in node.outputs)
    for node, size in scratch_shortage(model, shapes, limits).items():
        if is_open:  # whose scratch may suffice
            reason = "a size is open, so its scratch could not be checked"
            yield Finding(NOTE, describe(node), reason, OPEN_SIZE, SCRATCH.id)
            continue
        own = scratch_of(node, shapes, limits.scratch_reserved)
        reserved = f"{target.name}'s packer reserves {own} for it and no more for another layer"
        export = f"linger.onnx.export(…, target={target.name!r}) puts a layer before it that reserves enough"
        remedy = f"{export}, where it reads 8-bit integers of a fixed size. {NO_EXACT_FORM}"
        reason = f"the engine writes {size} bytes of scratch, and {reserved}"
        yield Finding(ERROR, describe(node), reason, remedy, SCRATCH.id)


def _product_findings(use: MemoryUse, target: Target, room: int | None) -> Iterator[Finding]:
    """Fully connected layers, which the chip does not split."""
    for layer in use.layers:
        size = layer.weight_bytes + layer.input_bytes + layer.output_bytes
        if room is not None and layer.op_type == "LinearInt" and size > room:
            sizes = f"{layer.weight_bytes} bytes of weights, {layer.input_bytes} of input and {layer.output_bytes} of output"
            reason = f"{sizes} are {size}; {target.name} has {room}"
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


def open_batch_option(template: str, name: str) -> str:
    """The packer's option for a batch axis of this name, which comes from a file, so that it can be copied into a shell."""
    return template.format(shlex.quote(printable(name)))


def sharing_nodes(model: ir.Model) -> dict[ir.Node, tuple[str, ir.Node]]:
    """Nodes that share a part of their parameters with another one, with the parameter and that node.

    Nodes that share all of them are exact: the block that the packer copies is the same for both.
    """
    first: dict[ir.Value, ir.Node] = {}
    sharing: dict[ir.Node, tuple[str, ir.Node]] = {}
    for node in model.graph:
        own = parameters_of(node)
        for value in own:
            other = first.setdefault(value, node)
            if parameters_of(other) != own:
                sharing.setdefault(node, (str(value.name), other))
    return sharing
