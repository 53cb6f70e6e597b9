# SPDX-License-Identifier: Apache-2.0
"""The graph as a graph: who makes what, and in which order."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Place, Whole, model_finding
from linger.errors import listing
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding
from linger.graph.core.walking import inner_graphs

Needs = dict[ir.Node, set[ir.Node]]


def structure_findings(whole: Whole) -> Iterator[Finding]:
    """Tensors without a maker or with the name of another, nodes that come too early, circles."""
    yield from _undefined(whole)
    yield from _shadowed(whole)
    yield from _order(whole)


def _undefined(whole: Whole) -> Iterator[Finding]:
    for place in whole.places:
        for value in dict.fromkeys(v for v in place.node.inputs if v is not None):
            if not _is_visible(place, value):
                yield place.finding(
                    rules.UNDEFINED_TENSOR,
                    f"it reads {value.name!r}, which nothing that it can see makes",
                    "Connect it to a tensor that exists.",
                    tensor=value.name or "",
                )
    for way, graph in whole.graphs():
        for value in graph.outputs:
            if not _is_defined(value):
                yield model_finding(
                    rules.UNDEFINED_TENSOR,
                    f"the output {value.name!r} of {_graph_name(way)} is made by no node",
                    "Connect it, or remove the output.",
                    tensor=value.name or "",
                )


def _graph_name(way: str) -> str:
    return way.rstrip("/") or "the graph"


def _is_visible(place: Place, value: ir.Value) -> bool:
    return value.graph is not None and _is_defined(value) and place.within(value.graph) is not None


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _defined_in(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from node.outputs


def _shadowed(whole: Whole) -> Iterator[Finding]:
    """Names of a branch that a graph around it has too."""
    own: dict[ir.Graph, set[str]] = {}
    for _, graph in whole.graphs():
        own[graph] = {value.name for value in _defined_in(graph) if value.name}
    for place in whole.places:
        outer = place.outer
        if outer is None:
            continue
        for value in place.node.outputs:
            around: Place | None = outer
            while around is not None and value.name and value.name not in own[_graph_of(around)]:
                around = around.outer
            if around is not None and value.name:
                yield place.finding(
                    rules.SHADOWED_TENSOR,
                    f"its output {value.name!r} is called like a tensor around the branch",
                    "Rename it.",
                    tensor=value.name,
                )


def _graph_of(place: Place) -> ir.Graph:
    graph = place.node.graph
    assert isinstance(graph, ir.Graph)  # places are found in graphs
    return graph


def _order(whole: Whole) -> Iterator[Finding]:
    needs = _needs(whole)
    circular = _circular(needs)
    position = {place.node: index for index, place in enumerate(whole.places)}
    for place in whole.places:
        late = [n for n in needs[place.node] if position.get(n, -1) >= position[place.node]]
        if late and place.node in circular:
            yield place.finding(
                rules.CYCLE, "it needs a tensor that is computed from its own result", "Break the circle."
            )
        elif late:
            names = listing(sorted(o.name for n in late for o in n.outputs[:1] if o.name))
            yield place.finding(
                rules.UNSORTED, f"it stands before the nodes whose results it uses ({names})", "Sort the nodes."
            )


def _needs(whole: Whole) -> Needs:
    """For every node, the nodes of its own graph whose results it needs, those that its branches read included."""
    needs: Needs = {place.node: set() for place in whole.places}
    for place in whole.places:
        read = [*place.node.inputs, *(output for graph in inner_graphs(place.node) for output in graph.outputs)]
        for maker in {value.producer() for value in read if value is not None} - {None}:
            assert maker is not None  # removed above
            user = place.within(maker.graph) if isinstance(maker.graph, ir.Graph) else None
            if user is not None:
                needs[user.node].add(maker)
    return needs


def _circular(needs: Needs) -> set[ir.Node]:
    """Nodes in a circle: what is left when all that only leads to circles, or only comes out of them, is taken away."""
    users: Needs = {}
    for node, makers in needs.items():
        for maker in makers:
            users.setdefault(maker, set()).add(node)
    return _peeled(_peeled(set(needs), needs, users), users, needs)


def _peeled(nodes: set[ir.Node], before: Needs, after: Needs) -> set[ir.Node]:
    """Without the nodes that nothing stands before, again and again."""
    waits = {node: len(before.get(node, set()) & nodes) for node in nodes}
    ready = [node for node, count in waits.items() if not count]
    left = set(nodes)
    while ready:
        node = ready.pop()
        left.discard(node)
        for user in after.get(node, ()):
            if user in waits:
                waits[user] -= 1
                if not waits[user]:
                    ready.append(user)
    return left
