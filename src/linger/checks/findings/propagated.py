# SPDX-License-Identifier: Apache-2.0
"""Where nodes do not fit together: types, scales, widths, and Dequants that are missing, misplaced or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import CheckedModel, NodePlace, model_finding
from linger.errors import GraphError
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import describe
from linger.graph.core.dialects import is_dequant, read_scale
from linger.graph.core.finding import Finding
from linger.graph.facts.propagation import Propagation, Use, propagate

_REPAIR = "linger.repair does so."


def propagation_findings(checked: CheckedModel, light: onnx.ModelProto) -> Iterator[Finding]:
    """Contradictions between producers and consumers, and Dequants that are missing, wrong or in the wrong place.

    Args:
        checked: The model.
        light: The same, which may lack its weights (`linger.checks.findings.verdicts.without_weights`), to be sorted if need be.
    """
    try:
        found, places = propagate(checked.model), _Places(checked)
    except GraphError:
        copy = CheckedModel.of(ir.from_proto(light))
        try:
            copy.model.graph.sort()
            found, places = propagate(copy.model), _Places(copy)
        except (GraphError, ValueError) as error:
            yield model_finding(
                rules.CYCLE,
                f"types and scales cannot be followed: {str(error).rstrip('.')}",
                "Break the circle.",
            )
            return
    yield from _contradictions(found, places)
    yield from _dequants(found, places)
    yield from _declarations(found, places)


class _Places:
    """Looks up the places of nodes that propagation names."""

    def __init__(self, checked: CheckedModel) -> None:
        self.checked = checked
        self._by_node = {place.node: place for place in checked.places}
        self._by_text: dict[str, NodePlace | None] = {}
        for place in checked.places:
            text = describe(place.node)
            self._by_text[text] = None if text in self._by_text else place

    def of(self, node: ir.Node) -> NodePlace:
        return self._by_node.get(node) or NodePlace(node)  # nodes of functions have no place in the graph

    def named(self, text: str) -> str:
        """The node that a text names, with its path where only one node can be meant."""
        place = self._by_text.get(text)
        return text if place is None else str(place)

    def knows(self, text: str) -> bool:
        return text in self._by_text


def _contradictions(found: Propagation, places: _Places) -> Iterator[Finding]:
    for finding in found.findings:
        if finding.rule == rules.MISSING_ATTRIBUTE.id:
            continue  # the schema says so
        if places.knows(finding.node):
            yield replace(finding, node=places.named(finding.node))
        else:  # an input or an output of a graph
            yield replace(finding, node="", reason=f"{finding.node}: {finding.reason}", tensor=_quoted(finding.node))


def _quoted(text: str) -> str:
    """The name between quotation marks."""
    return text.partition("'")[2].rpartition("'")[0]


def _dequants(found: Propagation, places: _Places) -> Iterator[Finding]:
    for use in found.missing:
        yield from _missing(found, places, use)
    for use in found.integer_uses:
        name = use.value.name or ""
        reason = f"it takes integers, and {name!r} is what a Dequant made of them"
        yield _at(
            places, use, rules.MISPLACED_DEQUANT, reason, f"Connect it to the tensor before the Dequant; {_REPAIR}"
        )
    for node, scale in found.wrong_scales:
        own, tensor = read_scale(node, "scale_o"), node.inputs[0]
        yield places.of(node).finding(
            rules.DEQUANT_SCALE,
            f"its scale_o is {'not valid' if own is None else f'{own:g}'}, and its tensor has the scale {scale:g}",
            f"Set scale_o to {scale:g}; {_REPAIR}",
            tensor="" if tensor is None else tensor.name or "",
        )
    for node in found.of_reals:
        yield places.of(node).finding(
            rules.DEQUANT_OF_FLOAT, "its tensor holds real numbers already", f"Remove it; {_REPAIR}"
        )


def _missing(found: Propagation, places: _Places, use: Use) -> Iterator[Finding]:
    name, fact = use.value.name or "", found.fact(use.value)
    reason = f"it needs real numbers, and {name!r} is {fact}"
    yield _at(
        places, use, rules.MISSING_DEQUANT, reason, f"Put a Dequant with the scale {fact.scale:g} between; {_REPAIR}"
    )


def _at(places: _Places, use: Use, rule: rules.CheckRule, reason: str, remedy: str) -> Finding:
    name = use.value.name or ""
    if isinstance(use.owner, ir.Node):
        return places.of(use.owner).finding(rule, reason, remedy, tensor=name)
    return model_finding(rule, f"output {name!r}: {reason}", remedy, tensor=name)


def _declarations(found: Propagation, places: _Places) -> Iterator[Finding]:
    """Tensors that are declared as something else; outputs that only lack a Dequant were named already."""
    told = {use.value for use in found.missing if not isinstance(use.owner, ir.Node)}
    for place in places.checked.places:
        for value in place.node.outputs:
            element = found.element(value)
            if element is None or value.dtype is None or value.dtype == element or value in told:
                continue
            yield place.finding(
                rules.DECLARED_TYPE,
                f"{value.name!r} is declared as {value.dtype.name.lower()}, and it computes {element.name.lower()}",
                f"Correct or remove the declaration; {_REPAIR}",
                tensor=value.name or "",
            )


def dequant_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Every further Dequant of a tensor that could use the first one's result instead: each output of a graph has its own."""
    first: dict[ir.Value, NodePlace] = {}
    for place in checked.places:
        node = place.node
        tensor = node.inputs[0] if is_dequant(node) and node.inputs else None
        if tensor is None:
            continue
        earlier = first.setdefault(tensor, place)
        graph = earlier.node.graph
        if _is_output(node) and (graph is not node.graph or _is_output(earlier.node)):
            continue
        if earlier is not place and isinstance(graph, ir.Graph) and place.within(graph) is not None:
            yield place.finding(
                rules.DUPLICATE_DEQUANT,
                f"{tensor.name!r} is dequantised by {earlier} already",
                "Let all consumers share one Dequant; linger.repair does.",
                tensor=tensor.name or "",
            )


def _is_output(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)
