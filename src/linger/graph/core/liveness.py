# SPDX-License-Identifier: Apache-2.0
"""Which nodes the outputs of a model, or effects, depend on; all others lead nowhere."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from linger.graph.core.effects import Effects
from linger.graph.core.walking import all_graphs, inner_graphs


def needed_nodes(model: ir.Model) -> set[ir.Node]:
    """The nodes that outputs or effects depend on, in any graph. A node has the effects of those inside it."""
    effects, found = Effects(model), all_graphs(model)
    waiting = [node for place in found for node in place.graph if effects.has_effect(node)]
    waiting += [node for place in found if place.owner is None for node in makers(place.graph.outputs)]
    return with_makers(set(), waiting)


def with_makers(known: set[ir.Node], more: Iterable[ir.Node]) -> set[ir.Node]:
    """Some nodes, others, and all that these others depend on."""
    needed, waiting = set(known), list(more)
    while waiting:
        node = waiting.pop()
        if node in needed:
            continue
        needed.add(node)
        waiting += makers(node.inputs)
        waiting += [maker for graph in inner_graphs(node) for maker in makers(graph.outputs)]
    return needed


def makers(values: Iterable[ir.Value | None]) -> list[ir.Node]:
    """The nodes that make some tensors."""
    nodes = (value.producer() for value in values if value is not None)
    return [maker for maker in nodes if maker is not None]
