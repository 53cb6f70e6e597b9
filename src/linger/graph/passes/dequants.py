# SPDX-License-Identifier: Apache-2.0
"""Place Dequants where real numbers are needed: one per tensor, with its scale, and nowhere else."""

from __future__ import annotations

import onnx_ir as ir

from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.graph.core.dialects import DEQUANT, NEWER, is_dequant, is_quantizing, read_scale
from linger.graph.core.nodes import Changes, Names, defined_in, describe
from linger.graph.core.rewiring import ValueReplacer, is_used
from linger.graph.formats.propagation import Formats, OutputPolicy
from linger.graph.formats.tensor_formats import Flow, Propagation, Use, home_of


def rescale_dequant(model: ir.Model, facts: Formats | None = None) -> Changes:
    """Set `scale_o` of every Dequant to the scale of its tensor, where that is known from another node.

    Requires: sorted nodes. Leaves: Dequants with another scale only of tensors whose scale is not known, or is contradicted.

    Args:
        model: The model.
        facts: What is known of the model as it is now, where that is known already.
    """
    changes = Changes()
    for node, scale in (facts or Formats(model)).found.wrong_scales:
        old = read_scale(node, "scale_o")
        node.attributes["scale_o"] = ir.AttrFloat32("scale_o", scale)
        was = "it had none" if old is None else f"it was {old:g}"
        tensor = node.inputs[0]
        assert tensor is not None  # its scale is known
        changes.note(describe(node), f"scale_o is {scale:g}, the scale of {tensor.name!r}; {was}")
    return changes


def remove_dequant(model: ir.Model, facts: Formats | None = None) -> Changes:
    """Let ops that take integers have them; drop Dequants of real numbers, second ones of a tensor, and unused ones.

    Requires: sorted nodes. Leaves: every op that takes integers reading them, one Dequant per tensor, scale and graph. Ops
    that need real numbers may read integers afterwards: `insert_dequant` follows.

    Args:
        model: The model.
        facts: As for `rescale_dequant`.
    """
    changes = Changes()
    facts = Formats(model) if facts is None else facts
    found, flow = facts.found, facts.flow
    kept = [use for use in found.kept_real if not is_dequant(use.value.producer())]
    _remove_from_reals(model, found.of_reals, changes)
    for use in found.integer_uses:
        _bypass(use, found, changes)
    if kept:
        _keep_real(kept, found, flow, changes)
        flow = Flow.of(model)
    _merge(flow, changes)
    if changes:
        flow.sort()  # the Dequant that stays may stand behind what now reads it
    for node in [n for n in flow.nodes() if is_dequant(n)]:
        if not any(map(is_used, node.outputs)):
            changes.note(describe(node), "removed: nothing uses it")
            _remove(node)
    return changes


def _remove_from_reals(model: ir.Model, nodes: list[ir.Node], changes: Changes) -> None:
    """Remove Dequants of tensors that hold real numbers already."""
    replacer = ValueReplacer(model)
    for node in nodes:
        x = node.inputs[0]
        assert x is not None  # else it would be no Dequant
        changes.note(describe(node), f"taken away: {_name(x)} holds real numbers already")
        replacer.bypass(node, x)
    replacer.finish()


def _bypass(use: Use, found: Propagation, changes: Changes) -> None:
    """Let a use read the integers before the Dequant, or before several in a row."""
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


def _before_dequants(value: ir.Value) -> ir.Value:
    while (node := value.producer()) is not None and is_dequant(node) and (before := node.inputs[0]) is not None:
        value = before
    return value


def _keep_real(uses: list[Use], found: Propagation, flow: Flow, changes: Changes) -> None:
    """Put a Dequant right before uses that take integers and real numbers alike and had real numbers so far."""
    nodes = list(flow.nodes())
    taken = Names(name for n in nodes for name in (n.name, *(o.name for o in n.outputs)) if name)
    domain = next(n.domain for n in nodes if is_dequant(n))
    for use in uses:
        value, node = use.value, use.owner
        assert isinstance(node, ir.Node)  # outputs of graphs have a type
        assert node.graph is not None  # it came from a graph
        made = _dequant(domain, value, found)
        made.name = made.outputs[0].name = taken.choose(f"{value.name}_dequant")
        node.graph.insert_before(node, made)
        node.replace_input_with(use.index, made.outputs[0])
        changes.note(str(use), f"keeps the real numbers of {_name(value)} ({found.fact(value)})")


def _dequant(domain: str, value: ir.Value, found: Propagation) -> ir.Node:
    """A Dequant of a tensor, in no graph yet and without names."""
    scale = found.fact(value).scale
    assert scale is not None  # a use without a known scale is a finding
    node = ir.Node(domain, DEQUANT, [value], attributes=[ir.AttrFloat32("scale_o", scale)])
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    return node


def _merge(flow: Flow, changes: Changes) -> None:
    """Leave one Dequant for all readers that can see it; outputs of graphs keep theirs, since each has its own name."""
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
        if twin is not None and not node.outputs[0].is_graph_output():
            _replace_dequant(node, twin, describe(twin), changes)
            _move_early(twin)


def _scopes(graph: ir.Graph | None, flow: Flow) -> list[ir.Graph]:
    """A graph and those around it, the outermost first."""
    found: list[ir.Graph] = []
    while graph is not None:
        found.append(graph)
        owner = flow.owners.get(graph)
        graph = None if owner is None else owner.graph
    return found[::-1]


def _replace_dequant(node: ir.Node, twin: ir.Node, name: str, changes: Changes) -> None:
    changes.note(describe(node), f"removed: {name} does the same")
    node.outputs[0].replace_all_uses_with(twin.outputs[0])
    _remove(node)


def _remove(node: ir.Node) -> None:
    assert node.graph is not None  # it came from a graph
    node.graph.remove(node, safe=True)


def _move_early(node: ir.Node) -> None:
    """Move a Dequant as far to the front of its graph as its input allows: new readers may stand before it."""
    graph = node.graph
    assert graph is not None  # it came from a graph
    graph.remove(node)
    _place_early(node, graph)


def _place_early(node: ir.Node, graph: ir.Graph) -> None:
    """Put a node of one input into a graph, as early as that input can be read."""
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if producer is not None and producer.graph is graph:
        graph.insert_after(producer, node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    else:
        graph.append(node)


def _name(value: ir.Value | None) -> str:
    return repr(None if value is None else value.name)


def insert_dequant(model: ir.Model, outputs: OutputPolicy = "declared", facts: Formats | None = None) -> Changes:
    """Insert one Dequant per quantized tensor, shared by all that need its real numbers.

    A tensor that is an output of the model and shall be real hands its name on to the Dequant's result and is then called
    `<name>_quant`.

    Requires: sorted nodes. Leaves: no op that needs real numbers reading integers, where the scale is known.

    Args:
        model: The model.
        outputs: As for `propagate`.
        facts: As for `rescale_dequant`; they were found with these outputs.
    """
    changes = Changes()
    facts = Formats(model, outputs) if facts is None else facts
    found, flow = facts.found, facts.flow
    missing = found.missing
    if missing:
        inserter = _Inserter(flow, found, changes)
        for use in missing:
            inserter.serve(use)
        flow.sort()  # a Dequant that was there may stand behind what now reads it
    return changes


class _Inserter:
    """Gives uses real numbers, each tensor through one Dequant per graph."""

    def __init__(self, flow: Flow, found: Propagation, changes: Changes) -> None:
        self._model, self._flow, self._found, self._changes = flow.model, flow, found, changes
        self._node_names = Names(n.name for n in flow.nodes() if n.name)
        self._names = Names(v.name for graph in flow.graphs() for v in defined_in(graph) if v.name)
        domains = {node.domain for node in flow.nodes() if is_quantizing(node)}
        self._domain = NEWER if domains == {NEWER} else DOMAIN
        self._made: dict[tuple[ir.Value, ir.Graph], ir.Value] = {}

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
                _move_early(node)
                return node.outputs[0]
        return None

    def _insert(self, value: ir.Value, graph: ir.Graph) -> ir.Value:
        node = _dequant(self._domain, value, self._found)
        node.name = self._node_names.choose(f"{value.name}_dequant")
        made = node.outputs[0]
        made.name = self._names.choose(f"{value.name}_dequant")
        made.shape = value.shape
        _place_early(node, graph)
        scale = self._found.fact(value).scale
        self._changes.note(node.name, f"Dequant of {value.name!r} at scale {scale:g} inserted")
        if graph is home_of(value):
            self._replace_inner(node)
        self._import(graph)
        return made

    def _replace_inner(self, made: ir.Node) -> None:
        """Dequants in branches give way to one that they can see."""
        value, scale = made.inputs[0], read_scale(made, "scale_o")
        assert value is not None  # it was just made
        for node in [n for n in value.consumers() if is_dequant(n) and n.graph is not made.graph]:
            if read_scale(node, "scale_o") == scale and not node.outputs[0].is_graph_output():
                _replace_dequant(node, made, made.name or "", self._changes)

    def _import(self, graph: ir.Graph) -> None:
        """Import the Dequant's domain: functions have imports of their own, a sub-graph has those of the graph around it."""
        outermost = _scopes(graph, self._flow)[0]
        for imports in (outermost.opset_imports, self._model.graph.opset_imports):
            imports.setdefault(self._domain, DOMAIN_VERSION)
