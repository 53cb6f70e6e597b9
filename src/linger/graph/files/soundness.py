# SPDX-License-Identifier: Apache-2.0
"""Whether work on a model can end: no cycles, no endless functions, no bottomless sub-graphs, nothing from nowhere.

A model with such a flaw is refused. Nodes out of order are no flaw: they can be sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import inner_graphs

DEEPEST = 32
"""Graphs inside each other. A file with more cannot be read: protobuf stops at 100 messages, and a level takes three."""

DEEPEST_CALL = 100
"""Functions that call each other, one inside the other; some computations recurse once per call."""

MOST_NESTED_CALLS = 20_000
"""Calls from inside functions once all are unfolded, beyond one per node of the file: runtimes unfold them all."""

CYCLE, RECURSION, UNFOLDING, DEPTH, UNDEFINED = "cycle", "recursion", "unfolding", "depth", "undefined"
NAME, NODE, TENSOR, SHAPE, OPSET, SPARSE = "name", "node", "tensor", "shape", "opset", "sparse"
ATTRIBUTE, OPERAND = "attribute", "operand"
REPORTABLE = frozenset({CYCLE, UNDEFINED, ATTRIBUTE, OPERAND})
"""Flaws that a check can list beside others: such a model can at least be looked at."""

_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
_SHOWN_NODES = 8
_FunctionKey = tuple[str, str, str]


@dataclass(frozen=True)
class Flaw:
    """One thing that makes a model unusable.

    Attributes:
        category: Of the graph "cycle", "recursion", "unfolding", "depth", "undefined"; of its nodes "attribute",
            "operand"; of a file "name", "node", "tensor", "shape", "opset", "sparse".
        reason: What is wrong, with the names in it.
    """

    category: str
    reason: str


def refuse(found: Iterable[Flaw], where: str, *, allowed: Collection[str] = ()) -> None:
    """Raise what was found, if anything was.

    Args:
        found: The flaws.
        where: The file, for the message.
        allowed: Categories of flaws that are no reason to refuse.

    Raises:
        GraphError: All flaws at once.
    """
    reasons = list(dict.fromkeys(flaw.reason for flaw in found if flaw.category not in allowed))
    if reasons:
        raise GraphError(f"{where}: the model cannot be used: {listing(reasons, limit=8)}. Export it again.")


def flaws(model: ir.Model) -> list[Flaw]:
    """Everything that makes a model unusable, in time linear in its size.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { [p] a = Add(x, b) [q] b = Neg(a) y = Abs(b) }'
    >>> [(flaw.category, flaw.reason) for flaw in flaws(ir.from_onnx_text(text))]
    [('cycle', 'p (Add), q (Neg) wait for each other')]
    """
    bodies = _bodies(model)
    found = [flaw for body in bodies.values() for flaw in body.flaws]
    return found + (_call_flaws(bodies) if model.functions else [])


def callees_first(model: ir.Model) -> list[ir.Function]:
    """The functions of a sound model, each after those that it calls."""
    order, _ = _callees_first(_bodies(model))
    return [model.functions[key] for key in order if key is not None]


def _bodies(model: ir.Model) -> dict[_FunctionKey | None, _Body]:
    """The main graph (None) and the functions."""
    bodies: dict[_FunctionKey | None, _Body] = {None: _Body.of(model.graph, model.functions)}
    return bodies | {key: _Body.of(function.graph, model.functions) for key, function in model.functions.items()}


@dataclass
class _Body:
    """A main graph or the body of a function, with the graphs inside it."""

    flaws: list[Flaw] = field(default_factory=list)
    owners: dict[ir.Graph, ir.Node | None] = field(default_factory=dict)
    calls: Counter[_FunctionKey] = field(default_factory=Counter)
    nodes: int = 0
    is_in_order: bool = True

    @classmethod
    def of(cls, graph: ir.Graph, functions: Mapping[_FunctionKey, ir.Function]) -> _Body:
        body = cls(owners={graph: None})
        waiting, depth = [graph], 0
        while waiting:
            depth += 1
            inner = [node for graph in waiting for node in body._visit(graph, functions)]
            if depth == DEEPEST and inner:
                body.flaws.append(Flaw(DEPTH, f"{describe(inner[0])} holds graphs more than {DEEPEST} levels deep"))
                return body
            waiting = []
            for node in inner:
                graphs = inner_graphs(node)
                body.owners.update(dict.fromkeys(graphs, node))
                waiting += graphs
        if not body.is_in_order:
            body.flaws += _cycle(body.owners)
        return body

    def _visit(self, graph: ir.Graph, functions: Mapping[_FunctionKey, ir.Function]) -> list[ir.Node]:
        """Look at the nodes of one graph; those that hold graphs are returned."""
        seen: set[ir.Node] = set()
        holding = []
        for node in graph:
            self._look_at_inputs(node, seen)
            seen.add(node)
            if functions and (key := node.op_identifier()) in functions:
                self.calls[key] += 1
            if any(a.type in _GRAPHS for a in node.attributes.values()):
                holding.append(node)
        self.nodes += len(seen)
        for value in graph.outputs:
            if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
                self._undefined(f"no node makes the output {value.name!r}")
        return holding

    def _look_at_inputs(self, node: ir.Node, seen: set[ir.Node]) -> None:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None:
                if producer not in seen:
                    self.is_in_order = False  # or it belongs to a graph around this one
            elif value is not None and value.graph is None:
                self._undefined(f"no node makes {value.name!r}, which {describe(node)} uses")

    def _undefined(self, reason: str) -> None:
        self.flaws.append(Flaw(UNDEFINED, reason))


def _cycle(owners: Mapping[ir.Graph, ir.Node | None]) -> list[Flaw]:
    """The nodes of one cycle, if there is any: take away what waits for nothing until only cycles and their like remain."""
    waits: dict[ir.Node, list[ir.Node]] = {node: [] for graph in owners for node in graph}
    followers: dict[ir.Node, list[ir.Node]] = {node: [] for node in waits}
    for node in waits:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            follower = None if producer is None else _at_level_of(node, producer, owners)
            if producer is not None and follower is not None:
                waits[follower].append(producer)
                followers[producer].append(follower)
    count = {node: len(before) for node, before in waits.items()}
    ready = [node for node, number in count.items() if number == 0]
    while ready:
        for follower in followers[ready.pop()]:
            count[follower] -= 1
            if count[follower] == 0:
                ready.append(follower)
    stuck = {node for node, number in count.items() if number}
    if not stuck:
        return []
    path: dict[ir.Node, None] = {}
    node = next(n for n in waits if n in stuck)
    while node not in path:
        path[node] = None
        node = next(n for n in waits[node] if n in stuck)
    ring = list(path)[list(path).index(node) :][::-1]
    if len(ring) == 1:
        return [Flaw(CYCLE, f"{describe(ring[0])} waits for itself")]
    return [Flaw(CYCLE, f"{listing(map(describe, ring), limit=_SHOWN_NODES)} wait for each other")]


def _at_level_of(node: ir.Node, producer: ir.Node, owners: Mapping[ir.Graph, ir.Node | None]) -> ir.Node | None:
    """The node, or the one around it that stands in the producer's graph; None where there is no such."""
    around: ir.Node | None = node
    while around is not None and around.graph is not producer.graph:
        assert isinstance(around.graph, ir.Graph)  # it was reached through its graph
        around = owners[around.graph]
    return around


def _call_flaws(bodies: Mapping[_FunctionKey | None, _Body]) -> list[Flaw]:
    """Functions that never end, that call too deep, or that unfold into too many."""
    order, endless = _callees_first(bodies)
    if endless:
        names = listing((f"{domain}::{name}" for domain, name, _ in endless), limit=_SHOWN_NODES)
        return [
            Flaw(
                RECURSION,
                f"the {'function calls itself' if len(endless) == 1 else 'functions call each other'}: {names}",
            )
        ]
    depth: dict[_FunctionKey | None, int] = {}
    unfolded: dict[_FunctionKey | None, int] = {}  # the calls made inside one call
    for key in order:
        calls = bodies[key].calls
        depth[key] = 1 + max((depth[callee] for callee in calls), default=0)
        unfolded[key] = sum(number * (1 + unfolded[callee]) for callee, number in calls.items())
    found = []
    if max(depth.values()) > DEEPEST_CALL:
        found.append(
            Flaw(
                DEPTH,
                f"its functions call each other {max(depth.values())} levels deep; at most {DEEPEST_CALL} are supported",
            )
        )
    allowed = MOST_NESTED_CALLS + sum(body.nodes for body in bodies.values())
    nested = max(unfolded[key] - bodies[key].calls.total() for key in order)
    if nested > allowed:
        found.append(Flaw(UNFOLDING, f"its functions unfold into {nested} calls; at most {allowed} are supported"))
    return found


def _callees_first(bodies: Mapping[_FunctionKey | None, _Body]) -> tuple[list[_FunctionKey | None], list[_FunctionKey]]:
    """Every body after those it calls; or else, second, the functions of one endless call."""
    order: dict[_FunctionKey | None, None] = {}
    for start in bodies:
        path: dict[_FunctionKey | None, None] = {}
        stack: list[tuple[_FunctionKey | None, list[_FunctionKey]]] = []
        if start not in order:
            path[start] = None
            stack.append((start, list(bodies[start].calls)))
        while stack:
            key, rest = stack[-1]
            if not rest:
                stack.pop()
                del path[key]
                order[key] = None
                continue
            callee = rest.pop()
            if callee in path:
                ring = list(path)[list(path).index(callee) :]
                return [], [function for function in ring if function is not None]
            if callee not in order:
                path[callee] = None
                stack.append((callee, list(bodies[callee].calls)))
    return list(order), []
