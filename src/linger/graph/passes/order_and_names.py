# SPDX-License-Identifier: Apache-2.0
"""Nodes stand in an order in which they can run; every node and every tensor has a name of its own."""

from __future__ import annotations

import onnx_ir as ir

from linger.errors import listing
from linger.graph.core.changes import Changes
from linger.graph.core.names import Names
from linger.graph.core.order import in_order
from linger.graph.core.walking import GraphPlace, all_graphs, defined_in

_SHOWN = 3
"""New names that a change lists."""


def name_nodes(model: ir.Model) -> Changes:
    """Name nodes that have no name, or the name of a node before them, `<op type>_<first output>`.

    Tensors that a node uses but that have no name get one, and a tensor that is called like another one that the same nodes
    can see is renamed; inputs and outputs of the model never are. Leaves: all other names, so that a second run changes
    nothing. Names are told apart within a function and within the graphs of the model, respectively.
    """
    changes = Changes()
    groups: dict[ir.Function | None, list[GraphPlace]] = {}
    for place in all_graphs(model):
        groups.setdefault(place.function, []).append(place)
    for group in groups.values():
        _name_tensors(group, changes)
        _name_nodes(group, changes)
    return changes


def _name_nodes(group: list[GraphPlace], changes: Changes) -> None:
    taken = Names(node.name for place in group for node in place.graph if node.name)
    seen: set[str] = set()
    for place in group:
        nameless = []
        for node in place.graph:
            if node.name and node.name not in seen:
                seen.add(node.name)
                continue
            before = node.name
            first = next((output.name for output in node.outputs if output.name), None)
            node.name = taken.choose(f"{node.op_type}_{first}" if first else node.op_type)
            seen.add(node.name)
            if before:
                changes.note(node.name, f"was called {before}, as another node is")
            else:
                nameless.append(node.name)
        if nameless:
            changes.note(place.name, f"nodes without a name called {listing(nameless, limit=_SHOWN)}")


def _name_tensors(group: list[GraphPlace], changes: Changes) -> None:
    defined = {place.graph: defined_in(place.graph) for place in group}
    taken = Names(value.name for values in defined.values() for value in values if value.name)
    owners = {place.graph: place.owner for place in group}
    repeated = _repeated(defined)
    visible: dict[ir.Graph, dict[str, ir.Value]] = {}
    for place in group:  # outer graphs first
        around = owners[place.graph]
        outer = visible.get(around.graph) if around is not None and around.graph is not None else None
        own = visible[place.graph] = dict(outer or {})
        outside = {v: None for v in (*place.graph.inputs, *place.graph.outputs) if v in defined[place.graph]}
        for value in {**outside, **defined[place.graph]}:
            if place.owner is None and value in outside and value.name:
                own.setdefault(value.name, value)  # whatever it is called: it is known by that name
            else:
                _give_name(value, own, repeated, taken, changes)


def _repeated(defined: dict[ir.Graph, dict[ir.Value, None]]) -> set[str]:
    """Names that more than one tensor has."""
    once: set[str] = set()
    repeated: set[str] = set()
    for values in defined.values():
        for value in values:
            if value.name:
                (repeated if value.name in once else once).add(value.name)
    return repeated


def _give_name(
    value: ir.Value, visible: dict[str, ir.Value], repeated: set[str], taken: Names, changes: Changes
) -> None:
    """Name a value if it needs it; `visible` gets those of the repeated names that are in use here."""
    if not value.name:
        producer = value.producer()
        if producer is not None and (value.uses() or value.is_graph_output()):
            value.name = taken.choose(f"{producer.op_type}_output")
            changes.note(value.name, "had no name")
        return
    if value.name not in repeated:
        return
    if visible.setdefault(value.name, value) is value:
        return
    before = value.name
    value.name = taken.choose(before)
    changes.note(value.name, f"was called {before}, as another tensor is")


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
