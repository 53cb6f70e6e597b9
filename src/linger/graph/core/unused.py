# SPDX-License-Identifier: Apache-2.0
"""Find the nodes that outputs or side effects need, and remove what nothing uses."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.walking import (
    GraphPlace,
    all_graphs,
    all_nodes,
    inner_graphs,
    inputs_within,
    makers,
    nodes_within,
)

_KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "linger"})
"""Domains whose ops only compute. An op of another domain may do more: print, count, write."""

_RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout"}
)
_RANDOM_BY_NAME = ("Random", "Dropout", "Sampling")
"""Parts of the names of com.microsoft's ops that draw random numbers."""


class Effects:
    """Side effects and randomness of the nodes of a model; calls have those of the function's nodes."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._bodies: dict[ir.OperatorIdentifier, tuple[bool, bool]] = {}
        self._ops: dict[ir.OperatorIdentifier, tuple[bool, bool]] = {}

    def has_effect(self, node: ir.Node) -> bool:
        """Whether a node may do something that its outputs do not show."""
        return self._look(node)[0] or any(self._look(n)[0] for graph in inner_graphs(node) for n in all_nodes(graph))

    def is_random(self, node: ir.Node) -> bool:
        """Whether a node may return another result when it runs again."""
        return any(any(self._look(inner)) for inner in nodes_within(node))

    def _look(self, node: ir.Node) -> tuple[bool, bool]:
        """Whether one node, without the graphs inside it, may have an effect, and whether it draws random numbers."""
        identifier = node.op_identifier()
        if identifier in self._functions:
            return self._look_into(identifier)
        if identifier not in self._ops:
            is_known = node.domain in _KNOWN_DOMAINS or is_dialect(node)
            draws = node.op_type in _RANDOM or any(part in node.op_type for part in _RANDOM_BY_NAME)
            self._ops[identifier] = not is_known, draws
        has_effect, draws = self._ops[identifier]
        return has_effect or not node.outputs, draws

    def _look_into(self, identifier: ir.OperatorIdentifier) -> tuple[bool, bool]:
        if identifier not in self._bodies:
            self._bodies[identifier] = (True, True)  # for a function that calls itself
            found = [self._look(node) for node in all_nodes(self._functions[identifier])]
            self._bodies[identifier] = (any(e for e, _ in found), any(r for _, r in found))
        return self._bodies[identifier]


def needed_nodes(model: ir.Model, found: Iterable[GraphPlace] | None = None) -> set[ir.Node]:
    """The nodes of all graphs that outputs or effects depend on. A node has the effects of those inside it.

    Args:
        model: The model.
        found: All its graphs, where they are known already.
    """
    effects, found = Effects(model), all_graphs(model) if found is None else found
    waiting = [node for place in found for node in place.graph if effects.has_effect(node)]
    waiting += [node for place in found if place.owner is None for node in makers(place.graph.outputs)]
    return with_makers(set(), waiting)


def with_makers(known: set[ir.Node], more: Iterable[ir.Node]) -> set[ir.Node]:
    """Return the known nodes, more nodes, and all nodes that the latter depend on."""
    needed, waiting = set(known), list(more)
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        waiting += makers(node.inputs)
        waiting += [maker for graph in inner_graphs(node) for maker in makers(graph.outputs)]
    return needed


def is_used(value: ir.Value) -> bool:
    """Whether a node reads a tensor or a graph returns it."""
    return bool(value.uses()) or value.is_graph_output()


def release_inputs(node: ir.Node) -> None:
    """Take away the inputs of a node and of the nodes inside it, so that they no longer count as users."""
    for user in nodes_within(node):
        for index in range(len(user.inputs)):
            user.replace_input_with(index, None)


def remove_nodes(nodes: Iterable[ir.Node]) -> None:
    """Remove nodes that nothing uses, in one step per graph: each step looks through all outputs of the graph."""
    by_graph: dict[ir.Graph, list[ir.Node]] = {}
    for node in nodes:
        release_inputs(node)
        if isinstance(node.graph, ir.Graph):
            by_graph.setdefault(node.graph, []).append(node)
    for graph, own in by_graph.items():
        graph.remove(own)


def drop_unused(
    values: Iterable[ir.Value | None], *, constants_only: bool = False, upstream: bool = True
) -> list[ir.Node]:
    """Remove initializers and nodes whose tensors nothing uses any more. Inputs of graphs stay.

    Args:
        values: Where to begin.
        constants_only: Initializers and Constant nodes go, other nodes stay.
        upstream: Also remove what only the removed nodes needed.

    Returns:
        The removed nodes.
    """
    removed: dict[ir.Node, None] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value is None or is_used(value) or value.is_graph_input():
            continue
        node = value.producer()
        if node is None:
            _drop_initializer(value)
        elif node not in removed and _may_go(node, constants_only=constants_only):
            if upstream:
                waiting += inputs_within(node)
            release_inputs(node)
            removed[node] = None
    remove_nodes(removed)
    return list(removed)


def _drop_initializer(value: ir.Value) -> None:
    if value.graph is not None:
        value.graph.initializers.pop(value.name or "", None)


def _may_go(node: ir.Node, *, constants_only: bool) -> bool:
    is_constant = node.op_type == "Constant" and not node.domain
    return node.graph is not None and (is_constant or not constants_only) and not any(map(is_used, node.outputs))
