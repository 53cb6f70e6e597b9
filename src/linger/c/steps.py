# SPDX-License-Identifier: Apache-2.0
"""The steps of a program: nodes joined where the next one needs one element for one element, moves, and what needs no step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.c.moves import ALIASES, data_names, map_of
from linger.c.network import FixedNetwork, value_names
from linger.dialect import Op
from linger.errors import UnsupportedError, listing, printable
from linger.graph.core.nodes import attributes_of, describe, is_dialect, op_of, opset_of
from linger.numeric.c.kernel import CKernel
from linger.numeric.c.unit import Input, elementwise_inputs
from linger.numeric.numpy_kernel import NumpyKernel

Array = NDArray[Any]
Order = tuple[int, ...] | None
"""The axes from the outermost to the innermost in memory; None: as they come."""

_FEWEST_AXES = 3
_MOST_AXES = 5
"""Tensors of more axes are not looked at for another order: there are too many."""


@dataclass(frozen=True)
class Layout:
    """How one tensor lies in memory.

    Attributes:
        order: Its axes from the outermost to the innermost.
        permutation: Where not None, element k in memory is element permutation[k] of the flattened tensor.
    """

    order: Order = None
    permutation: Array | None = None


def channels_last(axes: int) -> tuple[int, ...]:
    """The order with axis 1 innermost."""
    return (0, *range(2, axes), 1)


def image_tensors(network: FixedNetwork) -> set[str]:
    """The tensors that windows go over, and those that ops with equal shapes connect with them."""
    images: set[str] = set()
    before = -1
    while len(images) > before:
        before = len(images)
        for node in filter(is_dialect, network.nodes):
            images |= _connected(network, node, images)
    return images


def _connected(network: FixedNetwork, node: ir.Node, images: set[str]) -> set[str]:
    """The tensors of a node that are images, because it has a window, or because another one of them is."""
    op, names = op_of(node), (*value_names(node.inputs), *value_names(node.outputs))
    axes = {name: len(network.tensors[name].shape) for name in names if name not in network.constants}
    known = images & axes.keys()
    if not op.window_axes and (not known or not _is_local(op)):
        return set()
    count = op.window_axes + 2 if op.window_axes else max(axes[name] for name in known)
    return {name for name in axes if axes[name] == count}


def _is_local(op: Op) -> bool:
    """Whether an op has no window, no weights and no time, so that it may compute element by element."""
    return not (op.window_axes or op.is_recurrent or op.weight_axes is not None)


def in_memory_order(shape: Sequence[int], layout: Layout) -> Array:
    """For each element in memory the place that it has in the flattened tensor."""
    if layout.permutation is not None:
        return layout.permutation
    places = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return (places if layout.order is None else places.transpose(layout.order)).reshape(-1)


def order_with(places: Array, memory: Array) -> tuple[bool, Order]:
    """Whether a tensor can lie in memory that is there already, and in which order then.

    Args:
        places: For each element of the tensor the place in the flattened source that it is taken from.
        memory: For each element in memory the place in the flattened source.
    """
    if places.size == memory.size and places.ndim <= _MOST_AXES:
        for order in permutations(range(places.ndim)):
            if np.array_equal(places.transpose(order).reshape(-1), memory):
                return True, None if order == tuple(range(places.ndim)) else order
    return False, None


def weight_order(op: Op, shape: Sequence[int], group: int) -> Order:
    """How the weights of an op lie, so that sums go through them in one run."""
    if not op.window_axes or len(shape) < _FEWEST_AXES:
        return None
    if op.is_transposed:
        return (1, *range(2, len(shape)), 0)
    if shape[1] == 1 and shape[0] == group > 1:
        return (*range(2, len(shape)), 0, 1)
    return channels_last(len(shape))


_WORTH_A_TABLE = 12
"""Operations from which on a function of one byte is a table of 256."""
_BYTES = np.arange(-128, 128, dtype=np.int8)


@dataclass(frozen=True)
class Step:
    """Nodes that one C function computes.

    Attributes:
        nodes: The nodes, each one reading the result of the one before element by element.
        outputs: The tensors that are kept.
        inner: The tensors between the nodes, which only proof builds keep.
        reads: The tensors and constants that come from outside, each once.
        tables: Results that are read from a table instead, by name: the tensor that is the index, and the numbers.
    """

    nodes: tuple[ir.Node, ...]
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    tables: Mapping[str, tuple[str, Array]] = field(default_factory=dict)

    @property
    def is_move(self) -> bool:
        """Whether it only moves elements."""
        return not is_dialect(self.nodes[0])


@dataclass(frozen=True)
class Edge:
    """An input or output of the network.

    Attributes:
        name: Its name in the file.
        tensor: The tensor inside that it is converted to or from; its own where there is no conversion.
        node: The Quant or Dequant between both; None: integers, or real numbers, as they are.
    """

    name: str
    tensor: str
    node: ir.Node | None


@dataclass(frozen=True)
class Plan:
    """What a program does, in order.

    Attributes:
        network: The network.
        inputs: What comes in.
        outputs: What goes out.
        steps: What is computed between them.
        layouts: How each tensor lies in memory.
        aliases: Tensors that lie in the memory of another one: its name by theirs.
    """

    network: FixedNetwork
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    steps: tuple[Step, ...]
    layouts: Mapping[str, Layout]
    aliases: Mapping[str, str]

    def root(self, name: str) -> str:
        """The tensor whose memory holds this one."""
        while name in self.aliases:
            name = self.aliases[name]
        return name


def make_plan(network: FixedNetwork) -> Plan:
    """Decide edges, fused nodes, layouts and aliases.

    Raises:
        UnsupportedError: Ops that have no C, all of them.
    """
    inputs, outputs = _inputs(network), _outputs(network)
    edges = (*inputs, *outputs)
    at_edges = {edge.node for edge in edges}
    inside = [node for node in network.nodes if node not in at_edges]
    fused = _Fusion(network, inside, {edge.tensor for edge in edges}).steps()
    layouts, aliases, steps = _Placing(network, [edge.tensor for edge in inputs], fused).result()
    same = {name: of for name, of in network.same.items() if of in layouts}
    layouts |= {name: layouts[of] for name, of in same.items()}
    return Plan(network, inputs, outputs, tuple(steps), layouts, aliases | same)


def _inputs(network: FixedNetwork) -> tuple[Edge, ...]:
    readers, edges = network.readers(), []
    for name in network.inputs:
        quants = [node for node in readers.get(name, []) if node.op_type == "Quant" and is_dialect(node)]
        is_quantized = len(quants) == len(readers.get(name, [])) == 1 and name not in network.outputs
        edges.append(Edge(name, str(quants[0].outputs[0].name), quants[0]) if is_quantized else Edge(name, name, None))
    return tuple(edges)


def _outputs(network: FixedNetwork) -> tuple[Edge, ...]:
    readers, makers = network.readers(), {name: node for node in network.nodes for name in value_names(node.outputs)}
    empty = [printable(name) for name in network.outputs if name not in makers]
    if empty:
        raise UnsupportedError(
            f"C has nothing to compute for the outputs {listing(empty)}: they are constants, or inputs as they are; "
            "take them out of the file."
        )
    edges = []
    for name in network.outputs:
        node = makers[name]
        is_dequantized = node.op_type == "Dequant" and is_dialect(node) and not readers.get(name)
        edges.append(Edge(name, next(value_names(node.inputs)), node) if is_dequantized else Edge(name, name, None))
    return tuple(edges)


def declared(network: FixedNetwork, node: ir.Node, layouts: Mapping[str, Layout] | None = None) -> list[Input | None]:
    """The inputs of a dialect node, as its C function takes them."""
    op = op_of(node)
    return op.arrange(
        [
            None if value is None or not value.name else input_of(network, value.name, layouts, (node, op, index))
            for index, value in enumerate(node.inputs)
        ]
    )


def input_of(
    network: FixedNetwork, name: str, layouts: Mapping[str, Layout] | None, use: tuple[ir.Node, Op, int] | None = None
) -> Input:
    """A tensor as a C function takes it: weights in the order, and with the columns, that its reader wants."""
    tensor, known = network.tensors[name], network.constants.get(name)
    if known is None:
        layout = (layouts or {}).get(name, Layout())
        return Input(tensor.shape, tensor.dtype, None, layout.order)
    order: Order = None
    if use is not None and use[2] == 1 and layouts is not None:
        node, op, _ = use
        group = node.attributes.get_int("group", 1) or 1
        order = weight_order(op, tensor.shape, group)
        columns = layouts.get(next(value_names(node.inputs)), Layout()).permutation
        if columns is not None:
            known = np.ascontiguousarray(known[:, columns])
    return Input(tensor.shape, tensor.dtype, known, order)


class _Fusion:
    """Joins nodes: a node that reads a tensor element by element runs where the tensor is made, if nobody else reads it."""

    def __init__(self, network: FixedNetwork, nodes: Sequence[ir.Node], kept: set[str]) -> None:
        self._network, self._nodes, self._kept = network, nodes, kept
        self._readers = network.readers()
        self._problems: list[str] = []
        self._known: dict[ir.Node, tuple[set[str], int]] = {}

    def steps(self) -> list[Step]:
        """The steps, in an order in which everything is made before it is read."""
        ahead: dict[str, list[ir.Node]] = {}
        groups: dict[int, list[ir.Node]] = {}
        for position, node in enumerate(self._nodes):
            group = self._group_for(node, ahead) or []
            group.append(node)
            groups = {key: other for key, other in groups.items() if other is not group} | {position: group}
            ahead |= dict.fromkeys(value_names(node.outputs), group)
        if self._problems:
            raise UnsupportedError(f"C cannot be written for {listing(self._problems)}.")
        return [self._step(group) for _, group in sorted(groups.items())]

    def _group_for(self, node: ir.Node, ahead: Mapping[str, list[ir.Node]]) -> list[ir.Node] | None:
        """The group that a node joins: the latest one whose last result it alone reads, element by element."""
        if not is_dialect(node) or not _is_local(op_of(node)):
            return None
        joined = None
        for name in dict.fromkeys(value_names(node.inputs)):
            group = ahead.get(name) if self._is_private(name, node) else None
            is_end = group is not None and is_dialect(group[0]) and [v.name for v in group[-1].outputs] == [name]
            if is_end and name in self._elementwise(node)[0] and self._same_shape(name, node):
                joined = group
        return joined

    def _is_private(self, name: str, reader: ir.Node) -> bool:
        return name not in self._kept and self._readers.get(name) == [reader]

    def _same_shape(self, name: str, node: ir.Node) -> bool:
        return self._network.tensors[name].shape == self._network.tensors[str(node.outputs[0].name)].shape

    def _elementwise(self, node: ir.Node) -> tuple[set[str], int]:
        """The inputs that a node reads element by element, by name, and how many operations an element takes."""
        op = op_of(node)
        if node not in self._known:
            inputs, title = declared(self._network, node), describe(node)
            try:
                places, cost = elementwise_inputs(op.body, inputs, attributes_of(node, op), title=title)
            except UnsupportedError as error:
                self._problems.append(str(error).removesuffix("."))
                places, cost = frozenset(), 0
            names = op.arrange([None if v is None else v.name for v in node.inputs])
            self._known[node] = {str(names[i]) for i in places}, cost
        return self._known[node]

    def _step(self, nodes: Sequence[ir.Node]) -> Step:
        made = [name for node in nodes for name in value_names(node.outputs)]
        outputs = tuple(value_names(nodes[-1].outputs))
        inner = tuple(name for name in made if name not in outputs)
        reads = dict.fromkeys(name for node in nodes for name in value_names(node.inputs) if name not in made)
        tables = self._tables(nodes) if is_dialect(nodes[0]) else {}
        return Step(tuple(nodes), outputs, inner, tuple(reads), tables)

    def _tables(self, nodes: Sequence[ir.Node]) -> dict[str, tuple[str, Array]]:
        """Results that are functions of one byte and cost more than reading a table."""
        found: dict[str, tuple[str, Array]] = {}
        run: list[ir.Node] = []
        for node in nodes:
            if self._byte_read(node) is None:
                run = []
                continue
            run.append(node)
            source = self._byte_read(run[0])
            if source is None or sum(self._elementwise(member)[1] for member in run) < _WORTH_A_TABLE:
                continue
            values: dict[str, Array] = {source: _BYTES}
            for member in run:
                result = str(member.outputs[0].name)
                values[result] = self._on_bytes(member, values)
                found[result] = (source, values[result])
        return found

    def _byte_read(self, node: ir.Node) -> str | None:
        """The one tensor of bytes that decides a node's result, element by element; None for other nodes."""
        op, tensors = op_of(node), self._network.tensors
        names = set(value_names(node.inputs))
        data = names - self._network.constants.keys()
        if len(data) != 1 or len(node.outputs) != 1 or not _is_local(op) or not op.has_integer_output:
            return None
        (source,) = data
        is_byte = tensors[source].dtype == "int8" and all(tensors[name].count == 1 for name in names - data)
        return source if is_byte and self._same_shape(source, node) and source in self._elementwise(node)[0] else None

    def _on_bytes(self, node: ir.Node, values: Mapping[str, Array]) -> Array:
        op = op_of(node)
        given = [
            None if v is None or not v.name else values.get(v.name, self._network.constants.get(v.name))
            for v in node.inputs
        ]
        made = np.asarray(op.body(NumpyKernel(), *op.arrange(given), **attributes_of(node, op)))
        return made.reshape(-1)  # a constant of one element may have more axes than the bytes


class _Placing:
    """Decides how each tensor lies in memory, and which need none of their own."""

    def __init__(self, network: FixedNetwork, inputs: Iterable[str], steps: Sequence[Step]) -> None:
        self._network, self._steps = network, steps
        self._images = image_tensors(network)
        self._readers = network.readers()
        self._layouts = {name: self._wanted(name) for name in inputs}
        self._aliases: dict[str, str] = {}
        self._opset = opset_of(network.model)

    def result(self) -> tuple[dict[str, Layout], dict[str, str], list[Step]]:
        """Layouts, aliases, and the steps that are left."""
        left = []
        for step in self._steps:
            if step.is_move and self._is_alias(step.nodes[0]):
                continue
            for name in (*step.outputs, *step.inner):
                self._layouts[name] = self._wanted(name)
            left.append(step)
        return self._layouts, self._aliases, left

    def _wanted(self, name: str) -> Layout:
        axes = len(self._network.tensors[name].shape)
        return Layout(channels_last(axes) if name in self._images and axes > 2 else None)

    def _is_alias(self, node: ir.Node) -> bool:
        """Whether the result can lie where its source lies; if so, that is noted."""
        names = data_names(node)
        result = str(node.outputs[0].name)
        if len(names) != 1 or len(node.outputs) != 1:
            return False
        source, tensors = self._network.tensors[names[0]], self._network.tensors
        if source.count != tensors[result].count or source.dtype != tensors[result].dtype:
            return False
        memory = in_memory_order(source.shape, self._layouts[source.name])
        places = places_of(self._network, node, self._opset)[0]
        found, order = order_with(places, memory)
        layout = Layout(order)
        if not found and node.op_type in ALIASES and self._feeds_linear_only(result):
            found, layout = True, Layout(None, memory)
        if found:
            self._aliases[result], self._layouts[result] = source.name, layout
        return found

    def _feeds_linear_only(self, name: str) -> bool:
        """Whether everything that reads a tensor multiplies rows of it with constant weights, whose columns can be moved."""
        if name in self._network.outputs or len(self._network.tensors[name].shape) != 2:
            return False
        readers = self._readers.get(name, [])
        return bool(readers) and all(self._is_linear_of(name, node) for node in readers)

    def _is_linear_of(self, name: str, node: ir.Node) -> bool:
        if not is_dialect(node) or op_of(node).name != "LinearInt":
            return False
        data, weights = node.inputs[:2]
        return (
            data is not None and data.name == name and weights is not None and weights.name in self._network.constants
        )


def places_of(network: FixedNetwork, node: ir.Node, opset: int) -> list[Array]:
    """For each output of a moving node the place in its flattened inputs, one after the other, of each element."""
    names = data_names(node)
    shapes = [network.tensors[name].shape for name in names]
    if node.op_type in ALIASES:
        shape = network.tensors[str(node.outputs[0].name)].shape
        return [np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)]
    return map_of(node, shapes, network.constants, opset)


def composed(network: FixedNetwork, step: Step) -> tuple[Callable[..., Any], list[str]]:
    """The bodies of a step's nodes as one, and the names of its inputs: those that are not single constants."""
    names = [name for name in step.reads if not _is_scalar(network, name)]

    def body(kernel: CKernel, *values: Any) -> Any:
        found = dict(zip(names, values, strict=True))
        for name in step.reads:
            if name not in found:
                content = network.constants[name]
                ctype = f"{content.dtype}_t"
                found[name] = kernel.same_everywhere(int(content.reshape(())), content.shape, ctype)
        for node in step.nodes:
            op = op_of(node)
            result = str(node.outputs[0].name)
            if result in step.tables:
                source, numbers = step.tables[result]
                found[result] = kernel.looked_up(found[source], -128, numbers.tolist(), f"{numbers.dtype}_t")
                continue
            given = [None if v is None or not v.name else found[v.name] for v in node.inputs]
            made = op.body(kernel, *op.arrange(given), **attributes_of(node, op))
            several = made if isinstance(made, tuple) else (made,)
            found |= {str(v.name): m for v, m in zip(node.outputs, several, strict=False) if v.name}
        return tuple(found[name] for name in (*step.outputs, *step.inner))

    body.__doc__ = "; ".join(
        (op_of(node).body.__doc__ or "").strip().partition("\n")[0].rstrip(".") for node in step.nodes
    )
    return body, names


def _is_scalar(network: FixedNetwork, name: str) -> bool:
    """Whether a tensor is one whole number that never changes."""
    content = network.constants.get(name)
    return content is not None and content.size == 1 and content.dtype.kind == "i" and content.dtype.itemsize <= 4


@dataclass(frozen=True)
class PlacedBlock:
    """A piece of the arena.

    Attributes:
        name: The tensor that begins it; for scratch the step's number and the name in C.
        kind: "input", "tensor", "output" or "scratch". What comes in and goes out in one place is an output.
        offset: Its first byte.
        bytes: Its size, without what alignment adds.
        first: The step that fills it; 0 is what comes in.
        last: The last step that reads it; the one after all others is what goes out.
        tensors: The tensors that lie in it one after the other, results that replace an operand included.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class StepMemory:
    """One step of the program.

    Attributes:
        number: Its place in time; 0 is what comes in, the last one what goes out.
        function: Its function in C; empty for what comes in and goes out.
        nodes: Names and types of the nodes that it computes; of what comes in or goes out as it is, its name.
        op_types: The types of these nodes alone.
        outputs: The tensors that it makes.
        shapes: Their shapes.
        live_bytes: What the arena must hold while it runs: tensors and scratch, with what alignment adds.
        scratch_bytes: Memory that only this step needs.
        in_place: The operands whose memory its results take over.
        weight_bytes: The constant arrays that it reads; one that several steps read is counted for each of them.
        macs: Its multiply-accumulates.
    """

    number: int
    function: str
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    live_bytes: int
    scratch_bytes: int = 0
    in_place: tuple[str, ...] = ()
    weight_bytes: int = 0
    macs: int = 0

    @property
    def title(self) -> str:
        """Its number and what it computes, as text; of nodes that are joined with the first one only the type."""
        if self.function:
            return f"{self.number}: {' + '.join([*self.nodes[:1], *self.op_types[1:]])}"
        return f"{self.number}: {'output' if self.number else 'input'} {', '.join(self.nodes)}"

    @property
    def made(self) -> str:
        """The tensors that it makes with their shapes, as text."""
        sizes = ("×".join(map(str, shape)) or "1" for shape in self.shapes)
        return ", ".join(f"{printable(name)} {size}" for name, size in zip(self.outputs, sizes, strict=True))

    @property
    def place(self) -> str:
        """Whether its results lie in the memory of an operand, as text."""
        return "in place" if self.in_place else ""

    @property
    def weight_kb(self) -> float:
        """The weights, in KB."""
        return self.weight_bytes / 1024
