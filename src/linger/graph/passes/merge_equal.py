# SPDX-License-Identifier: Apache-2.0
"""Merge nodes that compute the same from the same inputs, and initializers of equal content."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.replace_value import ValueReplacer
from linger.graph.core.tensor_content import attributes_key, tensor_key
from linger.graph.core.unused import Effects
from linger.graph.core.walking import all_graphs, in_order
from linger.graph.qdq.qdq_node import ByteFusing, is_qdq_parameter


def merge_duplicates(model: ir.Model) -> Changes:
    """Merge nodes of one graph that have the same op, inputs and attributes; the first one in order stays.

    Not merged: nodes with branches or bodies, nodes that draw random numbers, ops of unknown domains, nodes that decide
    which kernels ONNX Runtime chooses for Q/DQ files (`ByteFusing`). Of two equal nodes whose results are both outputs,
    both stay, and the second one serves its output alone.

    Raises:
        GraphError: Nodes depend on each other in a circle.
    """
    changes = Changes()
    replacer, effects, fusing = ValueReplacer(model), Effects(model), ByteFusing(model)
    for place in all_graphs(model):
        first: dict[Hashable, ir.Node] = {}
        for node in in_order(place):
            key = None if fusing.holds([*node.inputs, *node.outputs]) else _key(node, effects)
            if key is None:
                continue
            kept = first.setdefault(key, node)
            if kept is not node:
                _merge_nodes(kept, node, replacer, changes)
    replacer.finish()
    return changes


def _key(node: ir.Node, effects: Effects) -> Hashable | None:
    attributes = attributes_key(node)
    if attributes is None or effects.is_random(node):
        return None
    present = tuple(bool(output.name) for output in node.outputs)
    return node.op_identifier(), tuple(node.inputs), attributes, present


def _merge_nodes(kept: ir.Node, node: ir.Node, replacer: ValueReplacer, changes: Changes) -> None:
    pairs = list(zip(node.outputs, kept.outputs, strict=True))
    if all(replacer.is_possible(old, new) for old, new in pairs):
        for old, new in pairs:
            replacer.replace(old, new)
        changes.note(describe(node), f"merged with {describe(kept)}, which computes the same")
        replacer.discard(node)
        return
    shared = [replacer.share(old, new) for old, new in pairs]
    if any(shared):
        changes.note(describe(node), f"serves its output alone: {describe(kept)} computes the same for all others")


def merge_initializers(model: ir.Model) -> Changes:
    """Merge initializers of one graph that are equal bit for bit; the first one stays, an output before others.

    Content is read only where type and shape agree. Not merged: tensors in other files (which are not read), inputs with
    a default, and scales and zero points of Q/DQ nodes, of which tools want one for each node.
    """
    changes = Changes()
    replacer = ValueReplacer(model)
    for place in all_graphs(model):
        alike: dict[Hashable, list[ir.Value]] = {}
        for value in place.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or isinstance(tensor, ir.ExternalTensor) or value.is_graph_input():
                continue
            if not is_qdq_parameter(value):
                alike.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), []).append(value)
        for values in alike.values():
            if len(values) > 1:
                _merge_tensors(values, replacer, changes)
    return changes


def _merge_tensors(values: list[ir.Value], replacer: ValueReplacer, changes: Changes) -> None:
    first: dict[Hashable, ir.Value] = {}
    for value in sorted(values, key=lambda v: not v.is_graph_output()):  # stable: outputs first
        assert value.const_value is not None  # only those were collected
        kept = first.setdefault(tensor_key(value.const_value), value)
        if kept is value or value.is_graph_output() or not replacer.replace(value, kept):
            continue
        graph, name = value.graph, value.name
        assert graph is not None  # initializers belong to a graph and have names
        assert name is not None
        del graph.initializers[name]
        changes.note(name, f"initializer merged with {kept.name}, which holds the same")
