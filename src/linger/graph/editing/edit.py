# SPDX-License-Identifier: Apache-2.0
"""Editing a model in place: insert, replace, remove. An edit that fails leaves the model as it was."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import onnx_ir as ir

from linger.errors import GraphError, UsageError, listing
from linger.graph.core.nodes import (
    Changes,
    Names,
    defined_in,
    describe,
    graph_of,
    inner_graphs,
    inputs_within,
    is_used,
    nodes_within,
)
from linger.graph.core.rewiring import can_be_output, drop_unused, redirect, remove_nodes, replace_outputs
from linger.graph.editing.models import Build, GraphBuilder, results_of
from linger.graph.editing.search import Match, NodeLike, Scopes, TensorLike, matches


@contextmanager
def transaction(model: ir.Model, what: str) -> Iterator[_Edit]:
    """A context for an edit; an error inside undoes everything that was done to the model there.

    At the end the nodes are sorted; a cycle is an error like any other.
    """
    edit = _Edit(model, what)
    restore = _snapshot(model, edit.scopes.owners)
    try:
        yield edit
        try:
            model.graph.sort()
        except ValueError as cycle:
            raise GraphError(
                f"{what}: the nodes would depend on each other in a circle. Use tensors that are computed before."
            ) from cycle
    except BaseException:
        restore()
        for builder in edit.builders:
            builder.discard()
        raise


def _snapshot(model: ir.Model, graphs: Iterable[ir.Graph]) -> Callable[[], None]:
    """A function that puts everything back, object by object: how the model is wired, what its tensors are called.

    A clone would not do: callers go on using the nodes and tensors that they have found.
    """
    opsets = dict(model.graph.opset_imports)
    parts = {graph: (list(graph), list(graph.outputs), list(graph.initializers.values())) for graph in graphs}
    inputs_of = {node: tuple(node.inputs) for graph in graphs for node in graph}
    tensors = {value: (value.name, value.type, value.shape) for graph in graphs for value in defined_in(graph)}

    def restore() -> None:
        model.graph.opset_imports.clear()
        model.graph.opset_imports.update(opsets)
        for node, inputs in inputs_of.items():
            for index, value in enumerate(inputs):
                node.replace_input_with(index, value)
        for graph, (nodes, outputs, _) in parts.items():
            graph.outputs[:] = outputs
            graph.remove([node for node in graph if node not in inputs_of])
            graph.extend(nodes)
            graph.initializers.clear()  # so that their names cannot collide while they are given back
        for tensor, (name, kind, shape) in tensors.items():
            tensor.type, tensor.shape = kind, shape
            if tensor.name != name:
                tensor.name = name
        for graph, (_, _, initializers) in parts.items():
            for initializer in initializers:
                graph.initializers.add(initializer)

    return restore


class _Edit:
    """What an edit of a model works with: the scopes of tensors, builders of new nodes, free names."""

    def __init__(self, model: ir.Model, what: str) -> None:
        self.model = model
        self.scopes = Scopes.of(model)
        self.builders: list[GraphBuilder] = []
        self._what = what
        self._tensor_names = Names(value.name or "" for value in self.scopes.values())
        self._node_names = Names(node.name for node in self.scopes.nodes() if node.name)

    def builder(self, graph: ir.Graph, prefix: str) -> GraphBuilder:
        """A builder for nodes that are to stand in a graph; they may use what that graph sees."""
        builder = GraphBuilder(
            self.model.graph.opset_imports,
            prefix=prefix,
            tensors=self._tensor_names,
            nodes=self._node_names,
            lookup=lambda name: self._visible(graph, name),
        )
        self.builders.append(builder)
        return builder

    def _visible(self, graph: ir.Graph, name: str) -> ir.Value:
        value = self.scopes.tensor(name)
        if not self.scopes.sees(graph, value):
            raise GraphError(f"{self._what}: the tensor {name!r} belongs to another sub-graph and cannot be used here.")
        return value

    def place(self, builder: GraphBuilder, graph: ir.Graph, *, after: ir.Node | None = None) -> None:
        """Put what a builder made into a graph, after a node (None: at its beginning)."""
        self._refuse_strangers(builder, graph)
        first = next(iter(graph), None)
        if after is not None:
            graph.insert_after(after, builder.nodes)
        elif first is not None:
            graph.insert_before(first, builder.nodes)
        else:
            graph.extend(builder.nodes)
        for value in builder.initializers:
            graph.register_initializer(value)
        self.model.graph.opset_imports.update(builder.opsets)

    def _refuse_strangers(self, builder: GraphBuilder, graph: ir.Graph) -> None:
        """Refuse nodes that read what they could not see in a graph."""
        own = set(builder.initializers)
        for node in builder.made:  # those of inner graphs included
            own.update(node.outputs, *map(defined_in, inner_graphs(node)))
        read = dict.fromkeys(chain.from_iterable(node.inputs for node in builder.made))
        foreign = [v.name for v in read if v is not None and v not in own and not self.scopes.sees(graph, v)]
        if foreign:
            raise GraphError(
                f"{self._what}: {listing(map(str, foreign))} cannot be used here: removed, of another model or of "
                "another sub-graph. Use tensors of this graph or of the graphs around it."
            )

    def free_name(self, name: str) -> str:
        """A name for a tensor that is free and looks like the given one."""
        return self._tensor_names.choose(name)


def insert(
    model: ir.Model, tensor: TensorLike, build: Build, *, before: NodeLike | Iterable[NodeLike] | None = None
) -> Changes:
    """Insert nodes behind a tensor: its consumers read the result of the new nodes instead.

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
    with transaction(model, "insert") as edit:
        value = edit.scopes.tensor(tensor)
        where, graph = value.name or "?", value.graph
        assert graph is not None  # the scopes know it
        uses = _uses(edit.scopes, value, before)
        is_output = before is None and value.is_graph_output()
        _require_place(value, uses, is_output=is_output)
        g = edit.builder(graph, f"{where}/")
        made = results_of(build(g, value), "insert")
        if len(made) != 1 or made[0].producer() not in g.nodes:
            raise UsageError(f"{where}: the build function must return one tensor that its nodes make.")
        edit.place(g, graph, after=value.producer())
        users = dict.fromkeys(node for node, _ in uses)
        forget_downstream(edit, value, made[0], users)
        redirect(uses, made[0])
        if is_output:
            _give_type(made[0], value)
            replace_outputs(value, made[0])
            value.name = edit.free_name(where)
            made[0].name = where
    changes = Changes()
    names = [*map(describe, users), *(["the output"] if is_output else [])]
    changes.note(where, f"{listing(n.op_type for n in g.nodes)} inserted, used by {listing(dict.fromkeys(names))}")
    return changes


def _require_place(value: ir.Value, uses: list[tuple[ir.Node, int]], *, is_output: bool) -> None:
    """Refuse a tensor behind which nothing can be inserted."""
    if not uses and not is_output:
        raise UsageError(f"{value.name or '?'}: nothing uses this tensor, so nothing can be inserted behind it.")
    if is_output and value.producer() is None:
        raise UsageError(f"{value.name or '?'}: it is an input and an output, and both keep their name. Use before=….")


def _give_type(value: ir.Value, other: ir.Value) -> None:
    """Give a tensor without a type the type and shape of another one."""
    if value.type is None:
        value.type, value.shape = other.type, other.shape


def _uses(scopes: Scopes, value: ir.Value, before: NodeLike | Iterable[NodeLike] | None) -> list[tuple[ir.Node, int]]:
    """The uses of a tensor by some nodes (None: by all), each a node and the position of its input."""
    uses = [(use.node, use.idx) for use in value.uses()]
    if before is None:
        return uses
    chosen, users = scopes.some_nodes(before), dict.fromkeys(node for node, _ in uses)
    strangers = [describe(node) for node in chosen if node not in users]
    if strangers:
        names = listing(dict.fromkeys(map(describe, users)))
        raise UsageError(
            f"{value.name}: {listing(strangers)} does not use this tensor; its users are {names or 'none'}."
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
    with transaction(model, "replace") as edit:
        places = matches(model, what, where) if callable(what) else [_group(edit.scopes.some_nodes(what))]
        now: dict[ir.Value, ir.Value] = {}  # tensors that an earlier place has replaced
        for place in places:
            made = _substitute(edit, place, build, now)
            changes.note(listing(map(describe, place.nodes)), f"replaced by {listing(made) or 'nothing'}")
    return changes


def _group(nodes: list[ir.Node]) -> Match:
    """Nodes that go together: what they take from outside and what is used of them outside."""
    if len({node.graph for node in nodes}) != 1:
        raise UsageError(f"replace: {listing(map(describe, nodes)) or 'nothing'} must be nodes of one graph.")
    made = [output for node in nodes for output in node.outputs]
    inside = set(chain.from_iterable(map(nodes_within, nodes)))
    outputs = [output for output in made if output.is_graph_output() or not inside.issuperset(output.consumers())]
    if not outputs:
        raise UsageError(f"replace: nothing uses {listing(map(describe, nodes))}. Remove it instead.")
    inputs = nodes[0].inputs if len(nodes) == 1 else _inputs_from_outside(nodes, made)
    return Match(tuple(inputs), tuple(nodes), tuple(outputs))


def _inputs_from_outside(nodes: list[ir.Node], made: list[ir.Value]) -> list[ir.Value]:
    return list(dict.fromkeys(v for node in nodes for v in node.inputs if v is not None and v not in made))


def _substitute(edit: _Edit, place: Match, build: Build, now: dict[ir.Value, ir.Value]) -> list[str]:
    """Replace one place; returns the types of the new nodes."""
    graph = graph_of(place.nodes[0])
    last = next(node for node in reversed(graph) if node in place.nodes)
    g = edit.builder(graph, f"{last.name or last.outputs[0].name}/")
    inputs = tuple(None if v is None else now.get(v, v) for v in place.inputs)
    made = _built(g, dataclasses.replace(place, inputs=inputs), build)
    edit.place(g, graph, after=last)
    for old, new in zip(place.outputs, made, strict=True):
        now[old] = hand_over(edit, old, now.get(new, new), g if new.producer() in g.nodes else None)
    used = list(chain.from_iterable(map(inputs_within, place.nodes)))
    remove_nodes(place.nodes)
    drop_unused(used, constants_only=True)
    return [node.op_type for node in g.nodes]


def _built(g: GraphBuilder, place: Match, build: Build) -> list[ir.Value]:
    """What the build function makes in place of a match, one tensor for each of its outputs."""
    title = listing(map(describe, place.nodes))
    extra = {"match": place} if "match" in inspect.signature(build).parameters else {}
    made = results_of(build(g, *place.inputs, **extra), title)
    if len(made) != len(place.outputs):
        names = listing(o.name or "?" for o in place.outputs)
        raise UsageError(
            f"{title}: the build function returned {len(made)} tensors for {len(place.outputs)} ({names})."
        )
    return made


def remove(model: ir.Model, nodes: NodeLike | Iterable[NodeLike], *, prune: bool = False) -> Changes:
    """Remove nodes: consumers of a node's output read the node's first input instead.

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
    with transaction(model, "remove") as edit:
        chosen = edit.scopes.some_nodes(nodes)
        wrong = [f"{describe(node)} {problem}" for node in chosen if (problem := _obstacle(node)) is not None]
        if wrong:
            raise UsageError(f"remove: {listing(wrong)}. Replace it instead.")
        for node in chosen:
            if node.graph is not None:  # otherwise pruned with an earlier one
                _bypass(edit, node, changes, prune=prune)
    return changes


def _bypass(edit: _Edit, node: ir.Node, changes: Changes, *, prune: bool) -> None:
    used, source = inputs_within(node), node.inputs[0] if node.inputs else None
    what = "removed"
    if source is not None and is_used(node.outputs[0]):
        what += f", {source.name} used instead"
        hand_over(edit, node.outputs[0], source)
    changes.note(describe(node), what)
    remove_nodes([node])
    for dead in drop_unused(used) if prune else ():
        changes.note(describe(dead), "removed, nothing uses it")


def _obstacle(node: ir.Node) -> str | None:
    """Why a node cannot be taken out, or None."""
    others = [str(output.name) for output in node.outputs[1:] if is_used(output)]
    if others:
        return f"makes {listing(others)} too, which is used"
    if not any(map(is_used, node.outputs)):
        return None
    source, output = next(iter(node.inputs), None), node.outputs[0]
    if source is None or inner_graphs(node):
        return "has no input that could stand in for what it makes"
    is_identity = (node.domain, node.op_type) == ("", "Identity")
    if is_identity and output.is_graph_output() and not can_be_output(source, output.graph):
        return f"is needed: the output {output.name} cannot be {source.name} itself"
    return None


def hand_over(edit: _Edit, old: ir.Value, new: ir.Value, builder: GraphBuilder | None = None) -> ir.Value:
    """Replace every use of `old`, which is removed, by `new` of the same graph or one around it; outputs keep their name.

    A tensor that a builder just made gets the name of `old` unless the caller chose another. Returned is the tensor that now
    stands where `old` stood: `new`, or an Identity of it where an output needs its own tensor.
    """
    if builder is not None and new.dtype in (None, old.dtype):
        new.type, new.shape = old.type or new.type, _merged(old.shape, new.shape)
    forget_downstream(edit, old, new, old.consumers())
    redirect(old.uses(), new)
    graph = old.graph
    if graph is not None and old.is_graph_output():
        if not can_be_output(new, graph):
            identity = edit.builder(graph, f"{old.name}/")
            after = new.producer() if new.graph is graph else None
            new = identity.op("Identity", new)
            edit.place(identity, graph, after=after)
        _give_type(new, old)
        replace_outputs(old, new)
        new.name = old.name
    elif builder is not None and builder.has_chosen_name(new) and can_be_output(new, graph):
        new.name = old.name
    return new


def _merged(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """Combine the known sizes of two shapes; if they contradict each other, return the new one."""
    if old is None or new is None or _contradict(old, new):
        return old if new is None else new
    return ir.Shape([n if isinstance(n, int) else o for o, n in zip(old, new, strict=True)])


def _contradict(one: ir.Shape | None, other: ir.Shape | None) -> bool:
    if one is None or other is None or len(one) != len(other):
        return one is not None and other is not None
    return any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(one, other, strict=True))


def forget_downstream(edit: _Edit, old: ir.Value, new: ir.Value, users: Iterable[ir.Node]) -> None:
    """Where a tensor of another type or shape comes in, drop the types noted further on; outputs keep what is declared."""
    types_differ = None not in (old.dtype, new.dtype) and old.dtype != new.dtype
    if not types_differ and not _contradict(old.shape, new.shape):
        return
    for output in chain.from_iterable(node.outputs for node in _downstream(edit.scopes, users)):
        if not (output.is_graph_output() and output.graph is edit.model.graph):
            output.type = output.shape = None


def _downstream(scopes: Scopes, users: Iterable[ir.Node]) -> set[ir.Node]:
    """Some nodes and all that depends on them; with a node of a branch, the node that holds the branch."""
    visited: set[ir.Node] = set()
    waiting: list[ir.Node | None] = list(users)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in visited:
            visited.add(node)
            waiting.append(None if node.graph is None else scopes.owners.get(node.graph))
            waiting += [user for output in node.outputs for user in output.consumers()]
    return visited
