# SPDX-License-Identifier: Apache-2.0
"""Quant and Dequant nodes at the ends of a graph, left out on request."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.errors import listing
from linger.graph.core.nodes import all_nodes, is_dialect, opset_of
from linger.graph.formats.flow import SHAPE_OPS, can_run

_MOVING = frozenset(
    {
        "Identity",
        "Reshape",
        "Transpose",
        "Squeeze",
        "Unsqueeze",
        "Flatten",
        "Slice",
        "Gather",
        "Expand",
        "Tile",
        "Split",
    }
)
"""Ops that may stand between an input and its Quant: they move integers as they move real numbers."""


def keep_integers_at_the_ends(model: ir.Model) -> dict[str, str]:
    """Make graph inputs and outputs integers: remove the Quant behind an input and the Dequant before an output.

    Device integrators feed and read the integers themselves. A Quant may stand behind ops that only move numbers.

    Returns:
        The inputs that stay float, each with the reason.
    """
    refused = {}
    for source in model.graph.inputs:
        if source.dtype == ir.DataType.FLOAT:
            reason = _take_integers(source, opset_of(model))
            if reason:
                refused[source.name or ""] = reason
    for node in [n for n in model.graph if _is(n, "Dequant")]:
        if node.outputs[0].is_graph_output():
            _bypass(node)
    return refused


def remove_dequants(model: ir.Model) -> int:
    """Take every Dequant out and connect its consumers to the integers: a file to look at, not to run."""
    found = [n for n in all_nodes(model) if _is(n, "Dequant")]
    for node in found:
        _bypass(node)
    return len(found)


def _take_integers(source: ir.Value, opset: int) -> str:
    """Make an input take integers; return the reason if that is not possible, else an empty text."""
    quants: list[ir.Node] = []
    moving: list[ir.Node] = []
    waiting = [source]
    while waiting:
        for use in waiting.pop().uses():
            node = use.node
            if _is(node, "Quant"):
                quants.append(node)
            elif use.idx == 0 and _only_moves(node):
                moving.append(node)
                waiting += node.outputs
            elif node.op_type not in SHAPE_OPS:
                return f"{_label(node)} reads its real values"
    if any(value.is_graph_output() for value in _outputs(moving)):
        return "it is an output as well"
    return _quantise_outside(source, quants, moving, opset) if quants else ""


def _quantise_outside(source: ir.Value, quants: list[ir.Node], moving: list[ir.Node], opset: int) -> str:
    """Remove the Quants of an input, so that the nodes before them move integers; return the reason if they cannot."""
    formats = sorted({(n.attributes["scale_x"].as_float(), n.outputs[0].dtype) for n in quants}, key=str)
    if len(formats) > 1:
        return f"it is quantised with the scales {listing(f'{scale:g}' for scale, _ in formats)}"
    kind = quants[0].outputs[0].dtype
    assert kind is not None  # `assemble` has inferred the types
    bits = quants[0].attributes["data_bits"].as_int()
    stuck = next((n for n in moving if not can_run(n, kind, bits, opset)), None)
    if stuck is not None:
        return f"{_label(stuck)} takes no integers of {bits} bits"
    for value in (source, *_outputs(moving)):
        value.dtype = kind
    for node in quants:
        _bypass_quant(node)
    return ""


def _bypass_quant(node: ir.Node) -> None:
    """Remove a Quant; if its input is the result of a moving op, that tensor gets the name of the integers."""
    name, moved = node.outputs[0].name, node.inputs[0]
    _bypass(node)
    if moved is not None and not moved.is_graph_input():
        moved.name = name


def _bypass(node: ir.Node) -> None:
    """Remove a node with one input; where its result is a graph output, the input gets the output's name."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None and node.graph is not None  # noqa: PT018 - both hold for any node of a sorted graph
    name = result.name
    is_output = result.is_graph_output()
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    if is_output and not source.is_graph_input():
        source.name, source.shape = name, result.shape  # not every op's shape can be inferred


def _is(node: ir.Node, op_type: str) -> bool:
    return is_dialect(node) and node.op_type == op_type


def _only_moves(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _MOVING


def _outputs(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [value for node in nodes for value in node.outputs]


def _label(node: ir.Node) -> str:
    return f"{node.name or 'a node'} ({node.op_type})"
