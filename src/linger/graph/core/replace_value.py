# SPDX-License-Identifier: Apache-2.0
"""One tensor takes the place of another, in every graph, without a change of what the outputs are called."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from linger.graph.core.walking import all_graphs, defined_in


class Takeover:
    """Replaces tensors of one model; knows which names are used twice and where the outputs stand.

    A file knows tensors by their names. So a tensor must not move to where its name means another one, and whoever becomes an
    output takes the output's name.
    """

    def __init__(self, model: ir.Model) -> None:
        counts: Counter[str] = Counter()
        self._positions: dict[ir.Graph, dict[ir.Value, list[int]]] = {}
        for place in all_graphs(model):
            counts.update(value.name for value in defined_in(place.graph) if value.name)
        self._repeated = {name for name, count in counts.items() if count > 1}
        self._gone: dict[ir.Node, None] = {}
        self._loose: dict[ir.Value, None] = {}

    def discard(self, node: ir.Node) -> None:
        """Take a node out of use: it uses nothing any more, and `finish` removes it."""
        self.release(node)
        self._gone[node] = None

    def release(self, node: ir.Node) -> None:
        """Take away all inputs of a node."""
        for index in range(len(node.inputs)):
            self.set_input(node, index, None)

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let a node use another tensor, or none; a constant that nobody uses then goes with `finish`."""
        before = node.inputs[index]
        node.replace_input_with(index, value)
        if before is not None:
            self._loose[before] = None

    def discard_if_unused(self, node: ir.Node) -> None:
        """Take a node out of use if nobody uses its outputs."""
        if not any(output.uses() or output.is_graph_output() for output in node.outputs):
            self.discard(node)

    def finish(self) -> None:
        """Remove the nodes that were discarded, all at once: each removal looks through all outputs of the graph."""
        for value in self._loose:
            self._drop_constant(value)
        by_graph: dict[ir.Graph, list[ir.Node]] = {}
        for node in self._gone:
            if node.graph is not None:
                by_graph.setdefault(node.graph, []).append(node)
        for graph, nodes in by_graph.items():
            graph.remove(nodes)
        self._gone.clear()
        self._loose.clear()

    def _drop_constant(self, value: ir.Value) -> None:
        if value.uses() or value.is_graph_output() or value.is_graph_input():
            return
        maker = value.producer()
        if maker is not None and maker.op_type == "Constant" and not maker.domain:
            self._gone[maker] = None
        elif value.is_initializer() and value.graph is not None and value.name is not None:
            value.graph.initializers.pop(value.name)

    def is_possible(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether `new` can stand wherever `old` stands."""
        if new is old or (new.producer() is None and new.graph is None):  # nobody makes it
            return False
        if not old.is_graph_output():
            return not self._is_hidden(new.name, [old], new.graph)
        is_made_here = new.producer() is not None and new.graph is old.graph and not new.is_graph_output()
        return is_made_here and not self._is_hidden(old.name, [old, new], old.graph)

    def _is_hidden(self, name: str | None, values: list[ir.Value], home: ir.Graph | None) -> bool:
        """Whether inner graphs that use the values may mean something else by a name."""
        if name not in self._repeated:
            return False
        return any(user.graph is not home for value in values for user, _ in value.uses())

    def is_visible(self, value: ir.Value, graph: ir.Graph) -> bool:
        """Whether a graph that sees a value would mean that value by its name."""
        return value.graph is graph or value.name not in self._repeated

    def replace(self, old: ir.Value, new: ir.Value, *, with_name: bool = False) -> bool:
        """Let `new` stand wherever `old` stood; an output keeps its name and what is declared of it.

        Args:
            old: The tensor that goes.
            new: The tensor that takes its place.
            with_name: Whether `new` takes the name of `old` where `old` is no output, if it can.

        Returns:
            False, and nothing is changed, where the file could not be written so.
        """
        if not self.is_possible(old, new):
            return False
        for user, index in tuple(old.uses()):
            user.replace_input_with(index, new)
        if old.is_graph_output():
            self._become_output(old, new)
            return True
        learn(new, old)
        is_free = old.name not in self._repeated and new.producer() is not None and not new.is_graph_output()
        if with_name and is_free and new.graph is old.graph:
            name, old.name = old.name, None
            new.name = name
        return True

    def stand_in(self, old: ir.Value, new: ir.Value) -> None:
        """Let a tensor that was just made for it stand wherever `old` stood, under the name of `old`."""
        for user, index in tuple(old.uses()):
            user.replace_input_with(index, new)
        if old.is_graph_output():
            self._become_output(old, new)
            return
        learn(new, old)
        if old.name:  # an output that is left out has none
            name, old.name = old.name, None
            new.name = name

    def share(self, old: ir.Value, new: ir.Value) -> bool:
        """Let nodes that use `old` use `new`; where `old` is an output, it stays one. Returns whether anything used it."""
        uses = tuple(old.uses())
        if self._is_hidden(new.name, [old], new.graph):
            return False
        for user, index in uses:
            user.replace_input_with(index, new)
        return bool(uses)

    def _become_output(self, old: ir.Value, new: ir.Value) -> None:
        graph = old.graph
        assert graph is not None  # it is one of its outputs
        if graph not in self._positions:
            self._positions[graph] = _positions(graph)
        indices = self._positions[graph].pop(old)
        for index in indices:
            graph.outputs[index] = new
        self._positions[graph][new] = indices
        name, old.name = old.name, None
        new.name = name
        if old.type is not None:
            new.type, new.shape = old.type, old.shape if old.shape is not None else new.shape
        new.doc_string = old.doc_string or new.doc_string


def _positions(graph: ir.Graph) -> dict[ir.Value, list[int]]:
    found: dict[ir.Value, list[int]] = {}
    for index, value in enumerate(graph.outputs):
        found.setdefault(value, []).append(index)
    return found


def learn(value: ir.Value, other: ir.Value) -> None:
    """Give a value the type and shape of an equal one, where it has none of its own."""
    if value.type is None:
        value.type = other.type
    if value.shape is None:
        value.shape = other.shape


def become_identity(node: ir.Node, value: ir.Value) -> None:
    """Make of a node one that hands on a value, under the name that its output has."""
    node.op_type, node.domain = "Identity", ""
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, value)
