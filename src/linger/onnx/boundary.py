# SPDX-License-Identifier: Apache-2.0
"""What stands between integers and floats: left out on request."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.dialect_node import all_nodes, is_dialect


def keep_integers_at_the_ends(model: ir.Model) -> None:
    """Graph inputs and outputs as integers: the Quant after an input and the Dequant before an output go.

    Device integrators feed and read the integers themselves. An input that a float op also reads keeps its Quant.
    """
    for node in [n for n in model.graph if is_dialect(n) and n.op_type == "Quant"]:
        source = node.inputs[0]
        if source is not None and source.is_graph_input() and len(source.uses()) == 1:
            kind = node.outputs[0].dtype
            assert kind is not None  # the types were inferred
            source.dtype = kind
            _bypass(model, node)
    for node in [n for n in model.graph if is_dialect(n) and n.op_type == "Dequant"]:
        if node.outputs[0].is_graph_output():
            _bypass(model, node)


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
        source.name = name
    del model
