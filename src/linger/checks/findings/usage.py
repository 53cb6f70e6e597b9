# SPDX-License-Identifier: Apache-2.0
"""What a file holds for nothing: nodes, weights and inputs that no output depends on; and outputs listed twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from linger.checks.findings.node_places import Whole, model_finding
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding
from linger.graph.core.walking import inner_graphs


def usage_findings(whole: Whole) -> Iterator[Finding]:
    """Dead nodes in the order of the graph, then initializers and inputs that nobody uses."""
    alive = _alive(whole)
    for place in whole.places:
        if place.node not in alive and (place.outer is None or place.outer.node in alive):
            yield place.finding(rules.DEAD_NODE, "no output of the graph depends on it", "Remove it.")
    for way, graph in whole.graphs():
        for value in graph.initializers.values():
            if not _is_used(value):
                yield model_finding(
                    rules.UNUSED_INITIALIZER,
                    f"the initializer {way + (value.name or '')!r}{_weight(value)} is used by nothing",
                    "Remove it.",
                    tensor=value.name or "",
                )
        yield from _repeated_outputs(way, graph)
    for value in whole.model.graph.inputs:
        if not _is_used(value) and not value.is_initializer():
            yield model_finding(
                rules.UNUSED_INPUT,
                f"the input {value.name!r} is used by nothing",
                "Remove it, or connect it.",
                tensor=value.name or "",
            )


def _weight(value: ir.Value) -> str:
    tensor = value.const_value
    if tensor is None or tensor.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return ""
    return f" ({tensor.nbytes} bytes)"


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _alive(whole: Whole) -> set[ir.Node]:
    """The nodes that some output depends on; a branch's outputs count where the node that holds it does."""
    known = {place.node for place in whole.places}
    alive: set[ir.Node] = set()
    waiting = [value.producer() for value in whole.model.graph.outputs]
    while waiting:
        node = waiting.pop()
        if node is None or node in alive or node not in known:
            continue
        alive.add(node)
        waiting += [value.producer() for value in node.inputs if value is not None]
        waiting += [value.producer() for graph in inner_graphs(node) for value in graph.outputs]
    return alive


def _repeated_outputs(way: str, graph: ir.Graph) -> Iterator[Finding]:
    for name, count in Counter(value.name or "" for value in graph.outputs).items():
        if count > 1:
            yield model_finding(
                rules.REPEATED_OUTPUT,
                f"{way + name!r} is listed as an output {count} times",
                "List it once.",
                tensor=name,
            )
