# SPDX-License-Identifier: Apache-2.0
"""Models: built node by node from scratch, a part of one as a model of its own, two as one, one in another opset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import version_converter

from linger.errors import GraphError, LingerError, UsageError, in_one_line, listing
from linger.graph.core.dialects import is_newer, is_quantizing_domain
from linger.graph.core.nodes import (
    Names,
    all_nodes,
    called_functions,
    defined_in,
    graphs_in,
    inputs_within,
    is_dialect,
    nodes_within,
    tensor_names,
)
from linger.graph.core.rewiring import learn_type
from linger.graph.core.tensor_types import (
    check_node,
    find_schema,
    infer_outputs,
    make_attributes,
    number_type,
    parse_types,
    type_of,
)
from linger.graph.editing.search import Scopes, TensorLike, op_call
from linger.graph.files.model_io import copied, exchanged, in_memory, own_types
from linger.graph.lowering.bodies import attach_functions

Build = Callable[..., Any]
"""`build(g, *tensors)`: makes nodes with the builder `g` and returns the resulting tensor, or a tuple of them."""

_TensorKind = tuple[ir.TensorType, ir.Shape | None]
_FIRST_OPSETS = {9: 19, 10: 21, 11: 23, 12: 24, 13: 25, 14: 28}
"""The first opset of each version of the format: runtimes of that time know no newer version."""


_LARGEST_KNOWN = 1024
"""Weights beyond this many elements never decide a shape."""


class GraphBuilder:
    """Makes nodes: `g.Relu(x)`, `g.Conv(x, weight, kernel_shape=[3, 3])`, `g.op("iqAdd", x, y, _domain="thinker")`.

    An input is a tensor, None (left out), a numpy array or a Python number (they become initializers; a number takes the
    type of the operands it goes with), or the name of a tensor in the model that is edited. Keywords are attributes,
    except `_domain`, `_version` (of the domain), `_name` (of the node) and `_outputs` (how many, or their names).
    """

    def __init__(
        self,
        opsets: Mapping[str, int],
        *,
        prefix: str = "",
        tensors: Names | None = None,
        nodes: Names | None = None,
        lookup: Callable[[str], ir.Value] | None = None,
        reserved: Sequence[str] = (),
    ) -> None:
        self.opsets = dict(opsets)
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.made: list[ir.Node] = []  # those of inner graphs included
        self._prefix = prefix
        self._tensors = tensors or Names()
        self._reserved = set(reserved)  # only an explicit request may take these names
        self._node_names = nodes or Names()
        self._lookup = lookup
        self._automatic: set[ir.Value] = set()

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        return op_call(self.op, op_type)

    def op(
        self,
        op_type: str,
        *inputs: Any,
        _domain: str = "",
        _version: int | None = None,
        _name: str | None = None,
        _outputs: int | Sequence[str] = 1,
        **attributes: Any,
    ) -> Any:  # one tensor, or a tuple where several outputs are asked for
        """Make a node and return its output, several as a tuple; refuses ops, inputs and attributes that do not fit."""
        domain = "" if _domain == "ai.onnx" else _domain
        schema = find_schema(op_type, domain, self._import(op_type, domain, _version))
        attrs = make_attributes(op_type, attributes, schema)
        named = [self._named(x) if isinstance(x, str) else x for x in inputs]
        values = [self._input(op_type, i, named, schema) for i in range(len(named))]
        names: list[str | None] = [None] * _outputs if isinstance(_outputs, int) else list(_outputs)
        node = self._node(domain, op_type, values, attrs, names, _name)
        if schema is not None:
            check_node(node, schema)
            infer_outputs(node, schema, self.opsets)
        self.nodes.append(node)
        return node.outputs[0] if len(names) == 1 else node.outputs

    def _node(
        self,
        domain: str,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Sequence[ir.Attr],
        names: Sequence[str | None],
        name: str | None,
    ) -> ir.Node:
        """A node whose name and whose outputs' names are those asked for, or chosen."""
        self._refuse_taken([n for n in names if n is not None], name)
        title = self._node_names.choose(name or f"{self._prefix}{op_type}")
        node = ir.Node(domain, op_type, inputs, attributes=attributes, num_outputs=len(names), name=title)
        self.made.append(node)
        for index, (output, wanted) in enumerate(zip(node.outputs, names, strict=True)):
            self._give_name(output, wanted, title if len(names) == 1 else f"{title}.{index}")
        return node

    def constant(self, content: Any, name: str | None = None) -> ir.Value:
        """An initializer with the content of an array."""
        array = np.asarray(content)
        self._refuse_taken([] if name is None else [name], None)
        tensor = ir.tensor(array)
        made = ir.Value(type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._give_name(made, name, f"{self._prefix}constant")
        self.initializers.append(made)
        return made

    def graph(self, build: Build, name: str = "body") -> ir.Graph:
        """A graph for an attribute (the branch of an If, say); it may use every tensor made so far."""
        inner = GraphBuilder(self.opsets, prefix=self._prefix)
        for shared in ("made", "_tensors", "_reserved", "_node_names", "_lookup", "_automatic"):
            setattr(inner, shared, getattr(self, shared))
        outputs = inner.own_outputs(results_of(build(inner), "the inner graph"))
        self.opsets.update(inner.opsets)
        return ir.Graph([], outputs, nodes=inner.nodes, initializers=inner.initializers, name=name)

    def own_outputs(self, values: Sequence[ir.Value]) -> list[ir.Value]:
        """Outputs of the graph's own: an input, an initializer, or a tensor that is an output already gets an Identity."""
        outputs: list[ir.Value] = []
        for value in values:
            is_own = value.producer() in self.nodes and not any(value is other for other in outputs)
            outputs.append(value if is_own else self.op("Identity", value))
        return outputs

    def has_chosen_name(self, value: ir.Value) -> bool:
        """Whether the builder chose the name of a tensor, so that nobody can depend on it."""
        return value in self._automatic

    def discard(self) -> None:
        """Take away the inputs of the nodes: they are not wanted after all, and must not count as users of tensors."""
        for node in self.made:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)

    def _give_name(self, value: ir.Value, name: str | None, preferred_name: str) -> None:
        if name is None:
            self._automatic.add(value)
            while preferred_name in self._reserved:
                preferred_name += "_"
        value.name = self._tensors.choose(name or preferred_name)

    def _import(self, op_type: str, domain: str, version: int | None) -> int:
        if not domain and version is None and "" not in self.opsets:
            raise UsageError(f"{op_type}: the model imports no standard opset. Give its version with _version.")
        present = self.opsets.setdefault(domain, version or 1)
        if version is not None and version != present:
            where = f"domain {domain!r}"
            raise UsageError(f"{op_type}: the model imports version {present} of {where}, not {version}. Use that one.")
        return present

    def _named(self, name: str) -> ir.Value:
        if self._lookup is None:
            raise UsageError(f"{name}: a new model has no tensors to name. Give the tensor itself.")
        return self._lookup(name)

    def _input(self, op_type: str, index: int, inputs: Sequence[Any], schema: Any) -> ir.Value | None:
        given = inputs[index]
        if given is None or isinstance(given, ir.Value):
            return given
        if isinstance(given, (np.ndarray, np.generic)):
            return self.constant(given)
        if isinstance(given, (bool, int, float, list, tuple)):
            return self.constant(np.asarray(given).astype(number_type(given, index, inputs, schema).numpy()))
        raise UsageError(
            f"{op_type}: input {index} is {type(given).__name__}. Give a tensor, an array, a number, or a tensor's name."
        )

    def _refuse_taken(self, tensors: Sequence[str], node: str | None) -> None:
        taken = [f"tensor {n!r}" for n in tensors if n in self._tensors or tensors.count(n) > 1]
        if node is not None and node in self._node_names:
            taken.append(f"node {node!r}")
        if taken:
            raise UsageError(f"{listing(dict.fromkeys(taken))}: the name is in use. Choose another, or none.")


def results_of(results: Any, where: str) -> list[ir.Value]:
    """What a build function returned, as a list; refuses anything but tensors."""
    values = list(results) if isinstance(results, (list, tuple)) else [results]
    wrong = [type(value).__name__ for value in values if not isinstance(value, ir.Value)]
    if wrong:
        raise UsageError(f"{where}: the build function returned {listing(wrong)}. Return the tensors that nodes made.")
    return values


def new_model(
    inputs: Mapping[str, str],
    outputs: Sequence[str] | Mapping[str, str],
    build: Build,
    *,
    opset: int | Mapping[str, int] = 17,
    name: str = "graph",
) -> ir.Model:
    """A model from scratch.

    >>> model = new_model({"x": "float[n,3]"}, ["y"], lambda g, x: g.Relu(g.Mul(x, 2.0)))
    >>> [node.op_type for node in model.graph], type_of(model.graph.outputs[0])
    (['Mul', 'Relu'], 'float[n,3]')

    Args:
        inputs: Types of the inputs by name, in the notation of ONNX text: `float[n,3]`, `int8[1,?,?]`, `bool`.
        outputs: Names of the outputs, or their types by name where these do not follow from the inputs.
        build: `build(g, *inputs)` makes the nodes with the builder `g` and returns the outputs.
        opset: Version of the standard opset, or of every domain.
        name: Name of the graph.

    Raises:
        UsageError: A type, an op, an input or an attribute does not exist or does not fit.
    """
    opsets = {"": opset} if isinstance(opset, int) else dict(opset)
    declared = parse_types(outputs) if isinstance(outputs, Mapping) else {}
    counts = Counter([*outputs, *(name for name in inputs if name in outputs)])
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise UsageError(f"{listing(twice)}: two inputs or outputs have the same name. Rename one.")
    arguments = [ir.Value(name=n, type=t, shape=s) for n, (t, s) in parse_types(inputs).items()]
    g = GraphBuilder(opsets, tensors=Names(inputs), reserved=list(outputs))
    results = results_of(build(g, *arguments), name)
    if len(results) != len(outputs):
        raise UsageError(f"{name}: the build function returned {len(results)} tensors for {len(outputs)} outputs.")
    finished = g.own_outputs(results)
    _name_outputs(g, dict(zip(outputs, finished, strict=True)), declared)
    graph = ir.Graph(arguments, finished, nodes=g.nodes, initializers=g.initializers, opset_imports=g.opsets, name=name)
    return ir.Model(graph, ir_version=ir_version_for(g.opsets.get("", 0)), producer_name="linger")


def ir_version_for(opset: int) -> int:
    """The version of the format that a standard opset needs."""
    return max((version for version, first in _FIRST_OPSETS.items() if opset >= first), default=8)


def _name_outputs(g: GraphBuilder, outputs: Mapping[str, ir.Value], declared: Mapping[str, _TensorKind]) -> None:
    """Give outputs their names and declared types."""
    made = {v.name: v for v in (*g.initializers, *(o for node in g.made for o in node.outputs))}
    wrong = [f"{name}: another tensor has this name" for name, v in outputs.items() if made.get(name, v) is not v]
    for name, value in outputs.items():
        kind, shape = declared.get(name, (value.type, value.shape))
        if kind is None or kind.dtype is None:
            wrong.append(f"{name}: its type does not follow from the inputs; give outputs={{{name!r}: 'float[…]'}}")
        elif value.dtype not in (None, kind.dtype):
            wrong.append(f"{name}: it is declared as {kind.dtype.name.lower()}, but has type {type_of(value)}")
        value.type, value.shape = kind, shape
    if wrong:
        raise UsageError(f"{'; '.join(wrong)}.")
    for name, value in outputs.items():
        value.name = name


def extract(model: ir.Model, inputs: Sequence[TensorLike], outputs: Sequence[TensorLike]) -> ir.Model:
    """The nodes between named tensors as a model of its own; the given model stays as it is.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { a = Exp(x) b = Neg(a) y = Abs(b) }'
    >>> part = extract(ir.from_onnx_text(text), ["a"], ["b"])
    >>> [node.op_type for node in part.graph], part.graph.inputs[0].shape
    (['Neg'], Shape([SymbolicDim('n')]))

    Args:
        model: The model. Its weights are shared, not copied.
        inputs: Tensors of the main graph where the part begins: they become inputs with their names.
        outputs: Tensors of the main graph where it ends.

    Returns:
        A model with the nodes, initializers, functions and domains that the outputs need.

    Raises:
        UsageError: Tensors that do not exist, inputs that the outputs do not need, inputs that are missing.
        GraphError: The element type of an input or output is not known and cannot be inferred.
    """
    if not outputs:
        raise UsageError("extract: there are no outputs. Name at least one tensor.")
    scopes = Scopes.of(model)
    starts, ends = scopes.tensors(inputs), scopes.tensors(outputs)
    twice = [v.name or "?" for some in (starts, ends) for v, count in Counter(some).items() if count > 1]
    if twice:
        raise UsageError(f"extract: {listing(twice)} is named twice. Name it once.")
    inside = [v.name or "?" for v in (*starts, *ends) if v.graph is not model.graph]
    if inside:
        raise UsageError(
            f"extract: {listing(inside)} belongs to a sub-graph. Only tensors of the main graph can be named."
        )
    needed = _needed_tensors(model, starts, ends)
    _require_complete(model, starts, needed)
    part = _cloned(model, starts, ends, needed - set(starts))
    _complete_types(model, part)
    return part


def _needed_tensors(model: ir.Model, starts: Sequence[ir.Value], ends: Sequence[ir.Value]) -> set[ir.Value]:
    """The tensors of the main graph that the ends are computed from, back to the starts."""
    needed: set[ir.Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in needed or value.graph not in (model.graph, None):
            continue  # a tensor inside a branch
        needed.add(value)
        node = value.producer()
        if value not in starts and node is not None:
            waiting += inputs_within(node)
    unmade = sorted(v.name or "?" for v in needed if v.graph is None)
    if unmade:
        raise GraphError(f"extract: no node makes {listing(unmade)}, which is used. Repair the model first.")
    return needed


def _require_complete(model: ir.Model, starts: Sequence[ir.Value], needed: set[ir.Value]) -> None:
    """Refuse inputs that the outputs do not need, and those that are missing."""
    missing = needed.difference(starts, model.graph.initializers.values())
    wrong = {
        "the outputs do not depend on {}, leave it out": [v.name for v in starts if v not in needed],
        "the outputs also depend on {}, add it to the inputs": [v.name for v in model.graph.inputs if v in missing],
    }
    sentences = [text.format(listing(map(str, names))) for text, names in wrong.items() if names]
    if sentences:
        raise UsageError(f"extract: {'; '.join(sentences)}.")


def _cloned(model: ir.Model, starts: Sequence[ir.Value], ends: Sequence[ir.Value], made: set[ir.Value]) -> ir.Model:
    """A model of the nodes and initializers that make some tensors, with the functions and domains that it needs."""
    nodes = [node for node in model.graph if not made.isdisjoint(node.outputs)]
    view = ir.GraphView(
        starts,
        ends,
        nodes=nodes,
        initializers=[value for value in model.graph.initializers.values() if value in made],
        opset_imports=model.graph.opset_imports,
        name=model.graph.name,
    )
    try:
        graph = view.clone()
    except RuntimeError as error:
        raise GraphError(
            "extract: the nodes are not in the order of computation. Call model.graph.sort() first."
        ) from error
    for value in graph.inputs:
        value.const_value = None
    called = called_functions(chain.from_iterable(map(nodes_within, nodes)), model.functions)
    functions = [function.clone() for key, function in model.functions.items() if key in called]
    part = ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name, functions=functions)
    own_types(part)
    _drop_unused_domains(part)
    return part


def _drop_unused_domains(model: ir.Model) -> None:
    used = {"", *(node.domain for node in all_nodes(model))}
    used.update(*({function.domain, *function.opset_imports} for function in model.functions.values()))
    for domain in model.graph.opset_imports.keys() - used:
        del model.graph.opset_imports[domain]


def _complete_types(model: ir.Model, part: ir.Model) -> None:
    """Types for the inputs and outputs, inferred from the whole model where they were not noted."""
    boundary = [*part.graph.inputs, *part.graph.outputs]
    if all(v.type is not None and v.shape is not None for v in boundary):
        return
    known = {value.name: value for value in defined_in(_inferred(copied(model)))}
    for value in boundary:
        learn_type(value, known.get(value.name, value))
    untyped = [v.name or "?" for v in boundary if v.type is None]
    if untyped:
        raise GraphError(
            f"extract: the element type of {listing(untyped)} is not noted in the model and cannot be inferred. Set it: "
            "value.type = onnx_ir.TensorType(…)."
        )


def _inferred(model: ir.Model) -> ir.Graph:
    """The graph after onnx's shape inference, large weights left out of it; the graph itself where that fails."""
    if any(is_dialect(node) or is_newer(node) for node in all_nodes(model)):
        with suppress(LingerError):  # a dialect file without functions shows its types with them
            attach_functions(model)
    for name, value in list(model.graph.initializers.items()):
        if value.const_value is not None and value.const_value.size > _LARGEST_KNOWN:
            model.graph.initializers.pop(name)
            value.const_value = None
            if not value.is_graph_input():
                model.graph.inputs.append(value)
    try:
        proto = onnx.shape_inference.infer_shapes(ir.to_proto(model), data_prop=True)
        return ir.from_proto(proto).graph
    except (onnx.shape_inference.InferenceError, ir.serde.SerdeError, ValueError):
        return model.graph


def merge(first: ir.Model, second: ir.Model, connect: Mapping[str, str], *, prefix: str = "") -> ir.Model:
    """One model of two, in which outputs of the first feed inputs of the second; the given ones stay, and weights are shared.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[n] x) => (float[n] y) { y = Exp(x) }'
    >>> one = ir.from_onnx_text(text)
    >>> model = merge(one, ir.from_onnx_text(text), {"y": "x"}, prefix="b_")
    >>> [node.op_type for node in model.graph], [v.name for v in (*model.graph.inputs, *model.graph.outputs)]
    (['Exp', 'Exp'], ['x', 'b_y'])

    Args:
        first: The model that comes first. Its outputs that are not connected stay outputs, before those of the second.
        second: The model that comes after it. Its inputs that are not connected stay inputs.
        connect: Name of an output of the first → name of an input of the second.
        prefix: Put before every name of the second. Without it, inner tensors and nodes whose name is taken get a number.

    Raises:
        UsageError: Names, types, opsets or functions that do not fit; all of them are named.
    """
    one, two = copied(first), copied(second)
    sources = {value.name: value for value in one.graph.outputs}
    sinks = {value.name: value for value in two.graph.inputs}
    pairs = [(sources[a], sinks[b]) for a, b in connect.items() if a in sources and b in sinks]
    joined = [sink for _, sink in pairs]
    wrong = [*_unknown(connect, sources, sinks), *_contradictions(one, two), *chain.from_iterable(map(_misfit, pairs))]
    wrong += _rename(one, two, joined, prefix)
    if wrong:
        raise UsageError(f"merge: {'; '.join(wrong)}.")
    for source, sink in pairs:
        sink.replace_all_uses_with(source, replace_graph_outputs=True)
    _move(one, two, joined, connect)
    return one


def _unknown(
    connect: Mapping[str, str], sources: Mapping[str | None, object], sinks: Mapping[str | None, object]
) -> list[str]:
    wrong = [f"the first model has no output {name!r}" for name in connect if name not in sources]
    wrong += [f"the second model has no input {name!r}" for name in connect.values() if name not in sinks]
    targets = list(connect.values())
    return wrong + [f"{name!r} is connected twice" for name in dict.fromkeys(targets) if targets.count(name) > 1]


def _contradictions(one: ir.Model, two: ir.Model) -> list[str]:
    """Domains and functions that both models have, and that differ."""
    mine, theirs = one.graph.opset_imports, two.graph.opset_imports
    wrong = [
        f"opset {mine[domain]} of {domain or 'ai.onnx'} meets opset {version} (bring one to the other with change_opset)"
        for domain, version in theirs.items()
        if mine.get(domain, version) != version
    ]
    shared = [(key, function, two.functions[key]) for key, function in one.functions.items() if key in two.functions]
    differing = [f"{key[0]}::{key[1]}" for key, a, b in shared if ir.to_proto(a) != ir.to_proto(b)]
    return wrong + [f"the functions {listing(differing)} differ"] * bool(differing)


def _kind(value: ir.Value) -> str:
    return f"{value.dtype.name.lower() if value.dtype is not None else '?'}{list(value.shape) if value.shape is not None else ''}"


def _misfit(pair: tuple[ir.Value, ir.Value]) -> list[str]:
    """What is wrong with a connection between two tensors."""
    a, b = pair
    is_other = None not in (a.dtype, b.dtype) and a.dtype != b.dtype
    if a.shape is not None and b.shape is not None:
        sizes = zip(a.shape, b.shape, strict=False)
        is_other |= len(a.shape) != len(b.shape) or any(m != n and {type(m), type(n)} == {int} for m, n in sizes)
    return [f"{a.name} is {_kind(a)}, {b.name} is {_kind(b)}"] if is_other else []


def _rename(one: ir.Model, two: ir.Model, joined: list[ir.Value], prefix: str) -> list[str]:
    """Give everything of the second model a name of its own; returns what would clash and may not be renamed."""
    taken, nodes = tensor_names(one), Names(node.name for node in all_nodes(one) if node.name)
    ends = {*two.graph.inputs, *two.graph.outputs} - set(joined)
    clashes = [f"{v.name}: both models have it (give a prefix)" for v in ends if f"{prefix}{v.name}" in taken]
    for value in ends:
        value.name = f"{prefix}{value.name}"
        taken.claim(value.name)
    values = chain.from_iterable(defined_in(place.graph) for place in graphs_in(two.graph))
    for value in values:
        if value not in ends and value.name:
            value.name = taken.choose(f"{prefix}{value.name}")
    for node in all_nodes(two):
        if node.name:
            node.name = nodes.choose(f"{prefix}{node.name}")
    return sorted(clashes)


def _move(one: ir.Model, two: ir.Model, joined: list[ir.Value], connect: Mapping[str, str]) -> None:
    """Put what the second model has into the first."""
    graph, other = one.graph, two.graph
    outputs = [value for value in graph.outputs if value.name not in connect] + list(other.outputs)
    inputs = [value for value in other.inputs if value not in joined]
    weights, nodes = list(other.initializers.values()), list(other)
    other.outputs.clear()
    other.inputs.clear()
    other.initializers.clear()
    other.remove(nodes)
    graph.outputs.clear()
    graph.inputs.extend(inputs)
    graph.extend(nodes)
    graph.outputs.extend(outputs)
    for value in weights:
        graph.register_initializer(value)
    one.functions.update({key: function for key, function in two.functions.items() if key not in one.functions})
    graph.opset_imports.update(two.graph.opset_imports)
    one.ir_version = max(one.ir_version, two.ir_version)


def change_opset(model: ir.Model, opset: int) -> ir.Model:
    """The model in another version of the standard opset, by onnx's version converter; the given model stays.

    Nodes of the dialect stay as they are, and their function bodies are written anew for the opset.

    Raises:
        UsageError: There is no such opset, or the model has functions of its own, which onnx's converter would lose.
        GraphError: onnx cannot convert a node.
    """
    newest = onnx.defs.onnx_opset_version()
    if not 1 <= opset <= newest:
        raise UsageError(f"change_opset: there is no opset {opset}. onnx {onnx.__version__} knows 1 to {newest}.")
    own = [f"{f.domain}::{f.name}" for f in model.functions.values() if not is_quantizing_domain(f.domain)]
    if own:
        raise UsageError(
            f"change_opset: the functions {listing(own)} would be lost. Inline them first: "
            "linger.repair(model, rules=['inline_functions'])."
        )
    bare = copied(model)
    bare.functions.clear()
    try:
        with exchanged(bare, in_memory(bare)):
            made = ir.from_proto(version_converter.convert_version(ir.to_proto(bare), opset))
    except (RuntimeError, ValueError) as error:
        raise GraphError(
            f"change_opset: onnx cannot bring this model to opset {opset}: {in_one_line(error)}"
        ) from error
    if model.functions:
        attach_functions(made)
    made.ir_version = max(made.ir_version, ir_version_for(opset))
    return made
