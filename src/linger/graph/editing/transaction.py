# SPDX-License-Identifier: Apache-2.0
"""Edits of a model that hold together: when one of them fails, the model is as it was before all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType

import onnx_ir as ir

from linger.errors import GraphError, listing
from linger.graph.core.names import Names
from linger.graph.core.walking import defined_in, inner_graphs
from linger.graph.editing.build import GraphBuilder
from linger.graph.editing.search import Scopes


@dataclass(frozen=True)
class _Snapshot:
    """How a model is wired, and what its tensors are called: enough to put everything back, object by object.

    A clone would not do: callers go on using the nodes and tensors that they have found.
    """

    opsets: dict[str, int]
    graphs: dict[ir.Graph, tuple[list[ir.Node], list[ir.Value], list[ir.Value]]]  # nodes, outputs, initializers
    inputs: dict[ir.Node, tuple[ir.Value | None, ...]]
    tensors: dict[ir.Value, tuple[str | None, ir.TypeProtocol | None, ir.Shape | None]]

    @classmethod
    def of(cls, model: ir.Model, graphs: Iterable[ir.Graph]) -> _Snapshot:
        return cls(
            dict(model.graph.opset_imports),
            {graph: (list(graph), list(graph.outputs), list(graph.initializers.values())) for graph in graphs},
            {node: tuple(node.inputs) for graph in graphs for node in graph},
            {value: (value.name, value.type, value.shape) for graph in graphs for value in defined_in(graph)},
        )

    def restore(self, model: ir.Model) -> None:
        model.graph.opset_imports.clear()
        model.graph.opset_imports.update(self.opsets)
        for node, inputs in self.inputs.items():
            for index, value in enumerate(inputs):
                node.replace_input_with(index, value)
        for graph, (nodes, outputs, _) in self.graphs.items():
            graph.outputs[:] = outputs
            graph.remove([node for node in graph if node not in self.inputs])
            graph.extend(nodes)
            graph.initializers.clear()  # so that their names cannot collide while they are given back
        for tensor, (name, kind, shape) in self.tensors.items():
            tensor.type, tensor.shape = kind, shape
            if tensor.name != name:
                tensor.name = name
        for graph, (_, _, initializers) in self.graphs.items():
            for initializer in initializers:
                graph.initializers.add(initializer)


class Transaction:
    """`with Transaction(model, "insert") as edit:` — an error inside undoes everything that was done to the model there.

    At the end the nodes are sorted; a cycle is an error like any other.
    """

    def __init__(self, model: ir.Model, what: str) -> None:
        self.model = model
        self.scopes = Scopes.of(model)
        self._what = what
        self._before = _Snapshot.of(model, self.scopes.owners)
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
        self._before.restore(self.model)
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
        own, read = set(builder.initializers), []
        for node in builder.made:  # those of inner graphs included
            own.update(node.outputs, *(defined_in(inner) for inner in inner_graphs(node)))
            read += [value for value in node.inputs if value is not None]
        foreign = [v.name for v in dict.fromkeys(read) if v not in own and not self.scopes.sees(graph, v)]
        if foreign:
            raise GraphError(
                f"{self._what}: {listing(map(str, foreign))} cannot be used here: removed, of another model or of "
                "another sub-graph. Use tensors of this graph or of the graphs around it."
            )

    def set_aside_name(self, value: ir.Value) -> None:
        """Give a tensor another name that is free and looks like the present one."""
        value.name = self._tensor_names.choose(value.name or "tensor")
