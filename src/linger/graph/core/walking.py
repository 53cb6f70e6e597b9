# SPDX-License-Identifier: Apache-2.0
"""The one way to walk a model: every graph, every node, and the tensors that a graph defines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
import onnx_ir as ir

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def named_graphs(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """The branches and bodies of a node (If, Loop, Scan, …), each with the name of its attribute, `branches[1]` in a list."""
    found: list[tuple[str, ir.Graph]] = []
    for name, attribute in node.attributes.items():
        kind = attribute.type
        if (kind is not _GRAPH and kind is not _GRAPHS) or attribute.is_ref():
            continue
        if kind is _GRAPH:
            found.append((name, attribute.as_graph()))
        else:
            found += [(f"{name}[{index}]", graph) for index, graph in enumerate(attribute.as_graphs())]
    return found


def inner_graphs(node: ir.Node) -> list[ir.Graph]:
    """The branches and bodies of a node."""
    return [graph for _, graph in named_graphs(node)]


def proto_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The branches and bodies of a node of a file that has not become a graph yet."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        found += [attribute.g] if attribute.HasField("g") else []
        found += attribute.graphs
    return found


def all_nodes(where: ir.Model | ir.Graph | ir.Function) -> Iterator[ir.Node]:
    """Every node of a graph and of the graphs inside it: branches and bodies follow the node that holds them.

    Of a model this is the main graph; the bodies of its functions are not entered. Deep nesting needs no recursion.
    """
    waiting = [iter(where.graph if isinstance(where, ir.Model) else where)]
    while waiting:
        for node in waiting[-1]:
            yield node
            if inner := inner_graphs(node):
                waiting += [iter(graph) for graph in reversed(inner)]
                break
        else:
            waiting.pop()


def nodes_within(node: ir.Node) -> Iterator[ir.Node]:
    """A node and every node of the graphs inside it."""
    yield node
    for graph in inner_graphs(node):
        yield from all_nodes(graph)


def inputs_within(node: ir.Node) -> list[ir.Value]:
    """The tensors that a node reads, in its branches and bodies too."""
    return [value for user in nodes_within(node) for value in user.inputs if value is not None]


def makers(values: Iterable[ir.Value | None]) -> list[ir.Node]:
    """The nodes that make some tensors."""
    nodes = (value.producer() for value in values if value is not None)
    return [maker for maker in nodes if maker is not None]


@dataclass(frozen=True)
class GraphPlace:
    """A graph, the node that holds it (None: the main graph or a function's) and the function it belongs to."""

    graph: ir.Graph
    owner: ir.Node | None
    function: ir.Function | None

    @property
    def name(self) -> str:
        """What to call the graph in a message."""
        if self.function is not None and self.owner is None:
            return f"function {self.function.domain}::{self.function.name}"
        return self.graph.name or (
            "graph" if self.owner is None else f"body of {self.owner.name or self.owner.op_type}"
        )


def all_graphs(model: ir.Model) -> list[GraphPlace]:
    """The main graph, those of the functions, and every graph inside them, outer ones before inner ones."""
    functions = (place for function in model.functions.values() for place in graphs_in(function))
    return [*graphs_in(model.graph), *functions]


def graphs_in(where: ir.Graph | ir.Function) -> list[GraphPlace]:
    """A graph and every graph inside it, outer ones before inner ones. Deep nesting needs no recursion."""
    function = where if isinstance(where, ir.Function) else None
    found = [GraphPlace(where if isinstance(where, ir.Graph) else where.graph, None, function)]
    for place in found:  # the list grows while it is walked
        found += [GraphPlace(inner, node, function) for node in place.graph for inner in inner_graphs(node)]
    return found


def defined_in(graph: ir.Graph) -> dict[ir.Value, None]:
    """The tensors that a graph defines: inputs, initializers, results of nodes, in this order."""
    defined = dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    for node in graph:
        defined.update(dict.fromkeys(node.outputs))
    return defined


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller has to give: those without a default content."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]
