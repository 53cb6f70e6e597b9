# SPDX-License-Identifier: Apache-2.0
"""A difference that a node with a body makes (If, Loop, Scan), followed into the body."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from linger.errors import LingerError
from linger.graph.core.walking import defined_in, graphs_in, inner_graphs, inputs_within
from linger.graph.files.external_data import exchanged, in_memory
from linger.graph.files.model_io import load
from linger.verification.differences import Arrays
from linger.verification.proof.comparison import Batch, Comparison
from linger.verification.proof.result import Divergence
from linger.verification.recording import Recording

MOST_ITERATIONS = 256
"""How far a loop is followed."""

Feeds = dict[str, NDArray[Any]]


def look_inside(comparison: Comparison) -> Divergence | None:
    """The first difference; where a node with a body makes it out of inputs that agree, with the place inside.

    The body runs on its own, on the inputs that numpy has, iteration by iteration, until numpy and ONNX Runtime differ.
    Where it cannot be run on its own the difference stays as it is.
    """
    first, batch = comparison.first, comparison.first_batch
    levels = {comparison.way.label(level): level for level in comparison.way.levels}
    if first is None or batch is None or first.found_by not in levels or first.inputs_agree is False:
        return first
    node = next(n for n in comparison.model.graph if any(o.name == first.tensor for o in n.outputs))
    if not inner_graphs(node):
        return first
    way = replace(comparison.way, levels=(levels[first.found_by],))
    try:
        inside = _run_body(node, comparison.model, batch, lambda body: Comparison(body, way))
    except (LingerError, StopIteration):
        return first
    return first if inside is None else replace(first, inside=inside)


def _run_body(node: ir.Node, model: ir.Model, batch: Batch, compare: Any) -> Divergence | None:
    values = {**batch.reference, **batch.feeds}
    body, rounds = _rounds(node, values)
    if body is None:
        return None
    captured = {name: values[name] for name in _captured(body) if name in values}
    inner: Comparison | None = None
    outcome: dict[str, NDArray[Any]] = {}
    for number, feeds in enumerate(rounds(outcome)):
        if number == MOST_ITERATIONS:
            break
        given = {**feeds, **captured}
        inner = inner or compare(_as_model(body, model, given))
        outcome.update(inner.add(Recording(list(given.values()), input_names=tuple(given))).reference)
        if inner.first is not None:
            found = look_inside(inner)
            unit = "branch" if node.op_type == "If" else "iteration"
            return None if found is None else replace(found, unit=unit)
    return None


def _rounds(node: ir.Node, values: Arrays) -> tuple[ir.Graph | None, Any]:
    """The body that runs, and a function that makes the inputs of each round from the outcome of the one before."""
    inputs = [None if v is None else values.get(v.name or "") for v in node.inputs]
    if node.op_type == "If" and inputs[0] is not None:
        branch = node.attributes["then_branch" if bool(np.asarray(inputs[0]).reshape(())) else "else_branch"]
        return branch.as_graph(), lambda _: iter([{}])
    body = node.attributes["body"].as_graph() if "body" in node.attributes else None
    if body is None or any(v is not None and a is None for v, a in zip(node.inputs, inputs, strict=True)):
        return None, None
    if node.op_type == "Loop":
        return body, lambda last: _loop(body, inputs, last)
    if node.op_type == "Scan" and not {"scan_input_axes", "scan_input_directions"} & set(node.attributes):
        count = node.attributes["num_scan_inputs"].as_int()
        return body, lambda last: _scan(body, inputs, count, last)
    return None, None


def _loop(body: ir.Graph, inputs: list[Any], last: Arrays) -> Iterator[Feeds]:
    count, goes_on, *state = inputs
    names = [v.name or "" for v in body.inputs]
    goes_on = np.ones((), bool) if goes_on is None else goes_on
    number = 0
    while bool(np.asarray(goes_on).reshape(())) and (count is None or number < int(np.asarray(count).reshape(()))):
        yield dict(zip(names, [np.array(number, np.int64), np.asarray(goes_on).reshape(()), *state], strict=True))
        goes_on, *state = (last[v.name or ""] for v in body.outputs[: len(names) - 1])
        number += 1


def _scan(body: ir.Graph, inputs: list[Any], count: int, last: Arrays) -> Iterator[Feeds]:
    state, sequences = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
    names = [v.name or "" for v in body.inputs]
    for number in range(sequences[0].shape[0]):
        yield dict(zip(names, [*state, *(s[number] for s in sequences)], strict=True))
        state = [last[v.name or ""] for v in body.outputs[: len(state)]]


def _captured(body: ir.Graph) -> list[str]:
    """Tensors of the graphs around a body that it uses, or that it hands out as they are."""
    inside = {value for place in graphs_in(body) for value in defined_in(place.graph)}
    used = [v for n in body for v in inputs_within(n)] + list(body.outputs)
    return list(dict.fromkeys(v.name for v in used if v not in inside and v.name))


def _as_model(body: ir.Graph, model: ir.Model, feeds: Mapping[str, NDArray[Any]]) -> ir.Model:
    """A body as a model of its own, with what it captures as further inputs."""
    with exchanged(model, in_memory(model)):  # a model on its own has no folder with data files
        proto = onnx.ModelProto(ir_version=model.ir_version, graph=ir.to_proto(body))
        proto.functions.extend(ir.to_proto(function) for function in model.functions.values())
    for domain, version in model.graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    del proto.graph.input[:]
    for name, array in feeds.items():
        described = proto.graph.input.add(name=name)
        described.type.tensor_type.elem_type = int(ir.DataType.from_numpy(array.dtype))
    return load(proto)
