# SPDX-License-Identifier: Apache-2.0
"""Nodes stand in an order in which they can run."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.order import in_order
from linger.graph.core.walking import all_graphs


def sort_nodes(model: ir.Model) -> Changes:
    """Put every node after those that it, or a branch or body inside it, needs; in functions too.

    Nodes that can keep their order keep it.

    Raises:
        GraphError: Nodes depend on each other in a circle; those of one circle are named, and nothing is changed.
    """
    changes = Changes()
    ordered = [(place, in_order(place)) for place in all_graphs(model)]
    for place, nodes in ordered:
        before = list(place.graph)
        moved = sum(one is not other for one, other in zip(before, nodes, strict=True))
        if moved:
            place.graph.extend(nodes)  # a node that is in the graph already moves to its end
            changes.note(place.name, f"sorted: {moved} of {len(nodes)} nodes stood elsewhere")
    return changes
