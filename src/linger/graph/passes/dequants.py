# SPDX-License-Identifier: Apache-2.0
"""Place Dequants where real numbers are needed: one per tensor, with its scale, and nowhere else.

QuantizeLinear and DequantizeLinear nodes: pairs that cancel, float ops between them, parameters of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import DOMAIN, DOMAIN_VERSION
from linger.errors import LingerError
from linger.graph.core.dialects import DEQUANT, NEWER, QUANT, is_dequant, is_quantizing, read_scale
from linger.graph.core.nodes import (
    NOTE,
    Changes,
    Finding,
    Names,
    all_graphs,
    attributes_of,
    defined_in,
    describe,
    graph_of,
    is_dialect,
    is_used,
    op_of,
    tensor_names,
)
from linger.graph.core.rewiring import ValueReplacer
from linger.graph.formats.propagation import Formats, OutputPolicy, propagate
from linger.graph.formats.tensor_formats import Flow, Propagation, Use, home_of
from linger.graph.qdq.qdq_node import (
    DEQUANTIZE,
    OTHER_NUMBERS,
    QUANTIZE,
    ByteFusing,
    Island,
    bounds_of,
    constant,
    data_inputs,
    data_outputs,
    float_islands,
    is_between_pair,
    is_qdq,
    quantization_of,
    quantized,
    returns_every_integer,
    zero_of,
)
from linger.numeric.fixed import storage_bits


def rescale_dequant(model: ir.Model, facts: Formats | None = None) -> Changes:
    """Set `scale_o` of every Dequant to the scale of its tensor, where that is known from another node.

    Requires: sorted nodes. Leaves: Dequants with another scale only of tensors whose scale is not known, or is contradicted.
    `facts` are those of the model as it is now, where they are known already.
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
    that need real numbers may read integers afterwards: `insert_dequant` follows. `facts`: as for `rescale_dequant`.
    """
    changes = Changes()
    facts = Formats(model) if facts is None else facts
    found, flow, replacer = facts.found, facts.flow, ValueReplacer(model)
    kept = [use for use in found.kept_real if not is_dequant(use.value.producer())]
    for node in found.of_reals:
        x = node.inputs[0]
        assert x is not None  # else it would be no Dequant
        changes.note(describe(node), f"taken away: {x.name!r} holds real numbers already")
        replacer.bypass(node, x)
    replacer.finish()
    for use in found.integer_uses:
        _bypass(use, found, changes)
    if kept:
        _keep_real(kept, found, flow, changes)
        flow = Flow.of(model)
    _merge(flow, changes)
    if changes:
        flow.sort()  # the Dequant that stays may stand behind what now reads it
    _drop_unused(flow, changes)
    return changes


def _drop_unused(flow: Flow, changes: Changes) -> None:
    for node in [n for n in flow.nodes() if is_dequant(n)]:
        if not any(map(is_used, node.outputs)):
            changes.note(describe(node), "removed: nothing uses it")
            _remove(node)


def _bypass(use: Use, found: Propagation, changes: Changes) -> None:
    """Let a use read the integers before the Dequant, or before several in a row."""
    source = value = use.value
    while (node := source.producer()) is not None and is_dequant(node) and (before := node.inputs[0]) is not None:
        source = before
    changes.note(str(use), f"takes the integers {source.name!r} ({found.fact(source)}) instead of {value.name!r}")
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
    """Put a Dequant right before uses that take integers and real numbers alike and had real numbers so far."""
    nodes = list(flow.nodes())
    taken = Names(name for n in nodes for name in (n.name, *(o.name for o in n.outputs)) if name)
    domain = next(n.domain for n in nodes if is_dequant(n))
    for use in uses:
        value, node = use.value, use.owner
        assert isinstance(node, ir.Node)  # outputs of graphs have a type
        made = _dequant(domain, value, found)
        made.name = made.outputs[0].name = taken.choose(f"{value.name}_dequant")
        graph_of(node).insert_before(node, made)
        node.replace_input_with(use.index, made.outputs[0])
        changes.note(str(use), f"keeps the real numbers of {value.name!r} ({found.fact(value)})")


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
        kept.setdefault(graph_of(node), node)
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
    graph_of(node).remove(node, safe=True)


def _move_early(node: ir.Node) -> None:
    """Move a Dequant as far to the front of its graph as its input allows: new readers may stand before it."""
    graph = graph_of(node)
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


def insert_dequant(model: ir.Model, outputs: OutputPolicy = "declared", facts: Formats | None = None) -> Changes:
    """Insert one Dequant per quantized tensor, shared by all that need its real numbers.

    A tensor that is an output of the model and shall be real (`outputs`: as for `propagate`) hands its name on to the Dequant's
    result and is then called `<name>_quant`. Requires: sorted nodes. Leaves: no op that needs real numbers reading integers,
    where the scale is known. `facts`: as for `rescale_dequant`; they were found with these outputs.
    """
    changes = Changes()
    facts = Formats(model, outputs) if facts is None else facts
    missing = facts.found.missing
    if missing:
        inserter = _Inserter(facts.flow, facts.found, changes)
        for use in missing:
            inserter.serve(use)
        facts.flow.sort()  # a Dequant that was there may stand behind what now reads it
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
            made = self._real(value, use.owner)
            if made.is_graph_output() and made is not use.owner.outputs[use.index]:
                made = self._insert(value, use.owner)  # each output of a graph is a tensor of its own
            use.owner.outputs[use.index] = made
            self._changes.note(f"output {value.name!r}", f"gives real numbers ({self._found.fact(value)} before)")

    def _serve_output(self, value: ir.Value) -> None:
        graph, name, declared = self._model.graph, value.name or "output", value.type
        if value.is_graph_input() or value.is_initializer():
            return  # its name and its type are those of the interface
        if is_dequant(value.producer()):
            return  # listed twice, and served with the first
        made = self._real(value, graph)
        made = self._insert(value, graph) if made.is_graph_output() else made
        self._changes.note(f"output {name!r}", f"gives real numbers ({self._found.fact(value)} before)")
        value.name, made.name = self._names.choose(f"{name}_quant"), name
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
        node, scale = _dequant(self._domain, value, self._found), self._found.fact(value).scale
        node.name = self._node_names.choose(f"{value.name}_dequant")
        made = node.outputs[0]
        made.name, made.shape = self._names.choose(f"{value.name}_dequant"), value.shape
        _place_early(node, graph)
        self._changes.note(node.name, f"Dequant of {value.name!r} at scale {scale:g} inserted")
        inner = (
            [n for n in value.consumers() if is_dequant(n) and n.graph is not graph] if graph is home_of(value) else []
        )
        for other in inner:  # Dequants in branches give way to one that they can see
            if read_scale(other, "scale_o") == read_scale(node, "scale_o") and not other.outputs[0].is_graph_output():
                _replace_dequant(other, node, node.name or "", self._changes)
        # functions have imports of their own, a sub-graph has those of the graph around it
        for imports in (_scopes(graph, self._flow)[0].opset_imports, self._model.graph.opset_imports):
            imports.setdefault(self._domain, DOMAIN_VERSION)
        return made


_WIDEST_EXACT = 16
"""The widest integers that come back from Dequant and Quant as they were.

Both together round three times in float32, by 2^-24 of the number each: of 2^15 that is less than 0.01, but of 2^31 it is up to
2^8.
"""

_BY_HAND = "Quantize as uint8 to have it removed, or remove it by hand and compare the numbers."

_SMALLEST_SCALE, _LARGEST_SCALE = 2.0**-100, 2.0**100
"""Between these no q / scale is subnormal or infinite."""


def cancel_dq_q(model: ir.Model) -> Changes:
    """Let users of the second node of a pair use the integers in front of the first one.

    Only where scale, zero point, type and axis are constant and equal and every integer of the type comes back exactly. A
    pair with different scales is a requantization and stays, and so does one that decides which kernels ONNX Runtime
    chooses (`pair_findings` lists them). Leaves: a dequantization only if somebody uses its floats; an Identity where an
    output needs a tensor of its own.
    """
    changes, replacer = Changes(), ValueReplacer(model)
    fusing = cache(lambda: ByteFusing(model))  # as the model is before the first change
    facts = cache(lambda: propagate(model))  # of dialect pairs only; declared types may be missing
    for node in _nodes(model):
        first = _undone_by(node, facts)
        integers = None if first is None else first.inputs[0]
        if first is None or integers is None or not isinstance(integers.type, (ir.TensorType, type(None))):
            continue  # what comes out of a pair is a tensor
        if _decides(first, node, fusing):
            continue
        where = describe(node)
        replacer.bypass(node, integers)
        changes.note(where, f"removed: it undoes {describe(first)} exactly")
        replacer.discard_if_unused(first)
    replacer.finish()
    return changes


def pair_findings(model: ir.Model) -> tuple[Finding, ...]:
    """Pairs that undo each other and stay all the same, as notes."""
    fusing = cache(lambda: ByteFusing(model))
    facts = cache(lambda: propagate(model))
    pairs = [(_undone_by(node, facts), node) for node in _nodes(model) if is_qdq(node, QUANTIZE)]
    return tuple(
        Finding(NOTE, describe(second), f"it undoes {describe(first)} and stays: {OTHER_NUMBERS}", _BY_HAND)
        for first, second in pairs
        if first is not None and _decides(first, second, fusing)
    )


def _nodes(model: ir.Model) -> list[ir.Node]:
    return [node for place in all_graphs(model) for node in place.graph]


def _undone_by(node: ir.Node, facts: Callable[[], Propagation]) -> ir.Node | None:
    """The dequantization before a node that the node undoes exactly; None for any other node."""
    x = node.inputs[0] if node.inputs else None
    first = None if x is None else x.producer()
    if first is None:
        return None
    if is_qdq(first, DEQUANTIZE) and is_qdq(node, QUANTIZE):
        before, after = quantization_of(first), quantization_of(node)
        return first if before is not None and before == after and returns_every_integer(first, before) else None
    return first if _is_dialect_pair(first, node, facts) else None


def _decides(first: ir.Node, second: ir.Node, fusing: Callable[[], ByteFusing]) -> bool:
    """Whether ONNX Runtime may join other ops once the integers before and behind a pair are one tensor.

    It merges pairs itself where nobody else reads what is between them.
    """
    before, behind = first.inputs[0], second.outputs[0]
    assert before is not None  # it was looked at
    return fusing().holds([before, behind]) and not (is_between_pair(before) and is_between_pair(behind))


def _is_dialect_pair(first: ir.Node, second: ir.Node, facts: Callable[[], Propagation]) -> bool:
    """Whether every integer of a width comes back from Dequant and Quant, in the same storage."""
    if not is_dialect(first) or not is_dialect(second) or (first.op_type, second.op_type) != (DEQUANT, QUANT):
        return False
    q, dequant, quant = next(iter(first.inputs), None), _settings(first), _settings(second)
    if q is None or dequant is None or quant is None or dequant["scale_o"] != quant["scale_x"]:
        return False
    fact = facts().fact(q)
    held = None if q.dtype not in (None, fact.element) else fact.bits  # else the file contradicts itself
    is_same_sign = (fact.element == ir.DataType.UINT8) == bool(quant.get("o_unsigned"))
    return is_same_sign and _comes_back(held, quant["data_bits"], quant["scale_x"])


def _comes_back(held: int | None, bits: int, scale: float) -> bool:
    is_exact = bits <= _WIDEST_EXACT and _SMALLEST_SCALE <= scale <= _LARGEST_SCALE
    return held is not None and is_exact and storage_bits(held) == storage_bits(bits) and held <= bits


def _settings(node: ir.Node) -> dict[str, Any] | None:
    """The attributes of a dialect node; None where they are incomplete, or given only by the caller of a function."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    try:
        return attributes_of(node, op_of(node))
    except LingerError:
        return None


def fill_float_islands(model: ir.Model) -> Changes:
    """Take the DQ and Q nodes away around ops that move, choose or limit numbers, where all of them quantize alike.

    Relu becomes a Clip at the zero point; bounds and borders become integers. Leaves: DQ nodes that others use; islands
    with different scales, with a scale for each channel, without an integer kernel in ONNX Runtime, with a Where or of int8
    beside an op for which ONNX Runtime would choose another kernel then, or with nodes that lead nowhere and decide about
    kernels (`float_islands.island_findings` lists them).
    """
    changes = Changes()
    islands = [(i, i.quantization.element) for i in float_islands(model) if i.quantization and not i.obstacle]
    if not islands:
        return changes
    names, replacer = tensor_names(model), ValueReplacer(model)
    for island, element in islands:
        if not _can_be_written(island, replacer):
            continue
        _fill(island, element, names, replacer)
        for node in island.nodes:
            what = f"runs on {element.name.lower()} now, without DequantizeLinear and QuantizeLinear"
            changes.note(describe(node), what)
    replacer.finish()
    return changes


def _can_be_written(island: Island, replacer: ValueReplacer) -> bool:
    """Whether the names of the integers mean the same tensors where the floats are used now."""
    graph, integers = island.nodes[0].graph, [source.inputs[0] for source in island.sources]
    return graph is not None and all(q is not None and replacer.is_visible(q, graph) for q in integers)


def _fill(island: Island, element: ir.DataType, names: Names, replacer: ValueReplacer) -> None:
    sources = set(island.sources)
    for node in island.nodes:
        for index in data_inputs(node):
            value = node.inputs[index]
            maker = None if value is None else value.producer()
            if maker is not None and maker in sources:
                node.replace_input_with(index, maker.inputs[0])
        _bring_bounds(node, island.sinks[0], element, names, replacer)
        for output in data_outputs(node):
            output.type = ir.TensorType(element)
    for sink in island.sinks:
        integers = sink.inputs[0]
        assert integers is not None  # it belongs to an island
        replacer.bypass(sink, integers, with_name=True)
    for source in island.sources:
        replacer.discard_if_unused(source)


def _bring_bounds(node: ir.Node, sink: ir.Node, element: ir.DataType, names: Names, replacer: ValueReplacer) -> None:
    """Turn the numbers that the data is compared with into integers; Relu, which compares with 0, becomes a Clip."""
    numbers = {}
    for index in bounds_of(node):
        tensor = constant(node.inputs[index])
        assert tensor is not None  # else the island had an obstacle
        numbers[index] = float(tensor.numpy().reshape(-1)[0])
    if node.op_type == "Relu":
        node.op_type, numbers = "Clip", {1: 0.0}
    if node.op_type == "Pad" and 2 not in numbers and zero_of(sink):
        numbers[2] = 0.0  # left out, it would be the integer 0
    for index, number in numbers.items():
        if index >= len(node.inputs):
            node.resize_inputs(index + 1)
        replacer.set_input(node, index, _integer(quantized(number, sink, element), node, element, names))


def _integer(number: int | None, node: ir.Node, element: ir.DataType, names: Names) -> ir.Value:
    assert number is not None  # else the island had an obstacle
    graph = graph_of(node)
    name = names.choose(f"{node.outputs[0].name}_{number}")
    tensor = ir.tensor(np.asarray(number, element.numpy()), dtype=element, name=name)
    value = ir.Value(name=name, type=ir.TensorType(element), shape=ir.Shape([]), const_value=tensor)
    graph.register_initializer(value)
    return value


_PARAMETERS = (1, 2)


def split_shared_zero_points(model: ir.Model) -> Changes:
    """Copy scale and zero-point initializers that Q and DQ nodes of several tensors, or other nodes, share.

    The Q that makes an integer tensor and the DQs that read it go on sharing, as every tool writes them, and so do Qs that
    quantize one tensor alike. ONNX Runtime 1.31.1 computes the same with and without sharing, at every optimization level;
    but it does not turn 4-bit DequantizeLinear → MatMul into MatMulNBits where a scale is shared, and versions without that
    precaution fail to load such a file (microsoft/onnxruntime issue 28306). Tools that set a scale in place would change it
    for all nodes that share it.

    Leaves: numbers and other initializers as they were; Constant nodes, inputs with a default and tensors in other files.
    """
    changes, names = Changes(), cache(lambda: tensor_names(model))
    for value in [value for place in all_graphs(model) for value in place.graph.initializers.values()]:
        if not value.is_graph_input() and not isinstance(value.const_value, ir.ExternalTensor):
            for owner, uses in _groups_to_split(value).items():
                _copy(value, owner, uses, names(), changes)
    return changes


def _groups_to_split(value: ir.Value) -> dict[ir.Value, list[tuple[ir.Node, int]]]:
    """The uses of a scale or zero point that get a copy of it, by the integer tensor that they make or read.

    The first integer tensor keeps the original, unless something else uses that, too, or it is an output.
    """
    groups: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    is_used_otherwise = value.is_graph_output()
    for node, index in value.uses():
        x = node.inputs[0] if is_qdq(node, DEQUANTIZE) else None
        maker = node if x is None else x.producer()
        owner = _first_alike(maker) if maker is not None and is_qdq(maker, QUANTIZE) else x
        if owner is None or index not in _PARAMETERS:
            is_used_otherwise = True
        else:
            groups.setdefault(owner, []).append((node, index))
    if groups and not is_used_otherwise:
        del groups[next(iter(groups))]
    return groups


def _first_alike(node: ir.Node) -> ir.Value:
    """The result of the first Q that quantizes the same tensor in the same way: ONNX Runtime computes equal ones only once."""
    source = node.inputs[0]
    readers = [node] if source is None else [use.node for use in source.uses()]
    alike = (reader for reader in readers if is_qdq(reader, QUANTIZE) and reader.inputs == node.inputs)
    return next(alike, node).outputs[0]


def _copy(value: ir.Value, owner: ir.Value, uses: list[tuple[ir.Node, int]], names: Names, changes: Changes) -> None:
    tensor, graph = value.const_value, value.graph
    assert tensor is not None  # it is an initializer of a graph
    assert graph is not None
    name = names.choose(f"{value.name}_{owner.name}")
    copy = ir.Tensor(np.array(tensor.numpy()), dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)
    made = ir.Value(name=name, type=value.type, shape=value.shape, const_value=copy)
    graph.register_initializer(made)
    for node, index in uses:
        node.replace_input_with(index, made)
    changes.note(name, f"copied from {value.name}, which belonged to several tensors, for {owner.name}")
