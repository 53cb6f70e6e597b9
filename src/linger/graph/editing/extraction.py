# SPDX-License-Identifier: Apache-2.0
"""Extract a part of a model as a new model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

import onnx
import onnx_ir as ir

from linger.errors import GraphError, LingerError, UsageError, listing
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import is_newer
from linger.graph.core.replace_value import learn_type
from linger.graph.core.walking import all_nodes, called_functions, defined_in, inputs_within, nodes_within
from linger.graph.editing.search import Scopes, TensorLike
from linger.graph.files.model_io import copied, own_types
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
    if not outputs:
        raise UsageError("extract: there are no outputs. Name at least one tensor.")
    starts, ends = _boundary(model, inputs, outputs)
    seen = _needed_tensors(model, starts, ends)
    _require_complete(model, starts, seen)
    part = _cloned(model, starts, ends, seen - set(starts))
    _complete_types(model, part)
    return part


def _boundary(
    model: ir.Model, inputs: Sequence[TensorLike], outputs: Sequence[TensorLike]
) -> tuple[list[ir.Value], list[ir.Value]]:
    """The tensors where a part begins and ends, each named once and of the main graph."""
    scopes = Scopes.of(model)
    starts, ends = scopes.tensors(inputs), scopes.tensors(outputs)
    twice = [v.name or "?" for some in (starts, ends) for v in dict.fromkeys(some) if some.count(v) > 1]
    if twice:
        raise UsageError(f"extract: {listing(twice)} is named twice. Name it once.")
    inside = [v.name or "?" for v in (*starts, *ends) if v.graph is not model.graph]
    if inside:
        raise UsageError(
            f"extract: {listing(inside)} belongs to a sub-graph. Only tensors of the main graph can be named."
        )
    return starts, ends


def _needed_tensors(model: ir.Model, starts: Sequence[ir.Value], ends: Sequence[ir.Value]) -> set[ir.Value]:
    """The tensors of the main graph that the ends are computed from, back to the starts."""
    seen: set[ir.Value] = set()
    waiting = list(ends)
    while waiting:
        value = waiting.pop()
        if value in seen or value.graph not in (model.graph, None):
            continue  # a tensor inside a branch
        seen.add(value)
        node = value.producer()
        if value not in starts and node is not None:
            waiting += inputs_within(node)
    unmade = sorted(v.name or "?" for v in seen if v.graph is None)
    if unmade:
        raise GraphError(f"extract: no node makes {listing(unmade)}, which is used. Repair the model first.")
    return seen


def _require_complete(model: ir.Model, starts: Sequence[ir.Value], seen: set[ir.Value]) -> None:
    """Refuse inputs that the outputs do not need, and those that are missing."""
    missing = seen.difference(starts, model.graph.initializers.values())
    wrong = {
        "the outputs do not depend on {}, leave it out": [v.name for v in starts if v not in seen],
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
    for function in model.functions.values():
        used |= {function.domain, *function.opset_imports}
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
