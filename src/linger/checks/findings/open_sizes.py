# SPDX-License-Identifier: Apache-2.0
"""Nodes that are right at one size only, in a file that leaves the sizes of its pictures open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Whole
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.finding import Finding

_POOLS = frozenset({"AvgPool2dInt", "MaxPool"})
_RESIZING = frozenset(
    {"iqAdaptiveAvgPool", "iqLargest", "iqInterpolate", "LinearInt", "BmmInt", "Gather", "LSTMInt", "GRUInt"}
)
_REMEDY = "Export the model again, which computes this from the shape, or fix the size of the input."


def open_size_findings(whole: Whole) -> Iterator[Finding]:
    """Windows and weights of one size behind an input whose height or width is open."""
    pictures = _open_pictures(place.node for place in whole.places)
    for place in whole.places:
        source = pictures.get(place.node.inputs[0]) if place.node.inputs else None
        reason = None if source is None else _reason(place.node)
        if source is not None and reason is not None:
            what = f"the input {source.name!r} leaves the picture's size open, but {reason}"
            yield place.finding(rules.ONE_SIZE, what, _REMEDY)


def _reason(node: ir.Node) -> str | None:
    """Why a node that gets a picture of open size is right at one size only; None: it is right at every size."""
    if node.op_type in _POOLS:
        is_flattened = any(_is_flattened_for_product(use.node) for value in node.outputs for use in value.uses())
        reason = "its window has a fixed size, and a layer behind it takes the result of one size of the picture only"
        return reason if is_flattened else None
    has_weights = any(value is not None and value.is_initializer() for value in node.inputs[1:])
    return "its weights are those of one size" if node.op_type == "iqInterpolate" and has_weights else None


def _open_pictures(nodes: Iterable[ir.Node]) -> dict[ir.Value | None, ir.Value]:
    """Tensors whose height or width is open, each with the input of the graph that it comes from.

    Goes forward from the inputs and meets every tensor once, since a file that is checked may be large or go in a circle.
    """
    waiting = [(value, value) for node in nodes for value in node.inputs if value is not None and _is_open(value)]
    found: dict[ir.Value | None, ir.Value] = {}
    while waiting:
        value, source = waiting.pop()
        if value not in found:
            found[value] = source
            kept = (use.node for use in value.uses() if use.idx == 0 and _keeps_sizes(use.node))
            waiting += [(output, source) for node in kept for output in node.outputs]
    return found


def _is_open(value: ir.Value) -> bool:
    """Whether a tensor is an input of the graph, a batch of pictures, with a height or width that is not fixed."""
    is_picture = value.is_graph_input() and value.shape is not None and len(value.shape) == 4
    return is_picture and any(not isinstance(dim, int) for dim in list(value.shape or ())[2:])


def _keeps_sizes(node: ir.Node) -> bool:
    """Whether an open size of a node's first input leaves its outputs open."""
    return node.op_type not in _RESIZING if is_dialect(node) else node.op_type in ("Relu", "Clip", "MaxPool")


def _is_flattened_for_product(node: ir.Node) -> bool:
    """Whether all axes but the first become the features of a layer with weights of a fixed size."""
    axis = node.attributes.get("axis")
    is_first = axis is None or (axis.type is ir.AttributeType.INT and not axis.is_ref() and axis.value == 1)
    uses = [use.node for value in node.outputs for use in value.uses()]
    return (
        node.op_type == "Flatten" and is_first and any(use.op_type == "LinearInt" and _is_constant(use) for use in uses)
    )


def _is_constant(node: ir.Node) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return weight is not None and weight.is_initializer()
