# SPDX-License-Identifier: Apache-2.0
"""Edits of a model that hold together: when one of them fails, all of them are undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.names import Names
from linger.graph.core.walking import inner_graphs, nodes_within
from linger.graph.editing.build import GraphBuilder
from linger.graph.editing.search import Scopes


class Transaction:
    """`with Transaction(model, "insert") as edit:` — every change goes through `edit`, which remembers how to undo it.

    At the end the nodes are sorted; a cycle is an error like any other.
    """

    def __init__(self, model: ir.Model, what: str) -> None:
        self.model = model
        self.scopes = Scopes.of(model)
        self._what = what
        self._undo: list[Callable[[], object]] = []
        self._before: dict[ir.Graph, tuple[list[ir.Node], list[ir.Value]]] = {}
        self._tensor_names = Names(value.name or "" for value in self.scopes.values())
        self._node_names = Names(node.name for node in self.scopes.nodes() if node.name)
        self._builders: list[GraphBuilder] = []

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._roll_back()
            return
        try:
            self.model.graph.sort()
        except ValueError as cycle:
            self._roll_back()
            raise GraphError(
                f"{self._what}: the nodes would depend on each other in a circle. Use tensors that are computed before."
            ) from cycle

    def _roll_back(self) -> None:
        for undo in reversed(self._undo):
            undo()
        for graph, (nodes, initializers) in self._before.items():
            kept = set(nodes)
            graph.remove([node for node in graph if node not in kept])
            graph.extend(nodes)
            for name in list(graph.initializers):
                graph.initializers.pop(name)
            for value in initializers:
                graph.initializers.add(value)
        for builder in self._builders:
            builder.discard()

    def builder(self, graph: ir.Graph, prefix: str) -> GraphBuilder:
        """A builder for nodes that are to stand in a graph; they may use what that graph sees."""
        made = GraphBuilder(
            self.model.graph.opset_imports,
            prefix=prefix,
            tensors=self._tensor_names,
            nodes=self._node_names,
            lookup=lambda name: self._visible(graph, name),
        )
        self._builders.append(made)
        return made

    def _visible(self, graph: ir.Graph, name: str) -> ir.Value:
        value = self.scopes.tensor(name)
        if not self.scopes.sees(graph, value):
            raise GraphError(f"{self._what}: the tensor {name!r} belongs to another sub-graph and cannot be used here.")
        return value

    def place(self, builder: GraphBuilder, graph: ir.Graph, *, after: ir.Node | None = None) -> None:
        """Put what a builder made into a graph, after a node (None: at its beginning)."""
        own = {*builder.initializers, *(o for node in builder.made for o in node.outputs)}
        inner = {g for node in builder.made for g in inner_graphs(node)}
        used = dict.fromkeys(v for node in builder.made for v in node.inputs if v is not None)
        foreign = [
            v.name or "?" for v in used if v not in own and v.graph not in inner and not self.scopes.sees(graph, v)
        ]
        if foreign:
            raise GraphError(
                f"{self._what}: {listing(foreign)} cannot be used here: removed, of another model or of "
                "another sub-graph. Use tensors of this graph or of the graphs around it."
            )
        self._remember(graph)
        first = next(iter(graph), None)
        if after is not None:
            graph.insert_after(after, builder.nodes)
        elif first is not None:
            graph.insert_before(first, builder.nodes)
        else:
            graph.extend(builder.nodes)
        for value in builder.initializers:
            graph.register_initializer(value)
        imports = self.model.graph.opset_imports
        old = dict(imports)
        imports.update(builder.opsets)

        def undo() -> None:
            imports.clear()
            imports.update(old)

        self._undo.append(undo)

    def redirect(self, uses: Iterable[tuple[ir.Node, int]], value: ir.Value) -> None:
        """Let inputs of nodes take another value."""
        for node, index in uses:
            self._set_input(node, index, value)

    def _set_input(self, node: ir.Node, index: int, value: ir.Value | None) -> None:
        old = node.inputs[index]
        node.replace_input_with(index, value)
        self._undo.append(lambda: node.replace_input_with(index, old))

    def set_output(self, graph: ir.Graph, index: int, value: ir.Value) -> None:
        """Make another value an output of a graph."""
        old = graph.outputs[index]
        graph.outputs[index] = value
        self._undo.append(lambda: graph.outputs.__setitem__(index, old))

    def rename(self, value: ir.Value, name: str | None = None) -> None:
        """Give a value a name (None: one that is free and looks like the present one)."""
        old = value.name
        value.name = self._tensor_names.choose(old or "tensor") if name is None else name
        self._undo.append(lambda: setattr(value, "name", old))

    def retype(self, value: ir.Value, kind: ir.TypeProtocol | None, shape: ir.Shape | None) -> None:
        """Say what type and shape a value has."""
        old = (value.type, value.shape)
        value.type, value.shape = kind, shape

        def undo() -> None:
            value.type, value.shape = old

        self._undo.append(undo)

    def remove(self, node: ir.Node) -> None:
        """Take a node out of its graph; nothing may use it any more."""
        graph = node.graph
        assert graph is not None  # callers remove nodes of the model
        self._remember(graph)
        for user in nodes_within(node):  # what stands in a branch uses tensors around it too
            for index in range(len(user.inputs)):
                self._set_input(user, index, None)
        graph.remove(node)

    def drop_initializer(self, value: ir.Value) -> None:
        """Take an initializer out of its graph; nothing may use it any more."""
        graph = value.graph
        assert graph is not None  # it is an initializer
        assert value.name is not None
        self._remember(graph)
        graph.initializers.pop(value.name)

    def _remember(self, graph: ir.Graph) -> None:
        self._before.setdefault(graph, (list(graph), list(graph.initializers.values())))
