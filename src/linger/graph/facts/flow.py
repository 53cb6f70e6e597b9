# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a tensor come from unchanged, and which tensors must therefore hold integers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

import onnx_ir as ir

from linger.graph.core.schema import OLDEST_OPSET
from linger.graph.core.walking import inner_graphs
from linger.graph.facts.standard_ops import integer_inputs, moved_inputs, moved_outputs
from linger.graph.facts.stated_formats import (
    Claims,
    claims_of,
    is_dequant,
    is_quantising,
    is_quantising_domain,
    read_scale,
)

LOOP_FORMALS = 2
"""A Loop's body begins with the iteration and the condition, and gives back the condition first."""


def is_default_domain(node: ir.Node) -> bool:
    """Whether a node is of standard ONNX."""
    return node.domain in ("", "ai.onnx")


def home_of(value: ir.Value) -> ir.Graph | None:
    """The graph that defines a tensor; a branch may list a tensor of the graph around it as its output."""
    producer = value.producer()
    return value.graph if producer is None else producer.graph


def place_early(node: ir.Node, graph: ir.Graph) -> None:
    """Put a node of one input into a graph, as early as that input can be read."""
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def scan_states(node: ir.Node) -> int | None:
    """How many states a Scan carries; None where it does not say it in a way that can be followed."""
    count = node.attributes.get("num_scan_inputs")
    if count is None or count.type != ir.AttributeType.INT or count.is_ref():
        return None
    states = len(node.inputs) - count.as_int()
    return states if states >= 0 else None


@dataclass
class Flow:
    """Which node holds which graph, and who calls which function."""

    model: ir.Model
    owners: dict[ir.Graph, ir.Node] = field(default_factory=dict)
    functions: dict[ir.Graph, ir.Function] = field(default_factory=dict)
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = field(default_factory=dict)
    _listed: list[ir.Node] = field(default_factory=list)
    _claims: dict[ir.Node, Claims] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> Flow:
        """The flow of a model as it is now."""
        flow = cls(model)
        for function in flow.own_functions():
            flow.functions[function.graph] = function
        for graph in (model.graph, *flow.functions):
            flow._list(graph)
        return flow

    def _list(self, graph: ir.Graph) -> None:
        for node in graph:
            self._listed.append(node)
            for body in inner_graphs(node):
                self.owners[body] = node
                self._list(body)
            if self.function_of(node) is not None:
                self.calls.setdefault(node.op_identifier(), []).append(node)

    def claims(self, node: ir.Node) -> Claims:
        """What a dialect node states, read once."""
        if node not in self._claims:
            self._claims[node] = claims_of(node)
        return self._claims[node]

    def own_functions(self) -> list[ir.Function]:
        """The model's functions but for bodies of dialect ops, which are what their nodes say."""
        return [f for f in self.model.functions.values() if not is_quantising_domain(f.domain)]

    def function_of(self, node: ir.Node) -> ir.Function | None:
        """The user's function that a node calls."""
        if is_quantising(node):
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
        self.model.graph.sort()
        for graph in self.functions:
            graph.sort()

    def sources(self, value: ir.Value) -> list[ir.Value]:
        """The tensors whose numbers come out as `value`; a Dequant counts as if it were not there."""
        node = value.producer()
        found = self._of_formal(value) if node is None else self._of_output(node, value.index() or 0)
        return [v for v in found if v is not None]

    def _of_output(self, node: ir.Node, index: int) -> list[ir.Value | None]:
        if is_dequant(node):
            return list(node.inputs[:1])
        if is_quantising(node):
            kept = self.claims(node).kept
            return [] if kept is None or index else list(node.inputs[kept : kept + 1])
        function = self.function_of(node)
        if function is not None:
            return list(function.outputs[index : index + 1])
        if not is_default_domain(node):
            return []
        if node.op_type in ("If", "Loop", "Scan"):
            return self._of_container(node, index)
        return (
            [node.inputs[i] for i in moved_inputs(node) if i < len(node.inputs)] if index < moved_outputs(node) else []
        )

    def _of_container(self, node: ir.Node, index: int) -> list[ir.Value | None]:
        bodies = inner_graphs(node)
        offset = 1 if node.op_type == "Loop" else 0
        found: list[ir.Value | None] = [v for body in bodies for v in body.outputs[index + offset : index + offset + 1]]
        if node.op_type == "Loop" and index + LOOP_FORMALS < len(node.inputs):
            found.append(node.inputs[index + LOOP_FORMALS])
        if node.op_type == "Scan" and index < min(scan_states(node) or 0, len(node.inputs)):
            found.append(node.inputs[index])
        return found

    def _of_formal(self, value: ir.Value) -> list[ir.Value | None]:
        graph = value.graph
        if graph is None or not value.is_graph_input():
            return []
        position = next(i for i, formal in enumerate(graph.inputs) if formal is value)
        if graph in self.functions:
            calls = self.calls.get(self.functions[graph].identifier(), [])
            return [call.inputs[position] for call in calls if position < len(call.inputs)]
        owner = self.owners.get(graph)
        if owner is None:
            return []
        return self._of_body_formal(owner, graph, position)

    @staticmethod
    def _of_body_formal(owner: ir.Node, graph: ir.Graph, position: int) -> list[ir.Value | None]:
        if position >= len(owner.inputs):
            return []
        if owner.op_type == "Loop" and position >= LOOP_FORMALS:
            return [owner.inputs[position], *graph.outputs[position - 1 : position]]
        if owner.op_type == "Scan":
            back = graph.outputs[position : position + 1] if position < (scan_states(owner) or 0) else []
            return [owner.inputs[position], *back]
        return []


_ENOUGH = 2
"""Two scales for one tensor are a contradiction; a third one would not tell more."""


class Reader(Enum):
    """Who reads integers: a dialect op, a Dequant, or an op that is about integers as such."""

    DIALECT = "dialect"
    DEQUANT = "dequant"
    PLAIN = "plain"


@dataclass(frozen=True)
class Reading:
    """A tensor that must hold integers, who says so, and the scale at which it is read."""

    value: ir.Value
    reader: Reader
    scale: float | None


@dataclass
class Demand:
    """What the readers of tensors say.

    Attributes:
        wanted: Tensors that reach an input which must hold integers, directly or through data movement.
        quantised: Those of them that a dialect op or a Dequant reads.
        scales: The scales at which dialect ops read them, in the order found; at most two.
        dequantised: The scales of Dequants that read them, which are the word of nobody else's.
    """

    wanted: set[ir.Value] = field(default_factory=set)
    quantised: set[ir.Value] = field(default_factory=set)
    scales: dict[ir.Value, list[float]] = field(default_factory=dict)
    dequantised: dict[ir.Value, list[float]] = field(default_factory=dict)

    def scale_of(self, value: ir.Value) -> float | None:
        """The one scale at which a tensor is read; None where there is none, or more than one."""
        found = self.scales.get(value) or self.dequantised.get(value, [])
        return found[0] if len(found) == 1 else None

    def contradiction(self, value: ir.Value) -> list[float]:
        """The scales at which a tensor is read, where they differ."""
        found = self.scales.get(value) or self.dequantised.get(value, [])
        return found if len(found) > 1 else []


def find_demand(flow: Flow) -> Demand:
    """Walk back from every input that must hold integers."""
    demand = Demand()
    opset = flow.model.graph.opset_imports.get("", OLDEST_OPSET)
    waiting = [reading for node in flow.nodes() for reading in _readings(flow, node, opset)]
    seen: set[tuple[ir.Value, Reader]] = set()
    while waiting:
        reading = waiting.pop()
        value, reader = reading.value, reading.reader
        if reader is Reader.DEQUANT and is_dequant(value.producer()):
            continue  # a Dequant of a Dequant's result is one too many; it says nothing of the integers
        if _note(demand, reading) or (value, reader) not in seen:
            seen.add((value, reader))
            waiting += [Reading(source, reader, reading.scale) for source in flow.sources(value)]
    return demand


def _readings(flow: Flow, node: ir.Node, opset: int) -> list[Reading]:
    """The inputs of a node that must hold integers."""
    if is_dequant(node):
        found, reader = [(0, read_scale(node, "scale_o"))], Reader.DEQUANT
    elif is_quantising(node):
        found, reader = [(i, claim.scale) for i, claim in flow.claims(node).integers.items()], Reader.DIALECT
    elif is_default_domain(node):
        found, reader = [(i, None) for i in integer_inputs(node, opset)], Reader.PLAIN
    else:
        return []
    inputs = node.inputs
    return [Reading(v, reader, scale) for i, scale in found if i < len(inputs) and (v := inputs[i]) is not None]


def _note(demand: Demand, reading: Reading) -> bool:
    """Keep what a reader says; whether its scale was new."""
    demand.wanted.add(reading.value)
    if reading.reader is not Reader.PLAIN:
        demand.quantised.add(reading.value)
    if reading.scale is None:
        return False
    is_soft = reading.reader is Reader.DEQUANT
    known = (demand.dequantised if is_soft else demand.scales).setdefault(reading.value, [])
    if reading.scale in known or len(known) >= _ENOUGH:
        return False
    known.append(reading.scale)
    return True
