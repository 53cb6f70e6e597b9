# SPDX-License-Identifier: Apache-2.0
"""What a network needs, layer by layer: bytes of tensors and from when to when each is alive, weights, multiplications.

Nothing is run and no weight is read. What a chip has room for is in `linger.checks.limits.whole_file`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from linger.errors import counted, listing, printable
from linger.graph.core.nodes import ERROR, NOTE, Finding, describe
from linger.graph.lowering.bodies import Shape, Tensors
from linger.graph.network import (
    Lifetime,
    Lifetimes,
    Liveness,
    Network,
    computing_nodes,
    constant_bytes,
    is_view,
    made_by,
    multiplications_of,
    open_batch_axes,
    with_sizes,
    with_states,
)
from linger.records.html import bars_html
from linger.records.table import Column, Summed, picked, to_json, to_text
from linger.version import __version__

if TYPE_CHECKING:
    pass

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
        weight_bytes: The constants that it reads, as the file stores them, without shapes, axes and bounds.
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
    return MemoryUse(layers, tuple(lifetimes.pieces), sum(map(constant_bytes, weights)), axes)


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
        weight_bytes=sum(map(constant_bytes, liveness.weights_of(node))),
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
