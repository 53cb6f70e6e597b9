# SPDX-License-Identifier: Apache-2.0
"""Find nodes, alone or as a pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.graph.core.nodes import all_nodes, defined_in, describe, graphs_in
from linger.graph.core.tensor_types import default_of, find_schema

TensorLike = str | ir.Value
NodeLike = str | ir.Node


def find(
    model: ir.Model,
    op_type: str | Collection[str] | None = None,
    *,
    domain: str | None = None,
    name: str | None = None,
    where: Callable[[ir.Node], bool] | None = None,
    subgraphs: bool = True,
) -> list[ir.Node]:
    """The nodes that fit everything asked for, in the order of the graph.

    >>> model = ir.from_onnx_text('<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) '
    ...                           '{ [a_relu] h = Relu(x)  [a_abs] y = Abs(h) }')
    >>> [node.op_type for node in find(model, name="a_*")]
    ['Relu', 'Abs']
    >>> [node.name for node in find(model, "Relu")]
    ['a_relu']

    Args:
        model: The model; the bodies of its functions are not searched.
        op_type: One op type, or several.
        domain: The domain, "" for standard ONNX; None for any.
        name: The node's name, or a glob (`encoder.*.conv?`).
        where: A test that a node must pass.
        subgraphs: Whether to look into the branches and bodies of If, Loop and Scan as well.
    """
    types = None if op_type is None else {op_type} if isinstance(op_type, str) else set(op_type)
    domain = "" if domain == "ai.onnx" else domain

    def fits(node: ir.Node) -> bool:
        is_op = (types is None or node.op_type in types) and domain in (None, node.domain)
        # `layers[0]` may be meant as it is or as a glob
        is_called = name is None or node.name == name or fnmatchcase(node.name or "", name)
        return is_op and is_called and (where is None or where(node))

    return list(filter(fits, all_nodes(model) if subgraphs else model.graph))


@dataclass(frozen=True)
class Scopes:
    """Which graph lies in which, and what each defines: the main graph and its sub-graphs, outer ones first."""

    owners: dict[ir.Graph, ir.Node | None]

    @classmethod
    def of(cls, model: ir.Model) -> Scopes:
        """The scopes of a model as it is now."""
        return cls({place.graph: place.owner for place in graphs_in(model.graph)})

    def values(self) -> list[ir.Value]:
        """Every tensor that has a name."""
        return [value for graph in self.owners for value in defined_in(graph) if value.name]

    def nodes(self) -> list[ir.Node]:
        """Every node."""
        return list(chain.from_iterable(self.owners))

    def sees(self, graph: ir.Graph, value: ir.Value) -> bool:
        """Whether a node of a graph may use a value: one of its own, or one of a graph around it."""
        owner = self.owners[graph]
        if value.graph is graph or owner is None:
            return value.graph is graph
        assert isinstance(owner.graph, ir.Graph)  # it was reached through its graph
        return self.sees(owner.graph, value)

    def tensor(self, tensor: TensorLike) -> ir.Value:
        """The tensor that is given itself or by name; as `tensors`."""
        return self.tensors([tensor])[0]

    def tensors(self, tensors: Iterable[TensorLike]) -> list[ir.Value]:
        """The tensors that are given themselves or by name; refuses, and names, those that are missing or not unique."""
        return _look_up(tensors, self.values(), "tensor")

    def some_nodes(self, nodes: NodeLike | Iterable[NodeLike]) -> list[ir.Node]:
        """The nodes that are given themselves or by name, each once; refuses, and names, those missing or not unique."""
        given = [nodes] if isinstance(nodes, (str, ir.Node)) else nodes
        return list(dict.fromkeys(_look_up(given, self.nodes(), "node")))


_Named = TypeVar("_Named", ir.Node, ir.Value)


def _look_up(given: Iterable[str | _Named], known: Iterable[_Named], kind: str) -> list[_Named]:
    """Nodes or tensors that are given themselves or by name."""
    things = dict.fromkeys(known)
    by_name: dict[str, list[_Named]] = {}
    for thing in things:
        if thing.name:
            by_name.setdefault(thing.name, []).append(thing)
    results, wrong = [], []
    for item in given:
        same = by_name.get(item, []) if isinstance(item, str) else [item] * (item in things)
        results += same
        if len(same) != 1:
            wrong.append(_lookup_problem(item, len(same), kind, sorted(by_name)))
    if wrong:
        raise UsageError(" ".join(wrong))
    return results


def _lookup_problem(item: str | ir.Node | ir.Value, count: int, kind: str, known: list[str]) -> str:
    if not isinstance(item, str):
        title = describe(item) if isinstance(item, ir.Node) else item.name
        return f"{title} is no {kind} of this model: it was removed, or belongs to another model or to a function. Find it again."
    if count:
        there_are = f"there are {count} {kind}s of this name"
        return f"{item}: {there_are}. Give the {kind} itself, as linger.graph.find returns it."
    near = get_close_matches(item, known, n=3)
    hint = f"Is {' or '.join(near)} meant?" if near else f"Known are {listing(known, limit=8)}."
    return f"{item}: there is no {kind} of this name in the model. {hint}"


_COMMUTATIVE = frozenset({"Add", "Mul", "And", "Or", "Xor", "Equal", "Max", "Min", "Sum", "Mean"})
_PAIR = 2
_LARGEST_CONSTANT = 1024


@dataclass(frozen=True, eq=False)
class _Wanted:
    """A tensor of a pattern: output `index` of a node, or (without one) a parameter, which stands for any tensor."""

    node: _WantedNode | None = None
    index: int = 0


@dataclass(frozen=True, eq=False)
class _WantedNode:
    """A node of a pattern; attributes that are not named may have any value."""

    op_type: str
    domain: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any]


def op_call(op: Callable[..., Any], op_type: str) -> Callable[..., Any]:
    """`g.Relu`, short for `g.op("Relu", …)`, of the builders of graphs and of patterns."""
    if not op_type[:1].isupper():
        raise AttributeError(f"{op_type}: op types begin with a capital; for others write g.op({op_type!r}, …)")
    return partial(op, op_type)


class _PatternBuilder:
    """The `g` of a pattern function: it takes the calls of a builder and remembers what they ask for."""

    def __init__(self) -> None:
        self.nodes: list[_WantedNode] = []

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return op_call(self.op, op_type)

    def op(self, op_type: str, *inputs: Any, _domain: str = "", _outputs: int = 1, **attributes: Any) -> Any:
        """A node that must be there; several outputs come as a tuple."""
        wanted = _WantedNode(op_type, "" if _domain == "ai.onnx" else _domain, inputs, attributes)
        self.nodes.append(wanted)
        return _Wanted(wanted) if _outputs == 1 else tuple(_Wanted(wanted, i) for i in range(_outputs))


def _read(function: Callable[..., Any]) -> tuple[list[_Wanted], list[_WantedNode], list[Any]]:
    """Call a pattern function `pattern(g, *tensors)` once; return its parameters, nodes and results."""
    name = getattr(function, "__name__", "pattern")
    g = _PatternBuilder()
    parameters = [_Wanted() for _ in list(inspect.signature(function).parameters)[1:]]
    results = function(g, *parameters)
    outputs = list(results) if isinstance(results, (list, tuple)) else [results]
    if not outputs or any(getattr(output, "node", None) is None for output in outputs):
        raise UsageError(f"{name}: the pattern must return the tensors that its nodes make.")
    needed = set(_upstream(outputs[0]))
    spare = [node.op_type for node in g.nodes if node not in needed]
    if spare:
        raise UsageError(
            f"{name}: the first result of the pattern does not depend on {', '.join(spare)}. Return the last tensor first."
        )
    return parameters, g.nodes, outputs


def _upstream(value: Any) -> Iterator[_WantedNode]:
    if isinstance(value, _Wanted) and value.node is not None:
        yield value.node
        for source in value.node.inputs:
            yield from _upstream(source)


@dataclass(frozen=True)
class Match:
    """A place where a pattern occurs: its tensors and nodes, in the order of the pattern's parameters and calls."""

    inputs: tuple[ir.Value | None, ...]
    nodes: tuple[ir.Node, ...]
    outputs: tuple[ir.Value, ...]


_Binding = dict[Any, Any]
"""What each _Wanted (a tensor) and _WantedNode (a node) of a pattern stands for."""


def matches(model: ir.Model, pattern: Callable[..., Any], where: Callable[[Match], bool] | None = None) -> list[Match]:
    """Every place where a pattern occurs and could be cut out: no tensor inside is used elsewhere, no node is shared.

    Raises:
        UsageError: The pattern returns no tensor of its nodes, or has nodes that its first result does not need.
    """
    parameters, nodes, outputs = _read(pattern)
    results: list[Match] = []
    taken: set[ir.Node] = set()
    for node in list(all_nodes(model)):
        for binding in _bind_node(outputs[0].node, node, {}, model):
            match = Match(
                tuple(binding.get(p) for p in parameters),
                tuple(binding[n] for n in nodes),
                tuple(binding[o.node].outputs[o.index] for o in outputs),
            )
            is_free = not taken.intersection(match.nodes) and _can_be_cut_out(match)
            if is_free and (where is None or where(match)):
                taken.update(match.nodes)
                results.append(match)
                break
    return results


def _can_be_cut_out(match: Match) -> bool:
    inside = set(match.nodes)
    hidden = [o for node in match.nodes for o in node.outputs if o not in match.outputs]
    return (
        len(inside) == len(match.nodes)
        and len({node.graph for node in inside}) == 1
        and not any(v.is_graph_output() or any(use.node not in inside for use in v.uses()) for v in hidden)
    )


def _bind_node(wanted: _WantedNode, node: ir.Node | None, binding: _Binding, model: ir.Model) -> Iterator[_Binding]:
    if node is None:
        return
    if wanted in binding:
        if binding[wanted] is node:
            yield binding
        return
    if (node.op_type, node.domain) != (wanted.op_type, wanted.domain) or not _fits(wanted.attributes, node, model):
        return
    is_symmetric = not wanted.domain and wanted.op_type in _COMMUTATIVE and len(wanted.inputs) == _PAIR
    for order in [wanted.inputs, wanted.inputs[::-1]] if is_symmetric else [wanted.inputs]:
        yield from _bind_inputs(order, node.inputs, {**binding, wanted: node}, model)


def _bind_inputs(
    wanted: Sequence[Any], values: Sequence[ir.Value | None], binding: _Binding, model: ir.Model
) -> Iterator[_Binding]:
    """Bind the inputs of a node one after the other; empty ones at its end mean nothing."""
    if not wanted:
        if all(value is None for value in values):
            yield binding
        return
    for bound in _bind_value(wanted[0], values[0] if values else None, binding, model):
        yield from _bind_inputs(wanted[1:], values[1:], bound, model)


def _bind_value(wanted: Any, value: ir.Value | None, binding: _Binding, model: ir.Model) -> Iterator[_Binding]:
    if not isinstance(wanted, _Wanted):
        if _is_constant(value, wanted):
            yield binding
    elif wanted.node is None:
        if wanted not in binding or binding[wanted] is value:
            yield {**binding, wanted: value}
    elif value is not None and value.index() == wanted.index:
        yield from _bind_node(wanted.node, value.producer(), binding, model)


def _is_constant(value: ir.Value | None, number: Any) -> bool:
    """Whether a tensor is known to be a number (a scalar or one element) or a list of numbers; None: whether it is left out."""
    if value is None or number is None:
        return value is number
    wanted = np.asarray(number)
    known = _constant_of(value)
    if known is None or known.size != wanted.size or known.dtype.kind not in "biuf":
        return False
    return bool(np.array_equal(known.reshape(wanted.shape), wanted.astype(known.dtype)))


def _constant_of(value: ir.Value) -> NDArray[Any] | None:
    """The content of an initializer or of a Constant node; an initializer that may be overridden is none."""
    if value.is_initializer() and value.const_value is not None:
        is_open = value.is_graph_input() or value.const_value.size > _LARGEST_CONSTANT
        return None if is_open else value.const_value.numpy()
    producer = value.producer()
    if producer is None or (producer.domain, producer.op_type) != ("", "Constant"):
        return None
    content = next(iter(producer.attributes.values())).value
    if isinstance(content, ir.TensorProtocol):
        return content.numpy()
    known = np.asarray(content)
    return known.astype(np.float32) if known.dtype.kind == "f" else known


def _fits(wanted: Mapping[str, Any], node: ir.Node, model: ir.Model) -> bool:
    if not wanted:
        return True
    try:
        schema = find_schema(node.op_type, node.domain, model.graph.opset_imports.get(node.domain))
    except UsageError:  # an op that this version of onnx does not know has no defaults
        schema = None
    return all(_has_attribute(node, name, value, default_of(schema, name)) for name, value in wanted.items())


def _has_attribute(node: ir.Node, name: str, wanted: Any, default: Any) -> bool:
    present = node.attributes.get(name)
    value = default if present is None else present.value
    if isinstance(wanted, str) or isinstance(value, str) or value is None:
        return bool(value == wanted)
    if isinstance(wanted, float):
        return bool(np.float32(wanted) == value)
    return bool(np.array_equal(np.asarray(value), np.asarray(wanted)))
