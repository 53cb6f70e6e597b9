# SPDX-License-Identifier: Apache-2.0
"""Whether work on a model can end: no cycles, no endless functions, no bottomless sub-graphs, no tensors beyond all memory.

A model with such a flaw, or whose nodes lack what every version of their op needs, is refused. Nodes out of order are no
flaw: they can be sorted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from math import ceil, isfinite, prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.errors import GraphError, listing
from linger.graph.core.nodes import Functions, all_graphs, describe, find_circle, graphs_in, is_in_order, makers

DEEPEST = 32
"""How many graphs may lie inside each other. Protobuf reads no file with more: it stops at 100 messages, and a level takes three."""

DEEPEST_CALL = 100
"""How deep functions may call each other; some computations recurse once per call."""

MOST_NESTED_CALLS = 20_000
"""How many calls functions may make once all are unfolded, beyond one per node of the file: runtimes unfold them all."""

MOST_ELEMENTS = 2**29
"""How large a tensor may be: 2 GB of float32, far beyond what a chip of this kind, or a test on one, has any use for."""

CYCLE, RECURSION, UNFOLDING, DEPTH, UNDEFINED = "cycle", "recursion", "unfolding", "depth", "undefined"
NAME, NODE, TENSOR, SHAPE, OPSET, SPARSE = "name", "node", "tensor", "shape", "opset", "sparse"
ATTRIBUTE, OPERAND = "attribute", "operand"
REPORTABLE = frozenset({CYCLE, UNDEFINED, ATTRIBUTE, OPERAND})
"""Flaws that a check can list beside others: such a model can at least be looked at."""

LISTED = REPORTABLE | {TENSOR}
"""Flaws with which a file is not refused by a check: they become findings, beside all others."""

_STANDARD = ("", "ai.onnx")
_OLDEST_OPSET = 7
"""The oldest opset that ONNX Runtime runs."""

_SINGLE = OpSchema.FormalParameterOption.Single
_LONGEST_SHAPE = 64
_SHOWN_NODES = 8
_Owners = Mapping[ir.Graph, ir.Node | None]
"""Every graph of a body, outer ones first, with the node that holds it."""

_Calls = dict[ir.OperatorIdentifier | None, Counter[ir.OperatorIdentifier]]
"""How often the main graph (None) and each function call each function."""


@dataclass(frozen=True)
class Flaw:
    """One thing that makes a model unusable.

    Attributes:
        category: Of the graph "cycle", "recursion", "unfolding", "depth", "undefined"; of its nodes "attribute",
            "operand"; of a file "name", "node", "tensor", "shape", "opset", "sparse".
        reason: What is wrong, with the names in it.
    """

    category: str
    reason: str


def refuse(found: Iterable[Flaw], where: str, *, allowed: Collection[str] = ()) -> None:
    """Raise an error that names all flaws, unless there are none.

    Args:
        found: The flaws.
        where: The file, for the message.
        allowed: Categories of flaws that are no reason to refuse.

    Raises:
        GraphError: There are flaws that are not allowed.
    """
    reasons = list(dict.fromkeys(flaw.reason for flaw in found if flaw.category not in allowed))
    if reasons:
        raise GraphError(f"{where}: the model cannot be used: {listing(reasons, limit=8)}. Export it again.")


def flaws(model: ir.Model) -> list[Flaw]:
    """Everything that makes a model unusable, in time linear in its size.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { [p] a = Add(x, b) [q] b = Neg(a) y = Abs(b) }'
    >>> [(flaw.category, flaw.reason) for flaw in flaws(ir.from_onnx_text(text))]
    [('cycle', 'p (Add), q (Neg) wait for each other')]
    """
    bodies: dict[ir.OperatorIdentifier | None, _Body] = {None: _Body.of(model.graph, model.functions)}
    bodies |= {key: _Body.of(function, model.functions) for key, function in model.functions.items()}
    found = [flaw for body in bodies.values() for flaw in body.flaws]
    return found + (_call_flaws(bodies) if model.functions else [])


@dataclass(frozen=True)
class _Body:
    """The main graph or a function: its flaws, how often it calls which function, and the number of its nodes."""

    flaws: list[Flaw]
    calls: Counter[ir.OperatorIdentifier]
    nodes: int

    @classmethod
    def of(cls, where: ir.Graph | ir.Function, functions: Functions) -> _Body:
        owners = {place.graph: place.owner for place in graphs_in(where)}
        found = [flaw for graph in owners for flaw in _undefined(graph)]
        found += _too_deep(owners) or _cycle(owners)
        nodes = list(chain.from_iterable(owners))
        called = (node.op_identifier() for node in nodes) if functions else ()
        return cls(found, Counter(key for key in called if key in functions), len(nodes))


def _undefined(graph: ir.Graph) -> Iterator[Flaw]:
    """Inputs of nodes and outputs of the graph that nothing makes."""
    for node in graph:
        for value in node.inputs:
            if value is not None and value.graph is None and value.producer() is None:
                yield Flaw(UNDEFINED, f"no node makes {value.name!r}, which {describe(node)} uses")
    for value in graph.outputs:
        if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
            yield Flaw(UNDEFINED, f"no node makes the output {value.name!r}")


def _too_deep(owners: _Owners) -> list[Flaw]:
    depth: dict[ir.Graph | None, int] = {}
    for graph, owner in owners.items():  # outer graphs first
        depth[graph] = 1 if owner is None else depth[owner.graph] + 1
        if owner is not None and depth[graph] > DEEPEST:
            return [Flaw(DEPTH, f"{describe(owner)} holds graphs more than {DEEPEST} levels deep")]
    return []


def _cycle(owners: _Owners) -> list[Flaw]:
    """The nodes of one cycle, if there is any; a node waits for what the nodes inside it read."""
    if all(map(is_in_order, owners)):
        return []
    waits: dict[ir.Node, list[ir.Node]] = {node: [] for graph in owners for node in graph}
    for node in waits:
        for producer in makers(node.inputs):
            follower = _at_level_of(node, producer, owners)
            if follower is not None:
                waits[follower].append(producer)
    circle = [describe(node) for node in find_circle(waits)]
    if not circle:
        return []
    reason = "waits for itself" if len(circle) == 1 else "wait for each other"
    return [Flaw(CYCLE, f"{listing(circle, limit=_SHOWN_NODES)} {reason}")]


def _at_level_of(node: ir.Node, producer: ir.Node, owners: _Owners) -> ir.Node | None:
    """The node itself or the node around it that stands in the producer's graph; None where there is none."""
    around: ir.Node | None = node
    while around is not None and around.graph is not producer.graph:
        assert isinstance(around.graph, ir.Graph)  # it was reached through its graph
        around = owners[around.graph]
    return around


def _call_flaws(bodies: Mapping[ir.OperatorIdentifier | None, _Body]) -> list[Flaw]:
    """Functions that never end, that call too deep, or that unfold into too many."""
    calls: _Calls = {key: body.calls for key, body in bodies.items()}
    if endless := find_circle(calls):
        first, *others = endless
        names = listing((f"{key[0]}::{key[1]}" for key in (first, *others[::-1]) if key), limit=_SHOWN_NODES)
        reason = "functions call each other" if others else "function calls itself"
        return [Flaw(RECURSION, f"the {reason}: {names}")]
    found, (deepest, nested) = [], _depth_and_nested_calls(calls)
    if deepest > DEEPEST_CALL:
        reason = f"its functions call each other {deepest} levels deep; at most {DEEPEST_CALL} are supported"
        found.append(Flaw(DEPTH, reason))
    allowed = MOST_NESTED_CALLS + sum(body.nodes for body in bodies.values())
    if nested > allowed:
        found.append(Flaw(UNFOLDING, f"its functions unfold into {nested} calls; at most {allowed} are supported"))
    return found


def _depth_and_nested_calls(calls: _Calls) -> tuple[int, int]:
    """How deep functions call each other, and how many calls they make inside calls once all are unfolded."""
    depth: dict[ir.OperatorIdentifier | None, int] = {}
    unfolded: dict[ir.OperatorIdentifier | None, int] = {}  # the calls made inside one call
    for key in TopologicalSorter(calls).static_order():
        depth[key] = 1 + max((depth[callee] for callee in calls[key]), default=0)
        unfolded[key] = sum(number * (1 + unfolded[callee]) for callee, number in calls[key].items())
    return max(depth.values()), max(unfolded[key] - made.total() for key, made in calls.items())


@dataclass(frozen=True)
class _Expected:
    """What all versions of a standard op have in common."""

    attributes: Mapping[str, ir.AttributeType]
    required: frozenset[str]
    inputs: int
    outputs: int


def node_flaws(model: ir.Model) -> Iterator[Flaw]:
    """Attributes of standard nodes that are of a wrong kind, and required attributes, inputs and outputs that are missing.

    Only what all versions of an op agree on is asked for, so that a file with a wrong opset can still be read and repaired.
    """
    for node in (node for place in all_graphs(model) for node in place.graph if node.domain in _STANDARD):
        expected = _expected(node.op_type)
        if expected is not None and not (model.functions and node.op_identifier() in model.functions):
            yield from (Flaw(category, f"{describe(node)}{reason}") for category, reason in _lacks(node, expected))


def _lacks(node: ir.Node, expected: _Expected) -> Iterator[tuple[str, str]]:
    """Category and reason of each flaw of a node."""
    for name, attribute in node.attributes.items():
        kind = expected.attributes.get(name)
        if kind is not None and attribute.type != kind:
            yield ATTRIBUTE, f": {name} is a {attribute.type.name.lower()}, not a {kind.name.lower()}"
    if missing := sorted(expected.required - node.attributes.keys()):
        yield ATTRIBUTE, f" lacks {', '.join(missing)}"
    if len(node.inputs) < expected.inputs or None in node.inputs[: expected.inputs]:
        yield OPERAND, f" lacks inputs; it needs {expected.inputs}"
    if len(node.outputs) < expected.outputs:
        yield OPERAND, " has no output"


@cache
def _expected(op_type: str) -> _Expected | None:
    versions = _versions(op_type)
    if not versions:
        return None
    required = [{name for name, a in schema.attributes.items() if a.required} for schema in versions]
    return _Expected(
        attributes=_agreed_kinds(versions),
        required=frozenset(set.intersection(*required)),
        inputs=min(_leading(schema.inputs) for schema in versions),
        outputs=min(_leading(schema.outputs) for schema in versions),
    )


def _agreed_kinds(versions: Iterable[OpSchema]) -> dict[str, ir.AttributeType]:
    """The kinds of the attributes that have the same one in all versions that have them."""
    kinds: dict[str, set[ir.AttributeType]] = {}
    for schema in versions:
        for name, attribute in schema.attributes.items():
            # onnx's stubs do not say that the kinds are an enumeration
            kinds.setdefault(name, set()).add(ir.AttributeType[attribute.type.name])  # type: ignore[attr-defined]
    return {name: found.pop() for name, found in kinds.items() if len(found) == 1}


def _leading(operands: Sequence[OpSchema.FormalParameter]) -> int:
    """How many operands must be there, counted from the first."""
    return next((i for i, operand in enumerate(operands) if operand.option != _SINGLE), len(operands))


def _versions(op_type: str) -> list[OpSchema]:
    """Every version of a standard op that is still in use, the newest first; none for a name that is no op."""
    found: list[OpSchema] = []
    version = onnx.defs.onnx_opset_version()
    while version >= _OLDEST_OPSET:
        try:
            schema = onnx.defs.get_schema(op_type, version, "")
        except onnx.defs.SchemaError:
            break
        found.append(schema)
        version = schema.since_version - 1
    return [schema for schema in found if not schema.deprecated]


def require_bounded(model: ir.Model) -> None:
    """Refuse to run a model in which a constant asks for a tensor of more than `MOST_ELEMENTS` elements.

    What a model makes of its inputs, step by step, is not followed: running a model is running a program.

    Raises:
        GraphError: Some nodes make more; all of them are named, with the number of elements.
    """
    found = [f"{describe(node)} makes {size} elements" for node, size in _sizes(model) if size > MOST_ELEMENTS]
    if found:
        raise GraphError(
            f"the model is not run: {listing(found, limit=8)}, and at most {MOST_ELEMENTS} are supported. Correct the shapes."
        )


def is_bounded(model: ir.Model) -> bool:
    """Whether no node is known to make more elements than are supported."""
    return all(size <= MOST_ELEMENTS for _, size in _sizes(model))


def _sizes(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    for place in all_graphs(model):
        for node in place.graph:
            size = _SIZES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
            if size is not None:
                yield node, size(node)


def _numbers(node: ir.Node, index: int) -> list[Any]:
    """The content of a short constant input, as numbers; empty where it is not known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    try:
        tensor = None if value is None else ir.convenience.get_const_tensor(value)
    except ValueError:  # a Constant without a value
        return []
    if tensor is None or tensor.size > _LONGEST_SHAPE or tensor.dtype == ir.DataType.STRING:
        return []
    numbers = np.asarray(tensor.numpy()).reshape(-1).tolist()
    return [n for n in numbers if isinstance(n, (int, float)) and isfinite(n)]


def _input_sizes(node: ir.Node) -> list[int]:
    """The sizes of the first input; 1 for those that are open."""
    value = node.inputs[0] if node.inputs else None
    shape = None if value is None else value.shape
    return [] if shape is None else [size if isinstance(size, int) else 1 for size in shape]


def _of_shape(index: int) -> Callable[[ir.Node], int]:
    return lambda node: prod(max(int(n), 1) for n in _numbers(node, index))


def _of_tile(node: ir.Node) -> int:
    return prod(_input_sizes(node)) * _of_shape(1)(node)


def _of_range(node: ir.Node) -> int:
    ends = [_numbers(node, index) for index in range(3)]
    if any(len(end) != 1 for end in ends) or not ends[2][0]:
        return 0
    start, stop, step = (float(end[0]) for end in ends)
    return max(ceil((stop - start) / step), 0) if isfinite((stop - start) / step) else 2**63


def _of_pad(node: ir.Node) -> int:
    given = node.attributes.get("pads")
    pads: Sequence[Any] = _numbers(node, 1) if given is None or given.is_ref() else given.value
    half = len(pads) // 2
    sizes = _input_sizes(node)
    sizes = sizes if len(sizes) == half else [1] * half
    return prod(max(size + int(pads[i]) + int(pads[half + i]), 1) for i, size in enumerate(sizes))


def _of_resize(node: ir.Node) -> int:
    sizes, scales = _numbers(node, 3), _numbers(node, 2)
    if sizes:
        return prod(max(int(n), 1) for n in sizes)
    return int(prod(_input_sizes(node)) * prod(scales)) if isfinite(prod(scales)) else 2**63


def _of_attribute(node: ir.Node) -> int:
    given = node.attributes.get("shape")
    return 0 if given is None or given.is_ref() else prod(max(int(n), 1) for n in given.value)


_SIZES: Mapping[str, Callable[[ir.Node], int]] = {
    "ConstantOfShape": _of_shape(0),
    "Expand": _of_shape(1),
    "OneHot": _of_shape(1),
    "Tile": _of_tile,
    "Range": _of_range,
    "Pad": _of_pad,
    "Resize": _of_resize,
    "RandomNormal": _of_attribute,
    "RandomUniform": _of_attribute,
}
