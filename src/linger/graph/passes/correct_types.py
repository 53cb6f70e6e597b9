# SPDX-License-Identifier: Apache-2.0
"""Declare for every tensor the type that it has."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.element_types import INTEGERS
from linger.graph.facts.flow import Flow
from linger.graph.facts.propagation import Propagation, propagate


def correct_types(model: ir.Model, found: Propagation | None = None) -> Changes:
    """Correct declared element types that contradict what is computed; of the others, only outputs get one.

    Inputs of the model and initializers say themselves what they are. Requires: sorted nodes.

    Args:
        model: The model.
        found: What `propagate` found in it, where that is known already.
    """
    changes = Changes()
    found = propagate(model) if found is None else found
    flow = Flow.of(model)
    open_ends = {v for function in flow.functions.values() for v in function.outputs}  # a function has no types
    for value in _computed(flow):
        element = found.element(value)
        is_open = value.dtype is None and (value in open_ends or not value.is_graph_output())
        if element is None or value.dtype == element or is_open or _is_broken_promise(value, found):
            continue
        was = "it was not declared" if value.dtype is None else f"not {value.dtype.name.lower()}"
        changes.note(f"tensor {value.name!r}", f"is {element.name.lower()}, {was}")
        value.type = ir.TensorType(element)
    return changes


def _is_broken_promise(value: ir.Value, found: Propagation) -> bool:
    """Whether an output is declared to be real, and integers come whose scale nobody knows: a finding says so."""
    is_real_end = value.is_graph_output() and value.dtype == ir.DataType.FLOAT
    return is_real_end and found.element(value) in INTEGERS and not found.fact(value).is_quantised


def _computed(flow: Flow) -> list[ir.Value]:
    formals = [v for graph in flow.owners for v in graph.inputs]
    return [*formals, *(o for node in flow.nodes() for o in node.outputs)]
