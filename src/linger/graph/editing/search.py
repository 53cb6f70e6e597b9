# SPDX-License-Identifier: Apache-2.0
"""Finding nodes and tensors in a model, its sub-graphs included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeVar

import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.dialect_node import describe
from linger.graph.core.walking import all_nodes, defined_in, graphs_in

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
        has_type = types is None or node.op_type in types
        has_domain = domain is None or node.domain == domain
        return has_type and has_domain and (name is None or _has_name(node, name)) and (where is None or where(node))

    return [node for node in (all_nodes(model) if subgraphs else model.graph) if fits(node)]


def _has_name(node: ir.Node, name: str) -> bool:
    """Whether a node's name equals a name or matches it as a glob; `layers[0]` may be meant either way."""
    own = node.name or ""
    return own == name or fnmatchcase(own, name)


@dataclass(frozen=True)
class Scopes:
    """Which graph lies in which, and what each defines: the main graph and its sub-graphs, outer ones first."""

    owners: dict[ir.Graph, ir.Node | None]

    @classmethod
    def of(cls, model: ir.Model) -> Scopes:
        """The scopes of a model as it is now."""
        return cls({place.graph: place.owner for place in graphs_in(model.graph)})

    def values(self) -> Iterable[ir.Value]:
        """Every tensor that has a name."""
        for graph in self.owners:
            yield from (value for value in defined_in(graph) if value.name)

    def nodes(self) -> Iterable[ir.Node]:
        """Every node."""
        for graph in self.owners:
            yield from graph

    def sees(self, graph: ir.Graph, value: ir.Value) -> bool:
        """Whether a node of a graph may use a value: one of its own, or one of a graph around it."""
        around: ir.Graph | None = graph
        while around is not None:
            if value.graph is around:
                return True
            owner = self.owners[around]
            around = None if owner is None else owner.graph
        return False

    def tensor(self, tensor: TensorLike) -> ir.Value:
        """Return the tensor that is given itself or by name.

        Raises:
            UsageError: There is none, or the name is used in several sub-graphs.
        """
        return self.tensors([tensor])[0]

    def tensors(self, tensors: Iterable[TensorLike]) -> list[ir.Value]:
        """Return the tensors that are given themselves or by name.

        Raises:
            UsageError: Tensors that do not exist or whose name is used in several sub-graphs; all of them are named.
        """
        return _meant(tensors, self.values(), "tensor")

    def some_nodes(self, nodes: NodeLike | Iterable[NodeLike]) -> list[ir.Node]:
        """Return the nodes that are given themselves or by name, without repetitions.

        Raises:
            UsageError: Nodes that are not in the model or whose name is not unique; all of them are named.
        """
        wanted = [nodes] if isinstance(nodes, (str, ir.Node)) else nodes
        return list(dict.fromkeys(_meant(wanted, self.nodes(), "node")))


_Named = TypeVar("_Named", ir.Node, ir.Value)


def _meant(wanted: Iterable[str | _Named], known: Iterable[_Named], kind: str) -> list[_Named]:
    """Look up nodes or tensors that are given themselves or by name."""
    things = dict.fromkeys(known)
    by_name: dict[str, list[_Named]] = {}
    for thing in things:
        if thing.name:
            by_name.setdefault(thing.name, []).append(thing)
    found, wrong = [], []
    for want in wanted:
        if not isinstance(want, str):
            found.append(want)
            wrong += [] if want in things else [_stranger(want, kind)]
        elif len(same := by_name.get(want, [])) == 1:
            found += same
        else:
            wrong.append(_not_one(want, len(same), kind, sorted(by_name)))
    if wrong:
        raise UsageError(" ".join(wrong))
    return found


def _stranger(thing: ir.Node | ir.Value, kind: str) -> str:
    title = describe(thing) if isinstance(thing, ir.Node) else thing.name
    return f"{title} is no {kind} of this model: it was removed, or belongs to another model or to a function. Find it again."


def _not_one(name: str, count: int, kind: str, known: list[str]) -> str:
    if count:
        return (
            f"{name}: there are {count} {kind}s of this name. Give the {kind} itself, as linger.graph.find returns it."
        )
    near = get_close_matches(name, known, n=3)
    hint = f"Is {' or '.join(near)} meant?" if near else f"Known are {listing(known, limit=8)}."
    return f"{name}: there is no {kind} of this name in the model. {hint}"
