# SPDX-License-Identifier: Apache-2.0
"""Replace calls of model-local functions by the nodes of their bodies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain

import onnx
import onnx_ir as ir

from linger.errors import GraphError
from linger.graph.core.nodes import (
    Changes,
    Functions,
    Names,
    all_graphs,
    all_nodes,
    called_functions,
    callees,
    callees_first,
    defined_in,
    describe,
    is_dialect_domain,
    nodes_within,
)
from linger.graph.core.rewiring import ValueReplacer

_MOST_NODES = 2_000_000
"""Functions that call functions can grow without limit; a model beyond this could not be used."""


def inline_functions(model: ir.Model, *, dialect: bool = False) -> Changes:
    """Write out the users' own functions in the main graph, in its branches and bodies, however deep they call each other.

    Args:
        model: Edited in place.
        dialect: Whether the functions of dialect nodes are written out too. They stay otherwise: a device knows the nodes.

    Leaves: outputs under their names; functions that were written for another version of an op than the model imports, and
    those that they call.

    Raises:
        GraphError: A function calls itself, or the calls would become too many nodes; nothing is changed.
    """
    changes = Changes()
    own = {key: function for key, function in model.functions.items() if dialect or not is_dialect_domain(key[0])}
    functions = dict(filter(lambda item: _means_the_same(item[1], model), own.items()))
    graphs = [place.graph for place in all_graphs(model) if place.function is None]
    calls = [node for graph in graphs for node in graph if node.op_identifier() in functions]
    require_bounded(model.functions, map(ir.Node.op_identifier, calls))
    for call in calls:
        changes.note(describe(call), f"written out: it called {call.domain}::{call.op_type}")
    if calls:
        _inline(model, graphs, calls, functions)
    return changes


def _means_the_same(function: ir.Function, model: ir.Model) -> bool:
    """Whether every op of a body is the same op under the versions that the model imports."""
    ours = model.graph.opset_imports
    other = {d: v for d, v in function.opset_imports.items() if ours.get(d, v) != v}
    nodes = [node for node in all_nodes(function) if node.domain in other] if other else []
    return all(_since(n, ours[n.domain]) == _since(n, other[n.domain]) is not None for n in nodes)


def _since(node: ir.Node, version: int) -> int | None:
    try:
        return int(onnx.defs.get_schema(node.op_type, version, node.domain).since_version)
    except onnx.defs.SchemaError:
        return None


def _inline(model: ir.Model, graphs: list[ir.Graph], calls: list[ir.Node], functions: Functions) -> None:
    tensors = Names(value.name or "" for graph in graphs for value in defined_in(graph))
    nodes = Names(node.name or "" for graph in graphs for node in graph)
    replacer = ValueReplacer(model)
    used: dict[ir.OperatorIdentifier, None] = {}  # in the order of the calls, as the imports are to be
    waiting = calls[::-1]
    while waiting:
        call = waiting.pop()
        used[call.op_identifier()] = None
        copy = _Copy(functions[call.op_identifier()], call, tensors, nodes)
        copy.replace_call(replacer)
        waiting += copy.calls(functions)
    replacer.finish()
    for identifier in used:
        model.graph.opset_imports.update(model.functions[identifier].opset_imports | model.graph.opset_imports)
    _drop(model, used)


def _drop(model: ir.Model, used: Mapping[ir.OperatorIdentifier, None]) -> None:
    """Remove the functions that were written out and that no function that stays calls."""
    staying = (all_nodes(function) for key, function in model.functions.items() if key not in used)
    for identifier in used.keys() - called_functions(chain.from_iterable(staying), model.functions):
        del model.functions[identifier]


def require_bounded(functions: Functions, calls: Iterable[ir.OperatorIdentifier]) -> None:
    """Refuse calls that would become more nodes than any model has, and functions that call themselves (GraphError)."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for identifier in callees_first(functions):
        function = functions[identifier]
        own = sum(1 for _ in all_nodes(function))
        sizes[identifier] = own + sum(sizes[callee] for callee in callees(function, functions))
    total = sum(sizes[call] for call in calls)
    if total > _MOST_NODES:
        raise GraphError(
            f"the model's functions, written out, have {total} nodes; at most {_MOST_NODES} are taken. Keep them as functions."
        )


@dataclass
class _Copy:
    """The body of a function for one call: attributes filled in, tensors and nodes under names that are free."""

    function: ir.Function
    call: ir.Node
    tensor_names: Names
    node_names: Names
    nodes: list[ir.Node] = field(default_factory=list)
    _values: dict[ir.Value, ir.Value | None] = field(default_factory=dict)

    @property
    def _prefix(self) -> str:
        first = next((output.name for output in self.call.outputs if output.name), self.call.op_type)
        return self.call.name or first or self.call.op_type

    def replace_call(self, replacer: ValueReplacer) -> None:
        """Put the nodes in the place of the call."""
        graph, results = self.call.graph, self._write()
        assert graph is not None  # the call came from a graph
        graph.insert_before(self.call, self.nodes)
        for old, new in zip(self.call.outputs, results, strict=False):
            replacer.stand_in(old, new)
        replacer.discard(self.call)

    def _write(self) -> list[ir.Value]:
        """Make the nodes; returns what stands for the function's outputs, each a tensor of its own."""
        graph = self.function.graph
        self._values.update(zip(graph.inputs, [*self.call.inputs, *[None] * len(graph.inputs)], strict=False))
        self.nodes = self._copies(graph)
        outputs: list[ir.Value] = []
        for output in graph.outputs:
            value = self._values.get(output)
            if value is None or output.producer() is None or value in outputs:
                name = self.tensor_names.choose(f"{self._prefix}/passed")
                node = ir.Node(
                    "", "Identity", [value], outputs=[ir.Value(name=name)], name=self.node_names.choose(name)
                )
                self.nodes.append(node)
                value = node.outputs[0]
            outputs.append(value)
        return outputs

    def calls(self, functions: Functions) -> list[ir.Node]:
        """The nodes that were made and call functions in their turn."""
        nodes = (node for each in self.nodes for node in nodes_within(each))
        return [node for node in nodes if node.op_identifier() in functions]

    def _copies(self, graph: ir.Graph) -> list[ir.Node]:
        for node in graph:
            for output in node.outputs:
                self._values[output] = self._fresh(output)
        return [self._node(node) for node in graph]

    def _fresh(self, value: ir.Value) -> ir.Value:
        name = self.tensor_names.choose(f"{self._prefix}/{value.name}") if value.name else ""
        return ir.Value(name=name, type=value.type, shape=value.shape)

    def _node(self, node: ir.Node) -> ir.Node:
        inputs = [None if value is None else self._values.get(value, value) for value in node.inputs]
        outputs = [value for output in node.outputs if (value := self._values[output]) is not None]
        attributes = [own for a in node.attributes.values() if (own := self._attribute(a)) is not None]
        name = self.node_names.choose(f"{self._prefix}/{node.name or node.op_type}")
        copy = ir.Node(node.domain, node.op_type, inputs, attributes, overload=node.overload, outputs=outputs)
        copy.name = name
        return copy

    def _attribute(self, attribute: ir.Attr) -> ir.Attr | None:
        if attribute.is_ref():
            name = attribute.ref_attr_name or ""
            value = self.call.attributes.get(name) or self.function.attributes.get(name)
            if value is None or (value.value is None and not value.is_ref()):
                return None  # left out by the caller, without a default
            return ir.Attr(attribute.name, value.type, value.value, ref_attr_name=value.ref_attr_name)
        if attribute.type == ir.AttributeType.GRAPH:
            return ir.AttrGraph(attribute.name, self._graph(attribute.as_graph()))
        if attribute.type == ir.AttributeType.GRAPHS:
            return ir.AttrGraphs(attribute.name, [self._graph(graph) for graph in attribute.as_graphs()])
        return attribute

    def _graph(self, graph: ir.Graph) -> ir.Graph:
        inputs = [self._fresh(value) for value in graph.inputs]
        self._values.update(zip(graph.inputs, inputs, strict=True))
        initializers = []
        for value in graph.initializers.values():
            known = self._values.get(value)
            copy = self._fresh(value) if known is None else known
            self._values[value] = copy
            copy.const_value = value.const_value
            initializers.append(copy)
        nodes = self._copies(graph)
        outputs = [result for output in graph.outputs if (result := self._values.get(output, output)) is not None]
        return ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name)
