# SPDX-License-Identifier: Apache-2.0
"""Take away Dequants that should not be there."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.names import Names
from linger.graph.core.replace_value import Takeover, become_identity
from linger.graph.facts.claims import DEQUANT, is_dequant, read_scale
from linger.graph.facts.fact_book import Propagation, Use
from linger.graph.facts.flow import Flow, home_of, place_early
from linger.graph.facts.propagation import propagate


def remove_dequant(model: ir.Model) -> Changes:
    """Let ops that take integers have them; drop Dequants of real numbers, second ones of a tensor, and unused ones.

    Requires: sorted nodes. Leaves: every op that takes integers reading them, one Dequant per tensor, scale and place. What
    becomes real numbers without need of a Dequant is not decided here: `insert_dequant` follows.
    """
    changes = Changes()
    found = propagate(model)
    flow = Flow.of(model)
    takeover = Takeover(model)
    kept = [use for use in found.kept_real if not is_dequant(use.value.producer())]
    for node in found.of_reals:
        (x, *_), (y,) = node.inputs, node.outputs
        assert x is not None  # else it would be no Dequant
        changes.note(describe(node), f"taken away: {_name(x)} holds real numbers already")
        if takeover.replace(y, x):
            takeover.discard(node)
        else:
            become_identity(node, x)
    takeover.finish()
    for use in found.integer_uses:
        _bypass(use, found, changes)
    if kept:
        _keep_real(kept, found, flow, changes)
        flow = Flow.of(model)
    _merge(flow, changes)
    if changes:
        flow.sort()  # the Dequant that stays may stand behind what now reads it
    for node in [n for n in flow.nodes() if is_dequant(n)]:
        if not any(o.uses() or o.is_graph_output() for o in node.outputs):
            changes.note(describe(node), "removed: nothing uses it")
            _remove(node)
    return changes


def _bypass(use: Use, found: Propagation, changes: Changes) -> None:
    """Read what stands before the Dequants."""
    value = use.value
    source = _before_dequants(value)
    changes.note(str(use), f"takes the integers {_name(source)} ({found.fact(source)}) instead of {_name(value)}")
    if isinstance(use.owner, ir.Node):
        use.owner.replace_input_with(use.index, source)
        return
    graph = use.owner
    if home_of(source) is not graph or source.producer() is None or source.is_graph_output():
        identity = ir.Node("", "Identity", [source], name=f"{value.name}_integers")
        identity.outputs[0].name = f"{value.name}_integers"
        graph.append(identity)
        source = identity.outputs[0]
    graph.outputs[use.index] = source


def _keep_real(uses: list[Use], found: Propagation, flow: Flow, changes: Changes) -> None:
    """What takes whatever it gets had real numbers: it has them still, from a Dequant right before it."""
    nodes = list(flow.nodes())
    taken = Names([*(n.name or "" for n in nodes), *(o.name or "" for n in nodes for o in n.outputs)])
    domain = next(n.domain for n in nodes if is_dequant(n))
    for use in uses:
        value, node = use.value, use.owner
        assert isinstance(node, ir.Node)  # outputs of graphs have a type
        assert node.graph is not None  # it came from a graph
        scale = found.fact(value).scale
        assert scale is not None  # otherwise it is a finding
        name = taken.choose(f"{value.name}_dequant")
        new = ir.Node(domain, DEQUANT, [value], attributes=[ir.AttrFloat32("scale_o", scale)], name=name)
        new.outputs[0].name, new.outputs[0].type = name, ir.TensorType(ir.DataType.FLOAT)
        node.graph.insert_before(node, new)
        node.replace_input_with(use.index, new.outputs[0])
        changes.note(str(use), f"keeps the real numbers of {_name(value)} ({found.fact(value)})")


def _before_dequants(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and is_dequant(node) and (before := node.inputs[0]) is not None:
        value = before
    return value


def _merge(flow: Flow, changes: Changes) -> None:
    """One Dequant for all that can see it; outputs of graphs keep theirs, since each has a name of its own."""
    by_tensor: dict[tuple[ir.Value, float | None], list[ir.Node]] = {}
    for node in flow.nodes():
        value = node.inputs[0] if is_dequant(node) and node.inputs else None
        if value is not None:
            by_tensor.setdefault((value, read_scale(node, "scale_o")), []).append(node)
    for nodes in by_tensor.values():
        if len(nodes) > 1:
            _merge_equal(nodes, flow, changes)


def _merge_equal(nodes: list[ir.Node], flow: Flow, changes: Changes) -> None:
    kept: dict[ir.Graph, ir.Node] = {}
    for node in sorted(nodes, key=lambda n: not n.outputs[0].is_graph_output()):  # stable: the first stays
        assert node.graph is not None  # it came from a graph
        kept.setdefault(node.graph, node)
    for node in nodes:
        twin = next((kept[g] for g in _scopes(node.graph, flow) if g in kept and kept[g] is not node), None)
        if twin is None or node.outputs[0].is_graph_output():
            continue
        changes.note(describe(node), f"removed: {describe(twin)} does the same")
        node.outputs[0].replace_all_uses_with(twin.outputs[0])
        _remove(node)
        assert twin.graph is not None  # it came from a graph
        graph = twin.graph
        graph.remove(twin)  # it may stand behind what reads it now
        place_early(twin, graph)


def _scopes(graph: ir.Graph | None, flow: Flow) -> list[ir.Graph]:
    """A graph and those around it, the outermost first."""
    found: list[ir.Graph] = []
    while graph is not None:
        found.append(graph)
        owner = flow.owners.get(graph)
        graph = None if owner is None else owner.graph
    return found[::-1]


def _remove(node: ir.Node) -> None:
    assert node.graph is not None  # it came from a graph
    node.graph.remove(node, safe=True)


def _name(value: ir.Value | None) -> str:
    return repr(None if value is None else value.name)
