# SPDX-License-Identifier: Apache-2.0
"""The execution plan of a C program: fused nodes, memory layouts, moves, and tensors that alias another one.

Also the rows of the report on memory, one per block of the arena (`PlacedBlock`) and one per step (`StepMemory`).
"""

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
"""The axes from the outermost to the innermost in memory; None: in the order of the shape."""

_MIN_CONV_AXES = 3
_MOST_AXES = 5
"""No other axis order is tried for tensors with more axes: there are too many permutations."""


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
    """The inputs and outputs of ops with a window, and the tensors that element-wise ops connect with them."""
    images: set[str] = set()
    previous_count = -1
    while len(images) > previous_count:
        previous_count = len(images)
        for node in filter(is_dialect, network.nodes):
            images |= _image_tensors_of(network, node, images)
    return images


def _image_tensors_of(network: FixedNetwork, node: ir.Node, images: set[str]) -> set[str]:
    """The tensors of a node that are images, because the op has a window, or because another tensor of the node is an image."""
    op, names = op_of(node), (*value_names(node.inputs), *value_names(node.outputs))
    axes = {name: len(network.tensors[name].shape) for name in names if name not in network.constants}
    known_images = images & axes.keys()
    if not op.window_axes and (not known_images or not _is_local(op)):
        return set()
    count = op.window_axes + 2 if op.window_axes else max(axes[name] for name in known_images)
    return {name for name in axes if axes[name] == count}


def _is_local(op: Op) -> bool:
    """Whether an op has no window, no weights and no recurrence, so that it may compute element by element."""
    return not (op.window_axes or op.is_recurrent or op.weight_axes is not None)


def in_memory_order(shape: Sequence[int], layout: Layout) -> Array:
    """For each element in memory its index in the flattened tensor."""
    if layout.permutation is not None:
        return layout.permutation
    indices = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)
    return (indices if layout.order is None else indices.transpose(layout.order)).reshape(-1)


def alias_order(indices: Array, memory: Array) -> tuple[bool, Order]:
    """Whether a tensor can alias the memory of its source, and its axis order if so.

    Args:
        indices: For each element of the tensor its index in the flattened source.
        memory: For each element in memory its index in the flattened source.
    """
    if indices.size == memory.size and indices.ndim <= _MOST_AXES:
        for order in permutations(range(indices.ndim)):
            if np.array_equal(indices.transpose(order).reshape(-1), memory):
                return True, None if order == tuple(range(indices.ndim)) else order
    return False, None


def weight_order(op: Op, shape: Sequence[int], group: int) -> Order:
    """The axis order of an op's weights in which its sums read them contiguously."""
    if not op.window_axes or len(shape) < _MIN_CONV_AXES:
        return None
    if op.is_transposed:
        return (1, *range(2, len(shape)), 0)
    if shape[1] == 1 and shape[0] == group > 1:
        return (*range(2, len(shape)), 0, 1)
    return channels_last(len(shape))


_MIN_TABLE_COST = 12
"""A function of one byte with at least so many operations per element becomes a lookup table with 256 entries."""
_VALUES: Mapping[str, Array] = {"int8": np.arange(-128, 128, dtype=np.int8), "uint8": np.arange(256).astype(np.uint8)}
"""All the numbers that a byte can be."""


@dataclass(frozen=True)
class Step:
    """Nodes that one C function computes.

    Attributes:
        nodes: The nodes; each one reads the result of the previous one element by element.
        outputs: The tensors that the function writes.
        inner: The tensors between the nodes, which only proof builds write.
        reads: The tensors and constants that the function reads, each once.
        tables: Results that are computed by a lookup table, by name: the tensor that is the index, and the entries.
    """

    nodes: tuple[ir.Node, ...]
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    tables: Mapping[str, tuple[str, Array]] = field(default_factory=dict)

    @property
    def is_move(self) -> bool:
        """Whether the step only moves elements."""
        return not is_dialect(self.nodes[0])


@dataclass(frozen=True)
class Edge:
    """An input or output of the network.

    Attributes:
        name: Its name in the file.
        tensor: The internal tensor that it is converted to or from; the same name if there is no conversion.
        node: The Quant or Dequant that converts; None: there is no conversion.
    """

    name: str
    tensor: str
    node: ir.Node | None


@dataclass(frozen=True)
class Plan:
    """The steps of a program in topological order, and where its tensors lie.

    Attributes:
        aliases: Tensors that share the memory of another one, whose name is the value.
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
        UnsupportedError: Some ops have no implementation in C; the message lists all of them.
    """
    inputs, outputs = _inputs(network), _outputs(network)
    edges = (*inputs, *outputs)
    edge_nodes = {edge.node for edge in edges}
    inside = [node for node in network.nodes if node not in edge_nodes]
    fused = _Fusion(network, inside, {edge.tensor for edge in edges}).steps()
    layouts, aliases, steps = _LayoutPlanner(network, [edge.tensor for edge in inputs], fused).result()
    duplicates = {name: other for name, other in network.same.items() if other in layouts}
    layouts |= {name: layouts[other] for name, other in duplicates.items()}
    return Plan(network, inputs, outputs, tuple(steps), layouts, aliases | duplicates)


def _inputs(network: FixedNetwork) -> tuple[Edge, ...]:
    readers, edges = network.readers(), []
    for name in network.inputs:
        quants = [node for node in readers.get(name, []) if is_dialect(node, "Quant")]
        is_quantized = len(quants) == len(readers.get(name, [])) == 1 and name not in network.outputs
        edges.append(Edge(name, str(quants[0].outputs[0].name), quants[0]) if is_quantized else Edge(name, name, None))
    return tuple(edges)


def _outputs(network: FixedNetwork) -> tuple[Edge, ...]:
    readers, producers = network.readers(), {name: node for node in network.nodes for name in value_names(node.outputs)}
    not_computed = [printable(name) for name in network.outputs if name not in producers]
    if not_computed:
        raise UnsupportedError(
            f"C has nothing to compute for the outputs {listing(not_computed)}: they are constants or unchanged inputs; "
            "remove them from the file."
        )
    edges = []
    for name in network.outputs:
        node = producers[name]
        is_dequantized = is_dialect(node, "Dequant") and not readers.get(name)
        edges.append(Edge(name, next(value_names(node.inputs)), node) if is_dequantized else Edge(name, name, None))
    return tuple(edges)


def input_of(
    network: FixedNetwork, name: str, layouts: Mapping[str, Layout] | None, use: tuple[ir.Node, Op, int] | None = None
) -> Input:
    """A tensor in the form that a C function takes: weights in the axis order, and with the columns, that their reader needs."""
    tensor, content = network.tensors[name], network.constants.get(name)
    if content is None:
        layout = (layouts or {}).get(name, Layout())
        return Input(tensor.shape, tensor.dtype, None, layout.order)
    order: Order = None
    if use is not None and use[2] == 1 and layouts is not None:
        node, op, _ = use
        group = node.attributes.get_int("group", 1) or 1
        order = weight_order(op, tensor.shape, group)
        columns = layouts.get(next(value_names(node.inputs)), Layout()).permutation
        if columns is not None:
            content = np.ascontiguousarray(content[:, columns])
    return Input(tensor.shape, tensor.dtype, content, order)


class _Fusion:
    """Fuses a node that reads a tensor element by element with the node that produces it, if no other node reads the tensor."""

    def __init__(self, network: FixedNetwork, nodes: Sequence[ir.Node], edge_tensors: set[str]) -> None:
        self._network, self._nodes, self._edge_tensors = network, nodes, edge_tensors
        self._readers = network.readers()
        self._problems: list[str] = []
        self._elementwise_cache: dict[ir.Node, tuple[set[str], int]] = {}

    def steps(self) -> list[Step]:
        """The steps in topological order."""
        group_of: dict[str, list[ir.Node]] = {}
        groups: dict[int, list[ir.Node]] = {}
        for position, node in enumerate(self._nodes):
            group = self._group_for(node, group_of) or []
            group.append(node)
            groups = {key: other for key, other in groups.items() if other is not group} | {position: group}
            group_of |= dict.fromkeys(value_names(node.outputs), group)
        if self._problems:
            raise UnsupportedError(f"C cannot be written for {listing(self._problems)}.")
        return [self._step(group) for _, group in sorted(groups.items())]

    def _group_for(self, node: ir.Node, group_of: Mapping[str, list[ir.Node]]) -> list[ir.Node] | None:
        """The group that a node is fused with: the last one whose result only this node reads, element by element; None: a new group."""
        if not is_dialect(node) or not _is_local(op_of(node)):
            return None
        joined = None
        for name in dict.fromkeys(value_names(node.inputs)):
            group = group_of.get(name) if self._is_private(name, node) else None
            is_end = group is not None and is_dialect(group[0]) and [v.name for v in group[-1].outputs] == [name]
            if is_end and name in self._elementwise(node)[0] and self._same_shape(name, node):
                joined = group
        return joined

    def _is_private(self, name: str, reader: ir.Node) -> bool:
        return name not in self._edge_tensors and self._readers.get(name) == [reader]

    def _same_shape(self, name: str, node: ir.Node) -> bool:
        return self._network.tensors[name].shape == self._network.tensors[str(node.outputs[0].name)].shape

    def _elementwise(self, node: ir.Node) -> tuple[set[str], int]:
        """The names of the inputs that a node reads element by element, and the number of operations per element."""
        op = op_of(node)
        if node not in self._elementwise_cache:
            names = op.arrange([None if v is None else v.name for v in node.inputs])
            inputs = [input_of(self._network, name, None) if name else None for name in names]
            try:
                positions, cost = elementwise_inputs(op.body, inputs, attributes_of(node, op), title=describe(node))
            except UnsupportedError as error:
                self._problems.append(str(error).removesuffix("."))
                positions, cost = frozenset(), 0
            self._elementwise_cache[node] = {str(names[i]) for i in positions}, cost
        return self._elementwise_cache[node]

    def _step(self, nodes: Sequence[ir.Node]) -> Step:
        results = [name for node in nodes for name in value_names(node.outputs)]
        outputs = tuple(value_names(nodes[-1].outputs))
        inner = tuple(name for name in results if name not in outputs)
        reads = dict.fromkeys(name for node in nodes for name in value_names(node.inputs) if name not in results)
        tables = self._tables(nodes) if is_dialect(nodes[0]) else {}
        return Step(tuple(nodes), outputs, inner, tuple(reads), tables)

    def _tables(self, nodes: Sequence[ir.Node]) -> dict[str, tuple[str, Array]]:
        """Lookup tables for results that are functions of one byte and cost more than a table lookup."""
        tables: dict[str, tuple[str, Array]] = {}
        run: list[ir.Node] = []
        for node in nodes:
            if self._byte_source(node) is None:
                run = []
                continue
            run.append(node)
            source = self._byte_source(run[0])
            if source is None or sum(self._elementwise(member)[1] for member in run) < _MIN_TABLE_COST:
                continue
            values: dict[str, Array] = {source: _VALUES[self._network.tensors[source].dtype]}
            for member in run:
                result = str(member.outputs[0].name)
                values[result] = self._on_every_byte(member, values)
                tables[result] = (source, values[result])
        return tables

    def _byte_source(self, node: ir.Node) -> str | None:
        """The tensor of bytes that a node's result is an element-wise function of; None if there is no single one."""
        op, tensors = op_of(node), self._network.tensors
        names = set(value_names(node.inputs))
        data = names - self._network.constants.keys()
        if len(data) != 1 or len(node.outputs) != 1 or not _is_local(op) or not op.has_integer_output:
            return None
        (source,) = data
        is_byte = tensors[source].dtype in _VALUES and all(tensors[name].count == 1 for name in names - data)
        return source if is_byte and self._same_shape(source, node) and source in self._elementwise(node)[0] else None

    def _on_every_byte(self, node: ir.Node, values: Mapping[str, Array]) -> Array:
        op = op_of(node)
        arguments = [
            None if v is None or not v.name else values.get(v.name, self._network.constants.get(v.name))
            for v in node.inputs
        ]
        result = np.asarray(op.body(NumpyKernel(), *op.arrange(arguments), **attributes_of(node, op)))
        return result.reshape(-1)  # a constant with one element may add axes


class _LayoutPlanner:
    """Chooses the memory layout of each tensor, and the moves that become aliases."""

    def __init__(self, network: FixedNetwork, inputs: Iterable[str], steps: Sequence[Step]) -> None:
        self._network, self._steps = network, steps
        self._images = image_tensors(network)
        self._readers = network.readers()
        self._layouts = {name: self._preferred_layout(name) for name in inputs}
        self._aliases: dict[str, str] = {}
        self._opset = opset_of(network.model)

    def result(self) -> tuple[dict[str, Layout], dict[str, str], list[Step]]:
        """Layouts, aliases, and the steps without the moves that became aliases."""
        remaining = []
        for step in self._steps:
            if step.is_move and self._try_alias(step.nodes[0]):
                continue
            for name in (*step.outputs, *step.inner):
                self._layouts[name] = self._preferred_layout(name)
            remaining.append(step)
        return self._layouts, self._aliases, remaining

    def _preferred_layout(self, name: str) -> Layout:
        axes = len(self._network.tensors[name].shape)
        return Layout(channels_last(axes) if name in self._images and axes > 2 else None)

    def _try_alias(self, node: ir.Node) -> bool:
        """Let the result of a move alias its source if possible; returns whether it does."""
        names = data_names(node)
        result = str(node.outputs[0].name)
        if len(names) != 1 or len(node.outputs) != 1:
            return False
        source, tensors = self._network.tensors[names[0]], self._network.tensors
        if source.count != tensors[result].count or source.dtype != tensors[result].dtype:
            return False
        memory = in_memory_order(source.shape, self._layouts[source.name])
        indices = source_indices(self._network, node, self._opset)[0]
        is_alias, order = alias_order(indices, memory)
        layout = Layout(order)
        if not is_alias and node.op_type in ALIASES and self._feeds_linear_only(result):
            is_alias, layout = True, Layout(None, memory)
        if is_alias:
            self._aliases[result], self._layouts[result] = source.name, layout
        return is_alias

    def _feeds_linear_only(self, name: str) -> bool:
        """Whether only linear layers with constant weights, whose columns can be permuted, read a tensor."""
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


def source_indices(network: FixedNetwork, node: ir.Node, opset: int) -> list[Array]:
    """For each output of a move, the index of each element in the flattened and concatenated inputs."""
    names = data_names(node)
    shapes = [network.tensors[name].shape for name in names]
    if node.op_type in ALIASES:
        shape = network.tensors[str(node.outputs[0].name)].shape
        return [np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)]
    return map_of(node, shapes, network.constants, opset)


def fused_body(network: FixedNetwork, step: Step) -> tuple[Callable[..., Any], list[str]]:
    """One body that computes all nodes of a step, and the names of its inputs. Scalar constants are no inputs: they become literals."""
    names = [name for name in step.reads if not _is_scalar(network, name)]

    def body(kernel: CKernel, *values: Any) -> Any:
        tensors = dict(zip(names, values, strict=True))
        for name in step.reads:
            if name not in tensors:
                content = network.constants[name]
                ctype = f"{content.dtype}_t"
                tensors[name] = kernel.same_everywhere(int(content.reshape(())), content.shape, ctype)
        for node in step.nodes:
            op = op_of(node)
            result = str(node.outputs[0].name)
            if result in step.tables:
                source, entries = step.tables[result]
                first = int(_VALUES[network.tensors[source].dtype][0])
                tensors[result] = kernel.looked_up(tensors[source], first, entries.tolist(), f"{entries.dtype}_t")
                continue
            arguments = [None if v is None or not v.name else tensors[v.name] for v in node.inputs]
            results = op.body(kernel, *op.arrange(arguments), **attributes_of(node, op))
            results = results if isinstance(results, tuple) else (results,)
            tensors |= {str(v.name): r for v, r in zip(node.outputs, results, strict=False) if v.name}
        return tuple(tensors[name] for name in (*step.outputs, *step.inner))

    body.__doc__ = "; ".join(
        (op_of(node).body.__doc__ or "").strip().partition("\n")[0].rstrip(".") for node in step.nodes
    )
    return body, names


def _is_scalar(network: FixedNetwork, name: str) -> bool:
    """Whether a tensor is an integer constant with one element."""
    content = network.constants.get(name)
    return content is not None and content.size == 1 and content.dtype.kind in "iu" and content.dtype.itemsize <= 4


@dataclass(frozen=True)
class PlacedBlock:
    """A block of the arena and its liveness.

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
    """The memory and the cost of one step of the program.

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
        """The number of the step and its nodes, as text; of nodes that are fused with the first one only the type."""
        if self.function:
            return f"{self.number}: {' + '.join([*self.nodes[:1], *self.op_types[1:]])}"
        return f"{self.number}: {'output' if self.number else 'input'} {', '.join(self.nodes)}"

    @property
    def output_text(self) -> str:
        """The outputs with their shapes, as text."""
        sizes = ("×".join(map(str, shape)) or "1" for shape in self.shapes)
        return ", ".join(f"{printable(name)} {size}" for name, size in zip(self.outputs, sizes, strict=True))

    @property
    def place(self) -> str:
        """Whether the outputs reuse the memory of an operand, as text."""
        return "in place" if self.in_place else ""

    @property
    def weight_kb(self) -> float:
        """The size of the weights in KB."""
        return self.weight_bytes / 1024
