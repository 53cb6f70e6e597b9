# SPDX-License-Identifier: Apache-2.0
"""Replace one tensor by another in every graph; outputs keep their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import onnx_ir as ir

from linger.graph.core.unused import drop_unused, is_used, release_inputs, remove_nodes
from linger.graph.core.walking import all_graphs, defined_in


def can_be_output(value: ir.Value, graph: ir.Graph | None) -> bool:
    """Whether a tensor can become a graph output: a node of the graph makes it, and it is not an output yet."""
    return value.producer() is not None and value.graph is graph and not value.is_graph_output()


def redirect(uses: Iterable[tuple[ir.Node, int]], value: ir.Value) -> None:
    """Connect inputs of nodes, each given as a node and a position, to a tensor."""
    for node, index in uses:
        node.replace_input_with(index, value)


def replace_outputs(old: ir.Value, new: ir.Value) -> None:
    """Replace a tensor by another one in the outputs of its graph."""
    graph = old.graph
    assert graph is not None  # `old` is an output of this graph
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new


def take_name(old: ir.Value, new: ir.Value) -> None:
    """Give a tensor the name of another one, which has none afterwards."""
    name, old.name = old.name, None
    new.name = name


def learn_type(value: ir.Value, other: ir.Value) -> None:
    """Give a value the type and shape of an equal one, where it has none of its own."""
    if value.type is None:
        value.type = other.type
    if value.shape is None:
        value.shape = other.shape


def become_identity(node: ir.Node, value: ir.Value) -> None:
    """Turn a node into an Identity of a value; its output keeps its name."""
    node.op_type, node.domain = "Identity", ""
    node.attributes.clear()
    node.resize_inputs(1)
    node.replace_input_with(0, value)


class ValueReplacer:
    """Replaces tensors of one model, and removes at the end (`finish`) what is no longer used.

    A file knows tensors by their names. So a tensor must not be used where its name means another one, and a tensor that
    becomes an output takes the output's name.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._discarded: dict[ir.Node, None] = {}
        self._released: dict[ir.Value, None] = {}

    @cached_property
    def _repeated(self) -> set[str]:
        """Names that several tensors have, when the first one is asked for: where nothing is replaced, nothing is counted."""
        counts = Counter(v.name for place in all_graphs(self._model) for v in defined_in(place.graph) if v.name)
        return {name for name, count in counts.items() if count > 1}

    def discard(self, node: ir.Node) -> None:
        """Disconnect the inputs of a node; `finish` removes it."""
        self.release(node)
        self._discarded[node] = None

    def release(self, node: ir.Node) -> None:
        """Take away all inputs of a node; `finish` removes the constants among them that nothing uses then."""
        self._released.update(dict.fromkeys(value for value in node.inputs if value is not None))
        release_inputs(node)

    def set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        """Let a node read another tensor, or none; `finish` removes a constant that nothing uses then."""
        before = node.inputs[index]
        node.replace_input_with(index, value)
        if before is not None:
            self._released[before] = None

    def discard_if_unused(self, node: ir.Node) -> None:
        """Discard a node if nothing uses its outputs."""
        if not any(map(is_used, node.outputs)):
            self.discard(node)

    def finish(self) -> None:
        """Remove the nodes that were discarded, and constants that only they used."""
        drop_unused(self._released, constants_only=True)
        remove_nodes(self._discarded)
        self._discarded.clear()
        self._released.clear()

    def is_possible(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether `new` can replace `old` in every place."""
        if new is old or (new.producer() is None and new.graph is None):  # nothing makes it
            return False
        if not old.is_graph_output():
            return not self._is_hidden(new.name, [old], new.graph)
        return can_be_output(new, old.graph) and not self._is_hidden(old.name, [old, new], old.graph)

    def _is_hidden(self, name: str | None, values: list[ir.Value], home: ir.Graph | None) -> bool:
        """Whether the values are used in other graphs than their home, where the name may mean another tensor."""
        if name not in self._repeated:
            return False
        return any(user.graph is not home for value in values for user, _ in value.uses())

    def is_visible(self, value: ir.Value, graph: ir.Graph) -> bool:
        """Whether the name of a value means that value in a graph that sees it."""
        return value.graph is graph or value.name not in self._repeated

    def replace(self, old: ir.Value, new: ir.Value, *, with_name: bool = False) -> bool:
        """Replace `old` by `new` everywhere; an output keeps its name, and its declared type and shape.

        Args:
            old: The tensor that goes.
            new: The tensor that takes its place.
            with_name: Whether `new` takes the name of `old` where `old` is no output, if it can.

        Returns:
            False, and nothing is changed, where a file could not express it.
        """
        if not self.is_possible(old, new):
            return False
        takes_name = with_name and old.name not in self._repeated and can_be_output(new, old.graph)
        _stand_in(old, new, with_name=takes_name)
        return True

    def stand_in(self, old: ir.Value, new: ir.Value) -> None:
        """Replace `old` everywhere by a tensor that was just made for it, which takes the name of `old`."""
        _stand_in(old, new, with_name=bool(old.name))  # an output that is left out has no name

    def bypass(self, node: ir.Node, value: ir.Value, *, with_name: bool = False) -> None:
        """Replace the output of a node by a value; remove the node, or make it an Identity if it must stay.

        Args:
            node: A node of one output.
            value: The tensor that takes the place of that output.
            with_name: As for `replace`.
        """
        if self.replace(node.outputs[0], value, with_name=with_name):
            self.discard(node)
        else:
            self.release(node)
            become_identity(node, value)

    def share(self, old: ir.Value, new: ir.Value) -> bool:
        """Let nodes that read `old` read `new`; where `old` is an output, it stays one. Returns whether any node read it."""
        uses = old.uses()
        if self._is_hidden(new.name, [old], new.graph):
            return False
        redirect(uses, new)
        return bool(uses)


def _stand_in(old: ir.Value, new: ir.Value, *, with_name: bool) -> None:
    """Replace every use; a new output takes the name and the declared type of the old one."""
    is_output = old.is_graph_output()
    redirect(old.uses(), new)
    if is_output:
        replace_outputs(old, new)
        if old.type is not None:
            new.type, new.shape = old.type, old.shape if old.shape is not None else new.shape
        new.doc_string = old.doc_string or new.doc_string
    else:
        learn_type(new, old)
    if is_output or with_name:
        take_name(old, new)
