# SPDX-License-Identifier: Apache-2.0
"""Nodes that are right at one size only, in a file that leaves the sizes of its pictures open."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from linger.graph import check_rules as rules
from linger.graph.dialect_node import is_dialect
from linger.graph.finding import Finding
from linger.graph.node_places import Place, Whole

_POOLS = frozenset({"AvgPool2dInt", "MaxPool"})
_RESIZING = frozenset(
    {"iqAdaptiveAvgPool", "iqLargest", "iqInterpolate", "LinearInt", "BmmInt", "Gather", "LSTMInt", "GRUInt"}
)
_REMEDY = "Export the model again, which computes this from the shape, or fix the size of the input."


def open_size_findings(whole: Whole) -> Iterator[Finding]:
    """Windows and weights of one size behind an input whose height or width is open."""
    for place in whole.places:
        reason = _reason(place)
        if reason is not None:
            yield place.finding(rules.ONE_SIZE, reason, _REMEDY)


def _reason(place: Place) -> str | None:
    node = place.node
    if node.op_type not in (*_POOLS, "iqInterpolate") or not node.inputs:
        return None
    source = _open_picture(node.inputs[0])
    if source is None:
        return None
    if node.op_type in _POOLS:
        is_flattened = any(_is_flattened_for_product(use.node) for value in node.outputs for use in value.uses())
        what = "its window has a fixed size, and a layer behind it takes the result of one size of the picture only"
        return f"the input {source.name!r} leaves the picture's size open, but {what}" if is_flattened else None
    if any(value is not None and value.is_initializer() for value in node.inputs[1:]):
        return f"the input {source.name!r} leaves the picture's size open, but its weights are those of one size"
    return None


def _open_picture(value: ir.Value | None) -> ir.Value | None:
    """The input of the graph that a picture comes from, through ops that keep an open size open; None: nothing is known."""
    while value is not None and value.producer() is not None:
        node = value.producer()
        assert node is not None  # asked above
        keeps_sizes = (is_dialect(node) and node.op_type not in _RESIZING) or node.op_type in (
            "Relu",
            "Clip",
            "MaxPool",
        )
        value = node.inputs[0] if keeps_sizes and node.inputs else None
    if value is None or not value.is_graph_input() or value.shape is None or len(value.shape) != 4:
        return None
    return value if any(not isinstance(dim, int) for dim in list(value.shape)[2:]) else None


def _is_flattened_for_product(node: ir.Node) -> bool:
    """Whether all axes but the first become the features of a layer with weights of a fixed size."""
    axis = node.attributes.get("axis")
    is_flat = node.op_type == "Flatten" and (axis is None or axis.as_int() == 1)
    uses = [use.node for value in node.outputs for use in value.uses()]
    return is_flat and any(use.op_type == "LinearInt" and _is_constant(use) for use in uses)


def _is_constant(node: ir.Node) -> bool:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return weight is not None and weight.is_initializer()
