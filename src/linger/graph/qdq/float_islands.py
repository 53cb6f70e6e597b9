# SPDX-License-Identifier: Apache-2.0
"""Float ops between DequantizeLinear and QuantizeLinear, and whether integers could go through them as they are.

Quantizing is monotonic: it never reverses the order of two numbers. So ops that move, repeat, choose or limit numbers do
to the integers what they do to the floats, as long as all Q and DQ around them have one scale and one zero point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from linger.graph.core.nodes import NOTE, Finding, all_graphs, describe
from linger.graph.core.rewiring import needed_nodes
from linger.graph.core.tensor_types import takes
from linger.graph.qdq.qdq_node import (
    COMPARE,
    DEQUANTIZE,
    MOVE,
    MOVE_BYTES,
    QUANTIZE,
    WIDTHS,
    ByteFusing,
    Quantization,
    bounds_of,
    constant,
    data_inputs,
    data_outputs,
    is_moving,
    is_qdq,
    quantization_of,
    quantized,
    returns_every_integer,
)

_FIRST_OPSET = {
    4: {},
    8: dict.fromkeys((*MOVE, *MOVE_BYTES, "Concat", "Where"), 11) | dict.fromkeys(COMPARE, 12),
    16: dict.fromkeys((*MOVE, "Concat"), 11),
}
"""By the width of the integers, the opset from which ONNX Runtime 1.31 has an op's CPU kernel, as measured (Relu as Clip).

Left out: `Max` and `Min` of bytes, which ONNX Runtime 1.16 to 1.22 do not have, and Resize.
"""


_LEFT = "It stays as it is. Quantize both sides alike, as uint8 and for the whole tensor, to have it in integers."
_DEAD = (
    "some of its nodes lead nowhere and decide all the same which kernels ONNX Runtime chooses around them; on integers they "
    "would not, and other kernels round otherwise and may saturate on x64 CPUs without VNNI"
)
_OWN_KERNEL = (
    "ONNX Runtime has an integer kernel of its own for Where between them, QLinearWhere, and would choose another kernel for "
    "a Where of integers"
)
_TO_FILL = "Choose the rule fill_float_islands to have it in integers."
_REMEDIES = {
    "": _TO_FILL,
    _DEAD: "It stays as it is. Remove by hand what leads nowhere to have it in integers, and compare the numbers.",
    _OWN_KERNEL: "It stays as it is. Nothing needs to be done.",
}
"""What to do about an obstacle; `_LEFT` for all others."""


@dataclass(frozen=True)
class Island:
    """Connected float nodes, with nothing but DQ before and Q behind them.

    Attributes:
        nodes: The float nodes, in the order of the graph.
        sources: The DQ nodes before them.
        sinks: The Q nodes behind them.
        quantization: How all Q and DQ around quantize; None where they differ.
        obstacle: Why integers cannot go through as they are; empty where they can.
    """

    nodes: tuple[ir.Node, ...]
    sources: tuple[ir.Node, ...]
    sinks: tuple[ir.Node, ...]
    quantization: Quantization | None
    obstacle: str


def float_islands(model: ir.Model) -> list[Island]:
    """Every island of the model, in branches, bodies and functions too."""
    islands: list[Island] = []
    fusing = ByteFusing(model)
    for place in all_graphs(model):
        opset = (place.function.opset_imports if place.function is not None else model.opset_imports).get("", 0)
        islands += filter(None, (_island(nodes, opset, fusing) for nodes in _groups(place.graph)))
    if all(island.obstacle for island in islands):
        return islands
    needed = needed_nodes(model)
    return [replace(i, obstacle=i.obstacle or _dead_part(i, needed, fusing)) for i in islands]


def island_findings(model: ir.Model) -> tuple[Finding, ...]:
    """Every island as a note: integers could go through it as they are, or why not."""
    findings = []
    for island in float_islands(model):
        types = list(dict.fromkeys(node.op_type for node in island.nodes))
        reason = (
            f"{' and '.join(types)} {'works' if len(types) == 1 else 'work'} in float between DequantizeLinear and "
            f"QuantizeLinear: {island.obstacle or 'integers would give the same numbers'}"
        )
        remedy = _REMEDIES.get(island.obstacle, _LEFT)
        findings.append(Finding(NOTE, describe(island.nodes[0]), reason, remedy))
    return tuple(findings)


def _groups(graph: ir.Graph) -> list[list[ir.Node]]:
    """Moving nodes, grouped (union-find) so that nodes that pass data to each other within the graph are in one group."""
    leader = {node: node for node in graph if is_moving(node)}

    def lead(node: ir.Node) -> ir.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in leader:
        for maker in (_maker(node, index) for index in data_inputs(node)):
            if maker is not None and maker in leader:
                leader[lead(node)] = lead(maker)
    groups: dict[ir.Node, list[ir.Node]] = {}
    for node in leader:
        groups.setdefault(lead(node), []).append(node)
    return list(groups.values())


def _maker(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.producer()


def _island(nodes: list[ir.Node], opset: int, fusing: ByteFusing) -> Island | None:
    """The island that nodes form; None where other floats come in or go out."""
    before, behind = _sources(nodes), _sinks(nodes)
    if before is None or behind is None:
        return None
    kinds = {quantization_of(end) for end in (*before, *behind)}
    common = next(iter(kinds)) if len(kinds) == 1 else None
    if common is not None:
        obstacle = _obstacle(nodes, behind[0], common, opset) or _fused(before, behind, fusing)
    elif None in kinds:
        obstacle = "its scales are not constant or its integers are of no known type"
    else:
        obstacle = "scales, zero points or types before and behind it differ, so numbers are rounded anew"
    return Island(tuple(nodes), before, behind, common, obstacle)


def _sources(nodes: list[ir.Node]) -> tuple[ir.Node, ...] | None:
    """The DQ nodes that feed some nodes; None where other floats come in."""
    makers = dict.fromkeys(_maker(node, index) for node in nodes for index in data_inputs(node))
    inside = set(nodes)
    outside = [maker for maker in makers if maker not in inside]
    sources = tuple(maker for maker in outside if maker is not None and is_qdq(maker, DEQUANTIZE))
    return sources if len(sources) == len(outside) else None


def _sinks(nodes: list[ir.Node]) -> tuple[ir.Node, ...] | None:
    """The Q nodes that read the floats of some nodes; None where there are none, or the floats go elsewhere, too."""
    results, inside = _results(nodes), set(nodes)
    users = [use for use in _uses(results) if use[0] not in inside]
    if not users or any(result.is_graph_output() for result in results):
        return None
    is_sunk = all(is_qdq(user, QUANTIZE) and index == 0 for user, index in users)
    return tuple(dict.fromkeys(user for user, _ in users)) if is_sunk else None


def _results(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    return [output for node in nodes for output in data_outputs(node)]


def _uses(values: Iterable[ir.Value]) -> list[tuple[ir.Node, int]]:
    return [(use.node, use.idx) for value in values for use in value.uses()]


def _obstacle(nodes: list[ir.Node], sink: ir.Node, common: Quantization, opset: int) -> str:
    if not common.is_per_tensor:
        return "there is a scale for each channel"
    if not returns_every_integer(sink, common):
        return "float arithmetic does not give every integer back"
    for node in nodes:
        missing = _missing_form(node, common.element, opset) or _doubtful_bound(node, sink, common.element)
        if missing:
            return missing
    return _OWN_KERNEL if any(node.op_type == "Where" for node in nodes) else ""


def _fused(before: Iterable[ir.Node], behind: Iterable[ir.Node], fusing: ByteFusing) -> str:
    """The obstacle that ONNX Runtime makes unsigned bytes of int8 between Q and DQ only, not where an op reads the integers."""
    if not fusing.holds([*(node.inputs[0] for node in before), *(node.outputs[0] for node in behind)]):
        return ""
    return (
        "with int8 going through, ONNX Runtime on x64 would choose other kernels for the ops that compute before or behind "
        "it, which round otherwise and may saturate on CPUs without VNNI"
    )


def _dead_part(island: Island, needed: set[ir.Node], fusing: ByteFusing) -> str:
    """The obstacle that `remove_dead_code` keeps nodes that lead nowhere while they read a float result that others need."""
    results = _results(node for node in island.nodes if node in needed)
    readers = [user for user, _ in _uses(results) if user not in needed]
    return _DEAD if any(fusing.holds(reader.inputs) for reader in readers) else ""


def _missing_form(node: ir.Node, element: ir.DataType, opset: int) -> str:
    first = _FIRST_OPSET[WIDTHS[element]].get(node.op_type)
    op_type = "Clip" if node.op_type == "Relu" else node.op_type
    is_taken = takes(op_type, min(data_inputs(node), default=0), element, opset)
    if first is None or opset < first or not is_taken:
        since = "" if first is None else f" before opset {max(first, opset + 1)}"
        return f"there is no {node.op_type} of {element.name.lower()}{since}"
    return ""


def _doubtful_bound(node: ir.Node, sink: ir.Node, element: ir.DataType) -> str:
    for index in bounds_of(node):
        tensor = constant(node.inputs[index])
        if tensor is None or tensor.size != 1:
            return f"the bounds or the border of {describe(node)} are computed"
        number = float(tensor.numpy().reshape(-1)[0])
        if quantized(number, sink, element) is None:
            return f"{number} in {describe(node)} lies between two integers, and kernels may round it either way"
    return ""
