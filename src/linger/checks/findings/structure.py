# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the graph as such: names, nodes that nobody needs, tensors nobody makes, sizes that are open.

Where a node stands: its path from the main graph through branches and bodies, by which findings name it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

import onnx_ir as ir

from linger.dialect import ops
from linger.errors import listing
from linger.graph.core import check_rules as rules
from linger.graph.core.check_rules import CheckRule
from linger.graph.core.dialects import is_quantizing, is_quantizing_domain
from linger.graph.core.nodes import (
    NOTE,
    Finding,
    all_nodes,
    defined_in,
    inner_graphs,
    is_dialect,
    is_used,
    named_graphs,
)


@dataclass(frozen=True)
class NodePlace:
    """A node and the way to it.

    Attributes:
        way: The path to its graph, such as `if_1/then_branch/`; empty in the main graph.
        outer: The place of the node whose branch this node is in.
    """

    node: ir.Node
    way: str = ""
    outer: NodePlace | None = None

    @property
    def path(self) -> str:
        """The node's name, or that of its first output, after the way to it."""
        node = self.node
        return f"{self.way}{node.name or (node.outputs[0].name if node.outputs else None) or '?'}"

    def __str__(self) -> str:
        return f"{self.path} ({self.node.op_type})"

    def finding(
        self, rule: CheckRule, reason: str, remedy: str, *, tensor: str | None = None, severity: str | None = None
    ) -> Finding:
        """A finding about the node, or about a tensor of it."""
        return Finding(severity or rule.severity, str(self), reason, remedy, rule.id, tensor or "")

    def around(self) -> Iterator[NodePlace]:
        """The places of the nodes whose branches this node is in, the nearest first."""
        place = self.outer
        while place is not None:
            yield place
            place = place.outer

    def within(self, graph: ir.Graph) -> NodePlace | None:
        """The node of a graph around this one that holds this one, or this one itself; None where there is none."""
        return next((place for place in (self, *self.around()) if place.node.graph is graph), None)


def places_of(graph: ir.Graph | ir.Function, way: str = "") -> Iterator[NodePlace]:
    """Every node of a graph and of the graphs inside it: outer ones first, each branch after the node that holds it."""
    inside: dict[object, tuple[str, NodePlace]] = {}  # the way to a branch or body, and the node that holds it
    for node in all_nodes(graph):
        place = NodePlace(node, *inside.get(node.graph, (way, None)))
        inside.update({inner: (f"{place.path}/{name}/", place) for name, inner in named_graphs(node)})
        yield place


def function_places(model: ir.Model) -> Iterator[NodePlace]:
    """Every node of the functions that a file brings along, those of the dialect's own ops left out."""
    for (domain, name, _), function in model.functions.items():
        if not is_quantizing_domain(domain):
            yield from places_of(function, f"{domain}::{name}/")


@dataclass(frozen=True)
class CheckedModel:
    """A model to be checked, its nodes in order.

    Attributes:
        places: Its nodes, those of branches and bodies included.
        has_dialect: Whether one of them belongs to a dialect.
        inner: The graphs inside the main graph, each with the way to it.
    """

    model: ir.Model
    places: tuple[NodePlace, ...]
    has_dialect: bool
    inner: tuple[tuple[str, ir.Graph], ...] = ()

    @classmethod
    def of(cls, model: ir.Model) -> CheckedModel:
        """The model as it is now."""
        places = tuple(places_of(model.graph))
        inner = [(f"{place.path}/{name}/", graph) for place in places for name, graph in named_graphs(place.node)]
        return cls(model, places, any(is_quantizing(place.node) for place in places), tuple(inner))

    def graphs(self) -> Iterator[tuple[str, ir.Graph]]:
        """The main graph and those inside it, each with the way to it."""
        yield "", self.model.graph
        yield from self.inner


def model_finding(
    rule: CheckRule, reason: str, remedy: str, *, tensor: str | None = None, severity: str | None = None
) -> Finding:
    """A finding about the model as a whole, or about a tensor of it."""
    return Finding(severity or rule.severity, "", reason, remedy, rule.id, tensor or "")


def name_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Names of nodes, which must be unique (in a file for packers the name, else the path), and, there, of tensors."""
    named = list(filter(attrgetter("node.name"), checked.places))
    keys = list(map(attrgetter("node.name" if checked.has_dialect else "path"), named))
    counts, remedy = Counter(keys), "Give each a name of its own; linger.repair does."
    severity = None if checked.has_dialect else NOTE  # only packers take a name for the node
    repeated = {place: counts[key] for place, key in zip(named, keys, strict=True) if counts[key] > 1}
    for place in checked.places:
        if place in repeated:
            reason = f"{repeated[place]} nodes are called {place.node.name!r}"
            yield place.finding(rules.DUPLICATE_NAME, reason, remedy, severity=severity)
        elif checked.has_dialect and not place.node.name:
            yield place.finding(rules.EMPTY_NAME, "it has no name", "Name it; linger.repair does.")
    if checked.has_dialect:
        yield from _rewritten_names(checked)


def _rewritten_names(checked: CheckedModel) -> Iterator[Finding]:
    """The packer lower-cases the prefix `Scale` of a tensor's name."""
    graph = checked.model.graph
    tensors = [*graph.inputs, *graph.initializers.values()]
    tensors += [value for place in checked.places for value in place.node.outputs]
    names = dict.fromkeys(value.name for value in tensors if value.name)
    for name in names:
        if name.startswith("Scale"):
            after = f"scale{name[len('Scale') :]}"
            collides = ", which is another tensor's name" if after in names else ""
            reason = f"the packer calls the tensor {name!r} {after!r}{collides}"
            yield model_finding(rules.REWRITTEN_NAME, reason, "Rename it.", tensor=name)


_EXPORT_AGAIN = "Export the model again, which computes this from the shape, or fix the size of the input."


def size_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Inputs whose sizes are open."""
    severity = None if checked.has_dialect else NOTE  # only packers stop at a size without a name
    for value in checked.model.graph.inputs:
        if not value.is_initializer():
            yield from _input_findings(value.name or "", value.shape, severity)


def _input_findings(name: str, shape: ir.Shape | None, severity: str | None) -> Iterator[Finding]:
    sizes = {str(i): size.value for i, size in enumerate(shape or ()) if isinstance(size, ir.SymbolicDim)}
    unnamed, named = [i for i in sizes if not sizes[i]], list(filter(None, sizes.values()))
    if shape is None or unnamed:
        which = f"no size and no name at axis {listing(unnamed)}" if unnamed else "no shape"
        reason = f"the input {name!r} has {which}"
        remedy = "Export with fixed sizes, or name the open ones."
        yield model_finding(rules.UNNAMED_SIZE, reason, remedy, tensor=name, severity=severity)
    if named:
        reason = f"the input {name!r} has open sizes ({listing(named)})"
        yield model_finding(rules.DYNAMIC_SIZE, reason, "Fix them before the file goes to a device.", tensor=name)


def open_size_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Windows and weights of one size behind an input whose height or width is open."""
    images = _open_images(place.node for place in checked.places)
    for place in checked.places:
        source = images.get(place.node.inputs[0]) if place.node.inputs else None
        reason = None if source is None else _reason(place.node)
        if source is not None and reason is not None:
            what = f"the input {source.name!r} leaves the image's size open, but {reason}"
            yield place.finding(rules.ONE_SIZE, what, _EXPORT_AGAIN)


def _reason(node: ir.Node) -> str | None:
    """Why a node that gets an image of open size is right at one size only; None: it is right at every size."""
    op = ops().get(node.op_type)
    if op is None:
        return None
    if op.window_axes and op.weight_axes is None:
        reason = "its window has a fixed size, and a layer behind it takes the result of one size of the image only"
        return reason if any(map(_is_flattened_for_product, _readers(node))) else None
    sized = [value for name, value in zip(op.inputs, node.inputs, strict=False) if name in op.sized_inputs]
    has_constant = any(value is not None and value.is_initializer() for value in sized)
    return "its weights are those of one size" if has_constant else None


def _readers(node: ir.Node) -> list[ir.Node]:
    return [use.node for value in node.outputs for use in value.uses()]


def _open_images(nodes: Iterable[ir.Node]) -> dict[ir.Value | None, ir.Value]:
    """Tensors whose height or width is open, each with the input of the graph that it comes from.

    Goes forward from the inputs and meets every tensor once, since a file that is checked may be large or go in a circle.
    """
    waiting = [(value, value) for node in nodes for value in filter(_is_open, node.inputs) if value is not None]
    sources: dict[ir.Value | None, ir.Value] = {}
    while waiting:
        value, source = waiting.pop()
        if value not in sources:
            sources[value] = source
            for use in value.uses():
                if use.idx == 0 and _keeps_sizes(use.node):
                    waiting += [(output, source) for output in use.node.outputs]
    return sources


def _is_open(value: ir.Value | None) -> bool:
    """Whether a tensor is an input of the graph, a batch of images, with a height or width that is not fixed."""
    if value is None or not value.is_graph_input() or value.shape is None or len(value.shape) != 4:
        return False
    return any(not isinstance(dim, int) for dim in value.shape.dims[2:])


def _keeps_sizes(node: ir.Node) -> bool:
    """Whether an open size of a node's first input leaves its outputs open."""
    op = ops().get(node.op_type)
    if is_dialect(node):
        return op is None or op.keeps_open_sizes
    return op is not None and op.standard_name is not None


def _is_flattened_for_product(node: ir.Node) -> bool:
    """Whether all axes but the first become the features of a matrix product with constant weights."""
    axis = node.attributes.get("axis")
    is_first = axis is None or (axis.type is ir.AttributeType.INT and not axis.is_ref() and axis.value == 1)
    return node.op_type == "Flatten" and is_first and any(map(_is_constant_product, _readers(node)))


def _is_constant_product(node: ir.Node) -> bool:
    op, weight = ops().get(node.op_type), node.inputs[1] if len(node.inputs) > 1 else None
    is_product = op is not None and op.limit is math.prod and op.weight_axes == 2
    return is_product and weight is not None and weight.is_initializer()


Needs = dict[ir.Node, set[ir.Node]]


def structure_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Tensors that no node makes, names used twice, nodes that stand before what they need, circles."""
    for place in checked.places:
        for value in dict.fromkeys(place.node.inputs):
            if value is not None and not _is_visible(place, value):
                reason = f"it reads {value.name!r}, which nothing that it can see makes"
                remedy = "Connect it to a tensor that exists."
                yield place.finding(rules.UNDEFINED_TENSOR, reason, remedy, tensor=value.name)
    for way, graph in checked.graphs():
        for value in itertools.filterfalse(_is_defined, graph.outputs):
            reason = f"the output {value.name!r} of {way.rstrip('/') or 'the graph'} is made by no node"
            yield model_finding(rules.UNDEFINED_TENSOR, reason, "Connect it, or remove the output.", tensor=value.name)
    yield from _shadowed(checked)
    yield from _order(checked)


def _is_visible(place: NodePlace, value: ir.Value) -> bool:
    return value.graph is not None and _is_defined(value) and place.within(value.graph) is not None


def _is_defined(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _shadowed(checked: CheckedModel) -> Iterator[Finding]:
    """Names of a branch that a graph around it has too."""
    own: dict[object, set[str | None]] = {graph: {v.name for v in defined_in(graph)} for _, graph in checked.graphs()}
    for place in checked.places:
        around = [own[outer.node.graph] for outer in place.around()]
        for value in place.node.outputs:
            if value.name and any(value.name in names for names in around):
                reason = f"its output {value.name!r} is called like a tensor around the branch"
                yield place.finding(rules.SHADOWED_TENSOR, reason, "Rename it.", tensor=value.name)


def _order(checked: CheckedModel) -> Iterator[Finding]:
    needs = _needs(checked)
    circular = _circular(needs)
    position = {place.node: index for index, place in enumerate(checked.places)}
    for place in checked.places:
        late = [n for n in needs[place.node] if position.get(n, -1) >= position[place.node]]
        if late and place.node in circular:
            reason = "it needs a tensor that is computed from its own result"
            yield place.finding(rules.CYCLE, reason, "Break the circle.")
        elif late:
            names = sorted(filter(None, (node.outputs[0].name for node in late if node.outputs)))
            reason = f"it stands before the nodes whose results it uses ({listing(names)})"
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
    """Remove the nodes that no remaining node comes before, until none is left, as Kahn's topological sorting does."""
    waits = {node: len(before.get(node, set()) & nodes) for node in nodes}
    ready = [node for node, count in waits.items() if not count]
    for node in ready:  # the list grows while it is walked
        for user in after.get(node, set()) & nodes:
            waits[user] -= 1
            if not waits[user]:
                ready.append(user)
    return nodes.difference(ready)


def usage_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Dead nodes in the order of the graph, then initializers and inputs that nobody uses."""
    alive = _alive(checked)
    for place in checked.places:
        if place.node not in alive and (place.outer is None or place.outer.node in alive):
            yield place.finding(rules.DEAD_NODE, "no output of the graph depends on it", "Remove it.")
    for way, graph in checked.graphs():
        yield from _unused_initializers(way, graph)
        counts = Counter(value.name or "" for value in graph.outputs)
        for name, count in counts.items():
            if count > 1:
                reason = f"{way + name!r} is listed as an output {count} times"
                yield model_finding(rules.REPEATED_OUTPUT, reason, "List it once.", tensor=name)
    for value in itertools.filterfalse(is_used, checked.model.graph.inputs):
        if not value.is_initializer():
            reason = f"the input {value.name!r} is used by nothing"
            yield model_finding(rules.UNUSED_INPUT, reason, "Remove it, or connect it.", tensor=value.name)


def _unused_initializers(way: str, graph: ir.Graph) -> Iterator[Finding]:
    for name, value in graph.initializers.items():
        if not is_used(value):
            tensor = value.const_value
            is_sized = tensor is not None and tensor.dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING)
            size = f" ({tensor.nbytes} bytes)" if tensor is not None and is_sized else ""
            reason = f"the initializer {way + name!r}{size} is used by nothing"
            yield model_finding(rules.UNUSED_INITIALIZER, reason, "Remove it.", tensor=name)


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
        for name, value in graph.initializers.items():
            problem = problem_of(value.const_value)
            if problem is not None:
                reason = f"the initializer {way + name!r} {problem}"
                yield model_finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=name)
    for place in checked.places:
        result = next((output.name for output in place.node.outputs), None)  # whose readers cannot be judged
        for attribute in place.node.attributes.values():
            is_tensor = attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref()
            problem = problem_of(attribute.as_tensor()) if is_tensor else None
            if problem is not None:
                reason = f"the tensor in its attribute {attribute.name!r} {problem}"
                yield place.finding(rules.BROKEN_TENSOR, reason, _REMEDY, tensor=result)


def problem_of(tensor: ir.TensorProtocol | None) -> str | None:
    """What is wrong with a tensor that was read from a file; None where nothing is, and for other tensors."""
    if not isinstance(tensor, ir.serde.TensorProtoTensor):
        return None
    proto, dtype, sizes = tensor.raw, tensor.dtype, tuple(tensor.shape.numpy())
    if dtype == ir.DataType.UNDEFINED:
        return "has no element type"
    if min(sizes, default=0) < 0:
        return f"has the shape {list(sizes)}"
    count, bits = math.prod(sizes), 8 if dtype == ir.DataType.STRING else dtype.bitwidth
    if proto.HasField("raw_data") and dtype != ir.DataType.STRING:
        held, unit, expected = len(proto.raw_data), "bytes", -(-count * bits // 8)
    else:  # numbers of fewer than 8 bits share one, a complex number takes two
        held, unit = len(getattr(proto, _FIELDS.get(dtype, "int32_data"))), "numbers"
        expected = -(-count * bits // 8) if bits < 8 else count * (1 + (dtype in _COMPLEX))
    return None if held == expected else f"holds {held} {unit}; {expected} make its shape {list(sizes)}"
