# SPDX-License-Identifier: Apache-2.0
"""What schemas, the onnx package and linger's own reference refuse in a file; where the formats of nodes do not fit together.

Q/DQ nodes: scales and zero points that fixed point does not have, and products that saturate in some runtimes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from operator import attrgetter

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.checks.findings.structure import CheckedModel, NodePlace, function_places, model_finding, places_of
from linger.dialect import Op, is_known, ops
from linger.errors import GraphError, LingerError, UsageError, listing
from linger.graph.core import check_rules as rules
from linger.graph.core.dialects import LARGEST, NEWER_OPS, SAFE_WEIGHT, is_dequant, is_newer, read_scale, stands_for
from linger.graph.core.nodes import WARNING, Finding, describe, is_dialect, op_of
from linger.graph.core.tensor_types import constant_tensor, infer_element_types
from linger.graph.files.model_io import INLINE_BYTES
from linger.graph.formats.propagation import propagate
from linger.graph.formats.tensor_formats import Propagation, Use
from linger.graph.lowering.bodies import bring_to_normal_form, require_settings
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
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES, OUTPUT_TYPE

_ONNX_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
_EVERYWHERE = frozenset({"platform", "platform_quant", "castor_mode", "quant_mode", "mode", OUTPUT_TYPE})
"""Attributes that files of the dialect may have on any node."""

_COMPLETED = {"Clip": frozenset({"low", "high"})}
"""Inputs, beside biases, that linger fills in where they are left out."""

_LISTS = frozenset(ir.AttributeType[name] for name in ("INTS", "FLOATS", "STRINGS", "TENSORS", "GRAPHS"))
_MANY = 2**31 - 1
"""What ONNX writes for any number of inputs."""


def schema_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Everything about ops, attributes and the number of operands, in the order of the nodes."""
    yield from _opset_findings(checked)
    imports = checked.model.graph.opset_imports
    for place in checked.places:
        yield from _node_findings(place, imports, checked)
        yield from _value_findings(place, has_dialect=checked.has_dialect)
    for place in function_places(checked.model):
        domain, _, name = place.way.partition("/")[0].partition("::")
        function = checked.model.functions.get((domain, name, ""))
        yield from _node_findings(place, imports if function is None else function.opset_imports, checked)


def _value_findings(place: NodePlace, *, has_dialect: bool) -> Iterator[Finding]:
    """Attributes that take their value from the caller of a function, outside of any function; then empty lists."""
    empty = []
    for name, attribute in place.node.attributes.items():
        if attribute.is_ref():
            reason = f"the attribute {name!r} stands for one of a function, and the node is in none"
            yield place.finding(rules.ATTRIBUTE_TYPE, reason, "Give it a value.")
        elif has_dialect and attribute.type in _LISTS and not attribute.value:
            reason = f"the attribute {name!r} is an empty list"
            empty.append(place.finding(rules.EMPTY_LIST, reason, "Remove the attribute."))
    yield from empty


def _opset_findings(checked: CheckedModel) -> Iterator[Finding]:
    imported, newest = checked.model.graph.opset_imports, onnx.defs.onnx_opset_version()
    for domain in dict.fromkeys(place.node.domain for place in checked.places):
        if domain not in imported:
            reason = f"the domain {domain or 'ai.onnx'!r} is used and not imported"
            yield model_finding(rules.OPSET_IMPORT, reason, f"Add an opset_import for {domain!r}.")
    if imported.get("", 0) > newest:
        known = f"the {newest} that the installed onnx package knows"
        reason = f"opset {imported['']} is newer than {known}; its ops were not checked"
        remedy = "Update the onnx package, or export for an older opset."
        yield model_finding(rules.OPSET_IMPORT, reason, remedy, severity=WARNING)


def _node_findings(place: NodePlace, imports: Mapping[str, int], checked: CheckedModel) -> Iterator[Finding]:
    node, function = place.node, checked.model.functions.get(place.node.op_identifier())
    if is_dialect(node):
        if is_known(node.op_type):
            yield from _dialect_findings(place, op_of(node), checked)
        else:
            reason = f"linger has no op {node.op_type}{_meant(node.op_type, ops())}"
            yield place.finding(rules.UNKNOWN_OP, reason, "Update linger, or keep this layer in float.")
    elif is_newer(node):
        if node.op_type not in NEWER_OPS:
            reason = f"the newer dialect has no op {node.op_type}{_meant(node.op_type, NEWER_OPS)}"
            yield place.finding(rules.UNKNOWN_OP, reason, "Correct the name, or keep this layer in float.")
    elif function is not None:
        if len(node.inputs) > len(function.inputs):
            reason = f"it has {len(node.inputs)} inputs; the function takes {len(function.inputs)}"
            yield place.finding(rules.OPERAND_COUNT, reason, "Remove what is too many.")
    elif node.domain in _ONNX_DOMAINS:
        yield from _standard_findings(place, imports.get(node.domain))
    else:
        unknown = f"{node.domain}::{node.op_type} is neither standard ONNX nor of the dialect"
        remedy = "Replace it, or add its function to the file."
        yield place.finding(rules.FOREIGN_OP, f"{unknown}, and the file has no function for it", remedy)


@cache
def _schema(op_type: str, domain: str, opset: int) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def _names(domain: str) -> tuple[str, ...]:
    return tuple(sorted({schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain}))


def _meant(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=2)
    return f" (is {' or '.join(near)} meant?)" if near else ""


def _standard_findings(place: NodePlace, opset: int | None) -> Iterator[Finding]:
    node = place.node
    if opset is None or (not node.domain and opset > onnx.defs.onnx_opset_version()):
        return  # the import is a finding of its own
    schema = _schema(node.op_type, node.domain, opset)
    if schema is not None and not schema.deprecated:
        yield from _findings(place, _standard_expectation(schema))
        return
    what, hint = ("has no op", _meant(node.op_type, _names(node.domain))) if schema is None else ("has given up", "")
    reason = f"standard ONNX {what} {node.op_type} in opset {opset}{hint}"
    yield place.finding(rules.UNKNOWN_OP, reason, "Correct the name, or export for an opset that has it.")


@dataclass(frozen=True)
class _Expectation:
    """What the schema of an op, of standard ONNX or of the dialect, asks of a node."""

    attributes: Mapping[str, str]
    required: tuple[str, ...]
    inputs: tuple[int, int]
    needed: tuple[str, ...]
    outputs: tuple[int, int]
    free: frozenset[str] = frozenset()
    is_strict: bool = True


def _standard_expectation(schema: OpSchema) -> _Expectation:
    single = OpSchema.FormalParameterOption.Single
    return _Expectation(
        attributes={name: str(attribute.type).rpartition(".")[2] for name, attribute in schema.attributes.items()},
        required=tuple(name for name, attribute in schema.attributes.items() if attribute.required),
        inputs=(schema.min_input, schema.max_input),
        needed=tuple(formal.name if formal.option == single else "" for formal in schema.inputs),
        outputs=(schema.min_output, schema.max_output),
    )


def _dialect_findings(place: NodePlace, op: Op, checked: CheckedModel) -> Iterator[Finding]:
    try:
        form = op.form(len(place.node.inputs))
    except UsageError as error:
        yield place.finding(rules.OPERAND_COUNT, str(error).rstrip("."), "Add or remove inputs.")
        return
    function = checked.model.functions.get(place.node.op_identifier())
    free = _EVERYWHERE | frozenset(() if function is None else function.attributes)
    yield from _findings(place, _dialect_expectation(op, form, len(place.node.inputs), free))


def _dialect_expectation(op: Op, form: tuple[str, ...], count: int, free: frozenset[str]) -> _Expectation:
    """What an op asks of a node whose `count` inputs are called `form`; it may have the attributes `free`, too."""
    attributes = {a.name: ATTRIBUTE_TYPES[a.kind].name for a in op.attributes}
    required = tuple(a.name for a in filter(attrgetter("is_required"), op.attributes))
    outputs = (1, len(op.outputs))
    if op.is_variadic:
        scales = tuple(f"scale_x_{i}" for i in range(count))
        attributes |= dict.fromkeys(scales, "FLOAT")
        return _Expectation(attributes, (*required, *scales), (1, _MANY), (), outputs, free, is_strict=False)
    optional = op.optional_inputs | _COMPLETED.get(op.name, frozenset())
    needed = tuple("" if name in optional else name for name in (form if op.forms else op.inputs))
    least = max((i + 1 for i, name in enumerate(needed) if name), default=0)
    return _Expectation(attributes, required, (least, len(needed)), needed, outputs, free, is_strict=False)


def _findings(place: NodePlace, expected: _Expectation) -> Iterator[Finding]:
    yield from _attribute_findings(place, expected)
    node = place.node
    operands = (("inputs", len(node.inputs), expected.inputs), ("outputs", len(node.outputs), expected.outputs))
    for what, count, (low, high) in operands:
        if not low <= count <= high:
            most = f"{low} or more" if high >= _MANY else f"{low} to {high}"
            reason = f"it has {count} {what}; the op takes {low if low == high else most}"
            remedy = "Add what is missing." if count < low else "Remove what is too many."
            yield place.finding(rules.OPERAND_COUNT, reason, remedy)
    lacking = [name for name, value in zip(expected.needed, node.inputs, strict=False) if name and value is None]
    if lacking:
        yield place.finding(rules.OPERAND_COUNT, f"its input {listing(lacking)} is left out", "Connect it.")


def _attribute_findings(place: NodePlace, expected: _Expectation) -> Iterator[Finding]:
    node = place.node
    for name, attribute in node.attributes.items():
        kind = expected.attributes.get(name)
        if kind is None and name not in expected.free:
            reason = f"{node.op_type} has no attribute {name!r}{_meant(name, expected.attributes)}"
            severity = None if expected.is_strict else WARNING
            yield place.finding(rules.UNKNOWN_ATTRIBUTE, reason, "Correct or remove it.", severity=severity)
        elif kind is not None and attribute.type.name != kind:
            reason = f"the attribute {name!r} is of the type {attribute.type.name}, not {kind}"
            yield place.finding(rules.ATTRIBUTE_TYPE, reason, f"Write it as {kind}.")
    missing = [name for name in expected.required if name not in node.attributes]
    if missing:
        yield place.finding(rules.MISSING_ATTRIBUTE, f"it lacks {listing(missing)}", "Add what is missing.")


_NODE = re.compile(r"name: ?(?P<name>.*?) ?OpType: (?P<type>\S+)", re.IGNORECASE)


def onnx_verdict(light: onnx.ModelProto, checked: CheckedModel, explained: Collection[str]) -> Iterator[Finding]:
    """The first complaint of onnx's checker, and of its inference where the file is all standard (`light` may lack its weights).

    A complaint about a node that has errors already (`explained`, as findings name them) says nothing new.
    """
    try:
        onnx.checker.check_model(light)
        if not checked.has_dialect:
            onnx.shape_inference.infer_shapes(light, check_type=True, strict_mode=True)
    except onnx.checker.ValidationError as error:
        yield from _complaint(rules.ONNX_CHECKER, str(error), checked, explained)
    except (onnx.shape_inference.InferenceError, ValueError) as error:  # ValueError: absurd sizes
        yield from _complaint(rules.INFERENCE, str(error), checked, explained)


def _complaint(
    rule: rules.CheckRule, message: str, checked: CheckedModel, explained: Collection[str]
) -> Iterator[Finding]:
    """A message of the onnx package, about the last node that it names if no other node has this name and type."""
    text = " ".join(message.partition("==> Context")[0].split()).rstrip(". ")
    named = [(match["name"].strip(), match["type"]) for match in _NODE.finditer(" ".join(message.split()))]
    same = [place for place in checked.places if named and (place.node.name or "", place.node.op_type) == named[-1]]
    reason, remedy = f"the onnx package says: {text}", "Repair it, or export again."
    if len(same) == 1:
        if str(same[0]) not in explained:
            yield same[0].finding(rule, reason, remedy)
    elif not explained:
        yield model_finding(rule, reason, remedy)


def without_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose larger initializers are inputs: nothing large is copied, and no other file is read."""
    light = onnx.ModelProto()
    for field, value in proto.ListFields():
        if field.name == "graph":
            continue
        if field.is_repeated:
            getattr(light, field.name).MergeFrom(value)
        else:
            setattr(light, field.name, value)
    _copy_graph(proto.graph, light.graph)
    return light


def _copy_graph(graph: onnx.GraphProto, light: onnx.GraphProto) -> None:
    light.name = graph.name
    for name in ("node", "input", "output", "value_info", "sparse_initializer", "quantization_annotation"):
        getattr(light, name).MergeFrom(getattr(graph, name))
    declared = {value.name for value in graph.input}
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.DEFAULT and tensor.ByteSize() <= INLINE_BYTES:
            light.initializer.add().CopyFrom(tensor)
        elif tensor.name not in declared:
            kind = onnx.TypeProto.Tensor(elem_type=tensor.data_type)
            kind.shape.dim.extend(onnx.TensorShapeProto.Dimension(dim_value=size) for size in tensor.dims)
            light.input.add(name=tensor.name, type=onnx.TypeProto(tensor_type=kind))


_REMEDY = "Change the setting, or keep the layer in float."


def setting_findings(light: onnx.ModelProto, checked: CheckedModel) -> Iterator[Finding]:
    """Everything that `linger run` would refuse in a model without wrong schemas, which may lack its weights (`light`)."""
    try:
        bring_to_normal_form(ir.from_proto(light))
    except LingerError as error:
        findings = list(_refused(light, checked))
        yield from findings or [model_finding(rules.UNSUPPORTED_SETTING, str(error).rstrip("."), _REMEDY)]


def _refused(light: onnx.ModelProto, checked: CheckedModel) -> Iterator[Finding]:
    copy = ir.from_proto(light)
    pairs = list(zip([place.node for place in places_of(copy.graph)], checked.places, strict=True))
    copy.graph.sort()
    with suppress(LingerError):  # as far as it comes; what stops it is refused below
        infer_element_types(copy.graph)
    for node, place in pairs:
        try:
            if is_dialect(node):
                require_settings(node, op_of(node))
        except LingerError as error:
            reason = str(error).removeprefix(f"{describe(node)}: ").rstrip(".")  # it may already say what to do
            yield place.finding(rules.UNSUPPORTED_SETTING, reason, _REMEDY)


_SUM_LIFT = 1.0 + 2.0**-12  # the factor that the scales of a sum may have besides a power of two
_PAIR = frozenset({("", "QuantizeLinear"), ("", "DequantizeLinear")})
_SCALE, _ZERO_POINT = 1, 2
_QUANTIZE = "Quantize the float model with linger for a fixed-point device."
_OPERANDS = {"MatMulInteger": (0, 1), "QLinearMatMul": (0, 3), "QLinearConv": (0, 3)}
_FLOAT = frozenset({"Conv", "Gemm", "MatMul"})
_UNSIGNED = (
    "Quantize with unsigned weights or with weights of 7 bits (reduce_range), or set session.disable_quant_qdq (Q/DQ files)"
    " or session.x64quantprecision to 1 in ONNX Runtime."
)


def qdq_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Zero points and scales that fixed point does not have; warnings in a file of the dialect, notes in any other."""
    severity = WARNING if checked.has_dialect else None
    for place in checked.places:
        is_pair = (place.node.domain, place.node.op_type) in _PAIR
        if not is_pair or str(place) in skip or _is_of_carrier(place.node):
            continue
        odd = next(itertools.filterfalse(is_power_of_two, _content(place.node, _SCALE)), None)
        shift = next(filter(None, _content(place.node, _ZERO_POINT)), None)
        if odd is not None:
            reason = f"its scale {odd:.9g} is no power of two"
            yield place.finding(rules.ODD_QDQ_SCALE, reason, _QUANTIZE, severity=severity)
        if shift is not None:
            yield place.finding(rules.ZERO_POINT, f"its zero point is {shift:g}", _QUANTIZE, severity=severity)


def _is_of_carrier(node: ir.Node) -> bool:
    """Whether a node makes or reads integers that linger carries as unsigned bytes, which is exact."""
    values = (value for value in (*node.inputs[:1], *node.outputs) if value is not None)
    is_unit = all(is_power_of_two(scale) or is_power_of_two(scale / _SUM_LIFT) for scale in _content(node, _SCALE))
    return is_unit and any(v.dtype == ir.DataType.UINT8 and v.name and stands_for(v.name) != v.name for v in values)


def _content(node: ir.Node, index: int) -> list[float]:
    """The different numbers of a constant input, in order."""
    tensor = constant_tensor(node.inputs[index] if index < len(node.inputs) else None)
    return [] if tensor is None else [float(number) for number in np.unique(tensor.numpy().astype(np.float64))]


def saturation_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Every node whose products of unsigned data and signed weights beyond ±64 may saturate."""
    where = "ONNX Runtime multiplies unsigned by signed bytes here, and its sums saturate in 16 bits on x64 CPUs without VNNI"
    for place in checked.places:
        data, weight = _bytes(place.node)
        if data != ir.DataType.UINT8 or weight is None or not _is_large(weight) or _has_small_data(place.node):
            continue
        yield place.finding(rules.SATURATING_PRODUCT, f"{where}: there the file computes other numbers", _UNSIGNED)


def _has_small_data(node: ir.Node) -> bool:
    """Whether the data of an integer op is at most 127, so that no pair of products leaves 16 bits: 2·127·128 = 32512."""
    if node.domain or node.op_type not in _OPERANDS:
        return False
    waiting = [node.inputs[0]]
    for value in waiting:  # the list grows while it is walked
        maker = _maker(value)
        if _upper_end(maker) > LARGEST:
            if maker is None or not is_moving(maker) or maker.op_type == "Pad":
                return False
            waiting += [maker.inputs[index] for index in data_inputs(maker) if maker.inputs[index] not in waiting]
    return True


def _upper_end(maker: ir.Node | None) -> float:
    """The largest number that a Clip with a constant end, or a table, gives; infinite where that is not known."""
    index = {"Clip": 2, "GatherElements": 0}.get("" if maker is None or maker.domain else maker.op_type)
    if maker is None or index is None or index >= len(maker.inputs):
        return math.inf
    tensor = constant_tensor(maker.inputs[index])
    return math.inf if tensor is None or tensor.size == 0 else int(tensor.numpy().max())


def _bytes(node: ir.Node) -> tuple[ir.DataType | None, ir.Value | None]:
    """The type of the data as ONNX Runtime multiplies it, and the integer weights; None where it does not.

    It computes a float op between DequantizeLinear and QuantizeLinear with bytes.
    """
    op_type = "" if node.domain else node.op_type
    if op_type in _OPERANDS:
        data, weight = (node.inputs[i] if i < len(node.inputs) else None for i in _OPERANDS[op_type])
        return getattr(data, "dtype", None), weight
    if op_type in _FLOAT and len(node.inputs) > 1:
        before, weights = map(_dequantizer, node.inputs[:2])
        if before is not None and weights is not None and before.inputs[0] is not None:
            return _type_in_use(before, node), weights.inputs[0]
    return None, None


def _maker(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    maker = _maker(value)
    return maker if maker is not None and is_qdq(maker, DEQUANTIZE) else None


def _type_in_use(before: ir.Node, node: ir.Node) -> ir.DataType | None:
    """The type with which ONNX Runtime computes: unsigned also for signed data that it makes unsigned before and behind the op."""
    quantization = quantization_of(before)
    if quantization is None or quantization.element != ir.DataType.INT8:
        return None if quantization is None else quantization.element
    behind = [use.node.outputs[0] for use in node.outputs[0].uses() if is_qdq(use.node, QUANTIZE)]
    turns = all(map(_becomes_unsigned, (before.inputs[0], *behind)))
    return ir.DataType.UINT8 if turns else quantization.element


def _becomes_unsigned(value: ir.Value | None) -> bool:
    maker = _maker(value)
    if value is None or maker is None or not is_between_pair(value):
        return False
    (use,) = value.uses()
    return quantization_of(maker) == quantization_of(use.node)


def _is_large(weight: ir.Value) -> bool:
    """Whether weights are signed bytes that may lie beyond ±64."""
    tensor = constant(weight)
    if tensor is None:
        return weight.dtype == ir.DataType.INT8 and not isinstance(weight.const_value, ir.ExternalTensor)
    return tensor.dtype == ir.DataType.INT8 and bool((np.abs(tensor.numpy().astype(np.int16)) > SAFE_WEIGHT).any())


_REPAIR = "linger.repair does so."


def propagation_findings(checked: CheckedModel, light: onnx.ModelProto) -> Iterator[Finding]:
    """Contradictions between producers and consumers, and Dequants that are missing, wrong or in the wrong place.

    `light` is the same model, which may lack its weights (`without_weights`), to be sorted if need be.
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
        self.names: dict[str, str] = {}
        """The nodes by their description, with the path where only one node can be meant."""
        for place in checked.places:
            text = describe(place.node)
            self.names[text] = text if text in self.names else str(place)

    def of(self, node: ir.Node) -> NodePlace:
        return self._by_node.get(node) or NodePlace(node)  # nodes of functions have no place in the graph


def _contradictions(found: Propagation, places: _Places) -> Iterator[Finding]:
    for finding in found.findings:
        if finding.rule == rules.MISSING_ATTRIBUTE.id:
            continue  # the schema says so
        if finding.node in places.names:
            yield replace(finding, node=places.names[finding.node])
        else:  # an input or an output of a graph, whose name is between quotation marks
            tensor = finding.node.partition("'")[2].rpartition("'")[0]
            yield replace(finding, node="", reason=f"{finding.node}: {finding.reason}", tensor=tensor)


def _dequants(found: Propagation, places: _Places) -> Iterator[Finding]:
    for use in found.missing:
        fact = found.fact(use.value)
        reason = f"it needs real numbers, and {use.value.name or ''!r} is {fact}"
        remedy = f"Put a Dequant with the scale {fact.scale:g} between; {_REPAIR}"
        yield _at(places, use, rules.MISSING_DEQUANT, reason, remedy)
    for use in found.integer_uses:
        reason = f"it takes integers, and {use.value.name or ''!r} is what a Dequant made of them"
        remedy = f"Connect it to the tensor before the Dequant; {_REPAIR}"
        yield _at(places, use, rules.MISPLACED_DEQUANT, reason, remedy)
    for node, scale in found.wrong_scales:
        own, tensor = read_scale(node, "scale_o"), node.inputs[0]
        was = "not valid" if own is None else f"{own:g}"
        reason = f"its scale_o is {was}, and its tensor has the scale {scale:g}"
        remedy = f"Set scale_o to {scale:g}; {_REPAIR}"
        yield places.of(node).finding(rules.DEQUANT_SCALE, reason, remedy, tensor=getattr(tensor, "name", None))
    for node in found.of_reals:
        reason = "its tensor holds real numbers already"
        yield places.of(node).finding(rules.DEQUANT_OF_FLOAT, reason, f"Remove it; {_REPAIR}")


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
            element, declared = found.element(value), value.dtype
            if element is not None and declared is not None and declared != element and value not in told:
                was = declared.name.lower()
                reason = f"{value.name!r} is declared as {was}, and it computes {element.name.lower()}"
                remedy = f"Correct or remove the declaration; {_REPAIR}"
                yield place.finding(rules.DECLARED_TYPE, reason, remedy, tensor=value.name)


def dequant_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Every further Dequant of a tensor that could use the first one's result instead: each output of a graph has its own."""
    first: dict[ir.Value, NodePlace] = {}
    for place in [place for place in checked.places if is_dequant(place.node) and place.node.inputs]:
        tensor = place.node.inputs[0]
        earlier = place if tensor is None else first.setdefault(tensor, place)
        if tensor is not None and earlier is not place and _can_share(place, earlier):
            reason = f"{tensor.name!r} is dequantized by {earlier} already"
            remedy = "Let all consumers share one Dequant; linger.repair does."
            yield place.finding(rules.DUPLICATE_DEQUANT, reason, remedy, tensor=tensor.name)


def _can_share(place: NodePlace, earlier: NodePlace) -> bool:
    """Whether the readers of a Dequant see an earlier one, and not both are outputs of a graph."""
    graph = earlier.node.graph
    if not isinstance(graph, ir.Graph) or place.within(graph) is None:
        return False
    return not _is_output(place.node) or (graph is place.node.graph and not _is_output(earlier.node))


def _is_output(node: ir.Node) -> bool:
    return any(value.is_graph_output() for value in node.outputs)
