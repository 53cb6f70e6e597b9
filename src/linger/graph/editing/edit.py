# SPDX-License-Identifier: Apache-2.0
"""Editing a model in place: insert, replace, remove. An edit that fails leaves the model as it was."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import inner_graphs, inputs_within, nodes_within
from linger.graph.editing.build import Build, results_of
from linger.graph.editing.pattern import Match, Pattern, matches
from linger.graph.editing.rewiring import (
    become_output,
    can_be_output,
    drop_unused,
    forget_downstream,
    hand_over,
)
from linger.graph.editing.search import NodeLike, Scopes, TensorLike
from linger.graph.editing.transaction import Transaction


def insert(
    model: ir.Model, tensor: TensorLike, build: Build, *, before: NodeLike | Iterable[NodeLike] | None = None
) -> Changes:
    """Put nodes on a tensor: whoever used the tensor uses what they make of it.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { [exp] y = Exp(x) }'
    >>> insert(ir.from_onnx_text(text), "x", lambda g, x: g.Clip(x, -1.0, 1.0)).rows()
    [('x', 'Clip inserted, used by exp (Exp)')]

    Args:
        model: The model; it is edited in place.
        tensor: The tensor or its name: a graph input, an initializer, or what a node makes.
        build: `build(g, tensor)` makes the nodes with the builder `g` and returns the tensor to use instead.
        before: Only these consumers take the new tensor. None: all of them, those in sub-graphs and the graph's output
            (which keeps its name) included.

    Raises:
        UsageError: No such tensor or consumer, a name in use, an op that does not fit.
        GraphError: The nodes would use what is computed after them.
    """
    with Transaction(model, "insert") as edit:
        value = edit.scopes.tensor(tensor)
        where, graph = value.name or "?", value.graph
        assert graph is not None  # the scopes know it
        uses = _uses(edit.scopes, value, before)
        is_output = before is None and value.is_graph_output()
        if not uses and not is_output:
            raise UsageError(f"{where}: nothing uses this tensor, so nothing can be inserted behind it.")
        if is_output and value.producer() is None:
            raise UsageError(f"{where}: it is an input and an output, and both keep their name. Use before=….")
        g = edit.builder(graph, f"{where}/")
        made = results_of(build(g, value), "insert")
        if len(made) != 1 or made[0].producer() not in g.nodes:
            raise UsageError(f"{where}: the build function must return one tensor that its nodes make.")
        edit.place(g, graph, after=value.producer())
        forget_downstream(edit, value, made[0], [node for node, _ in uses])
        edit.redirect(uses, made[0])
        if is_output:
            if made[0].type is None:
                edit.retype(made[0], value.type, value.shape)
            become_output(edit, value, made[0])
            edit.rename(value)
            edit.rename(made[0], where)
    changes = Changes()
    users = [*dict.fromkeys(describe(node) for node, _ in uses), *(["the output"] if is_output else [])]
    changes.note(where, f"{listing(n.op_type for n in g.nodes)} inserted, used by {listing(users)}")
    return changes


def _uses(scopes: Scopes, value: ir.Value, before: NodeLike | Iterable[NodeLike] | None) -> list[tuple[ir.Node, int]]:
    uses = [(use.node, use.idx) for use in value.uses()]
    if before is None:
        return uses
    chosen = scopes.some_nodes(before)
    strangers = [describe(node) for node in chosen if all(node is not user for user, _ in uses)]
    if strangers:
        users = listing(dict.fromkeys(describe(node) for node, _ in uses))
        raise UsageError(
            f"{value.name}: {listing(strangers)} does not use this tensor; its users are {users or 'none'}."
        )
    return [(node, index) for node, index in uses if node in chosen]


def replace(
    model: ir.Model,
    what: NodeLike | Iterable[NodeLike] | Callable[..., Any],
    build: Build,
    *,
    where: Callable[[Match], bool] | None = None,
) -> Changes:
    """Put other nodes in the place of a node, of several nodes, or of every occurrence of a pattern.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { s = Sigmoid(x) y = Mul(s, x) }'
    >>> model = ir.from_onnx_text(text)
    >>> len(replace(model, lambda g, x: g.Mul(x, g.Sigmoid(x)), lambda g, x: g.Relu(x)))
    1
    >>> [(node.op_type, node.outputs[0].name) for node in model.graph]
    [('Relu', 'y')]

    Args:
        model: The model; it is edited in place.
        what: A node, nodes (or their names), or a pattern function `pattern(g, *tensors)`: it returns the tensors that its
            nodes make, the last one first. Parameters stand for any tensor, numbers for constants; attributes that are
            not named may be anything; Add, Mul and the like match in both orders. What a pattern occurrence makes inside
            must not be used outside.
        build: `build(g, *inputs)` makes the nodes with the builder `g` and returns as many tensors as there are to
            replace: the pattern's results, or the outputs of the nodes that are used outside. The inputs are the pattern's
            parameters, the inputs of the one node, or what several nodes take from outside. With a parameter `match` it
            gets the Match: the nodes that go, with their attributes.
        where: A test that an occurrence of a pattern must pass.

    Returns:
        One entry per place; none where the pattern does not occur.

    Raises:
        UsageError: No such node, the wrong number of tensors, an op that does not fit.
        GraphError: The nodes would use what is computed after them.
    """
    if where is not None and not callable(what):
        raise UsageError(
            "replace: `where` chooses among the occurrences of a pattern. Choose the nodes themselves instead."
        )
    changes = Changes()
    with Transaction(model, "replace") as edit:
        if callable(what):
            places = list(matches(model, Pattern.of(what), where))
        else:
            places = [_group(edit.scopes.some_nodes(what))]
        now: dict[ir.Value, ir.Value] = {}  # tensors that an earlier place has replaced
        for place in places:
            current = dataclasses.replace(
                place, inputs=tuple(None if v is None else now.get(v, v) for v in place.inputs)
            )
            made = _substitute(edit, current, build, now)
            changes.note(listing(describe(node) for node in place.nodes), f"replaced by {listing(made) or 'nothing'}")
    return changes


def _group(nodes: list[ir.Node]) -> Match:
    """Nodes that go together: what they take from outside and what is used of them outside."""
    graphs = {node.graph for node in nodes}
    if len(graphs) != 1:
        raise UsageError(f"replace: {listing(describe(n) for n in nodes) or 'nothing'} must be nodes of one graph.")
    inside = set(nodes)
    around = {inner for node in nodes for inner in nodes_within(node)}
    made = [o for node in nodes for o in node.outputs]
    outputs = [o for o in made if o.is_graph_output() or any(use.node not in around for use in o.uses())]
    if not outputs:
        raise UsageError(f"replace: nothing uses {listing(describe(n) for n in nodes)}. Remove it instead.")
    inputs = list(nodes[0].inputs)
    if len(nodes) > 1:
        outer = (v for node in nodes for v in node.inputs if v is not None and v.producer() not in inside)
        inputs = list(dict.fromkeys(outer))
    return Match(tuple(inputs), tuple(nodes), tuple(outputs))


def _substitute(edit: Transaction, place: Match, build: Build, now: dict[ir.Value, ir.Value]) -> list[str]:
    """Replace one place; returns the types of the new nodes."""
    graph = place.nodes[0].graph
    assert graph is not None  # it is a node of the model
    order = {node: index for index, node in enumerate(graph)}
    last = max(place.nodes, key=order.__getitem__)
    title = listing(describe(node) for node in place.nodes)
    g = edit.builder(graph, f"{last.name or last.outputs[0].name}/")
    made = results_of(build(g, *place.inputs, **_extra(build, place)), title)
    if len(made) != len(place.outputs):
        names = listing(o.name or "?" for o in place.outputs)
        raise UsageError(
            f"{title}: the build function returned {len(made)} tensors for {len(place.outputs)} ({names})."
        )
    edit.place(g, graph, after=last)
    for old, new in zip(place.outputs, made, strict=True):
        now[old] = hand_over(edit, old, now.get(new, new), g if new.producer() in g.nodes else None)
    used = [v for node in place.nodes for v in inputs_within(node)]
    for node in sorted(place.nodes, key=order.__getitem__, reverse=True):
        edit.remove(node)
    drop_unused(edit, used, constants_only=True)
    return [node.op_type for node in g.nodes]


def _extra(build: Build, place: Match) -> dict[str, Match]:
    return {"match": place} if "match" in inspect.signature(build).parameters else {}


def remove(model: ir.Model, nodes: NodeLike | Iterable[NodeLike], *, prune: bool = False) -> Changes:
    """Take nodes out: whoever used what a node makes uses the node's first input.

    Args:
        model: The model; it is edited in place.
        nodes: A node, nodes, or their names. A node whose other outputs are used, or that has no input, cannot go.
        prune: Also remove what only these nodes needed: the nodes and initializers behind their other inputs.

    Returns:
        One entry per removed node.

    Raises:
        UsageError: No such node, or nodes that cannot be bypassed; all of them are named.
    """
    changes = Changes()
    with Transaction(model, "remove") as edit:
        chosen = edit.scopes.some_nodes(nodes)
        wrong = [f"{describe(node)} {problem}" for node in chosen if (problem := _obstacle(node)) is not None]
        if wrong:
            raise UsageError(f"remove: {listing(wrong)}. Replace it instead.")
        for node in chosen:
            if node.graph is None:
                continue  # pruned with an earlier one
            used, source = inputs_within(node), node.inputs[0] if node.inputs else None
            what = "removed"
            if source is not None and _is_used(node.outputs[0]):
                what += f", {source.name} used instead"
                hand_over(edit, node.outputs[0], source)
            changes.note(describe(node), what)
            edit.remove(node)
            for dead in drop_unused(edit, used, constants_only=False) if prune else ():
                changes.note(describe(dead), "removed, nothing uses it")
    return changes


def _obstacle(node: ir.Node) -> str | None:
    others = [o.name or "?" for o in node.outputs[1:] if _is_used(o)]
    if others:
        return f"makes {listing(others)} too, which is used"
    if not node.outputs or not _is_used(node.outputs[0]):
        return None
    source, graph = node.inputs[0] if node.inputs else None, node.graph
    if source is None or inner_graphs(node):
        return "has no input that could stand in for what it makes"
    is_needed = node.outputs[0].is_graph_output() and graph is not None and not can_be_output(source, graph)
    if is_needed and (node.domain, node.op_type) == ("", "Identity"):
        return f"is needed: the output {node.outputs[0].name} cannot be {source.name} itself"
    return None


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
