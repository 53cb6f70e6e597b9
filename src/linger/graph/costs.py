# SPDX-License-Identifier: Apache-2.0
"""What a network costs, layer by layer: the liveness of its tensors, its weights, its multiply-accumulates.

Nothing is run and no weight is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import onnx_ir as ir

from linger.analysis.multiplications import product_of, products_of
from linger.dialect import find_op, is_known
from linger.graph.core.dialects import is_quantizing_domain
from linger.graph.core.nodes import GraphPlace, in_order, inner_graphs, inputs_within, is_dialect, required_inputs
from linger.graph.core.rewiring import needed_nodes
from linger.graph.core.tensor_types import REALS
from linger.graph.lowering.bodies import Shape, Tensors

VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops whose result is the memory of their first input, read in another shape."""

_STANDARD = ("", "ai.onnx")
_FILLING = frozenset({"ConstantOfShape", "Expand", "EyeLike", "Range", "Tile"})
"""Ops that make a whole tensor of a size; the result is data, unless it is of whole numbers as shapes are."""

_WHOLE = (None, ir.DataType.INT64, ir.DataType.BOOL)


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

    def meets(self, other: Lifetime) -> bool:
        """Whether both are needed at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Lifetimes:
    """The liveness of tensors over the steps of a network, or of its program in C.

    Attributes:
        pieces: The pieces of memory.
        alignment: Every piece takes a multiple of so many bytes.
    """

    pieces: Sequence[Lifetime]
    alignment: int = 1

    def taken(self, piece: Lifetime) -> int:
        """The bytes that a piece takes, with what alignment adds; 0 where its size is not known."""
        return -(-(piece.bytes or 0) // self.alignment) * self.alignment

    def alive_at(self, step: int) -> tuple[Lifetime, ...]:
        """The pieces that a step needs."""
        return tuple(piece for piece in self.pieces if piece.is_alive(step))

    def totals(self) -> list[int]:
        """The bytes that are alive at each step."""
        return self._sums(self.taken)

    def unknown(self) -> list[int]:
        """How many pieces of unknown size are alive at each step."""
        return self._sums(lambda piece: piece.bytes is None)

    def _sums(self, size: Callable[[Lifetime], int]) -> list[int]:
        changes = [0] * (max((piece.last for piece in self.pieces), default=-1) + 2)
        for piece in self.pieces:
            changes[piece.first] += size(piece)
            changes[piece.last + 1] -= size(piece)
        return list(accumulate(changes))[:-1]


def with_states(model: ir.Model, tensors: Tensors) -> Tensors:
    """The same with the shapes of the states that recurrent nodes return, which shape inference does not find."""
    shapes, types = dict(tensors.shapes), dict(tensors.types)
    for node in model.graph:
        if _is_ours(node) and find_op(node.op_type).is_recurrent:
            for value in made_by(node)[1:]:
                shapes[value.name or ""] = _state_shape(node, shapes)
                types.setdefault(value.name or "", ir.DataType.FLOAT)
    return Tensors(shapes, types)


def _state_shape(node: ir.Node, shapes: Mapping[str, Shape]) -> Shape:
    """The shape of a state of a recurrent node: one direction, the batch, its numbers."""
    numbers = {name: a.value for name, a in node.attributes.items() if a.type == ir.AttributeType.INT}
    x = shapes.get(node.inputs[0].name or "", ()) if node.inputs and node.inputs[0] is not None else ()
    batch = x[0 if numbers.get("batch_first") else 1] if len(x) == 3 else None
    return (1, batch, numbers.get("hidden_size"))


def computing_nodes(model: ir.Model, tensors: Tensors) -> Iterator[ir.Node]:
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


def constant_bytes(value: ir.Value) -> int:
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


class Liveness:
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
            for value in made_by(node):
                self._buffers[value] = self._buffer(value, number, number)

    def _buffer(self, value: ir.Value, first: int, last: int, *, is_input: bool = False) -> _Buffer:
        name = value.name or ""
        return _Buffer(name, self.bytes(value), self._tensors.types.get(name) in REALS, first, last, is_input)

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

    def reads(self, node: ir.Node) -> list[ir.Value]:
        """The tensors that a node reads, without weights, each once."""
        return [value for value in dict.fromkeys(inputs_within(node)) if value in self._buffers]

    def has_inside(self, node: ir.Node) -> bool:
        """Whether a node runs graphs or functions that are not counted."""
        is_call = node.op_identifier() in self._functions and not is_quantizing_domain(node.domain)
        return is_call or bool(inner_graphs(node))

    def total(self, values: Iterable[ir.Value]) -> int:
        """The bytes of tensors, without those of unknown size."""
        return sum(self.bytes(value) or 0 for value in values)

    def _constant(self, value: ir.Value) -> ir.Value | None:
        return self._constants.get(value) or (value if _is_constant(value) else None)

    def shape(self, value: ir.Value | None) -> Shape | None:
        """The shape of a tensor; None where it is not known."""
        return None if value is None else self._tensors.shapes.get(value.name or "")

    def bytes(self, value: ir.Value) -> int | None:
        """The bytes of a tensor; None where its size is not known."""
        return _size(self.shape(value), self._tensors.types.get(value.name or ""))


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


def made_by(node: ir.Node) -> list[ir.Value]:
    """The outputs that a node really makes: those with a name."""
    return [value for value in node.outputs if value.name]


def multiplications_of(node: ir.Node, shape_of: Callable[[ir.Value | None], Shape | None]) -> int | None:
    """The multiply-accumulates of a node; None where a size is open."""
    is_ours = _is_ours(node)
    if not (is_ours or node.domain in _STANDARD):
        return 0
    op = find_op(node.op_type).name if is_ours else node.op_type
    return products_of(op, [shape_of(value) for value in (*node.outputs[:1], *node.inputs)])
