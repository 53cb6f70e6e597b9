# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear nodes: pairs that cancel, float ops between them, parameters of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.errors import LingerError
from linger.graph.core.dialects import DEQUANT, QUANT
from linger.graph.core.nodes import (
    NOTE,
    Changes,
    Finding,
    Names,
    all_graphs,
    attributes_of,
    describe,
    is_dialect,
    op_of,
    tensor_names,
)
from linger.graph.core.rewiring import ValueReplacer
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import Propagation
from linger.graph.qdq.float_islands import Island, float_islands
from linger.graph.qdq.qdq_node import (
    DEQUANTIZE,
    OTHER_NUMBERS,
    QUANTIZE,
    ByteFusing,
    bounds_of,
    constant,
    data_inputs,
    data_outputs,
    is_between_pair,
    is_qdq,
    quantization_of,
    quantized,
    returns_every_integer,
    zero_of,
)
from linger.numeric.fixed import storage_bits

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
    changes = Changes()
    fusing = cache(lambda: ByteFusing(model))  # as the model is before the first change
    replacer = ValueReplacer(model)
    facts = cache(lambda: propagate(model))  # of dialect pairs only; declared types may be missing
    for node in _nodes(model):
        first = _undone_by(node, facts)
        if first is None or not _is_tensor(first.inputs[0]) or _decides(first, node, fusing):
            continue  # what comes out of a pair is a tensor
        where, integers = describe(node), first.inputs[0]
        assert integers is not None  # it is a tensor
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
    return first if _is_qdq_pair(first, node) or _is_dialect_pair(first, node, facts) else None


def _decides(first: ir.Node, second: ir.Node, fusing: Callable[[], ByteFusing]) -> bool:
    """Whether ONNX Runtime may join other ops once the integers before and behind a pair are one tensor.

    It merges pairs itself where nobody else reads what is between them.
    """
    before, behind = first.inputs[0], second.outputs[0]
    assert before is not None  # it was looked at
    return fusing().holds([before, behind]) and not (is_between_pair(before) and is_between_pair(behind))


def _is_qdq_pair(first: ir.Node, second: ir.Node) -> bool:
    if not is_qdq(first, DEQUANTIZE) or not is_qdq(second, QUANTIZE):
        return False
    before, after = quantization_of(first), quantization_of(second)
    return before is not None and before == after and returns_every_integer(first, before)


def _is_dialect_pair(first: ir.Node, second: ir.Node, facts: Callable[[], Propagation]) -> bool:
    if not is_dialect(first) or not is_dialect(second) or (first.op_type, second.op_type) != (DEQUANT, QUANT):
        return False
    known, q = facts(), first.inputs[0] if first.inputs else None
    dequant, quant = _settings(first), _settings(second)
    if q is None or dequant is None or quant is None or dequant["scale_o"] != quant["scale_x"]:
        return False
    return _comes_back(_bits_of(q, known), quant["data_bits"], quant["scale_x"])


def _comes_back(held: int | None, bits: int, scale: float) -> bool:
    """Whether every integer of a width comes back from Dequant and Quant, in the same storage."""
    if held is None or bits > _WIDEST_EXACT or not _SMALLEST_SCALE <= scale <= _LARGEST_SCALE:
        return False
    return storage_bits(held) == storage_bits(bits) and held <= bits


def _is_tensor(value: ir.Value | None) -> bool:
    return value is not None and (value.type is None or isinstance(value.type, ir.TensorType))


def _settings(node: ir.Node) -> dict[str, Any] | None:
    """The attributes of a dialect node; None where they are incomplete, or given only by the caller of a function."""
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    try:
        return attributes_of(node, op_of(node))
    except LingerError:
        return None


def _bits_of(q: ir.Value, found: Propagation) -> int | None:
    """The width of a tensor's integers, as the node that makes them states it, else that of their type."""
    fact = found.fact(q)
    if q.dtype is not None and q.dtype != fact.element:
        return None  # the file contradicts itself
    return fact.bits


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
            changes.note(
                describe(node), f"runs on {element.name.lower()} now, without DequantizeLinear and QuantizeLinear"
            )
    replacer.finish()
    return changes


def _can_be_written(island: Island, replacer: ValueReplacer) -> bool:
    """Whether the names of the integers mean the same tensors where the floats are used now."""
    graph = island.nodes[0].graph
    integers = [source.inputs[0] for source in island.sources]
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
    graph = node.graph
    assert graph is not None  # the node came from a graph
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
    changes = Changes()
    names = cache(lambda: tensor_names(model))
    for value in [value for place in all_graphs(model) for value in place.graph.initializers.values()]:
        if value.is_graph_input() or isinstance(value.const_value, ir.ExternalTensor):
            continue
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
        owner = _integers_of(node) if index in _PARAMETERS else None
        if owner is None:
            is_used_otherwise = True
        else:
            groups.setdefault(owner, []).append((node, index))
    if groups and not is_used_otherwise:
        del groups[next(iter(groups))]
    return groups


def _integers_of(node: ir.Node) -> ir.Value | None:
    """The integer tensor that a Q makes or a DQ reads; None for any other node."""
    if is_qdq(node, QUANTIZE):
        return _first_alike(node)
    x = node.inputs[0] if is_qdq(node, DEQUANTIZE) else None
    maker = None if x is None else x.producer()
    return _first_alike(maker) if maker is not None and is_qdq(maker, QUANTIZE) else x


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
