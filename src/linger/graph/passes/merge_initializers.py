# SPDX-License-Identifier: Apache-2.0
"""Initializers of equal content become one."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.replace_value import Takeover
from linger.graph.core.tensor_content import tensor_key
from linger.graph.core.walking import all_graphs
from linger.graph.qdq.qdq_node import is_qdq_parameter


def merge_initializers(model: ir.Model) -> Changes:
    """Merge initializers of one graph that are equal bit for bit; the first one stays, an output before others.

    Content is read only where type and shape agree. Not merged: tensors in other files (which are not read), inputs with
    a default, and scales and zero points of Q/DQ nodes, of which tools want one for each node.
    """
    changes = Changes()
    takeover = Takeover(model)
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
                _merge(values, takeover, changes)
    return changes


def _merge(values: list[ir.Value], takeover: Takeover, changes: Changes) -> None:
    first: dict[Hashable, ir.Value] = {}
    for value in sorted(values, key=lambda v: not v.is_graph_output()):  # stable: outputs first
        assert value.const_value is not None  # only those were collected
        kept = first.setdefault(tensor_key(value.const_value), value)
        if kept is value or value.is_graph_output() or not takeover.replace(value, kept):
            continue
        graph, name = value.graph, value.name
        assert graph is not None  # initializers belong to a graph and have names
        assert name is not None
        del graph.initializers[name]
        changes.note(name, f"initializer merged with {kept.name}, which holds the same")
