# SPDX-License-Identifier: Apache-2.0
"""Where a node stands: its path from the main graph through branches and bodies, by which findings name it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from linger.graph.core.check_rules import CheckRule
from linger.graph.core.dialects import is_quantising, is_quantising_domain
from linger.graph.core.finding import Finding
from linger.graph.core.nodes import all_nodes, named_graphs


@dataclass(frozen=True)
class NodePlace:
    """A node and the way to it.

    Attributes:
        node: The node.
        way: The path to its graph, such as `if_1/then_branch/`; empty in the main graph.
        outer: The place of the node whose branch this node is in.
    """

    node: ir.Node
    way: str = ""
    outer: NodePlace | None = None

    @property
    def path(self) -> str:
        """The node's name, or that of its first output, after the way to it."""
        node = self.node
        return f"{self.way}{node.name or (node.outputs[0].name if node.outputs else None) or '?'}"

    def __str__(self) -> str:
        return f"{self.path} ({self.node.op_type})"

    def finding(
        self, rule: CheckRule, reason: str, remedy: str, *, tensor: str = "", severity: str | None = None
    ) -> Finding:
        """A finding about the node."""
        return Finding(severity or rule.severity, str(self), reason, remedy, rule.id, tensor)

    def around(self) -> Iterator[NodePlace]:
        """The places of the nodes whose branches this node is in, the nearest first."""
        place = self.outer
        while place is not None:
            yield place
            place = place.outer

    def within(self, graph: ir.Graph) -> NodePlace | None:
        """The node of a graph around this one that holds this one, or this one itself; None where there is none."""
        return next((place for place in (self, *self.around()) if place.node.graph is graph), None)


def places_of(graph: ir.Graph | ir.Function, way: str = "") -> Iterator[NodePlace]:
    """Every node of a graph and of the graphs inside it: outer ones first, each branch after the node that holds it."""
    inside: dict[object, tuple[str, NodePlace]] = {}  # the way to a branch or body, and the node that holds it
    for node in all_nodes(graph):
        place = NodePlace(node, *inside.get(node.graph, (way, None)))
        inside.update({inner: (f"{place.path}/{name}/", place) for name, inner in named_graphs(node)})
        yield place


def function_places(model: ir.Model) -> Iterator[NodePlace]:
    """Every node of the functions that a file brings along, those of the dialect's own ops left out."""
    for (domain, name, _), function in model.functions.items():
        if not is_quantising_domain(domain):
            yield from places_of(function, f"{domain}::{name}/")


@dataclass(frozen=True)
class CheckedModel:
    """A model to be checked, its nodes in order.

    Attributes:
        model: The model.
        places: Its nodes, those of branches and bodies included.
        has_dialect: Whether one of them belongs to a dialect.
        inner: The graphs inside the main graph, each with the way to it.
    """

    model: ir.Model
    places: tuple[NodePlace, ...]
    has_dialect: bool
    inner: tuple[tuple[str, ir.Graph], ...] = ()

    @classmethod
    def of(cls, model: ir.Model) -> CheckedModel:
        """The model as it is now."""
        places = tuple(places_of(model.graph))
        inner = [(f"{place.path}/{name}/", graph) for place in places for name, graph in named_graphs(place.node)]
        return cls(model, places, any(is_quantising(place.node) for place in places), tuple(inner))

    def graphs(self) -> Iterator[tuple[str, ir.Graph]]:
        """The main graph and those inside it, each with the way to it."""
        yield "", self.model.graph
        yield from self.inner


def model_finding(
    rule: CheckRule, reason: str, remedy: str, *, tensor: str = "", severity: str | None = None
) -> Finding:
    """A finding about the model as a whole, or about a tensor of it."""
    return Finding(severity or rule.severity, "", reason, remedy, rule.id, tensor)
