# SPDX-License-Identifier: Apache-2.0
"""A part of a model as a model of its own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import onnx
import onnx_ir as ir

from linger.errors import GraphError, LingerError, UsageError, listing
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import is_newer
from linger.graph.core.walking import all_nodes, inputs_within, nodes_within
from linger.graph.editing.search import Scopes, TensorLike
from linger.graph.forms.attach_functions import attach_functions

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
    scopes = Scopes.of(model)
    if not outputs:
        raise UsageError("extract: there are no outputs. Name at least one tensor.")
    starts, ends = scopes.tensors(inputs), scopes.tensors(outputs)
    twice = [v.name or "?" for some in (starts, ends) for v in dict.fromkeys(some) if some.count(v) > 1]
    if twice:
        raise UsageError(f"extract: {listing(twice)} is named twice. Name it once.")
    inside = [v.name or "?" for v in (*starts, *ends) if v.graph is not model.graph]
    if inside:
        raise UsageError(
            f"extract: {listing(inside)} belongs to a sub-graph. Only tensors of the main graph can be named."
        )
    nodes, initializers = _between(model, starts, ends)
    part = _cloned(model, (starts, ends), nodes, initializers)
    _complete_types(model, part)
    return part


def _between(
    model: ir.Model, starts: Sequence[ir.Value], ends: Sequence[ir.Value]
) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes that make the ends from the starts, in order, and the initializers they use."""
    nodes: set[ir.Node] = set()
    seen: set[ir.Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in seen or value.graph not in (model.graph, None):
            continue  # a tensor inside a branch
        seen.add(value)
        node = value.producer()
        if value not in starts and node is not None and node not in nodes:
            nodes.add(node)
            waiting += inputs_within(node)
    spare = [v.name or "?" for v in starts if v not in seen]
    open_ends = [v for v in model.graph.inputs if v in seen and v not in starts and not v.is_initializer()]
    unmade = [v.name or "?" for v in seen if v.graph is None]
    if unmade:
        raise GraphError(f"extract: no node makes {listing(sorted(unmade))}, which is used. Repair the model first.")
    wrong = [f"the outputs do not depend on {listing(spare)}, leave it out"] if spare else []
    if open_ends:
        wrong.append(f"the outputs also depend on {listing(v.name or '?' for v in open_ends)}, add it to the inputs")
    if wrong:
        raise UsageError(f"extract: {'; '.join(wrong)}.")
    initializers = [v for v in model.graph.initializers.values() if v in seen and v not in starts]
    return [node for node in model.graph if node in nodes], initializers


def _cloned(
    model: ir.Model,
    boundary: tuple[Sequence[ir.Value], Sequence[ir.Value]],
    nodes: Sequence[ir.Node],
    initializers: Sequence[ir.Value],
) -> ir.Model:
    starts, ends = boundary
    view = ir.GraphView(
        starts,
        ends,
        nodes=nodes,
        initializers=initializers,
        opset_imports=model.graph.opset_imports,
        name=model.graph.name,
    )
    try:
        graph = view.clone()
    except RuntimeError as error:
        raise GraphError(
            "extract: the nodes are not in the order of computation. Call model.graph.sort() first."
        ) from error
    for value in Scopes({graph: None}).values():
        value.type = copy.copy(value.type)  # clones share it, and element types are set in place
    for value in graph.inputs:
        value.const_value = None
    part = ir.Model(graph, ir_version=model.ir_version, producer_name=model.producer_name)
    part.functions.update({key: f.clone() for key, f in model.functions.items() if key in _called(model, nodes)})
    used = {n.domain for n in all_nodes(graph)} | {f.domain for f in part.functions.values()}
    used |= {d for f in part.functions.values() for d in f.opset_imports} | {""}
    for domain in [d for d in graph.opset_imports if d not in used]:
        del graph.opset_imports[domain]
    return part


def _called(model: ir.Model, nodes: Sequence[ir.Node]) -> set[tuple[str, str, str]]:
    """The functions that nodes call, those that functions call included."""
    found: set[tuple[str, str, str]] = set()
    waiting = [inner for node in nodes for inner in nodes_within(node)]
    while waiting:
        key = waiting.pop().op_identifier()
        if key in model.functions and key not in found:
            found.add(key)
            waiting += all_nodes(model.functions[key])
    return found


def _complete_types(model: ir.Model, part: ir.Model) -> None:
    """Types for the inputs and outputs, inferred from the whole model where they were not noted."""
    boundary = [*part.graph.inputs, *part.graph.outputs]
    if all(v.type is not None and v.shape is not None for v in boundary):
        return
    whole = model.clone()
    for value in Scopes.of(whole).values():
        value.type = copy.copy(value.type)
    if any(is_dialect(node) or is_newer(node) for node in all_nodes(whole)):
        with suppress(LingerError):  # a dialect file without functions shows its types with them
            attach_functions(whole)
    known = {v.name: v for v in Scopes({_inferred(whole): None}).values()}
    for value in boundary:
        found = known.get(value.name)
        if found is not None:
            value.type = value.type or found.type
            value.shape = value.shape if value.shape is not None else found.shape
    untyped = [v.name or "?" for v in boundary if v.type is None]
    if untyped:
        raise GraphError(
            f"extract: the element type of {listing(untyped)} is not noted in the model and cannot be inferred. Set it: "
            "value.type = onnx_ir.TensorType(…)."
        )


def _inferred(model: ir.Model) -> ir.Graph:
    """The graph after onnx's shape inference, large weights left out of it; the graph itself where that fails."""
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
