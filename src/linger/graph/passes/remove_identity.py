# SPDX-License-Identifier: Apache-2.0
"""Identities go; an output that needs one to have a tensor of its own keeps it."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.replace_value import Takeover
from linger.graph.core.walking import all_graphs


def remove_identity(model: ir.Model) -> Changes:
    """Let users of an Identity use its input, in the main graph, in branches and bodies, and in functions.

    Leaves: Identities only in front of outputs whose tensor is an input, an initializer, a tensor of a graph around or an
    output already; names, order and declared types of all outputs as they were.
    """
    changes = Changes()
    takeover = Takeover(model)
    for place in all_graphs(model):
        for node in tuple(place.graph):
            if node.op_type != "Identity" or node.domain or len(node.inputs) != 1 or len(node.outputs) != 1:
                continue
            (x,), (y,) = node.inputs, node.outputs
            where, before, after = describe(node), x and x.name, y.name
            if x is None or not takeover.replace(y, x):
                continue
            takeover.discard(node)
            said = f"{before} is called {after} now" if x.name != before else f"{before} takes its place"
            changes.note(where, f"removed: {said}")
    takeover.finish()
    return changes
