# SPDX-License-Identifier: Apache-2.0
"""What a network needs, layer by layer: bytes of tensors and from when to when each is alive, weights, multiplications.

Nothing is run and no weight is read. What a chip has room for is in `linger.checks.limits.memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from linger.analysis.multiplications import product_of
from linger.checks.multiplications import multiplications_of
from linger.dialect import find_op, is_known
from linger.errors import LingerError, counted, listing, printable
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.dialect_node import describe, is_dialect
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of, is_quantising_domain
from linger.graph.core.finding import ERROR, NOTE, Finding
from linger.graph.core.tensor_types import REALS
from linger.graph.core.unused import needed_nodes
from linger.graph.core.walking import GraphPlace, defined_in, in_order, inner_graphs, inputs_within, required_inputs
from linger.graph.files.model_io import copied
from linger.graph.forms.shaped import Shape, Tensors, declared_tensors, known_tensors
from linger.graph.passes.fixed_shapes import fix_shapes
from linger.records.html import bars_html
from linger.records.table import Column, Summed, picked, to_json, to_text
from linger.version import __version__

if TYPE_CHECKING:
    pass

FORMAT_VERSION = 1
"""Version of the JSON form. Keys may be added; one that is removed or changes its meaning raises it."""

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops whose result is the memory of their first input, read in another shape."""

_KB = 1024
_STANDARD = ("", "ai.onnx")
_FILLING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "Range", "Tile"})
"""Ops that make a whole tensor of a size; the result is data, unless it is of whole numbers as shapes are."""

_WHOLE = (None, ir.DataType.INT64, ir.DataType.BOOL)
_UNNAMED = "batch"
"""The name of a batch axis that has none."""

_WRONG_NODE = (LingerError, LookupError, TypeError, ValueError)
"""What nodes raise whose attributes are not those of their op; `linger.check` says which they are."""


@dataclass(frozen=True)
class Lifetime:
    """A piece of memory: one tensor, and the tensors that are views of it.

    Attributes:
        tensor: The tensor's name.
        bytes: Its size; None where that is not known.
        first: The layer that makes it, counted from 0; 0 for an input, which is there from the start.
        last: The last layer that reads it; the last one of all for an output.
        is_float: Whether it holds real numbers.
        is_input: Whether it is an input of the network.
        is_output: Whether it, or a view of it, is an output of the network.
        views: Tensors that lie in the same memory.
    """

    tensor: str
    bytes: int | None
    first: int
    last: int
    is_float: bool = False
    is_input: bool = False
    is_output: bool = False
    views: tuple[str, ...] = ()

    def is_alive(self, layer: int) -> bool:
        """Whether it is needed while a layer runs."""
        return self.first <= layer <= self.last


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
        return tuple(lifetime for lifetime in self.lifetimes if lifetime.is_alive(layer))

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
        return "\n".join([to_text(self._columns, self.layers), self.summary()])

    @property
    def _columns(self) -> tuple[Column, ...]:  # type: ignore[override]  # without those that would be empty
        is_used = {"scratch_kb": self.target is not None, "note": any(layer.note for layer in self.layers)}
        return tuple(column for column in _COLUMNS if is_used.get(column.name, True))

    def _picture(self) -> str:
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


def memory_use(model: ir.Model, tensors: Tensors | None = None) -> MemoryUse:
    """Count what a network needs. The model is not changed.

    A tensor is alive from the layer that makes it to the last one that reads it, an input from the start, an output to the
    end. The result of a view (`VIEWS`) lies in the memory of its input. An open batch axis is counted as 1.

    Args:
        model: The model, of either dialect or of standard ONNX.
        tensors: Shapes and types of its tensors, as `known_tensors` gives them, of a model with fixed sizes; None: they
            are inferred here.
    """
    axes = open_batch_axes(model)
    if tensors is None or axes:
        model, tensors = with_sizes(model)
    tensors = _with_states(model, tensors)
    nodes = list(_computing(model, tensors))
    storage = _Storage(model, nodes, tensors)
    lifetimes = storage.lifetimes()
    live, unknown = _alive(lifetimes, len(nodes))
    layers = tuple(storage.layer(node, live[i], has_unknown=unknown[i] > 0) for i, node in enumerate(nodes))
    weights = dict.fromkeys(weight for node in nodes for weight in storage.weights_of(node))
    return MemoryUse(layers, lifetimes, sum(map(_constant_bytes, weights)), axes)


def open_batch_axes(model: ir.Model) -> tuple[str, ...]:
    """The names of first axes of inputs whose size is open, each once; an axis without a name is called "batch"."""
    return tuple(dict.fromkeys(name or _UNNAMED for name in _batch_names(model)))


def _batch_names(model: ir.Model) -> list[str | None]:
    shapes = [value.shape for value in required_inputs(model)]
    first = [shape[0] for shape in shapes if shape is not None and len(shape) > 0]
    return [dim.value for dim in first if not isinstance(dim, int)]


def with_sizes(model: ir.Model) -> tuple[ir.Model, Tensors]:
    """A copy with a batch of 1, in the older dialect, and its tensors; only what the file declares where a node is wrong."""
    try:
        made = with_one_batch(model)
        if has_nodes_of(made, NEWER):
            convert_nodes(made, OLDER, partial=True)
        fix_shapes(made)
        return made, _joined(known_tensors(made), declared_tensors(made))
    except _WRONG_NODE:
        made = with_one_batch(model)
        return made, declared_tensors(made)


def _joined(found: Tensors, declared: Tensors) -> Tensors:
    """What was found, and what the file declares where only that is complete."""
    whole = {name: shape for name, shape in declared.shapes.items() if product_of(shape) is not None}
    more = {name: shape for name, shape in whole.items() if product_of(found.shapes.get(name)) is None}
    return Tensors(found.shapes | more, declared.types | found.types)


def _with_states(model: ir.Model, tensors: Tensors) -> Tensors:
    """The same with the shapes of the states that recurrent nodes return, which shape inference does not find."""
    shapes, types = dict(tensors.shapes), dict(tensors.types)
    for node in model.graph:
        if _is_ours(node) and find_op(node.op_type).is_recurrent:
            for value in _made(node)[1:]:
                shapes[value.name or ""] = _state_shape(node, shapes)
                types.setdefault(value.name or "", ir.DataType.FLOAT)
    return Tensors(shapes, types)


def _state_shape(node: ir.Node, shapes: Mapping[str, Shape]) -> Shape:
    """The shape of a state of a recurrent node: one direction, the batch, its numbers."""
    numbers = {name: a.value for name, a in node.attributes.items() if a.type == ir.AttributeType.INT}
    x = shapes.get(node.inputs[0].name or "", ()) if node.inputs and node.inputs[0] is not None else ()
    batch = x[0 if numbers.get("batch_first") else 1] if len(x) == 3 else None
    return (1, batch, numbers.get("hidden_size"))


def with_one_batch(model: ir.Model) -> ir.Model:
    """A copy whose open batch axes have the size 1."""
    names = {name for name in _batch_names(model) if name is not None}
    made = copied(model)
    inputs = set(required_inputs(made))
    for value in defined_in(made.graph):
        if value.shape is not None:
            value.shape = ir.Shape(
                1 if not isinstance(dim, int) and (dim.value in names or (axis == 0 and value in inputs)) else dim
                for axis, dim in enumerate(value.shape)
            )
    return made


def _computing(model: ir.Model, tensors: Tensors) -> Iterator[ir.Node]:
    """The nodes that compute data, in the order of execution."""
    needed, of_shapes = needed_nodes(model), set[ir.Value]()
    for node in in_order(GraphPlace(model.graph, None, None)):
        if node.op_type == "Constant" or node not in needed:
            continue
        if _computes_shapes(node, of_shapes, tensors):
            of_shapes.update(node.outputs)
        else:
            yield node


def _computes_shapes(node: ir.Node, of_shapes: set[ir.Value], tensors: Tensors) -> bool:
    """Whether a node computes with sizes only."""
    if node.domain not in _STANDARD or node.op_type in ("Shape", "Size"):
        return node.domain in _STANDARD
    read = {value for value in node.inputs if value is not None}
    if of_shapes.isdisjoint(read) or not all(map(_is_constant, read - of_shapes)):
        return False
    return node.op_type not in _FILLING or tensors.types.get(node.outputs[0].name or "") in _WHOLE


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() if producer is None else producer.op_type == "Constant"


def _constant_bytes(value: ir.Value) -> int:
    """The size of a constant as it is stored; 0 for shapes, axes and bounds, which are no weights."""
    producer, tensor = value.producer(), value.const_value
    if producer is not None:
        content = producer.attributes.get("value")
        is_tensor = content is not None and content.type == ir.AttributeType.TENSOR and not content.is_ref()
        tensor = content.as_tensor() if content is not None and is_tensor else None
    if tensor is None or tensor.dtype == ir.DataType.INT64:
        return 0
    return _size(tuple(tensor.shape.numpy()), tensor.dtype) or 0


def _size(shape: Shape | None, element: ir.DataType | None) -> int | None:
    """The bytes of a tensor; None where a size is open or elements have no fixed width."""
    count = product_of(shape)
    if count is None or element is None or element in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    return -(-count * int(element.bitwidth) // 8)


def _alive(lifetimes: Iterable[Lifetime], count: int) -> tuple[list[int], list[int]]:
    """For every layer, the bytes that are alive, and the number of tensors of unknown size that are."""
    size_steps, unknown_steps = [0] * (count + 1), [0] * (count + 1)
    for lifetime in lifetimes:
        steps, step = (unknown_steps, 1) if lifetime.bytes is None else (size_steps, lifetime.bytes)
        steps[lifetime.first] += step
        steps[lifetime.last + 1] -= step
    return list(accumulate(size_steps)), list(accumulate(unknown_steps))


@dataclass
class _Buffer:
    """A lifetime while the graph is walked."""

    name: str
    bytes: int | None
    is_float: bool
    first: int
    last: int
    is_input: bool = False
    is_output: bool = False
    views: list[str] = field(default_factory=list)


class _Storage:
    """Where the tensors of a main graph lie: the memory of each, and the constant behind views of one."""

    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], tensors: Tensors) -> None:
        self._tensors, self._functions = tensors, model.functions
        self._buffers: dict[ir.Value, _Buffer] = {}
        self._constants: dict[ir.Value, ir.Value] = {}
        for value in required_inputs(model):
            self._buffers[value] = self._buffer(value, 0, -1, is_input=True)
        for number, node in enumerate(nodes):
            self._run(node, number)
        for value in model.graph.outputs:
            if value in self._buffers:
                self._buffers[value].last, self._buffers[value].is_output = len(nodes) - 1, True

    def _run(self, node: ir.Node, number: int) -> None:
        for value in inputs_within(node):
            if value in self._buffers:
                self._buffers[value].last = number
        source = node.inputs[0] if is_view(node) else None
        constant = None if source is None else self._constant(source)
        if source is not None and source in self._buffers:
            self._buffers[node.outputs[0]] = self._buffers[source]
            self._buffers[source].views.append(node.outputs[0].name or "")
        elif constant is not None:
            self._constants[node.outputs[0]] = constant
        else:
            for value in _made(node):
                self._buffers[value] = self._buffer(value, number, number)

    def _buffer(self, value: ir.Value, first: int, last: int, *, is_input: bool = False) -> _Buffer:
        name = value.name or ""
        return _Buffer(name, self._bytes(value), self._tensors.types.get(name) in REALS, first, last, is_input)

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """The memory of every tensor that a layer makes or reads, in the order in which it is first needed."""
        used = {id(buffer): buffer for buffer in self._buffers.values() if buffer.last >= buffer.first}
        return tuple(
            Lifetime(b.name, b.bytes, b.first, b.last, b.is_float, b.is_input, b.is_output, tuple(b.views))
            for b in used.values()
        )

    def weights_of(self, node: ir.Node) -> list[ir.Value]:
        """The constants that a node reads, each once; not the shape that a view takes."""
        read = node.inputs[:1] if is_view(node) else inputs_within(node)
        found = (None if value is None else self._constant(value) for value in read)
        return list(dict.fromkeys(value for value in found if value is not None))

    def layer(self, node: ir.Node, live_bytes: int, *, has_unknown: bool) -> LayerMemory:
        """The row of a node."""
        read = [value for value in dict.fromkeys(inputs_within(node)) if value in self._buffers]
        made, macs, has_inside = _made(node), multiplications_of(node, self._shape), self._has_inside(node)
        return LayerMemory(
            node=describe(node),
            op_type=node.op_type,
            shapes=tuple(self._shape(value) for value in made),
            input_bytes=self._total(read),
            output_bytes=self._total(made),
            live_bytes=live_bytes,
            weight_bytes=sum(map(_constant_bytes, self.weights_of(node))),
            macs=macs or 0,
            is_view=is_view(node),
            is_lower_bound=has_unknown or has_inside or macs is None,
            note="; ".join(self._notes(node, [*read, *made], has_inside=has_inside)),
            outputs=tuple(value.name or "" for value in made),
            has_all_macs=not has_inside and macs is not None,
        )

    def _notes(self, node: ir.Node, values: Sequence[ir.Value], *, has_inside: bool) -> Iterator[str]:
        if is_view(node):
            yield "shares the memory of its input"
        unknown = [printable(value.name or "?") for value in values if self._bytes(value) is None]
        if unknown:
            yield f"size not known: {listing(dict.fromkeys(unknown), limit=3)}"
        if has_inside:
            yield "what is inside is not counted"

    def _has_inside(self, node: ir.Node) -> bool:
        is_call = node.op_identifier() in self._functions and not is_quantising_domain(node.domain)
        return is_call or bool(inner_graphs(node))

    def _total(self, values: Iterable[ir.Value]) -> int:
        return sum(self._bytes(value) or 0 for value in values)

    def _constant(self, value: ir.Value) -> ir.Value | None:
        return self._constants.get(value) or (value if _is_constant(value) else None)

    def _shape(self, value: ir.Value | None) -> Shape | None:
        return None if value is None else self._tensors.shapes.get(value.name or "")

    def _bytes(self, value: ir.Value) -> int | None:
        return _size(self._shape(value), self._tensors.types.get(value.name or ""))


def is_view(node: ir.Node) -> bool:
    """Whether the result of a node lies in the memory of its input: a view, or a Relu that packers join with a convolution."""
    is_ours = node.domain in _STANDARD or is_dialect(node)
    if not is_ours or not node.inputs or len(node.outputs) != 1:
        return False
    return node.op_type in VIEWS or (node.op_type == "Relu" and _is_fused(node.inputs[0]))


def _is_fused(x: ir.Value | None) -> bool:
    """Whether packers join what makes a tensor, a convolution over two axes, with the one node that reads it."""
    maker = None if x is None else x.producer()
    if x is None or maker is None or not _is_ours(maker) or x.is_graph_output() or len(x.consumers()) != 1:
        return False
    op = find_op(maker.op_type)
    return op.window_axes == 2 and op.weight_axes is not None


def _is_ours(node: ir.Node) -> bool:
    """Whether a node is of an op of the older dialect that linger knows."""
    return is_dialect(node) and is_known(node.op_type)


def _made(node: ir.Node) -> list[ir.Value]:
    """The outputs that a node really makes: those with a name."""
    return [value for value in node.outputs if value.name]
