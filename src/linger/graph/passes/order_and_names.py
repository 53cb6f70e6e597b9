# SPDX-License-Identifier: Apache-2.0
"""Nodes stand in an order in which they can run; every node and every tensor has a name of its own."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from linger.errors import listing
from linger.graph.core.changes import Changes
from linger.graph.core.names import Names
from linger.graph.core.unused import is_used
from linger.graph.core.walking import GraphPlace, all_graphs, defined_in, in_order

_SHOWN = 3
"""New names that a change lists."""


def sort_nodes(model: ir.Model) -> Changes:
    """Put every node after those that it, or a branch or body inside it, needs; in functions too.

    Nodes that can keep their order keep it.

    Raises:
        GraphError: Nodes depend on each other in a circle; those of one circle are named, and nothing is changed.
    """
    changes = Changes()
    ordered = [(place, in_order(place)) for place in all_graphs(model)]
    for place, nodes in ordered:
        before = list(place.graph)
        moved = sum(one is not other for one, other in zip(before, nodes, strict=True))
        if moved:
            place.graph.extend(nodes)  # a node that is in the graph already moves to its end
            changes.note(place.name, f"sorted: {moved} of {len(nodes)} nodes stood elsewhere")
    return changes


def name_nodes(model: ir.Model) -> Changes:
    """Name nodes that have no name, or the name of a node before them, `<op type>_<first output>`.

    Tensors that a node uses but that have no name get one, and a tensor is renamed if nodes that can see it also see another
    tensor of its name; inputs and outputs of the model never are. Names in a function do not clash with those outside it.
    Leaves: all other names, so that a second run changes nothing.
    """
    changes = Changes()
    groups: dict[ir.Function | None, list[GraphPlace]] = {}
    for place in all_graphs(model):
        groups.setdefault(place.function, []).append(place)
    for group in groups.values():
        namer = _TensorNamer(group, changes)
        taken, seen = Names(node.name for place in group for node in place.graph if node.name), set[str]()
        for place in group:  # outer graphs first
            namer.name_tensors_of(place)
        for place in group:
            _name_nodes_of(place, seen, taken, changes)
    return changes


def _name_nodes_of(place: GraphPlace, seen: set[str], taken: Names, changes: Changes) -> None:
    """Name the nodes of one graph; `seen` are names of nodes before them."""
    nameless = []
    for node in place.graph:
        name = node.name
        if not name or name in seen:
            node.name = taken.choose(_name_by_output(node))
            if name:
                changes.note(node.name, f"was called {name}, as another node is")
            else:
                nameless.append(node.name)
            name = node.name
        seen.add(name)
    if nameless:
        changes.note(place.name, f"nodes without a name called {listing(nameless, limit=_SHOWN)}")


def _name_by_output(node: ir.Node) -> str:
    first = next((output.name for output in node.outputs if output.name), None)
    return f"{node.op_type}_{first}" if first else node.op_type


class _TensorNamer:
    """Names the tensors of the main graph and the graphs inside it, or of a function."""

    def __init__(self, group: list[GraphPlace], changes: Changes) -> None:
        counts = Counter(value.name for place in group for value in defined_in(place.graph) if value.name)
        self._taken, self._changes = Names(counts), changes
        self._repeated = {name for name, count in counts.items() if count > 1}
        self._visible: dict[ir.Graph | None, dict[str, ir.Value]] = {}

    def name_tensors_of(self, place: GraphPlace) -> None:
        """Name the tensors that a graph defines, its inputs and outputs first; the graph around it was named before."""
        around, defined = None if place.owner is None else place.owner.graph, defined_in(place.graph)
        visible = self._visible[place.graph] = dict(self._visible.get(around, {}))
        ends = {value: None for value in (*place.graph.inputs, *place.graph.outputs) if value in defined}
        for value in ends | defined:
            if place.owner is None and value in ends and value.name:
                visible.setdefault(value.name, value)  # callers know it by this name, so it keeps it
            else:
                self._name_tensor(value, visible)

    def _name_tensor(self, value: ir.Value, visible: dict[str, ir.Value]) -> None:
        """Name a tensor where it needs a name; a repeated name that it may keep is added to `visible`."""
        if not value.name:
            producer = value.producer()
            if producer is not None and is_used(value):
                value.name = self._taken.choose(f"{producer.op_type}_output")
                self._changes.note(value.name, "had no name")
        elif value.name in self._repeated and visible.setdefault(value.name, value) is not value:
            before = value.name
            value.name = self._taken.choose(before)
            self._changes.note(value.name, f"was called {before}, as another tensor is")
