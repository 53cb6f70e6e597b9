# SPDX-License-Identifier: Apache-2.0
"""Nodes and graphs of a model: attributes of dialect nodes, walking, topological order, free names; findings and changes."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeVar

import onnx
import onnx_ir as ir

from linger.dialect import DOMAIN, EXTENSIONS, AttributeKind, Op, find_op
from linger.errors import GraphError, UsageError, listing, printable
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES

_WIDEST = 32


def is_dialect(node: ir.Node, *op_types: str) -> bool:
    """Whether a node belongs to the dialect, in its plain domain or in that of a function variant; of some types, where named."""
    return is_dialect_domain(node.domain) and (not op_types or node.op_type in op_types)


def is_dialect_domain(domain: str) -> bool:
    """Whether a domain is the dialect's or one of its sub-domains."""
    return domain == DOMAIN or domain.startswith(f"{DOMAIN}.")


def graph_of(node: ir.Node) -> ir.Graph:
    """The graph that a node of a model is in."""
    assert node.graph is not None  # it came from one
    return node.graph


def describe(node: ir.Node) -> str:
    """The name and the type of a node, for a message."""
    return printable(f"{node.name or (node.outputs[0].name if node.outputs else '?')} ({node.op_type})")


def platform_of(node: ir.Node) -> str | None:
    """The chip that a node names."""
    attribute = node.attributes.data.get("platform")
    return attribute.value if attribute is not None and isinstance(attribute.value, str) else None


def op_of(node: ir.Node) -> Op:
    """The op of a dialect node, with the arithmetic of the chip that the node names."""
    return find_op(node.op_type, platform_of(node))


def attributes_of(node: ir.Node, op: Op) -> dict[str, Any]:
    """The op's attributes as Python values with defaults, unknown ones left out; refuses what is missing or of a wrong kind."""
    kinds = _kinds(op)
    problems: list[str | None] = []
    values: dict[str, Any] = {}
    for name, attribute in node.attributes.data.items():
        kind = kinds.get(name) or ("float" if op.is_variadic_attribute(name) else None)
        if kind is not None:
            values[name] = tuple(attribute.value) if isinstance(attribute.value, list) else attribute.value
            problems.append(None if attribute.is_ref() else _problem(attribute, ATTRIBUTE_TYPES[kind]))
    if any(problems):
        wrong = listing(filter(None, problems))
        raise GraphError(f"{describe(node)}: {wrong}. Export the layer again, or set it by hand.")
    try:
        return op.complete(values)
    except UsageError as error:
        raise GraphError(f"{describe(node)}: {error}") from error


@cache
def _kinds(op: Op) -> Mapping[str, AttributeKind]:
    return {attribute.name: attribute.kind for attribute in op.attributes}


def _problem(attribute: ir.Attr, kind: ir.AttributeType) -> str | None:
    """Why an op does not accept an attribute, or None."""
    name, value = attribute.name, attribute.value
    if attribute.type != kind:
        return f"{name} is of kind {attribute.type.name.lower()}, not {kind.name.lower()}"
    if name.startswith("scale") and not (math.isfinite(value) and value > 0):
        return f"{name} = {value:g} is no scale, which is a number above 0"
    if name.endswith("bits") and not 1 < value <= _WIDEST:
        return f"{name} = {value} is no width, which is 2 to {_WIDEST}"
    return _extension_problem(name, value) if name in EXTENSIONS else None


def _extension_problem(name: str, value: Any) -> str | None:
    if name == "o_unsigned":
        return None if value in (0, 1) else f"o_unsigned = {value} is neither 0 nor 1"
    wrong = next((each for each in value if not 0 <= each < _WIDEST), None)
    what = f"no exponent of a channel, a whole number from 0 to {_WIDEST - 1}"
    return None if wrong is None else f"{name} holds {wrong}, which is {what}"


def opset_of(model: ir.Model) -> int:
    """Version of the standard opset a model is written for."""
    version = model.graph.opset_imports.get("")
    if version is None:
        raise GraphError("the model imports no standard opset. Add an opset_import for the domain ''.")
    return version


Functions = Mapping[ir.OperatorIdentifier, ir.Function]
_Thing = TypeVar("_Thing", bound=Hashable)

_SHOWN = 12
"""Nodes of a circle that a message names."""

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def named_graphs(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """The branches and bodies of a node (If, Loop, Scan, …), each with the name of its attribute, `branches[1]` in a list."""
    graphs: list[tuple[str, ir.Graph]] = []
    for name, attribute in node.attributes.data.items():  # four times as fast as without data
        if attribute.type is _GRAPH and not attribute.is_ref():
            graphs.append((name, attribute.as_graph()))
        elif attribute.type is _GRAPHS and not attribute.is_ref():
            graphs += [(f"{name}[{index}]", graph) for index, graph in enumerate(attribute.as_graphs())]
    return graphs


def inner_graphs(node: ir.Node) -> list[ir.Graph]:
    """The branches and bodies of a node."""
    for attribute in node.attributes.data.values():  # every walk asks this of every node, and most have none
        kind = attribute.type
        if kind is _GRAPH or kind is _GRAPHS:
            return [graph for _, graph in named_graphs(node)]
    return []


def proto_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """The branches and bodies of a node of a file that has not become a graph yet."""
    graphs: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        graphs += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    return graphs


def all_nodes(
    where: ir.Model | ir.Graph | ir.Function, owners: dict[ir.Graph, ir.Node] | None = None
) -> Iterator[ir.Node]:
    """Every node of a graph and of the graphs inside it: branches and bodies follow the node that holds them.

    Of a model this is the main graph; the bodies of its functions are not entered. Deep nesting needs no recursion. `owners`
    receives the node that holds each of the graphs inside.
    """
    waiting = [iter(where.graph if isinstance(where, ir.Model) else where)]
    while waiting:
        for node in waiting[-1]:
            yield node
            if inner := inner_graphs(node):
                if owners is not None:
                    owners.update(dict.fromkeys(inner, node))
                waiting += [iter(graph) for graph in reversed(inner)]
                break
        else:
            waiting.pop()


def nodes_within(node: ir.Node) -> Iterator[ir.Node]:
    """A node and every node of the graphs inside it."""
    yield node
    for graph in inner_graphs(node):
        yield from all_nodes(graph)


def inputs_within(node: ir.Node) -> list[ir.Value]:
    """The tensors that a node reads, in its branches and bodies too."""
    users = nodes_within(node) if inner_graphs(node) else (node,)
    return [value for user in users for value in user.inputs if value is not None]


def makers(values: Iterable[ir.Value | None]) -> list[ir.Node]:
    """The nodes that make some tensors."""
    nodes = (value.producer() for value in values if value is not None)
    return [maker for maker in nodes if maker is not None]


@dataclass(frozen=True)
class GraphPlace:
    """A graph, the node that holds it (None: the main graph or a function's) and the function it belongs to."""

    graph: ir.Graph
    owner: ir.Node | None
    function: ir.Function | None

    @property
    def name(self) -> str:
        """The name of the graph in messages."""
        if self.function is not None and self.owner is None:
            return f"function {self.function.domain}::{self.function.name}"
        return self.graph.name or (
            "graph" if self.owner is None else f"body of {self.owner.name or self.owner.op_type}"
        )


def all_graphs(model: ir.Model) -> list[GraphPlace]:
    """The main graph, those of the functions, and every graph inside them, outer ones before inner ones."""
    functions = (place for function in model.functions.values() for place in graphs_in(function))
    return [*graphs_in(model.graph), *functions]


def graphs_in(where: ir.Graph | ir.Function) -> list[GraphPlace]:
    """A graph and every graph inside it, outer ones before inner ones. Deep nesting needs no recursion."""
    function = where if isinstance(where, ir.Function) else None
    places = [GraphPlace(where if isinstance(where, ir.Graph) else where.graph, None, function)]
    for place in places:  # the list grows while it is walked
        places += [GraphPlace(graph, node, function) for node in place.graph for graph in inner_graphs(node)]
    return places


def defined_in(graph: ir.Graph) -> dict[ir.Value, None]:
    """The tensors that a graph defines: inputs, initializers, results of nodes, in this order."""
    defined = dict.fromkeys([*graph.inputs, *graph.initializers.values()])
    for node in graph:
        defined.update(dict.fromkeys(node.outputs))
    return defined


def required_inputs(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller has to give: those without a default content."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def is_in_order(graph: ir.Graph) -> bool:
    """Whether every node stands behind those whose results it reads, and reads no results from graphs around it."""
    before: set[ir.Node | None] = {None}
    for node in graph:
        for value in node.inputs:
            if value is not None and value.producer() not in before:
                return False
        before.add(node)
    return True


def in_order(place: GraphPlace) -> list[ir.Node]:
    """The nodes of one graph in topological order, otherwise in their own, which the graph keeps; refuses a circle."""
    nodes = list(place.graph)
    position = {node: index for index, node in enumerate(nodes)}
    needs = [{position[maker] for maker in makers(inputs_within(node)) if maker in position} for node in nodes]
    if all(index > max(needed, default=-1) for index, needed in enumerate(needs)):
        return nodes
    order = _positions_in_order(needs)
    if len(order) < len(nodes):
        circle = [describe(nodes[index]) for index in find_circle(dict(enumerate(needs)))]
        raise GraphError(
            f"{place.name}: nodes depend on each other in a circle: "
            f"{listing([*circle, circle[0]], limit=_SHOWN)}. No order can run them; break the circle or export again."
        )
    return [nodes[index] for index in order]


def _positions_in_order(needs: Sequence[Collection[int]]) -> list[int]:
    """Kahn's algorithm: positions, each after those it needs, otherwise rising; those that depend on a circle are left out."""
    users: list[list[int]] = [[] for _ in needs]
    for index, needed in enumerate(needs):
        for maker in needed:
            users[maker].append(index)
    open_needs = [len(needed) for needed in needs]
    ready = [index for index, count in enumerate(open_needs) if not count]  # rising, so it is a heap
    order = []
    while ready:
        order.append(heappop(ready))
        for user in users[order[-1]]:
            open_needs[user] -= 1
            if not open_needs[user]:
                heappush(ready, user)
    return order


def find_circle(needs: Mapping[_Thing, Iterable[_Thing]]) -> list[_Thing]:
    """One circle of things that need each other, each before one that needs it, the first of the mapping first.

    >>> find_circle({"a": ["c"], "b": ["a"], "c": ["b"]}), find_circle({"a": ["b"], "b": []})
    (['a', 'b', 'c'], [])
    """
    position = {thing: index for index, thing in enumerate(needs)}
    known = [[position[needed] for needed in others if needed in position] for others in needs.values()]
    if len(_positions_in_order(known)) == len(known):
        return []  # the search for a circle takes three times as long
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        circle: list[_Thing] = error.args[1][1:]
        first = min(range(len(circle)), key=lambda index: position[circle[index]])
        return circle[first:] + circle[:first]
    return []


def callees_first(functions: Functions) -> list[ir.OperatorIdentifier]:
    """The functions of a model, each after those that it calls; refuses one that calls itself, and names the circle."""
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
    called: set[ir.OperatorIdentifier] = set()
    waiting = [nodes]
    while waiting:
        new = {node.op_identifier() for node in waiting.pop()} & functions.keys() - called
        called |= new
        waiting += [all_nodes(functions[identifier]) for identifier in new]
    return called


class Names:
    """Knows the names in use, and chooses new ones that are still free."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def claim(self, name: str) -> None:
        """Reserve a name exactly as it is."""
        self._taken.add(name)

    def choose(self, preferred_name: str) -> str:
        """Return the preferred name, with the first free number behind it if it is taken; reserve the result.

        >>> names = Names(["x"])
        >>> names.choose("x"), names.choose("x"), names.choose("y")
        ('x_1', 'x_2', 'y')
        """
        name, count = preferred_name, self._counts.get(preferred_name, 0)
        while name in self._taken:
            count += 1
            name = f"{preferred_name}_{count}"
        self._counts[preferred_name] = count  # a name is never released, so lower numbers stay taken
        self._taken.add(name)
        return name


def tensor_names(model: ir.Model) -> Names:
    """The names of all tensors of a model, in every graph and function."""
    return Names(value.name for place in all_graphs(model) for value in defined_in(place.graph) if value.name)


ERROR, WARNING, NOTE = "error", "warning", "note"
SEVERITIES = (ERROR, WARNING, NOTE)
"""It is wrong; it may go wrong, depending on the data; it is worth knowing, or could not be checked."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a model, may go wrong, or could not be checked.

    Attributes:
        severity: "error", "warning" or "note".
        node: Name and type of the node; empty for the model as a whole.
        reason: What is wrong, and what the limit is.
        remedy: What to do about it.
        rule: Id of the rule that was broken (`linger.graph.core.check_rules`); empty for a finding without a rule.
        tensor: The tensor that it is about; empty where it is about the node.
    """

    severity: str
    node: str
    reason: str
    remedy: str
    rule: str = ""
    tensor: str = ""

    @property
    def place(self) -> str:
        """The node, else the tensor."""
        return self.node or self.tensor

    def __str__(self) -> str:
        where = f"{self.node}: " if self.node else ""
        return f"{where}{self.reason}. {self.remedy}"


class _Change(NamedTuple):
    """One edit: where and what."""

    where: str
    what: str


@dataclass
class Changes:
    """Edits in the order they were made; empty means that nothing changed."""

    entries: list[_Change] = field(default_factory=list)

    def note(self, where: str, what: str) -> None:
        """Add one edit."""
        self.entries.append(_Change(where, what))

    def rows(self) -> list[tuple[str, str]]:
        """The edits as (where, what)."""
        return [(c.where, c.what) for c in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[_Change]:
        return iter(self.entries)


def is_used(value: ir.Value) -> bool:
    """Whether a node reads a tensor or a graph returns it."""
    return bool(value.uses()) or value.is_graph_output()
