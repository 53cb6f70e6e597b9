# SPDX-License-Identifier: Apache-2.0
"""Tensors of one name told apart, in a file that was not read as a graph yet.

Read from top to bottom, a second definition hides the first one, and what follows uses it. That is what the file says only
if nothing else could be meant. So it is taken only where every other reading would leave a node without use: nodes in
order, the first definition used before the second one, and exactly one use after each further one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import onnx

from linger.errors import listing
from linger.graph.core.changes import Changes
from linger.graph.core.names import Names
from linger.graph.core.walking import proto_graphs


@dataclass
class Slot:
    """A place in the file where a tensor's name stands."""

    holder: Any  # protobuf's list of names, or a ValueInfoProto
    index: int | None
    said: str

    def write(self, name: str) -> None:
        """Put another name there."""
        if self.index is None:
            self.holder.name = name
        else:
            self.holder[self.index] = name


@dataclass
class Definition:
    """One tensor: where its name is given, who uses it, and the one that it hides."""

    name: str
    slot: Slot
    hidden: Definition | None = None
    is_local: bool = True
    is_fixed: bool = False
    used_early_by: str = ""
    uses: list[Slot] = field(default_factory=list)


@dataclass
class Scope:
    """What a graph defines up to some node, and the graph around it."""

    outer: Scope | None
    known: dict[str, Definition] = field(default_factory=dict)
    early: dict[str, str] = field(default_factory=dict)

    def find(self, name: str) -> Definition | None:
        """The definition that a name means here."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.known:
                return scope.known[name]
            scope = scope.outer
        return None


def taken_names(proto: onnx.ModelProto) -> Names:
    """Every name of a tensor in the file."""
    waiting: list[Any] = [proto.graph, *proto.functions]
    names: set[str] = set()
    for graph in waiting:  # the list grows while it is walked
        if isinstance(graph, onnx.GraphProto):
            names.update(v.name for v in (*graph.input, *graph.output, *graph.initializer))
        else:
            names.update([*graph.input, *graph.output])
        for node in graph.node:
            names.update([*node.input, *node.output])
            waiting += proto_graphs(node)
    return Names(names)


def separate_definitions(proto: onnx.ModelProto, names: Names, changes: Changes) -> list[str]:
    """Give second definitions names of their own; returns what cannot be told apart, as parts of a sentence."""
    wrong: list[str] = []
    for graph in (proto.graph, *proto.functions):
        reader = _Reader()
        reader.read(graph)
        problems = [p for chain in reader.chains.values() for p in _problems(chain)]
        wrong += problems
        for chain in reader.chains.values() if not problems else ():
            _rename(chain, names, changes)
    return wrong


class _Reader:
    """Reads a graph from top to bottom, inner graphs where they stand."""

    def __init__(self) -> None:
        self.chains: dict[int, list[Definition]] = {}
        self._chain_of: dict[int, Definition] = {}

    def read(self, graph: Any) -> None:
        # one entry per graph that was begun: its scope and what is left of its nodes
        begun: list[tuple[Any, Scope, Iterator[onnx.NodeProto], onnx.NodeProto | None]] = [
            (graph, self._begin(graph, None), iter(graph.node), None)
        ]
        waiting: list[list[Any]] = [[]]
        while begun:
            current, scope, nodes, node = begun[-1]
            if waiting[-1]:
                inner = waiting[-1].pop(0)
                begun.append((inner, self._begin(inner, scope), iter(inner.node), None))
                waiting.append([])
                continue
            if node is not None:
                self._define_outputs(node, scope)
            node = next(nodes, None)
            begun[-1] = (current, scope, nodes, node)
            if node is None:
                self._end(current, scope)
                begun.pop()
                waiting.pop()
                continue
            self._use_inputs(node, scope)
            waiting[-1] = list(proto_graphs(node))

    def _begin(self, graph: Any, outer: Scope | None) -> Scope:
        scope = Scope(outer)
        is_graph = isinstance(graph, onnx.GraphProto)
        inputs = [v.name for v in graph.input] if is_graph else list(graph.input)
        for name in (*inputs, *((t.name for t in graph.initializer) if is_graph else ())):
            said = f"the input or initializer {name}"
            scope.known[name] = Definition(name, Slot(None, None, said), is_fixed=True)
        return scope

    def _use_inputs(self, node: onnx.NodeProto, scope: Scope) -> None:
        for index, name in enumerate(node.input):
            if not name:
                continue
            found = scope.find(name)
            if found is not None:
                found.uses.append(Slot(node.input, index, _described(node)))
                continue
            around: Scope | None = scope
            while around is not None:
                around.early.setdefault(name, _described(node))
                around = around.outer

    def _define_outputs(self, node: onnx.NodeProto, scope: Scope) -> None:
        for index, name in enumerate(node.output):
            if not name:
                continue
            hidden = scope.find(name)
            slot = Slot(node.output, index, _described(node))
            made = Definition(name, slot, hidden, name in scope.known, used_early_by=scope.early.get(name, ""))
            scope.known[name] = made
            if hidden is not None:
                first = self._chain_of.get(id(hidden), hidden)
                self._chain_of[id(made)] = first
                self.chains.setdefault(id(first), [first]).append(made)

    def _end(self, graph: Any, scope: Scope) -> None:
        for index, output in enumerate(graph.output):
            is_graph = isinstance(graph, onnx.GraphProto)
            name = output.name if is_graph else output
            found = scope.known.get(name)
            if found is not None:
                holder = (
                    Slot(output, None, f"the output {name}")
                    if is_graph
                    else Slot(graph.output, index, f"the output {name}")
                )
                found.uses.append(holder)
                if scope.outer is None:
                    found.is_fixed = True


def _problems(chain: list[Definition]) -> Iterator[str]:
    """Why it cannot be told who uses which of the tensors of one name."""
    hiding = {id(d.hidden) for d in chain}
    if sum(d.is_fixed for d in chain) > 1:
        yield f"the tensor {chain[0].name} is an input or initializer and again the output of {chain[-1].slot.said}"
    for definition in chain[1:]:
        hidden = definition.hidden
        assert hidden is not None  # only the first of a chain hides none
        both = f"the tensor {definition.name} is made by {hidden.slot.said} and by {definition.slot.said}"
        is_lost = not definition.uses and id(definition) in hiding
        if definition.used_early_by:
            yield f"{both}, and {definition.used_early_by} uses it before"
        elif definition.is_local and not hidden.uses:
            yield f"{both}, and nothing uses the first one"
        elif len(definition.uses) > 1 or is_lost:
            users = listing(dict.fromkeys(slot.said for slot in definition.uses))
            yield f"{both}, and it cannot be told which of them is used by {users or 'what follows'}"


def _rename(chain: list[Definition], names: Names, changes: Changes) -> None:
    """All but one get another name; that one is an input or output of the model, if one of them is."""
    kept = next((d for d in chain if d.is_fixed), chain[0])
    for definition in chain:
        if definition is kept:
            continue
        name = names.choose(definition.name)
        for slot in (definition.slot, *definition.uses):
            slot.write(name)
        changes.note(definition.slot.said, f"its result is called {name} now: {definition.name} was made twice")


def _described(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '?')} ({node.op_type})"
