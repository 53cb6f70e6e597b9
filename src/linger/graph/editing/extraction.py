# SPDX-License-Identifier: Apache-2.0
"""A part of a model as a model of its own, and two models as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain

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
from linger.graph.editing.build import ir_version_for
from linger.graph.editing.search import Scopes, TensorLike
from linger.graph.files.model_io import copied, exchanged, in_memory, own_types
from linger.graph.lowering.bodies import attach_functions

_LARGEST_KNOWN = 1024
"""Weights beyond this many elements never decide a shape."""


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
