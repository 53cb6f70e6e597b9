# SPDX-License-Identifier: Apache-2.0
"""Replace values, remove nodes, and find what nobody needs: dead code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import onnx_ir as ir

from linger.graph.core.nodes import (
    GraphPlace,
    all_graphs,
    all_nodes,
    defined_in,
    inner_graphs,
    inputs_within,
    is_dialect,
    is_used,
    makers,
    nodes_within,
)

_KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "linger"})
"""Domains whose ops only compute. An op of another domain may do more: print, count, write."""

_RANDOM = ("Random", "Dropout", "Sampling", "Multinomial", "Bernoulli")
"""Parts of the names of ops that draw random numbers, com.microsoft's included."""


class Effects:
    """Side effects and randomness of the nodes of a model; calls have those of the function's nodes."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
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
        is_call = identifier in self._functions
        if identifier not in self._ops:
            if is_call:
                self._ops[identifier] = (True, True)  # for a function that calls itself
                inside = [self._look(node) for node in all_nodes(self._functions[identifier])]
                self._ops[identifier] = (any(e for e, _ in inside), any(r for _, r in inside))
            else:
                is_known = node.domain in _KNOWN_DOMAINS or is_dialect(node)
                self._ops[identifier] = not is_known, any(part in node.op_type for part in _RANDOM)
        has_effect, draws = self._ops[identifier]
        return has_effect or not (is_call or node.outputs), draws


def needed_nodes(model: ir.Model, places: Iterable[GraphPlace] | None = None) -> set[ir.Node]:
    """The nodes of all graphs (`places`, if they are known already) that outputs or effects depend on.

    A node has the effects of those inside it.
    """
    effects, places = Effects(model), all_graphs(model) if places is None else places
    waiting = [node for place in places for node in place.graph if effects.has_effect(node)]
    waiting += [node for place in places if place.owner is None for node in makers(place.graph.outputs)]
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
    """Remove initializers and nodes whose tensors, among these, nothing uses any more; return the nodes. Inputs stay.

    With `constants_only` no nodes but Constants go; with `upstream` also what only the removed nodes needed.
    """
    removed: dict[ir.Node, None] = {}
    waiting = list(filter(None, values))
    while waiting:
        value = waiting.pop()
        if is_used(value) or value.is_graph_input():
            continue
        node = value.producer()
        if node is None:
            if value.graph is not None:
                value.graph.initializers.pop(value.name or "", None)
        elif node not in removed and _may_go(node, constants_only=constants_only):
            waiting += inputs_within(node) if upstream else ()
            release_inputs(node)
            removed[node] = None
    remove_nodes(removed)
    return list(removed)


def _may_go(node: ir.Node, *, constants_only: bool) -> bool:
    is_constant = node.op_type == "Constant" and not node.domain
    return node.graph is not None and (is_constant or not constants_only) and not any(map(is_used, node.outputs))


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
        """Replace `old` by `new` everywhere; False, and nothing is changed, where a file could not express it.

        An output keeps name, type and shape. With `with_name`, `new` takes the name of any `old`, if it can.
        """
        is_possible = self.is_possible(old, new)
        if is_possible:
            takes_name = with_name and old.name not in self._repeated and can_be_output(new, old.graph)
            _stand_in(old, new, with_name=takes_name)
        return is_possible

    def stand_in(self, old: ir.Value, new: ir.Value) -> None:
        """Replace `old` everywhere by a tensor that was just made for it, which takes the name of `old`."""
        _stand_in(old, new, with_name=bool(old.name))  # an output that is left out has no name

    def bypass(self, node: ir.Node, value: ir.Value, *, with_name: bool = False) -> None:
        """Replace the one output of a node by a value; remove the node, or make it an Identity if it must stay."""
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
        name, old.name = old.name, None  # no two tensors have one name
        new.name = name
