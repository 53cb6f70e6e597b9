# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a tensor come from unchanged, and which tensors must hold integers because of what reads them.

The first part says what standard ops do: which move, select, join or compare numbers, and so may do it with integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import onnx_ir as ir

from linger.graph.core.dialects import (
    StatedFormats,
    is_dequant,
    is_quantizing,
    is_quantizing_domain,
    read_scale,
    stated_formats,
)
from linger.graph.core.nodes import all_nodes, inner_graphs, is_in_order
from linger.graph.core.tensor_types import INTEGERS, OLDEST_OPSET, constant_type, takes
from linger.graph.qdq.qdq_node import COMPARE, MOVE, MOVE_BYTES, bounds_of

LOOP_FORMALS = 2
"""How many inputs of a Loop's body come before the carried tensors: the iteration and the condition."""

CONTAINERS = ("If", "Loop", "Scan")
_ENOUGH = 2
"""How many scales of one tensor are kept: two are a contradiction already."""

WHOLE_NUMBERS = INTEGERS | {ir.DataType.INT64}

_MOVED = dict.fromkeys((*MOVE, *MOVE_BYTES, *COMPARE, "Compress", "Resize", "TopK"), (0,))
_JOINED = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
_JOINED_ALL = frozenset({"Concat", "Max", "Min"})
_COMPARED = {
    **dict.fromkeys(("ArgMax", "ArgMin"), (0,)),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"), (0, 1)),
}

_ON_DATA = frozenset({*_MOVED, *_JOINED, *_JOINED_ALL, *_COMPARED})
"""Ops of which `data_of` may give something."""

SHAPE_OPS = frozenset({"Shape", "Size"})
"""Ops that read the shape of a tensor and never its numbers."""

INTEGER_OPS = frozenset(
    {"Cast", "CastLike", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear", "BitShift",
     "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
)  # fmt: skip
"""Ops that read integers as they are; what these stand for is stated elsewhere, or nowhere."""

_ONLY_INTEGERS = INTEGER_OPS - {"Cast", "CastLike"}
_EXACT_COMPARISON_BITS = 16
"""Wider integers may become equal as float32, so that comparing the integers gives another answer."""

_WITHOUT_KERNEL = {
    ir.DataType.INT8: frozenset[str](),
    ir.DataType.INT16: frozenset(
        {"Pad", "Max", "Min", "Where", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax", "ReduceMin", "ArgMax",
         "ArgMin"}
    ),
    ir.DataType.INT32: frozenset({"DepthToSpace", "SpaceToDepth"}),
}  # fmt: skip
"""By element type, ops that ONNX Runtime 1.31.1 cannot run, as measured."""

_ADOPTED = frozenset({"Relu", "MaxPool", "Clip"})
"""Ops that become dialect ops on integers, so that no kernel of ONNX Runtime is needed."""

_RESIZE_KERNEL_OPSET = 13
"""The first opset for which ONNX Runtime has a Resize of integers."""


def moved_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node whose numbers come out unchanged; where there are several, they must have one scale."""
    op_type = node.op_type
    if op_type in _JOINED_ALL:
        return tuple(range(len(node.inputs)))
    if op_type == "Resize" and _text(node, "mode", "nearest") != "nearest":
        return ()
    if op_type == "Clip" and ("min" in node.attributes or "max" in node.attributes):
        return ()  # before opset 11: bounds are real numbers
    return _JOINED.get(op_type, _MOVED.get(op_type, ()))


def moved_outputs(node: ir.Node) -> int:
    """How many outputs carry the numbers on; the others are indices."""
    return len(node.outputs) if node.op_type == "Split" else 1


def sources_of_output(node: ir.Node, index: int) -> list[ir.Value | None]:
    """The inputs of a standard node whose numbers come out, unchanged, at an output."""
    if index >= moved_outputs(node):
        return []
    return [node.inputs[i] for i in moved_inputs(node) if i < len(node.inputs)]


def data_of(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node that are moved, selected or compared: at one scale, integers give what real numbers give."""
    return moved_inputs(node) or _COMPARED.get(node.op_type, ())


def integer_inputs(node: ir.Node, opset: int) -> tuple[int, ...]:
    """Inputs of a standard node that must be integers: the op takes only integers, or meets a constant of integers."""
    op_type = node.op_type
    if op_type in _ONLY_INTEGERS:
        return tuple(i for i in range(len(node.inputs)) if not takes_reals(node, i, opset))
    if op_type not in _ON_DATA:
        return ()
    together = [i for i in (*data_of(node), *bounds_of(node)) if i < len(node.inputs)]
    others = tuple(i for i in together if not _is_integer_constant(node.inputs[i]))
    return others if len(others) < len(together) else ()


def _is_integer_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        return constant_type(producer) in INTEGERS
    return value.const_value is not None and value.const_value.dtype in INTEGERS


def can_run(node: ir.Node, element: ir.DataType | None, bits: int | None, opset: int) -> bool:
    """Whether ONNX and ONNX Runtime have a node of this type for integers of an element type."""
    if node.op_type in _COMPARED and (bits is None or bits > _EXACT_COMPARISON_BITS):
        return False
    if node.op_type in _ADOPTED:
        return len(node.outputs) == 1
    if element is None or element not in INTEGERS or node.op_type in _WITHOUT_KERNEL[element]:
        return False
    if node.op_type == "Resize" and opset < _RESIZE_KERNEL_OPSET:
        return False
    return takes(node.op_type, min(data_of(node), default=0), element, opset)


def can_take(node: ir.Node, index: int, element: ir.DataType | None, opset: int) -> bool:
    """Whether an input of a standard node may have an element type; True also where floats are not allowed either."""
    if element is None or node.op_type in _ADOPTED or not takes_reals(node, index, opset):
        return True
    return takes(node.op_type, index, element, opset)


def takes_reals(node: ir.Node, index: int, opset: int) -> bool:
    """Whether an input of a standard node may hold floats."""
    return takes(node.op_type, index, ir.DataType.FLOAT, opset)


def _text(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    if found is None or found.type != ir.AttributeType.STRING:
        return default
    return "" if found.is_ref() else found.as_string()  # what the caller of a function gives is not known


def is_default_domain(node: ir.Node) -> bool:
    """Whether a node is of standard ONNX."""
    return node.domain in ("", "ai.onnx")


def home_of(value: ir.Value) -> ir.Graph | None:
    """The graph that defines a tensor; a branch may list a tensor of the graph around it as its output."""
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def scan_states(node: ir.Node) -> int | None:
    """How many states a Scan carries; None where its attribute is missing or does not fit its inputs."""
    count = node.attributes.get("num_scan_inputs")
    if count is None or count.type != ir.AttributeType.INT or count.is_ref():
        return None
    states = len(node.inputs) - count.as_int()
    return states if states >= 0 else None


@dataclass
class Flow:
    """How numbers move through a model: which node holds which graph, and which nodes call which function."""

    model: ir.Model
    owners: dict[ir.Graph, ir.Node] = field(default_factory=dict)
    functions: dict[ir.Graph, ir.Function] = field(default_factory=dict)
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = field(default_factory=dict)
    _listed: list[ir.Node] = field(default_factory=list)
    _formats: dict[ir.Node, StatedFormats] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> Flow:
        """The flow of a model as it is now."""
        flow = cls(model)
        # functions of a dialect's domain are bodies of its ops, whose nodes state all that matters
        own = [f for f in model.functions.values() if not is_quantizing_domain(f.domain)]
        flow.functions.update((function.graph, function) for function in own)
        for graph in (model.graph, *flow.functions):
            flow._listed += all_nodes(graph, flow.owners)
        for node in flow._listed if flow.functions else ():
            if flow.function_of(node) is not None:
                flow.calls.setdefault(node.op_identifier(), []).append(node)
        return flow

    def formats(self, node: ir.Node) -> StatedFormats:
        """What a dialect node states about its tensors, read once."""
        found = self._formats.get(node)
        if found is None:
            found = self._formats[node] = stated_formats(node)
        return found

    def function_of(self, node: ir.Node) -> ir.Function | None:
        """The user's function that a node calls."""
        if not self.functions or is_quantizing(node):
            return None
        return self.model.functions.get(node.op_identifier())

    def nodes(self) -> Iterator[ir.Node]:
        """Every node of the main graph, of the graphs inside it and of users' functions; not what was added since."""
        return (node for node in self._listed if node.graph is not None)

    def graphs(self) -> Iterator[ir.Graph]:
        """Every graph, outer ones first."""
        yield self.model.graph
        yield from self.functions
        yield from self.owners

    def sort(self) -> None:
        """Bring the nodes of every graph into an order in which they can run; what can stay, stays."""
        if all(map(is_in_order, self.graphs())):
            return  # sorting takes five times as long
        for graph in (self.model.graph, *self.functions):
            graph.sort()

    def sources(self, value: ir.Value) -> list[ir.Value]:
        """The tensors whose numbers come out as `value`; a Dequant counts as if it were not there."""
        node = value.producer()
        found = self._sources_of_formal(value) if node is None else self._sources_of_result(node, value.index() or 0)
        return [v for v in found if v is not None]

    def _sources_of_result(self, node: ir.Node, index: int) -> list[ir.Value | None]:
        if is_dequant(node):
            return list(node.inputs[:1])
        if is_quantizing(node):
            kept = self.formats(node).kept
            return [] if kept is None or index else list(node.inputs[kept : kept + 1])
        function = self.function_of(node)
        if function is not None:
            return list(function.outputs[index : index + 1])
        if not is_default_domain(node):
            return []
        return _of_container(node, index) if node.op_type in CONTAINERS else sources_of_output(node, index)

    def _sources_of_formal(self, value: ir.Value) -> list[ir.Value | None]:
        """Of an input of a body or a function: what its node or its callers give, and what a loop hands back."""
        graph = value.graph
        if graph is None or not value.is_graph_input():
            return []
        position = next(i for i, formal in enumerate(graph.inputs) if formal is value)
        if graph in self.functions:
            calls = self.calls.get(self.functions[graph].identifier(), [])
            return [call.inputs[position] for call in calls if position < len(call.inputs)]
        owner = self.owners.get(graph)
        return [] if owner is None else _of_body_formal(owner, graph, position)


def _of_container(node: ir.Node, index: int) -> list[ir.Value | None]:
    offset = 1 if node.op_type == "Loop" else 0
    ends = slice(index + offset, index + offset + 1)
    found: list[ir.Value | None] = [v for body in inner_graphs(node) for v in body.outputs[ends]]
    if node.op_type == "Loop" and index + LOOP_FORMALS < len(node.inputs):
        found.append(node.inputs[index + LOOP_FORMALS])
    if node.op_type == "Scan" and index < min(scan_states(node) or 0, len(node.inputs)):
        found.append(node.inputs[index])
    return found


def _of_body_formal(owner: ir.Node, graph: ir.Graph, position: int) -> list[ir.Value | None]:
    if position >= len(owner.inputs):
        return []
    if owner.op_type == "Loop" and position >= LOOP_FORMALS:
        return [owner.inputs[position], *graph.outputs[position - 1 : position]]
    if owner.op_type == "Scan":
        back = graph.outputs[position : position + 1] if position < (scan_states(owner) or 0) else []
        return [owner.inputs[position], *back]
    return []


class Reader(StrEnum):
    """What reads integers: a dialect op, a Dequant, or a standard op that only takes integers."""

    DIALECT = "dialect"
    DEQUANT = "dequant"
    PLAIN = "plain"


class IntegerReading(NamedTuple):
    """A tensor that must hold integers, what reads it, and the scale at which that reads it."""

    value: ir.Value
    reader: Reader
    scale: float | None


@dataclass
class RequiredIntegers:
    """The tensors that must hold integers because of what reads them further on.

    Attributes:
        tensors: Tensors that reach an input which must hold integers, directly or through data movement.
        quantized: Those of them that a dialect op or a Dequant reads.
        scales: The scales at which dialect ops read them, in the order found; at most two.
        dequant_scales: The scales at which Dequants read them; they count only where no dialect op states a scale.
    """

    tensors: set[ir.Value] = field(default_factory=set)
    quantized: set[ir.Value] = field(default_factory=set)
    scales: dict[ir.Value, list[float]] = field(default_factory=dict)
    dequant_scales: dict[ir.Value, list[float]] = field(default_factory=dict)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self.tensors

    def scale_of(self, value: ir.Value) -> float | None:
        """The one scale at which a tensor is read; None where there is none, or more than one."""
        found = self._scales_of(value)
        return found[0] if len(found) == 1 else None

    def different_scales(self, value: ir.Value) -> list[float]:
        """The scales at which a tensor is read, where they contradict each other; otherwise empty."""
        found = self._scales_of(value)
        return found if len(found) > 1 else []

    def _scales_of(self, value: ir.Value) -> list[float]:
        return self.scales.get(value) or self.dequant_scales.get(value, [])

    def add(self, reading: IntegerReading) -> bool:
        """Keep a reading; returns whether its scale was new."""
        self.tensors.add(reading.value)
        if reading.reader is not Reader.PLAIN:
            self.quantized.add(reading.value)
        if reading.scale is None:
            return False
        scales = self.dequant_scales if reading.reader is Reader.DEQUANT else self.scales
        known = scales.setdefault(reading.value, [])
        if reading.scale in known or len(known) >= _ENOUGH:
            return False
        known.append(reading.scale)
        return True


def required_integers(flow: Flow) -> RequiredIntegers:
    """Walk back from every input that must hold integers, through all that only moves numbers."""
    required = RequiredIntegers()
    opset = flow.model.graph.opset_imports.get("", OLDEST_OPSET)
    waiting = [reading for node in flow.nodes() for reading in _readings(flow, node, opset)]
    seen: set[tuple[ir.Value, Reader]] = set()
    while waiting:
        reading = waiting.pop()
        value, reader = reading.value, reading.reader
        if reader is Reader.DEQUANT and is_dequant(value.producer()):
            continue  # a Dequant of a Dequant's result is one too many; it says nothing of the integers
        if required.add(reading) or (value, reader) not in seen:
            seen.add((value, reader))
            waiting += [IntegerReading(source, reader, reading.scale) for source in flow.sources(value)]
    return required


def _readings(flow: Flow, node: ir.Node, opset: int) -> list[IntegerReading]:
    """The inputs of a node that must hold integers."""
    found: list[tuple[int, float | None]]
    if is_quantizing(node):
        if is_dequant(node):
            found, reader = [(0, read_scale(node, "scale_o"))], Reader.DEQUANT
        else:
            found, reader = [(i, stated.scale) for i, stated in flow.formats(node).integers.items()], Reader.DIALECT
    elif is_default_domain(node) and (indices := integer_inputs(node, opset)):
        found, reader = [(i, None) for i in indices], Reader.PLAIN
    else:
        return []
    given = [(node.inputs[i], scale) for i, scale in found if i < len(node.inputs)]
    return [IntegerReading(value, reader, scale) for value, scale in given if value is not None]
