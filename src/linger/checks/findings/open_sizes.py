# SPDX-License-Identifier: Apache-2.0
"""Sizes that a file leaves open: those of its inputs, and nodes behind them that are right at one size only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import CheckedModel, model_finding
from linger.dialect import Op, ops
from linger.errors import listing
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.finding import NOTE, Finding

_REMEDY = "Export the model again, which computes this from the shape, or fix the size of the input."


def size_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Inputs whose sizes are open."""
    severity = None if checked.has_dialect else NOTE  # only packers stop at a size without a name
    for value in checked.model.graph.inputs:
        if not value.is_initializer():
            yield from _input_findings(value.name or "", value.shape, severity)


def _input_findings(name: str, shape: ir.Shape | None, severity: str | None) -> Iterator[Finding]:
    sizes = {str(i): size.value for i, size in enumerate(shape or ()) if isinstance(size, ir.SymbolicDim)}
    unnamed, named = [i for i in sizes if not sizes[i]], list(filter(None, sizes.values()))
    if shape is None or unnamed:
        which = f"no size and no name at axis {listing(unnamed)}" if unnamed else "no shape"
        yield model_finding(
            rules.UNNAMED_SIZE,
            f"the input {name!r} has {which}",
            "Export with fixed sizes, or name the open ones.",
            tensor=name,
            severity=severity,
        )
    if named:
        yield model_finding(
            rules.DYNAMIC_SIZE,
            f"the input {name!r} has open sizes ({listing(named)})",
            "Fix them before the file goes to a device.",
            tensor=name,
        )


def open_size_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Windows and weights of one size behind an input whose height or width is open."""
    pictures = _open_pictures(place.node for place in checked.places)
    for place in checked.places:
        source = pictures.get(place.node.inputs[0]) if place.node.inputs else None
        reason = None if source is None else _reason(place.node)
        if source is not None and reason is not None:
            what = f"the input {source.name!r} leaves the picture's size open, but {reason}"
            yield place.finding(rules.ONE_SIZE, what, _REMEDY)


def _reason(node: ir.Node) -> str | None:
    """Why a node that gets a picture of open size is right at one size only; None: it is right at every size."""
    op = ops().get(node.op_type)
    if op is None:
        return None
    if op.window_axes and op.weight_axes is None:
        is_flattened = any(_is_flattened_for_product(use.node) for value in node.outputs for use in value.uses())
        reason = "its window has a fixed size, and a layer behind it takes the result of one size of the picture only"
        return reason if is_flattened else None
    return "its weights are those of one size" if _has_sized_weights(node, op) else None


def _has_sized_weights(node: ir.Node, op: Op) -> bool:
    """Whether an input that belongs to one size of the picture is a constant."""
    given = zip(op.inputs, node.inputs, strict=False)
    sized = [value for name, value in given if name in op.sized_inputs and value is not None]
    return any(value.is_initializer() for value in sized)


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
            waiting += [(output, source) for output in _open_results(value)]
    return found


def _open_results(value: ir.Value) -> Iterator[ir.Value]:
    """The tensors that are open because this one is."""
    for use in value.uses():
        if use.idx == 0 and _keeps_sizes(use.node):
            yield from use.node.outputs


def _is_open(value: ir.Value) -> bool:
    """Whether a tensor is an input of the graph, a batch of pictures, with a height or width that is not fixed."""
    is_picture = value.is_graph_input() and value.shape is not None and len(value.shape) == 4
    return is_picture and any(not isinstance(dim, int) for dim in list(value.shape or ())[2:])


def _keeps_sizes(node: ir.Node) -> bool:
    """Whether an open size of a node's first input leaves its outputs open."""
    op = ops().get(node.op_type)
    if is_dialect(node):
        return op is None or op.keeps_open_sizes
    return op is not None and op.standard_name is not None


def _is_flattened_for_product(node: ir.Node) -> bool:
    """Whether all axes but the first become the features of a layer with weights of a fixed size."""
    axis = node.attributes.get("axis")
    is_first = axis is None or (axis.type is ir.AttributeType.INT and not axis.is_ref() and axis.value == 1)
    uses = [use.node for value in node.outputs for use in value.uses()]
    return node.op_type == "Flatten" and is_first and any(_has_fixed_weights(use) for use in uses)


def _has_fixed_weights(node: ir.Node) -> bool:
    """Whether a node is a matrix product with constant weights."""
    op = ops().get(node.op_type)
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    is_product = op is not None and op.limit is math.prod and op.weight_axes == 2
    return is_product and weight is not None and weight.is_initializer()
