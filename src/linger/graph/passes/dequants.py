# SPDX-License-Identifier: Apache-2.0
"""Dequants stand where real numbers are needed, once per tensor and with its scale, and nowhere else."""

from __future__ import annotations

import onnx_ir as ir

from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.core.names import Names
from linger.graph.core.replace_value import ValueReplacer, become_identity
from linger.graph.facts.fact import Propagation, Use
from linger.graph.facts.flow import Flow, home_of, place_early
from linger.graph.facts.propagation import OutputPolicy, propagate
from linger.graph.facts.stated_formats import DEQUANT, NEWER_DOMAIN, is_dequant, is_quantising, read_scale


def insert_dequant(model: ir.Model, outputs: OutputPolicy = "declared") -> Changes:
    """Insert one Dequant per quantised tensor, shared by all that need its real numbers.

    A tensor that is an output of the model and shall be real hands its name on to the Dequant's result and is then called
    `<name>_quant`.

    Requires: sorted nodes. Leaves: no op that needs real numbers reading integers, where the scale is known.

    Args:
        model: The model.
        outputs: As for `propagate`.
    """
    changes = Changes()
    found = propagate(model, outputs=outputs)
    missing = found.missing
    if missing:
        inserter = _Inserter(model, found, changes)
        for use in missing:
            inserter.serve(use)
        inserter.sort()
    return changes


class _Inserter:
    def __init__(self, model: ir.Model, found: Propagation, changes: Changes) -> None:
        self._model, self._found, self._changes = model, found, changes
        self._flow = Flow.of(model)
        nodes = list(self._flow.nodes())
        self._node_names = Names(n.name for n in nodes if n.name)
        values = [v for g in self._flow.graphs() for v in (*g.inputs, *g.initializers.values())]
        values += [o for n in nodes for o in n.outputs]
        self._names = Names(v.name for v in values if v.name)
        is_newer = any(n.domain == NEWER_DOMAIN for n in nodes)
        is_older = any(is_quantising(n) and n.domain != NEWER_DOMAIN for n in nodes)
        self._domain = NEWER_DOMAIN if is_newer and not is_older else DOMAIN
        self._made: dict[tuple[ir.Value, ir.Graph], ir.Value] = {}

    def sort(self) -> None:
        """A Dequant that was there may stand behind what now reads it."""
        self._flow.sort()

    def serve(self, use: Use) -> None:
        """Let a use have real numbers."""
        value = use.value
        if isinstance(use.owner, ir.Node):
            home = home_of(value) or use.owner.graph  # there, everything that can read the tensor can read its Dequant
            assert home is not None  # the node came from a graph
            use.owner.replace_input_with(use.index, self._real(value, home))
            self._changes.note(str(use), f"takes the real numbers of {value.name!r} ({self._found.fact(value)})")
        elif use.owner is self._model.graph:
            self._serve_output(value)
        else:
            graph = use.owner
            made = self._real(value, graph)
            if made.is_graph_output() and made is not graph.outputs[use.index]:
                made = self._insert(value, graph)  # each output of a graph is a tensor of its own
            graph.outputs[use.index] = made
            self._changes.note(f"output {value.name!r}", f"gives real numbers ({self._found.fact(value)} before)")

    def _serve_output(self, value: ir.Value) -> None:
        graph, name, declared = self._model.graph, value.name or "output", value.type
        if value.is_graph_input() or value.is_initializer():
            return  # its name and its type are those of the interface
        if is_dequant(value.producer()):
            return  # listed twice, and served with the first
        made = self._real(value, graph)
        if made.is_graph_output():
            made = self._insert(value, graph)
        self._changes.note(f"output {name!r}", f"gives real numbers ({self._found.fact(value)} before)")
        value.name = self._names.choose(f"{name}_quant")
        made.name = name
        made.type = declared if declared is not None and declared.dtype == ir.DataType.FLOAT else made.type
        for index, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[index] = made

    def _real(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        """The real numbers of a tensor in a graph: of a Dequant that is there, or of a new one."""
        if (value, graph) not in self._made:
            self._made[value, graph] = self._present(value, graph) or self._insert(value, graph)
        return self._made[value, graph]

    def _present(self, value: ir.Value, graph: ir.Graph) -> ir.Value | None:
        scale = self._found.fact(value).scale
        for node in value.consumers():
            is_its_own = is_dequant(node) and node.inputs[0] is value
            if is_its_own and node.graph is graph and read_scale(node, "scale_o") == scale:
                graph.remove(node)  # it may stand behind what is to read it
                place_early(node, graph)
                return node.outputs[0]
        return None

    def _insert(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        scale = self._found.fact(value).scale
        assert scale is not None  # a use without a known scale is a finding, not a need
        node = ir.Node(self._domain, DEQUANT, [value], attributes=[ir.AttrFloat32("scale_o", scale)])
        node.name = self._node_names.choose(f"{value.name}_dequant")
        made = node.outputs[0]
        made.name = self._names.choose(f"{value.name}_dequant")
        made.type, made.shape = ir.TensorType(ir.DataType.FLOAT), value.shape
        place_early(node, graph)
        self._changes.note(node.name, f"Dequant of {value.name!r} at scale {scale:g} inserted")
        if graph is home_of(value):
            self._replace_inner(node, scale)
        self._import(graph)
        return made

    def _replace_inner(self, made: ir.Node, scale: float) -> None:
        """Dequants in branches give way to one that they can see."""
        value, graph = made.inputs[0], made.graph
        assert value is not None  # it was just made
        for node in [n for n in value.consumers() if is_dequant(n) and n.graph is not graph]:
            if read_scale(node, "scale_o") == scale and not node.outputs[0].is_graph_output():
                self._changes.note(describe(node), f"removed: {made.name} does the same")
                node.outputs[0].replace_all_uses_with(made.outputs[0])
                assert node.graph is not None  # it came from a graph
                node.graph.remove(node, safe=True)

    def _import(self, graph: ir.Graph) -> None:
        """Functions have imports of their own; a sub-graph has those of what it stands in."""
        while (owner := self._flow.owners.get(graph)) is not None and owner.graph is not None:
            graph = owner.graph
        for imports in (graph.opset_imports, self._model.graph.opset_imports):
            imports.setdefault(self._domain, DOMAIN_VERSION)


def remove_dequant(model: ir.Model) -> Changes:
    """Let ops that take integers have them; drop Dequants of real numbers, second ones of a tensor, and unused ones.

    Requires: sorted nodes. Leaves: every op that takes integers reading them, one Dequant per tensor, scale and place. What
    becomes real numbers without need of a Dequant is not decided here: `insert_dequant` follows.
    """
    changes = Changes()
    found = propagate(model)
    flow = Flow.of(model)
    replacer = ValueReplacer(model)
    kept = [use for use in found.kept_real if not is_dequant(use.value.producer())]
    for node in found.of_reals:
        (x, *_), (y,) = node.inputs, node.outputs
        assert x is not None  # else it would be no Dequant
        changes.note(describe(node), f"taken away: {_name(x)} holds real numbers already")
        if replacer.replace(y, x):
            replacer.discard(node)
        else:
            become_identity(node, x)
    replacer.finish()
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


def rescale_dequant(model: ir.Model) -> Changes:
    """Set `scale_o` of every Dequant to the scale of its tensor, where that is known from another node.

    Requires: sorted nodes. Leaves: Dequants with another scale only of tensors whose scale is not known, or is contradicted.
    """
    changes = Changes()
    for node, scale in propagate(model).wrong_scales:
        old = read_scale(node, "scale_o")
        node.attributes["scale_o"] = ir.AttrFloat32("scale_o", scale)
        was = "it had none" if old is None else f"it was {old:g}"
        tensor = node.inputs[0]
        assert tensor is not None  # its scale is known
        changes.note(describe(node), f"scale_o is {scale:g}, the scale of {tensor.name!r}; {was}")
    return changes
