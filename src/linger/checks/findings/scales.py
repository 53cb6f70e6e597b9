# SPDX-License-Identifier: Apache-2.0
"""Scales and types: what each node states, QDQ nodes included, and where nodes do not fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir

from linger.checks.findings.structure import CheckedModel, NodePlace, model_finding
from linger.dialect import Op, find_op, is_known
from linger.errors import GraphError
from linger.graph.core import check_rules as rules
from linger.graph.core.dialects import (
    LARGEST,
    NEWER_OPS,
    SAFE_WEIGHT,
    is_dequant,
    is_newer,
    is_quantizing,
    read_scale,
    stands_for,
)
from linger.graph.core.nodes import NOTE, WARNING, Finding, describe, is_dialect, op_of
from linger.graph.core.tensor_types import constant_tensor, integer_bits
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import Propagation, Use
from linger.graph.qdq.qdq_node import (
    DEQUANTIZE,
    QUANTIZE,
    constant,
    data_inputs,
    is_between_pair,
    is_moving,
    is_qdq,
    quantization_of,
)
from linger.numeric.fixed import is_power_of_two

_SUM_LIFT = 1.0 + 2.0**-12  # the factor that the scales of a sum may have besides a power of two
_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
_SCALE, _ZERO_POINT = 1, 2
_QUANTIZE = "Quantize the float model with linger for a fixed-point device."
_OPERANDS = {"MatMulInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT = frozenset({"Conv", "Gemm", "MatMul"})
_REMEDY = (
    "Quantize with unsigned weights or with weights of 7 bits (reduce_range), or set session.disable_quant_qdq (Q/DQ files)"
    " or session.x64quantprecision to 1 in ONNX Runtime."
)


def qdq_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Zero points and scales that fixed point does not have; warnings in a file of the dialect, notes in any other."""
    severity = WARNING if checked.has_dialect else None
    for place in checked.places:
        is_pair = place.node.op_type in _PAIR and not place.node.domain
        if is_pair and str(place) not in skip and not _is_of_carrier(place.node):
            yield from _pair_findings(place, severity)


def _is_of_carrier(node: ir.Node) -> bool:
    """Whether a node makes or reads integers that linger carries as unsigned bytes, which is exact."""
    values = (value for value in (*node.inputs[:1], *node.outputs) if value is not None)
    is_unit = all(is_power_of_two(scale) or is_power_of_two(scale / _SUM_LIFT) for scale in _content(node, _SCALE))
    return is_unit and any(v.dtype == ir.DataType.UINT8 and v.name and stands_for(v.name) != v.name for v in values)


def _pair_findings(place: NodePlace, severity: str | None) -> Iterator[Finding]:
    odd = [scale for scale in _content(place.node, _SCALE) if not is_power_of_two(scale)]
    shifted = [zero for zero in _content(place.node, _ZERO_POINT) if zero]
    if odd:
        reason = f"its scale {odd[0]:.9g} is no power of two"
        yield place.finding(rules.ODD_QDQ_SCALE, reason, _QUANTIZE, severity=severity)
    if shifted:
        yield place.finding(rules.ZERO_POINT, f"its zero point is {shifted[0]:g}", _QUANTIZE, severity=severity)


def _content(node: ir.Node, index: int) -> list[float]:
    """The different numbers of a constant input, in order."""
    tensor = constant_tensor(node.inputs[index] if index < len(node.inputs) else None)
    return [] if tensor is None else [float(number) for number in np.unique(tensor.numpy().astype(np.float64))]


def saturation_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Every node whose products of unsigned data and signed weights beyond ±64 may saturate."""
    for place in checked.places:
        data, weight = _bytes(place.node)
        if data != ir.DataType.UINT8 or weight is None or not _is_large(weight) or _has_small_data(place.node):
            continue
        yield place.finding(
            rules.SATURATING_PRODUCT,
            "ONNX Runtime multiplies unsigned by signed bytes here, and its sums saturate in 16 bits on x64 CPUs without "
            "VNNI: there the file computes other numbers",
            _REMEDY,
        )


def _has_small_data(node: ir.Node) -> bool:
    """Whether the data of an integer op is at most 127, so that no pair of products leaves 16 bits: 2·127·128 = 32512."""
    op_type = "" if node.domain else node.op_type
    waiting = [node.inputs[0]] if op_type in _OPERANDS else [None]
    for value in waiting:  # the list grows while it is walked
        maker = None if value is None else value.producer()
        ends = _upper_end(maker)
        if ends is not None and ends <= LARGEST:
            continue
        if maker is None or not is_moving(maker) or maker.op_type == "Pad":
            return False
        waiting += [maker.inputs[index] for index in data_inputs(maker) if maker.inputs[index] not in waiting]
    return True


def _upper_end(maker: ir.Node | None) -> int | None:
    """The largest number that a Clip with a constant end, or a table, gives; None where that is not known."""
    index = {"Clip": 2, "GatherElements": 0}.get("" if maker is None or maker.domain else maker.op_type)
    if maker is None or index is None or index >= len(maker.inputs):
        return None
    tensor = constant_tensor(maker.inputs[index])
    return None if tensor is None or tensor.size == 0 else int(tensor.numpy().max())


def _bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The type of the data as ONNX Runtime multiplies it, and the integer weights; None where it does not."""
    op_type = "" if node.domain else node.op_type
    if op_type in _OPERANDS:
        data, weight = (node.inputs[i] if i < len(node.inputs) else None for i in _OPERANDS[op_type])
        return None if data is None else data.dtype, weight
    return _dequantized_bytes(node) if op_type in _FLOAT and len(node.inputs) > 1 else (None, None)


def _dequantized_bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The same for a float op between DequantizeLinear and QuantizeLinear, which ONNX Runtime computes with bytes."""
    before, weights = (_dequantizer(value) for value in node.inputs[:2])
    if before is None or weights is None or before.inputs[0] is None:
        return None, None
    return _type_in_use(before, node), weights.inputs[0]


def _type_in_use(before: ir.Node, node: ir.Node) -> ir.DataType | None:
    """The type with which ONNX Runtime computes: unsigned also for signed data that it makes unsigned before and behind the op."""
    found = quantization_of(before)
    if found is None or found.element != ir.DataType.INT8:
        return None if found is None else found.element
    behind = [use.node.outputs[0] for use in node.outputs[0].uses() if is_qdq(use.node, QUANTIZE)]
    turns = all(value is not None and _becomes_unsigned(value) for value in (before.inputs[0], *behind))
    return ir.DataType.UINT8 if turns else found.element


def _becomes_unsigned(value: ir.Value) -> bool:
    maker = value.producer()
    if maker is None or not is_between_pair(value):
        return False
    (use,) = value.uses()
    return quantization_of(maker) == quantization_of(use.node)


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    maker = None if value is None else value.producer()
    return maker if maker is not None and is_qdq(maker, DEQUANTIZE) else None


def _is_large(weight: ir.Value) -> bool:
    """Whether weights are signed bytes that may lie beyond ±64."""
    tensor = constant(weight)
    if tensor is None:
        return weight.dtype == ir.DataType.INT8 and not isinstance(weight.const_value, ir.ExternalTensor)
    return tensor.dtype == ir.DataType.INT8 and bool((np.abs(tensor.numpy().astype(np.int16)) > SAFE_WEIGHT).any())


_FACTORS = ("scale_x", "scale_w", "scale_y")
_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_CHOICE, _BELOW_MAX = "iqWhere", "iqSubMax"
_WIDEST = 32
_NARROW = 8
"""Up to this width the scale of a tensor is that of its range; a wider one may be coarser than its range asks for."""

_CALIBRATE = "Calibrate or train the model with linger and export it again."


def scale_findings(checked: CheckedModel, *, for_target: bool = False) -> Iterator[Finding]:
    """What is wrong with the scales of each node by itself.

    Args:
        checked: The model.
        for_target: A chip is asked too; it judges shifts and scales below 1 by its own rules.
    """
    for place in checked.places:
        if not is_quantizing(place.node):
            continue
        scales = scales_of(place.node)
        yield from _value_findings(place, scales, for_target=for_target)
        if all(_is_positive(scale) for scale in scales.values()):
            yield from _relation_findings(place, scales, for_target=for_target)


def scales_of(node: ir.Node) -> dict[str, float]:
    """The scales among a node's attributes."""
    return {
        name: float(attribute.value)
        for name, attribute in node.attributes.items()
        if name.startswith("scale_") and attribute.type == ir.AttributeType.FLOAT and not attribute.is_ref()
    }


def _is_positive(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0


def _value_findings(place: NodePlace, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    invalid = _listed(scales, lambda scale: not _is_positive(scale))
    odd = _listed(scales, lambda scale: _is_positive(scale) and not is_power_of_two(scale))
    small = _listed(scales, lambda scale: 0 < scale < 1)
    if invalid:
        yield place.finding(rules.INVALID_SCALE, f"{invalid}: no scale", _CALIBRATE)
    if odd and not for_target:
        yield place.finding(rules.ODD_SCALE, f"{odd}: no power of two", "Choose scales that are powers of two.")
    if small and not for_target:
        remedy = "Keep the layer's range smaller, with linger.normalize_layers or a scaled input."
        yield place.finding(rules.SMALL_SCALE, f"{small}: below 1, which no device has", remedy)


def _listed(scales: dict[str, float], is_meant: Callable[[float], bool]) -> str:
    return ", ".join(f"{name} = {scale:g}" for name, scale in scales.items() if is_meant(scale))


def _relation_findings(place: NodePlace, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    output, op = scales.get("scale_o"), _op(place.node)
    if output is None or op is None:
        return
    operands = [scales[name] for name in _FACTORS if name in scales]
    if operands and not for_target and op.limit in (math.prod, min):
        yield from _shift_findings(place, output, op.limit(operands), is_product=op.limit is math.prod)
    if is_dialect(place.node) and op.output_scale not in (None, output):
        reason = f"scale_o = {output:g}; the device's {op.name} gives {op.output_scale:g}"
        yield place.finding(rules.FIXED_SCALE, reason, f"Export with linger, which writes {op.output_scale:g}.")


def _shift_findings(place: NodePlace, output: float, bound: float, *, is_product: bool) -> Iterator[Finding]:
    if output > bound:
        whose = "that of the product" if is_product else "that of an operand"
        reason = f"scale_o = {output:g} is above {bound:g}, {whose}, so the result would be shifted left"
        yield place.finding(rules.LEFT_SHIFT, reason, _CALIBRATE)


def _op(node: ir.Node) -> Op | None:
    """The op of the dialect that a node of either dialect computes; None for any other node."""
    if is_dialect(node):
        return op_of(node) if is_known(node.op_type) else None
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    return None if newer is None or newer.older is None or not is_known(newer.older) else find_op(newer.older)


def input_range_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Nodes whose input, by its scale and width, goes beyond what the device's format of it holds.

    Args:
        checked: The model.
        skip: Nodes, as findings name them, that cannot be read as those of their op.
    """
    for place in checked.places:
        op = None if str(place) in skip else _op(place.node)
        if op is None or op.input_end is None or not place.node.inputs:
            continue
        scale, source = _scale(place.node, "scale_x"), _source(place.node.inputs[0])
        if scale is None or (source is not None and _is(source, _BELOW_MAX)):
            continue
        bits, reach = _reach(place.node, source, scale)
        if reach > op.input_end:
            yield _finding(place, op, scale, bits, reach)


def _finding(place: NodePlace, op: Op, scale: float, bits: int, reach: float) -> Finding:
    is_softmax = op.last_axis is not None
    lost = "numbers beyond become equal" if is_softmax else f"numbers beyond count as ±{op.input_end:g}"
    remedy = (
        "Calibrate again with linger, which subtracts the largest number of each row first; or limit the layer before it."
        if is_softmax
        else "Limit the layer before it with linger.normalize_module and fine-tune, or keep this function in float."
    )
    return place.finding(
        rules.INPUT_RANGE,
        f"{bits} bits at scale_x = {scale:g} reach ±{reach:g}, the device's format of it ends at ±{op.input_end:g}: {lost}",
        remedy,
        severity=None if bits <= _NARROW else NOTE,
    )


def _is(node: ir.Node, op_type: str) -> bool:
    return is_dialect(node) and node.op_type == op_type


def _source(value: ir.Value | None) -> ir.Node | None:
    """The node that computed a tensor; nodes that only move numbers are skipped."""
    node, seen = None if value is None else value.producer(), set()
    while (
        node is not None and not node.domain and node.op_type in _MOVES and node.inputs and node.inputs[0] is not None
    ):
        if node in seen:
            return None  # a file that is checked may go in a circle
        seen.add(node)
        node = node.inputs[0].producer()
    return node


def _reach(node: ir.Node, source: ir.Node | None, scale: float) -> tuple[int, float]:
    """Width and largest magnitude of a node's input; behind a mask, of the numbers that the mask keeps."""
    if source is None or not _is(source, _CHOICE):
        bits = _bits(node.inputs[0], node)
        return bits, 2.0 ** (bits - 1) / scale
    given = zip(source.inputs[:2], (_scale(source, "scale_x"), _scale(source, "scale_y")), strict=False)
    chosen = [(_bits(v), s) for v, s in given if v is not None and s is not None and not _is_constant(v)]
    ranges = [(bits, 2.0 ** (bits - 1) / s) for bits, s in chosen]
    return max(ranges, key=lambda pair: pair[1], default=(_NARROW, 0.0))


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is not None if producer is None else producer.op_type == "Constant"


def _bits(value: ir.Value | None, reader: ir.Node | None = None) -> int:
    """The width of a tensor: as its reader or its maker states it, else as it is stored."""
    maker = None if value is None else value.producer()
    stated = [*_widths(reader, "data_bits", "x_bits"), *_widths(maker, "o_bits", "data_bits")]
    if stated:
        return stated[0]
    return (None if value is None else integer_bits(value.dtype)) or _NARROW


def _widths(node: ir.Node | None, *names: str) -> Iterator[int]:
    """The widths that a node states under some names, as far as they are possible ones."""
    given = [] if node is None else [node.attributes[name] for name in names if name in node.attributes]
    for attribute in given:
        if attribute.type == ir.AttributeType.INT and not attribute.is_ref() and 1 < attribute.as_int() <= _WIDEST:
            yield attribute.as_int()


def _scale(node: ir.Node, name: str) -> float | None:
    """A scale that is a positive number; None where there is no such scale."""
    found = node.attributes.get(name)
    if found is None or found.type != ir.AttributeType.FLOAT or found.is_ref():
        return None
    scale = found.as_float()
    return scale if math.isfinite(scale) and scale > 0 else None


_REPAIR = "linger.repair does so."


def propagation_findings(checked: CheckedModel, light: onnx.ModelProto) -> Iterator[Finding]:
    """Contradictions between producers and consumers, and Dequants that are missing, wrong or in the wrong place.

    Args:
        checked: The model.
        light: The same, which may lack its weights (`linger.checks.findings.schemas.without_weights`), to be sorted if need be.
    """
    try:
        found, places = propagate(checked.model), _Places(checked)
    except GraphError:
        copy = CheckedModel.of(ir.from_proto(light))
        try:
            copy.model.graph.sort()
            found, places = propagate(copy.model), _Places(copy)
        except (GraphError, ValueError) as error:
            reason = f"types and scales cannot be followed: {str(error).rstrip('.')}"
            yield model_finding(rules.CYCLE, reason, "Break the circle.")
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
            reason = f"{value.name!r} is declared as {value.dtype.name.lower()}, and it computes {element.name.lower()}"
            remedy = f"Correct or remove the declaration; {_REPAIR}"
            yield place.finding(rules.DECLARED_TYPE, reason, remedy, tensor=value.name or "")


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
            reason = f"{tensor.name!r} is dequantized by {earlier} already"
            remedy = "Let all consumers share one Dequant; linger.repair does."
            yield place.finding(rules.DUPLICATE_DEQUANT, reason, remedy, tensor=tensor.name or "")


def _is_output(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)
