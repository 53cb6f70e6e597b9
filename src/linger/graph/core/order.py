# SPDX-License-Identifier: Apache-2.0
"""The order of execution: what a node needs, inside its branches and bodies too, comes before it."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import GraphPlace, nodes_within

_SHOWN = 12
"""Nodes of a circle that a message names."""


def in_order(place: GraphPlace) -> list[ir.Node]:
    """The nodes of one graph, each after those it needs, otherwise as they stand. The graph is not changed.

    Raises:
        GraphError: Nodes depend on each other in a circle; those of one circle are named.
    """
    nodes = list(place.graph)
    position = {node: index for index, node in enumerate(nodes)}
    needs = [_needed_positions(node, position) for node in nodes]
    if all(all(n < index for n in needed) for index, needed in enumerate(needs)):
        return nodes
    users: list[list[int]] = [[] for _ in nodes]
    for index, needed in enumerate(needs):
        for maker in needed:
            users[maker].append(index)
    open_needs = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(open_needs) if not count]
    heapify(ready)
    found = []
    while ready:
        index = heappop(ready)
        found.append(nodes[index])
        for user in users[index]:
            open_needs[user] -= 1
            if not open_needs[user]:
                heappush(ready, user)
    if len(found) < len(nodes):
        stuck = {index for index, count in enumerate(open_needs) if count}
        circle = [describe(nodes[index]) for index in _circle(needs, stuck)]
        raise GraphError(
            f"{place.name}: nodes depend on each other in a circle: "
            f"{listing([*circle, circle[0]], limit=_SHOWN)}. No order can run them; break the circle or export again."
        )
    return found


def _needed_positions(node: ir.Node, position: dict[ir.Node, int]) -> set[int]:
    makers = (value.producer() for user in nodes_within(node) for value in user.inputs if value is not None)
    return {position[maker] for maker in makers if maker is not None and maker in position}


def _circle(needs: list[set[int]], stuck: Iterable[int]) -> list[int]:
    """One circle among nodes of which each needs another one of them, in the order of the data, the first of the file first."""
    stuck = set(stuck)
    path: list[int] = []
    seen: dict[int, int] = {}
    node = min(stuck)
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        node = min(n for n in needs[node] if n in stuck)
    circle = path[seen[node] :][::-1]
    first = circle.index(min(circle))
    return circle[first:] + circle[:first]
