# SPDX-License-Identifier: Apache-2.0
"""Whether a model can be worked on; one with a flaw is refused when it is loaded.

`proto_flaws` looks at the content of a file: names are text, nodes have types, tensors have their data. `flaws` looks at the
graph: no cycles, no endless functions, no bottomless sub-graphs. `node_flaws` asks for what every version of an op needs, and
`require_bounded` for tensors that memory can hold. Nodes out of order are no flaw: they can be sorted.
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

from linger.errors import GraphError, listing, printable
from linger.graph.core.nodes import all_graphs, describe, find_circle, graphs_in, is_in_order, makers

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

UNREADABLE = frozenset({NAME, SHAPE, DEPTH})
"""Flaws with which a file cannot even be shown."""

MOST_AXES = 64
"""How many axes a tensor may have: as many as numpy supports."""

_KIND = onnx.AttributeProto
_HIGHEST_OPSET = 2**31 - 1
_SHOWN_LETTERS = 80
_MOST_FLAWS = 1000
"""How many flaws are looked for: a file of nothing but flaws is not read to its end."""
_Names = set[str]
_ELEMENTS: dict[int, ir.DataType] = {t.value: t for t in ir.DataType if t is not ir.DataType.UNDEFINED}
_TYPE = onnx.TensorProto
_LISTS: dict[int, str] = {
    _TYPE.FLOAT: "float_data",
    _TYPE.COMPLEX64: "float_data",
    _TYPE.DOUBLE: "double_data",
    _TYPE.COMPLEX128: "double_data",
    _TYPE.INT64: "int64_data",
    _TYPE.UINT32: "uint64_data",
    _TYPE.UINT64: "uint64_data",
    _TYPE.STRING: "string_data",
}
"""Where a type keeps its items; all others use int32_data."""

_COMPLEX = frozenset({_TYPE.COMPLEX64, _TYPE.COMPLEX128})
_BYTE = 8
_SIMPLE = frozenset({_KIND.FLOAT, _KIND.INT, _KIND.STRING, _KIND.FLOATS, _KIND.INTS, _KIND.STRINGS})

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


def refuse(present: Iterable[Flaw], where: str, *, allowed: Collection[str] = ()) -> None:
    """Raise a GraphError that names the file (`where`) and all flaws but those of allowed categories, if there are any."""
    reasons = list(dict.fromkeys(flaw.reason for flaw in present if flaw.category not in allowed))
    if reasons:
        raise GraphError(f"{where}: the model cannot be used: {listing(reasons, limit=8)}. Export it again.")


def flaws(model: ir.Model) -> list[Flaw]:
    """Everything that makes a model unusable, in time linear in its size.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { [p] a = Add(x, b) [q] b = Neg(a) y = Abs(b) }'
    >>> [(flaw.category, flaw.reason) for flaw in flaws(ir.from_onnx_text(text))]
    [('cycle', 'p (Add), q (Neg) wait for each other')]
    """
    results: list[Flaw] = []
    calls: _Calls = {}
    count = 0
    bodies: list[tuple[ir.OperatorIdentifier | None, ir.Graph | ir.Function]] = [(None, model.graph)]
    for key, body in bodies + list(model.functions.items()):
        owners = {place.graph: place.owner for place in graphs_in(body)}
        results += [*chain.from_iterable(map(_undefined, owners)), *(_too_deep(owners) or _cycle(owners))]
        if model.functions:
            called = [node.op_identifier() for node in chain.from_iterable(owners)]
            calls[key] = Counter(callee for callee in called if callee in model.functions)
            count += len(called)
    return results + (_call_flaws(calls, MOST_NESTED_CALLS + count) if model.functions else [])


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


def _call_flaws(calls: _Calls, allowed: int) -> list[Flaw]:
    """Functions that never end, that call too deep, or that unfold into more calls than are allowed."""
    if endless := find_circle(calls):
        first, *others = endless
        names = listing(("::".join(key[:2]) for key in filter(None, (first, *others[::-1]))), limit=_SHOWN_NODES)
        reason = "functions call each other" if others else "function calls itself"
        return [Flaw(RECURSION, f"the {reason}: {names}")]
    depth: dict[ir.OperatorIdentifier | None, int] = {}
    unfolded: dict[ir.OperatorIdentifier | None, int] = {}  # the calls made inside one call
    for key in TopologicalSorter(calls).static_order():
        depth[key] = 1 + max((depth[callee] for callee in calls[key]), default=0)
        unfolded[key] = sum(number * (1 + unfolded[callee]) for callee, number in calls[key].items())
    results, deepest = [], max(depth.values())
    nested = max(unfolded[key] - own.total() for key, own in calls.items())
    if deepest > DEEPEST_CALL:
        reason = f"its functions call each other {deepest} levels deep; at most {DEEPEST_CALL} are supported"
        results.append(Flaw(DEPTH, reason))
    if nested > allowed:
        results.append(Flaw(UNFOLDING, f"its functions unfold into {nested} calls; at most {allowed} are supported"))
    return results


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
    return {name: kind.pop() for name, kind in kinds.items() if len(kind) == 1}


def _leading(operands: Sequence[OpSchema.FormalParameter]) -> int:
    """How many operands must be there, counted from the first."""
    return next((i for i, operand in enumerate(operands) if operand.option != _SINGLE), len(operands))


def _versions(op_type: str) -> list[OpSchema]:
    """Every version of a standard op that is still in use, the newest first; none for a name that is no op."""
    versions: list[OpSchema] = []
    version = onnx.defs.onnx_opset_version()
    while version >= _OLDEST_OPSET:
        try:
            schema = onnx.defs.get_schema(op_type, version, "")
        except onnx.defs.SchemaError:
            break
        versions += [] if schema.deprecated else [schema]
        version = schema.since_version - 1
    return versions


def require_bounded(model: ir.Model) -> None:
    """Refuse to run a model in which constants ask for tensors of more than `MOST_ELEMENTS` elements; all are named.

    What a model makes of its inputs, step by step, is not followed: running a model is running a program.
    """
    large = [f"{describe(node)} makes {size} elements" for node, size in _sizes(model) if size > MOST_ELEMENTS]
    if large:
        raise GraphError(
            f"the model is not run: {listing(large, limit=8)}, and at most {MOST_ELEMENTS} are supported. Correct the shapes."
        )


def is_bounded(model: ir.Model) -> bool:
    """Whether no node is known to make more elements than are supported."""
    return all(size <= MOST_ELEMENTS for _, size in _sizes(model))


def _sizes(model: ir.Model) -> Iterator[tuple[ir.Node, int]]:
    for place in all_graphs(model):
        for node in place.graph:
            size = _SIZES.get(node.op_type) if node.domain in _STANDARD else None
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
    if _numbers(node, 3):
        return _of_shape(3)(node)
    scale = prod(_numbers(node, 2))
    return int(prod(_input_sizes(node)) * scale) if isfinite(scale) else 2**63


def _of_attribute(node: ir.Node) -> int:
    given = node.attributes.get("shape")
    return 0 if given is None or given.is_ref() else prod(max(int(n), 1) for n in given.value)


_SIZES: Mapping[str, Callable[[ir.Node], int]] = {
    "ConstantOfShape": _of_shape(0),
    "Expand": _of_shape(1),
    "OneHot": _of_shape(1),
    "Tile": lambda node: prod(_input_sizes(node)) * _of_shape(1)(node),
    "Range": _of_range,
    "Pad": _of_pad,
    "Resize": _of_resize,
    "RandomNormal": _of_attribute,
    "RandomUniform": _of_attribute,
}


def proto_flaws(proto: onnx.ModelProto) -> list[Flaw]:
    """What makes a file unusable, in time linear in its size."""
    found = [*_description_flaws(proto), *_function_names(proto.functions)]
    waiting: list[tuple[onnx.GraphProto | onnx.FunctionProto, tuple[_Names, ...], bool]] = [(proto.graph, (), False)]
    waiting += [(function, (), True) for function in proto.functions]
    while waiting and len(found) < _MOST_FLAWS:
        graph, around, is_called = waiting.pop()
        if len(around) >= DEEPEST:
            return [*found, Flaw(DEPTH, f"graphs lie more than {DEEPEST} levels deep inside each other")]
        visit = _Visit(graph, around, is_called=is_called)
        found += visit.flaws()
        waiting += [(inner, visit.scopes, is_called) for inner in visit.inner]
    return found


def _description_flaws(proto: onnx.ModelProto) -> Iterator[Flaw]:
    """What is wrong with the texts and the opsets by which the model describes itself."""
    pairs = [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
    own = (proto.producer_name, proto.producer_version, proto.domain, proto.doc_string, proto.graph.doc_string)
    if not _is_text((*own, *pairs, *(entry.domain for entry in proto.opset_import))):
        yield Flaw(NAME, "the model's description is no UTF-8 text")
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain in _STANDARD else str(entry.domain)
        if not 0 <= entry.version <= _HIGHEST_OPSET:  # 0: not known, see `proto_repair`
            yield Flaw(OPSET, f"the opset version {entry.version} of domain {domain!r} does not exist")
        elif versions.setdefault(domain, entry.version) != entry.version:
            yield Flaw(OPSET, f"domain {domain!r} has two versions, {versions[domain]} and {entry.version}")


def _function_names(functions: Iterable[onnx.FunctionProto]) -> Iterator[Flaw]:
    seen = set()
    for function in functions:
        key = (function.domain, function.name, function.overload)
        if not _is_text((*key, *(entry.domain for entry in function.opset_import))):
            yield Flaw(NAME, f"the name of the function {function.name!r} or a domain that it imports is no UTF-8 text")
        elif key in seen:
            yield Flaw(NODE, f"there are two functions {function.domain}::{function.name}")
        seen.add(key)


def _is_text(names: Iterable[str]) -> bool:
    """Whether all names are text: what is no UTF-8 comes out of protobuf as bytes."""
    try:
        "".join(names)
    except TypeError:
        return False
    return True


class _Visit:
    """One graph or function body: what it defines, what it holds, what is wrong with it."""

    def __init__(
        self, graph: onnx.GraphProto | onnx.FunctionProto, around: tuple[_Names, ...], *, is_called: bool
    ) -> None:
        self._graph = graph
        self._is_called = is_called
        self.inner: list[onnx.GraphProto] = []
        self.scopes: tuple[_Names, ...] = (*around, {""})

    def flaws(self) -> list[Flaw]:
        """Everything that is wrong in this graph; what lies deeper is left in `inner`."""
        graph, found = self._graph, []
        if isinstance(graph, onnx.FunctionProto):
            defined, outputs = list(graph.input), list(graph.output)
        else:
            defined, outputs = [v.name for v in (*graph.input, *graph.initializer)], [o.name for o in graph.output]
            found += [*_value_flaws(graph), *_initializer_flaws(graph)]
        if not _is_text((*defined, *outputs, graph.name)):
            return [*found, Flaw(NAME, f"names in the graph {graph.name!r} are no UTF-8 text")]
        self.scopes[-1].update(defined)
        for node in graph.node:
            found += self._node_flaws(node)
            if len(found) >= _MOST_FLAWS:
                return found
            self.scopes[-1].update(node.output)
        return [*found, *self._undefined(outputs)]

    def _undefined(self, outputs: Iterable[str]) -> Iterator[Flaw]:
        """Tensors that nodes use or that are outputs, and that nothing makes."""
        used = {name: node for node in self._graph.node for name in node.input}
        for name in self._missing(used):
            yield Flaw(UNDEFINED, f"no node makes {name!r}, which {_describe(used[name])} uses")
        for name in outputs:
            if not name or self._missing([name]):
                yield Flaw(UNDEFINED, f"no node makes the output {name!r}")

    def _missing(self, names: Iterable[str]) -> list[str]:
        *around, own = self.scopes
        return [name for name in names if name not in own and not any(name in defined for defined in around)]

    def _node_flaws(self, node: onnx.NodeProto) -> list[Flaw]:
        results = []
        names = [a.name for a in node.attribute]
        own = (node.op_type, node.name, node.domain, node.overload, node.doc_string)
        if not node.op_type:
            results.append(Flaw(NAME, "there are nodes without an op type"))
        if not _is_text((*own, *node.input, *node.output, *names)):
            results.append(Flaw(NAME, f"the names of the node {_describe(node)} are no UTF-8 text"))
        if len(set(names)) < len(names):  # one of them would be lost, and what it holds would go on using tensors
            twice = sorted({_cut(name) for name in names if names.count(name) > 1})
            results.append(Flaw(NODE, f"{_describe(node)} has several attributes {', '.join(map(repr, twice))}"))
        for attribute in node.attribute:
            if attribute.ref_attr_name or attribute.type not in _SIMPLE:
                results += self._attribute_flaws(attribute, f"attribute {_cut(attribute.name)!r} of {_describe(node)}")
        return results

    def _attribute_flaws(self, attribute: onnx.AttributeProto, where: str) -> list[Flaw]:
        """What is wrong with an attribute that holds more than numbers and texts, or that the caller of a function gives."""
        kind = attribute.type
        if attribute.ref_attr_name:
            if not self._is_called:
                return [Flaw(NODE, f"{where} is to be given by the caller of a function, but stands in none")]
            is_graph = kind in (_KIND.GRAPH, _KIND.GRAPHS, _KIND.UNDEFINED)
            return [Flaw(NODE, f"{where} is a graph that the caller gives, which linger does not read")] * is_graph
        if kind == _KIND.UNDEFINED:
            return [Flaw(NODE, f"{where} has no type")]
        if kind in (_KIND.SPARSE_TENSOR, _KIND.SPARSE_TENSORS):
            return [Flaw(SPARSE, f"{where} is a sparse tensor, which linger does not read")]
        if kind == _KIND.GRAPH:
            self.inner.append(attribute.g)
        elif kind == _KIND.GRAPHS:
            self.inner += attribute.graphs
        tensors = [attribute.t] if kind == _KIND.TENSOR else attribute.tensors
        return [flaw for tensor in tensors for flaw in _tensor_flaws(where, tensor)]


def _tensor_flaws(where: str, tensor: onnx.TensorProto) -> list[Flaw]:
    problem = tensor_problem(tensor)
    category = TENSOR if len(tensor.dims) <= MOST_AXES else SHAPE
    return [] if problem is None else [Flaw(category, f"{where}: {problem}")]


def _describe(node: onnx.NodeProto) -> str:
    name = node.name or next((o for o in node.output if o), "?")
    return f"{_cut(name)} ({_cut(node.op_type)})"


def _cut(name: str | bytes) -> str:
    text = printable(name if isinstance(name, str) else name.decode("utf-8", "backslashreplace"))
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}…"


def _value_flaws(graph: onnx.GraphProto) -> Iterator[Flaw]:
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            kind = value.type
            sizes = [d.dim_param for d in kind.tensor_type.shape.dim] if kind.HasField("tensor_type") else []
            if not _is_text((value.name, value.doc_string, kind.denotation, *sizes)):
                yield Flaw(NAME, f"the name or the sizes of {_cut(value.name)} are no UTF-8 text")
            if kind.HasField("tensor_type") and len(kind.tensor_type.shape.dim) > MOST_AXES:
                problem = shape_problem([0] * len(kind.tensor_type.shape.dim))
                yield Flaw(SHAPE, f"{_cut(value.name)}: {problem}")


def _initializer_flaws(graph: onnx.GraphProto) -> Iterator[Flaw]:
    if graph.sparse_initializer:
        yield Flaw(SPARSE, "it has sparse initializers, which linger does not read")
    names = set()
    for tensor in graph.initializer:
        yield from _tensor_flaws(_cut(tensor.name), tensor)
        if not tensor.name:
            yield Flaw(TENSOR, "an initializer has no name")
        elif tensor.name in names:
            yield Flaw(TENSOR, f"there are two initializers {_cut(tensor.name)!r}")
        names.add(tensor.name)


def shape_problem(dims: Sequence[int]) -> str | None:
    """Why no tensor can have these sizes, or None."""
    if len(dims) > MOST_AXES:
        return f"it has {len(dims)} axes; at most {MOST_AXES} are possible"
    if any(size < 0 for size in dims):
        return f"its shape {list(dims)} has negative sizes"
    return None


def tensor_problem(tensor: onnx.TensorProto) -> str | None:
    """Why a tensor's content is not what its type and shape say, or None; data in other files is not looked at."""
    problem = shape_problem(tensor.dims)
    if problem is None and tensor.data_type not in _ELEMENTS:
        problem = f"there is no element type {tensor.data_type}"
    is_elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    return problem if problem is not None or is_elsewhere else _content_problem(tensor)


def _content_problem(tensor: onnx.TensorProto) -> str | None:
    """Why a tensor holds more or less than its type and shape say, or None."""
    count = prod(tensor.dims)
    bits = 0 if tensor.data_type == _TYPE.STRING else int(_ELEMENTS[tensor.data_type].bitwidth)
    if tensor.HasField("raw_data") and tensor.data_type != _TYPE.STRING:  # texts are never raw
        present, needed, unit = len(tensor.raw_data), -(-count * bits // _BYTE), "bytes"
        is_right = present == needed or (bits == 6 and present == count)  # six bits are packed, or a byte each
    else:
        present = len(getattr(tensor, _LISTS.get(tensor.data_type, "int32_data")))
        # complex numbers are two items, narrow ones share a byte
        needed, unit = -(-count * bits // _BYTE) if 0 < bits < _BYTE else count, "items"
        needed *= 1 + (tensor.data_type in _COMPLEX)
        is_right = present == needed or (bits < _BYTE and present == count)
    return None if is_right else f"its shape {list(tensor.dims)} needs {needed} {unit}, {present} are there"
