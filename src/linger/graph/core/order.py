# SPDX-License-Identifier: Apache-2.0
"""Orders: nodes after those whose results they need, inside their branches and bodies too; functions after those they call."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import TypeVar

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import GraphPlace, all_nodes, inputs_within

Functions = Mapping[ir.OperatorIdentifier, ir.Function]
_Thing = TypeVar("_Thing", bound=Hashable)

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
    found = _positions_in_order(needs)
    if len(found) < len(nodes):
        circle = [describe(nodes[index]) for index in find_circle(dict(enumerate(needs)))]
        raise GraphError(
            f"{place.name}: nodes depend on each other in a circle: "
            f"{listing([*circle, circle[0]], limit=_SHOWN)}. No order can run them; break the circle or export again."
        )
    return [nodes[index] for index in found]


def _positions_in_order(needs: Sequence[Collection[int]]) -> list[int]:
    """Positions, each after those that it needs, otherwise rising; without those that wait for a circle."""
    users: list[list[int]] = [[] for _ in needs]
    for index, needed in enumerate(needs):
        for maker in needed:
            users[maker].append(index)
    open_needs = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(open_needs) if not count]  # rising, so it is a heap
    found = []
    while ready:
        found.append(heappop(ready))
        for user in users[found[-1]]:
            open_needs[user] -= 1
            if not open_needs[user]:
                heappush(ready, user)
    return found


def _needed_positions(node: ir.Node, position: dict[ir.Node, int]) -> set[int]:
    makers = (value.producer() for value in inputs_within(node))
    return {position[maker] for maker in makers if maker is not None and maker in position}


def find_circle(needs: Mapping[_Thing, Iterable[_Thing]]) -> list[_Thing]:
    """One circle of things that need each other, each before one that needs it, the first of the mapping first.

    >>> find_circle({"a": ["c"], "b": ["a"], "c": ["b"]}), find_circle({"a": ["b"], "b": []})
    (['a', 'b', 'c'], [])
    """
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle: list[_Thing] = error.args[1][1:]
        position = {thing: index for index, thing in enumerate(needs)}
        first = min(range(len(circle)), key=lambda index: position[circle[index]])
        return circle[first:] + circle[:first]
    return []


def callees_first(functions: Functions) -> list[ir.OperatorIdentifier]:
    """The functions of a model, each after those that it calls.

    Raises:
        GraphError: A function calls itself, by way of others or directly; those of one circle are named.
    """
    needs = {identifier: dict.fromkeys(callees(function, functions)) for identifier, function in functions.items()}
    if circle := find_circle(needs)[::-1]:
        names = [f"{domain}::{name}" for domain, name, _ in [circle[-1], *circle]]
        raise GraphError(
            f"the function {names[0]} calls itself: {' → '.join(names)}. Such a model cannot run; export again."
        )
    return list(TopologicalSorter(needs).static_order())


def callees(function: ir.Function, functions: Functions) -> list[ir.OperatorIdentifier]:
    """The functions that a function calls, once for every call."""
    return [identifier for node in all_nodes(function) if (identifier := node.op_identifier()) in functions]


def called_functions(nodes: Iterable[ir.Node], functions: Functions) -> set[ir.OperatorIdentifier]:
    """The functions that nodes call, and those that these call in turn."""
    found: set[ir.OperatorIdentifier] = set()
    waiting = [nodes]
    while waiting:
        called = {node.op_identifier() for node in waiting.pop()} & functions.keys() - found
        found |= called
        waiting += [all_nodes(functions[identifier]) for identifier in called]
    return found
