# SPDX-License-Identifier: Apache-2.0
"""What stands between integers and floats: left out on request."""

from __future__ import annotations

import onnx_ir as ir

from linger.errors import listing
from linger.graph.core.dialect_node import is_dialect, opset_of
from linger.graph.core.walking import all_nodes
from linger.graph.facts.standard_ops import SHAPE_OPS, can_run

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
"""What may stand between an input and its Quant: integers pass as well as real numbers do."""


def keep_integers_at_the_ends(model: ir.Model) -> dict[str, str]:
    """Graph inputs and outputs as integers: the Quant behind an input and the Dequant before an output go.

    Device integrators feed and read the integers themselves. A Quant may stand behind ops that only move numbers.

    Returns:
        The float inputs that stay so, with the reason.
    """
    refused = {}
    for source in model.graph.inputs:
        if source.dtype == ir.DataType.FLOAT:
            reason = _take_integers(model, source)
            if reason:
                refused[source.name or ""] = reason
    for node in [n for n in model.graph if is_dialect(n) and n.op_type == "Dequant"]:
        if node.outputs[0].is_graph_output():
            _bypass(model, node)
    return refused


def _take_integers(model: ir.Model, source: ir.Value) -> str:
    """Make an input one of integers; returns why it cannot be, if so."""
    quants: list[ir.Node] = []
    moving: list[ir.Node] = []
    waiting = [source]
    while waiting:
        for use in waiting.pop().uses():
            node = use.node
            if is_dialect(node) and node.op_type == "Quant":
                quants.append(node)
            elif node.domain == "" and node.op_type in _MOVING and use.idx == 0:
                moving.append(node)
                waiting += node.outputs
            elif node.op_type not in SHAPE_OPS:
                return f"{node.name or 'a node'} ({node.op_type}) reads its real values"
    if any(value.is_graph_output() for node in moving for value in node.outputs):
        return "it is an output as well"
    return _quantise_once(model, source, quants, moving) if quants else ""


def _quantise_once(model: ir.Model, source: ir.Value, quants: list[ir.Node], moving: list[ir.Node]) -> str:
    formats = {(n.attributes["scale_x"].as_float(), n.outputs[0].dtype) for n in quants}
    if len(formats) > 1:
        return f"it is quantised with the scales {listing(f'{scale:g}' for scale, _ in sorted(formats, key=str))}"
    ((_, kind),) = formats
    assert kind is not None  # the types were inferred
    bits = quants[0].attributes["data_bits"].as_int()
    stuck = [n for n in moving if not can_run(n, kind, bits, opset_of(model))]
    if stuck:
        return f"{stuck[0].name or 'a node'} ({stuck[0].op_type}) takes no integers of {bits} bits"
    for value in (source, *(value for node in moving for value in node.outputs)):
        value.dtype = kind
    for node in quants:
        name, moved = node.outputs[0].name, node.inputs[0]
        _bypass(model, node)
        if moved is not None and not moved.is_graph_input():
            moved.name = name
    return ""


def remove_dequants(model: ir.Model) -> int:
    """Take every Dequant out and connect its consumers to the integers: a file to look at, not to run."""
    found = [n for n in all_nodes(model) if is_dialect(n) and n.op_type == "Dequant"]
    for node in found:
        _bypass(model, node)
    return len(found)


def _bypass(model: ir.Model, node: ir.Node) -> None:
    """Remove a one-input node; a graph output keeps its name, as the name of the tensor that takes its place."""
    source, result = node.inputs[0], node.outputs[0]
    assert source is not None and node.graph is not None  # noqa: PT018 - both hold for any node of a sorted graph
    name = result.name
    is_output = result.is_graph_output()
    result.replace_all_uses_with(source, replace_graph_outputs=True)
    node.graph.remove(node, safe=True)
    if is_output and not source.is_graph_input():
        source.name, source.shape = name, result.shape  # not every op's shape can be inferred
    del model
