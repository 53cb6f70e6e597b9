# SPDX-License-Identifier: Apache-2.0
"""Dequants that there are too many of."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Place, Whole
from linger.graph.core import check_rules as rules
from linger.graph.core.dialects import is_dequant
from linger.graph.core.finding import Finding


def dequant_findings(whole: Whole) -> Iterator[Finding]:
    """Every Dequant after the first one of a tensor that sees that one."""
    first: dict[ir.Value, Place] = {}
    for place in whole.places:
        node = place.node
        tensor = node.inputs[0] if is_dequant(node) and node.inputs else None
        if tensor is None:
            continue
        earlier = first.setdefault(tensor, place)
        graph = earlier.node.graph
        if earlier is not place and isinstance(graph, ir.Graph) and place.within(graph) is not None:
            yield place.finding(
                rules.DUPLICATE_DEQUANT,
                f"{tensor.name!r} is dequantised by {earlier} already",
                "Let all consumers share one Dequant; linger.repair does.",
                tensor=tensor.name or "",
            )
