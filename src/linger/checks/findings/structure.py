# SPDX-License-Identifier: Apache-2.0
"""The structure of the graph: tensors that nothing makes, wrong order, unused parts, constants that do not fit their shape."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import CheckedModel, NodePlace, model_finding
from linger.errors import listing
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding
from linger.graph.core.walking import defined_in, inner_graphs

Needs = dict[ir.Node, set[ir.Node]]


def structure_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Tensors that no node makes, names used twice, nodes that stand before what they need, circles."""
    yield from _undefined(checked)
    yield from _shadowed(checked)
    yield from _order(checked)


def _undefined(checked: CheckedModel) -> Iterator[Finding]:
    for place in checked.places:
        for value in dict.fromkeys(place.node.inputs):
            if value is not None and not _is_visible(place, value):
                yield place.finding(
                    rules.UNDEFINED_TENSOR,
                    f"it reads {value.name!r}, which nothing that it can see makes",
                    "Connect it to a tensor that exists.",
                    tensor=value.name or "",
                )
    for way, graph in checked.graphs():
        yield from (_undefined_output(way, value) for value in graph.outputs if not _is_defined(value))


def _undefined_output(way: str, value: ir.Value) -> Finding:
    return model_finding(
        rules.UNDEFINED_TENSOR,
        f"the output {value.name!r} of {_graph_name(way)} is made by no node",
        "Connect it, or remove the output.",
        tensor=value.name or "",
    )


def _graph_name(way: str) -> str:
    return way.rstrip("/") or "the graph"


def _is_visible(place: NodePlace, value: ir.Value) -> bool:
    return value.graph is not None and _is_defined(value) and place.within(value.graph) is not None


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _shadowed(checked: CheckedModel) -> Iterator[Finding]:
    """Names of a branch that a graph around it has too."""
    own = {graph: {value.name for value in defined_in(graph) if value.name} for _, graph in checked.graphs()}
    for place in checked.places:
        around = [own[_graph_of(outer)] for outer in place.around()]
        for value in place.node.outputs:
            if value.name and any(value.name in names for names in around):
                yield place.finding(
                    rules.SHADOWED_TENSOR,
                    f"its output {value.name!r} is called like a tensor around the branch",
                    "Rename it.",
                    tensor=value.name,
                )


def _graph_of(place: NodePlace) -> ir.Graph:
    graph = place.node.graph
    assert isinstance(graph, ir.Graph)  # places are found in graphs
    return graph


def _order(checked: CheckedModel) -> Iterator[Finding]:
    needs = _needs(checked)
    circular = _circular(needs)
    position = {place.node: index for index, place in enumerate(checked.places)}
    for place in checked.places:
        late = [n for n in needs[place.node] if position.get(n, -1) >= position[place.node]]
        if not late:
            continue
        if place.node in circular:
            yield place.finding(
                rules.CYCLE, "it needs a tensor that is computed from its own result", "Break the circle."
            )
        else:
            names = sorted(node.outputs[0].name or "" for node in late if node.outputs)
            reason = f"it stands before the nodes whose results it uses ({listing(filter(None, names))})"
            yield place.finding(rules.UNSORTED, reason, "Sort the nodes.")


def _needs(checked: CheckedModel) -> Needs:
    """For every node, the nodes of its own graph whose results it needs, those that its branches read included."""
    needs: Needs = {place.node: set() for place in checked.places}
    for place in checked.places:
        for maker in _makers(place.node):
            user = place.within(maker.graph) if isinstance(maker.graph, ir.Graph) else None
            if user is not None:
                needs[user.node].add(maker)
    return needs


def _makers(node: ir.Node) -> set[ir.Node]:
    """The nodes whose results a node reads, or a branch of it hands on."""
    read = [*node.inputs, *(output for graph in inner_graphs(node) for output in graph.outputs)]
    return {maker for value in read if value is not None and (maker := value.producer()) is not None}


def _circular(needs: Needs) -> set[ir.Node]:
    """Nodes in a circle: the ones left when those that only lead to a circle, or only come out of one, are taken away."""
    users: Needs = {}
    for node, makers in needs.items():
        for maker in makers:
            users.setdefault(maker, set()).add(node)
    return _peeled(_peeled(set(needs), needs, users), users, needs)


def _peeled(nodes: set[ir.Node], before: Needs, after: Needs) -> set[ir.Node]:
    """Remove the nodes that no remaining node comes before, until none is left that can be removed."""
    waits = {node: len(before.get(node, set()) & nodes) for node in nodes}
    ready = [node for node, count in waits.items() if not count]
    left = set(nodes)
    while ready:
        node = ready.pop()
        left.discard(node)
        for user in after.get(node, ()):
            if user in waits:
                waits[user] -= 1
                if not waits[user]:
                    ready.append(user)
    return left


def usage_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Dead nodes in the order of the graph, then initializers and inputs that nobody uses."""
    alive = _alive(checked)
    for place in checked.places:
        if place.node not in alive and (place.outer is None or place.outer.node in alive):
            yield place.finding(rules.DEAD_NODE, "no output of the graph depends on it", "Remove it.")
    for way, graph in checked.graphs():
        yield from _unused_initializers(way, graph)
        yield from _repeated_outputs(way, graph)
    for value in checked.model.graph.inputs:
        if not _is_used(value) and not value.is_initializer():
            yield model_finding(
                rules.UNUSED_INPUT,
                f"the input {value.name!r} is used by nothing",
                "Remove it, or connect it.",
                tensor=value.name or "",
            )


def _unused_initializers(way: str, graph: ir.Graph) -> Iterator[Finding]:
    for value in graph.initializers.values():
        if not _is_used(value):
            yield model_finding(
                rules.UNUSED_INITIALIZER,
                f"the initializer {way + (value.name or '')!r}{_weight(value)} is used by nothing",
                "Remove it.",
                tensor=value.name or "",
            )


def _weight(value: ir.Value) -> str:
    tensor = value.const_value
    if tensor is None or tensor.dtype in (ir.DataType.UNDEFINED, ir.DataType.STRING):
        return ""
    return f" ({tensor.nbytes} bytes)"


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _alive(checked: CheckedModel) -> set[ir.Node]:
    """The nodes that some output depends on; a branch's outputs count where the node that holds it does."""
    known = {place.node for place in checked.places}
    alive: set[ir.Node] = set()
    waiting = [maker for value in checked.model.graph.outputs if (maker := value.producer()) is not None]
    while waiting:
        node = waiting.pop()
        if node not in alive and node in known:
            alive.add(node)
            waiting += _makers(node)
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


_FIELDS = {
    **dict.fromkeys((ir.DataType.FLOAT, ir.DataType.COMPLEX64), "float_data"),
    **dict.fromkeys((ir.DataType.DOUBLE, ir.DataType.COMPLEX128), "double_data"),
    **dict.fromkeys((ir.DataType.UINT32, ir.DataType.UINT64), "uint64_data"),
    ir.DataType.INT64: "int64_data",
    ir.DataType.STRING: "string_data",
}
"""The field that holds numbers which are not raw bytes; for all other types it is int32_data."""

_COMPLEX = frozenset({ir.DataType.COMPLEX64, ir.DataType.COMPLEX128})
_REMEDY = "Export the model again, or copy it again whole."


def tensor_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Initializers and constants that hold more or fewer numbers than their shape says."""
    for way, graph in checked.graphs():
        for value in graph.initializers.values():
            problem = None if value.const_value is None else problem_of(value.const_value)
            if problem is not None:
                name = value.name or ""
                reason = f"the initializer {way + name!r} {problem}"
                yield model_finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=name)
    for place in checked.places:
        yield from _attribute_findings(place)


def _attribute_findings(place: NodePlace) -> Iterator[Finding]:
    for attribute in place.node.attributes.values():
        is_tensor = attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
        problem = problem_of(attribute.as_tensor()) if is_tensor else None
        if problem is not None:
            reason = f"the tensor in its attribute {attribute.name!r} {problem}"
            result = place.node.outputs[0].name if place.node.outputs else None  # whose readers cannot be judged
            yield place.finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=result or "")


def problem_of(tensor: ir.TensorProtocol) -> str | None:
    """What is wrong with a tensor that was read from a file; None where nothing is, and for other tensors."""
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return None
    sizes = tuple(tensor.shape.numpy())
    if tensor.dtype == ir.DataType.UNDEFINED:
        return "has no element type"
    if any(size < 0 for size in sizes):
        return f"has the shape {list(sizes)}"
    held, unit, expected = _content(tensor.raw, tensor.dtype, math.prod(sizes))
    return None if held == expected else f"holds {held} {unit}; {expected} make its shape {list(sizes)}"


def _content(proto: onnx.TensorProto, dtype: ir.DataType, count: int) -> tuple[int, str, int]:
    """How much a tensor holds, in which unit, and how much it should hold."""
    if proto.HasField("raw_data") and dtype != ir.DataType.STRING:
        return len(proto.raw_data), "bytes", -(-count * dtype.bitwidth // 8)
    field = getattr(proto, _FIELDS.get(dtype, "int32_data"))
    if dtype != ir.DataType.STRING and dtype.bitwidth < 8:
        count = -(-count * dtype.bitwidth // 8)
    return len(field), "numbers", 2 * count if dtype in _COMPLEX else count
