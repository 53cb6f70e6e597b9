# SPDX-License-Identifier: Apache-2.0
"""Every graph of a model: the main one, branches and bodies at any depth, and those of functions."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from linger.graph.core.search import inner_graphs


@dataclass(frozen=True)
class Place:
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


def places(model: ir.Model) -> list[Place]:
    """Every graph of a model, outer ones before those inside them; found without recursion, however deep they lie."""
    return [*places_in(model.graph, None), *(p for f in model.functions.values() for p in places_in(f.graph, f))]


def places_in(graph: ir.Graph, function: ir.Function | None) -> list[Place]:
    """A graph and every graph inside it."""
    found = [Place(graph, None, function)]
    for place in found:  # the list grows while it is walked
        found += [Place(inner, node, function) for node in place.graph for inner in inner_graphs(node)]
    return found


def nodes_within(node: ir.Node) -> list[ir.Node]:
    """A node and every node of the graphs inside it."""
    found = [node]
    for outer in found:  # the list grows while it is walked
        for graph in inner_graphs(outer):
            found += graph
    return found


def defined_in(graph: ir.Graph) -> dict[ir.Value, None]:
    """The tensors that a graph defines: inputs, initializers, results of nodes, in this order."""
    defined = dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    for node in graph:
        defined.update(dict.fromkeys(node.outputs))
    return defined
