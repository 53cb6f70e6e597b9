# SPDX-License-Identifier: Apache-2.0
"""A network: a file or a model in memory, loaded, checked, brought to normal form, typed and sized at most once.

And what it costs, layer by layer: the liveness of its tensors, its weights, its multiply-accumulates. For these nothing is run
and no weight is read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeVar, Union

import onnx
import onnx_ir as ir

from linger.analysis.multiplications import product_of, products_of
from linger.dialect import find_op, is_known
from linger.errors import LingerError, UsageError
from linger.files import is_unchanged
from linger.graph.conversion.convert import convert_nodes
from linger.graph.core.dialects import NEWER, OLDER, has_nodes_of, is_quantizing_domain
from linger.graph.core.nodes import (
    GraphPlace,
    defined_in,
    in_order,
    inner_graphs,
    inputs_within,
    is_dialect,
    required_inputs,
)
from linger.graph.core.rewiring import needed_nodes
from linger.graph.core.tensor_types import REALS, constant_tensor
from linger.graph.files.model_io import Content, ModelLike, copied, external_tensors, read_model, require_sound
from linger.graph.files.soundness import LISTED, refuse
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import Propagation
from linger.graph.lowering.bodies import Shape, Tensors, bring_to_normal_form, declared_tensors, known_tensors
from linger.graph.passes.constants import fix_shapes

NetworkLike = Union[ModelLike, "Network"]
"""What every command on a file takes: a path or a model makes a network of its own."""

_Found = TypeVar("_Found")
_UNNAMED = "batch"
"""The name of a batch axis that has none."""

_STANDARD = ("", "ai.onnx")

_WRONG_NODE = (LingerError, LookupError, TypeError, ValueError)
"""What nodes raise whose attributes are not those of their op; `linger.check` says which they are."""


class Network:
    """A file, or a model in memory, with everything that is found out about it; each thing is found when it is first asked for.

    A file is read once. What changes on disk afterwards is not seen; where a file is read again, as for its digest,
    `require_unchanged` refuses. Nobody may change the models that it returns; `own` returns a copy for that.

    Args:
        source: The file, or a model in memory, which must not change as long as the network is used.
        is_checked: The source is an `ir.Model` that `load` has returned: it is not checked again.
    """

    def __init__(self, source: ModelLike, *, is_checked: bool = False) -> None:
        self.source = source
        self.path = Path(source) if isinstance(source, (str, os.PathLike)) else None
        is_trusted = is_checked and isinstance(source, ir.Model)
        self._content = Content(source, (), "") if is_trusted and isinstance(source, ir.Model) else None
        self._is_sound = is_trusted
        self._files: dict[Path, os.stat_result] = {}
        self._known: dict[Callable[[Network], Any], Any] = {}

    @classmethod
    def of(cls, source: NetworkLike, *, is_checked: bool = False) -> Network:
        """The network itself, or a new one of a path or a model."""
        return source if isinstance(source, Network) else cls(source, is_checked=is_checked)

    def once(self, find: Callable[[Network], _Found]) -> _Found:
        """What a function finds of this network; it runs once, and its result is kept with the network."""
        if find not in self._known:
            self._known[find] = find(self)
        found: _Found = self._known[find]
        return found

    def _read(self, allowed: Collection[str]) -> Content:
        """The content, read at the first call."""
        if self._content is None:
            before: dict[Path, os.stat_result] = {}
            if self.path is not None:
                with suppress(OSError, ValueError):  # reading it says what is wrong
                    before[self.path] = self.path.stat()
            self._content = read_model(self.source, allowed=allowed)
            self._files = before | {file: file.stat() for file in data_files(self._content.model)}
        return self._content

    @property
    def listed(self) -> ir.Model:
        """The content as a graph, which may have flaws that a check lists; other flaws are refused, as by `load`."""
        return self._read(LISTED).model

    @property
    def model(self) -> ir.Model:
        """The content as a graph without any flaw; refused as by `load`."""
        content = self._read(())
        if not self._is_sound:
            refuse(content.flaws, content.where)
            if content.proto is None:
                require_sound(content.model)
            self._is_sound = True
        return content.model

    def own(self) -> ir.Model:
        """A copy of the model that may be changed; the weights are shared."""
        return copied(self.model)

    @property
    def proto(self) -> onnx.ModelProto:
        """The content as the file has it, which onnx_ir would change in part; of a model in memory, what would be written."""
        content = self._read(LISTED)
        return ir.to_proto(content.model) if content.proto is None else content.proto

    @property
    def files(self) -> Mapping[Path, os.stat_result]:
        """The file and its data files, each with its size and time when it was loaded; nothing for a model in memory."""
        self._read(())
        return {} if self.path is None else self._files

    def require_unchanged(self) -> None:
        """Refuse a file that is no longer what was loaded, or whose data is not."""
        changed = [str(file) for file, before in self.files.items() if not is_unchanged(file, before)]
        if changed:
            raise UsageError(f"{', '.join(changed)}: the file has changed since it was loaded. Load it again.")

    @cached_property
    def normal(self) -> ir.Model:
        """The model in normal form: sorted, typed, in the older dialect, integer standard ops adopted; others are refused."""
        made = self.own()
        bring_to_normal_form(made)
        return made

    @cached_property
    def sized(self) -> tuple[ir.Model, Tensors]:
        """The model with a batch of 1 in the older dialect, with shapes and types of its tensors."""
        return with_sizes(self.model)

    @cached_property
    def formats(self) -> Propagation:
        """Element type, scale and width of every tensor; the nodes must be in topological order."""
        return propagate(self.model)


def data_files(model: ir.Model) -> list[Path]:
    """The files that hold a model's external data."""
    return sorted({Path(tensor.path) for tensor in external_tensors(model)})


def open_batch_axes(model: ir.Model) -> tuple[str, ...]:
    """The names of first axes of inputs whose size is open, each once; an axis without a name is called "batch"."""
    return tuple(dict.fromkeys(name or _UNNAMED for name in _batch_names(model)))


def _batch_names(model: ir.Model) -> list[str | None]:
    shapes = [value.shape for value in required_inputs(model)]
    first = [shape[0] for shape in shapes if shape is not None and len(shape) > 0]
    return [dim.value for dim in first if not isinstance(dim, int)]


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


VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})
"""Ops whose result is the memory of their first input, read in another shape."""

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
    tensor = constant_tensor(value)
    if tensor is None or tensor.dtype == ir.DataType.INT64:
        return 0
    return _size(tuple(tensor.shape.numpy()), tensor.dtype) or 0


def _size(shape: Shape | None, element: ir.DataType | None) -> int | None:
    """The bytes of a tensor; None where a size is open or elements have no fixed width."""
    count = product_of(shape)
    if count is None or element is None or element in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        return None
    return -(-count * int(element.bitwidth) // 8)


class Liveness:
    """Where the tensors of a main graph lie: the memory of each, and the constant behind views of one."""

    def __init__(self, model: ir.Model, nodes: Sequence[ir.Node], tensors: Tensors) -> None:
        self._tensors, self._functions = tensors, model.functions
        self._homes: dict[ir.Value, ir.Value] = {}  # the tensor in whose memory a tensor lies
        self._lifetimes: dict[ir.Value, Lifetime] = {}
        self._constants: dict[ir.Value, ir.Value] = {}
        for value in required_inputs(model):
            self._make(value, 0, -1, is_input=True)
        for number, node in enumerate(nodes):
            self._run(node, number)
        for value in model.graph.outputs:
            self._change(value, last=len(nodes) - 1, is_output=True)

    def _run(self, node: ir.Node, number: int) -> None:
        for value in inputs_within(node):
            self._change(value, last=number)
        source = node.inputs[0] if is_view(node) else None
        constant = None if source is None else self._constant(source)
        if source is not None and source in self._homes:
            home = self._homes[node.outputs[0]] = self._homes[source]
            self._change(home, views=(*self._lifetimes[home].views, node.outputs[0].name or ""))
        elif constant is not None:
            self._constants[node.outputs[0]] = constant
        else:
            for value in made_by(node):
                self._make(value, number, number)

    def _make(self, value: ir.Value, first: int, last: int, *, is_input: bool = False) -> None:
        name = value.name or ""
        is_float = self._tensors.types.get(name) in REALS
        self._homes[value] = value
        self._lifetimes[value] = Lifetime(name, self.bytes(value), first, last, is_float, is_input)

    def _change(self, value: ir.Value, **fields: Any) -> None:
        if value in self._homes:
            self._lifetimes[self._homes[value]] = replace(self._lifetimes[self._homes[value]], **fields)

    def lifetimes(self) -> tuple[Lifetime, ...]:
        """The memory of every tensor that a layer makes or reads, in the order in which it is first needed."""
        return tuple(life for life in self._lifetimes.values() if life.last >= life.first)

    def weights_of(self, node: ir.Node) -> list[ir.Value]:
        """The constants that a node reads, each once; not the shape that a view takes."""
        read = node.inputs[:1] if is_view(node) else inputs_within(node)
        found = (None if value is None else self._constant(value) for value in read)
        return list(dict.fromkeys(value for value in found if value is not None))

    def reads(self, node: ir.Node) -> list[ir.Value]:
        """The tensors that a node reads, without weights, each once."""
        return [value for value in dict.fromkeys(inputs_within(node)) if value in self._homes]

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
