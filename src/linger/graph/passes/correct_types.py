# SPDX-License-Identifier: Apache-2.0
"""Declare for every tensor the type that it has."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.changes import Changes
from linger.graph.flow import Flow
from linger.graph.propagation import propagate


def correct_types(model: ir.Model) -> Changes:
    """Correct declared element types that contradict what is computed; of the others, only outputs get one.

    Inputs of the model and initializers say themselves what they are. Requires: sorted nodes.
    """
    changes = Changes()
    found = propagate(model)
    for value in _computed(Flow.of(model)):
        element = found.element(value)
        if element is None or value.dtype == element or (value.dtype is None and not value.is_graph_output()):
            continue
        was = "it was not declared" if value.dtype is None else f"not {value.dtype.name.lower()}"
        changes.note(f"tensor {value.name!r}", f"is {element.name.lower()}, {was}")
        value.type = ir.TensorType(element)
    return changes


def _computed(flow: Flow) -> list[ir.Value]:
    formals = [v for graph in flow.owners for v in graph.inputs]
    return [*formals, *(o for node in flow.nodes() for o in node.outputs)]
