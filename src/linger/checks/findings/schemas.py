# SPDX-License-Identifier: Apache-2.0
"""What schemas, the onnx package and linger's own reference refuse in a file, as findings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from linger.checks.findings.structure import CheckedModel, NodePlace, function_places, model_finding, places_of
from linger.dialect import Op, is_known, ops
from linger.errors import LingerError, UsageError, listing
from linger.graph.core import check_rules as rules
from linger.graph.core.dialects import NEWER_OPS, is_newer
from linger.graph.core.nodes import WARNING, Finding, describe, is_dialect, op_of
from linger.graph.core.tensor_types import infer_element_types
from linger.graph.files.model_io import INLINE_BYTES
from linger.graph.lowering.bodies import bring_to_normal_form, require_settings
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES, OUTPUT_TYPE

_ONNX_DOMAINS = frozenset({"", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training"})
_EVERYWHERE = frozenset({"platform", "platform_quant", "castor_mode", "quant_mode", "mode", OUTPUT_TYPE})
"""Attributes that files of the dialect may have on any node."""

_COMPLETED = {"Clip": frozenset({"low", "high"})}
"""Inputs, beside biases, that linger fills in where they are left out."""

_LISTS = frozenset(
    {
        ir.AttributeType.INTS,
        ir.AttributeType.FLOATS,
        ir.AttributeType.STRINGS,
        ir.AttributeType.TENSORS,
        ir.AttributeType.GRAPHS,
    }
)
_MANY = 2**31 - 1
"""What ONNX writes for any number of inputs."""


def schema_findings(checked: CheckedModel) -> Iterator[Finding]:
    """Everything about ops, attributes and the number of operands, in the order of the nodes."""
    yield from _opset_findings(checked)
    imports = checked.model.graph.opset_imports
    for place in checked.places:
        yield from _node_findings(place, imports, checked)
        yield from _open_attributes(place)
        if checked.has_dialect:
            yield from _empty_lists(place)
    for place in function_places(checked.model):
        function = checked.model.functions.get(_function_of(place))
        yield from _node_findings(place, imports if function is None else function.opset_imports, checked)


def _function_of(place: NodePlace) -> tuple[str, str, str]:
    domain, _, name = place.way.partition("/")[0].partition("::")
    return domain, name, ""


def _opset_findings(checked: CheckedModel) -> Iterator[Finding]:
    imported = checked.model.graph.opset_imports
    used = dict.fromkeys(place.node.domain for place in checked.places)
    for domain in used:
        if domain not in imported:
            reason = f"the domain {domain or 'ai.onnx'!r} is used and not imported"
            yield model_finding(rules.OPSET_IMPORT, reason, f"Add an opset_import for {domain!r}.")
    newest = onnx.defs.onnx_opset_version()
    if imported.get("", 0) > newest:
        yield model_finding(
            rules.OPSET_IMPORT,
            f"opset {imported['']} is newer than the {newest} that the installed onnx package knows; its ops were not checked",
            "Update the onnx package, or export for an older opset.",
            severity=WARNING,
        )


def _node_findings(place: NodePlace, imports: Mapping[str, int], checked: CheckedModel) -> Iterator[Finding]:
    node = place.node
    identifier = node.op_identifier()
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
    elif identifier in checked.model.functions:
        yield from _call_findings(place, checked.model.functions[identifier])
    elif node.domain in _ONNX_DOMAINS:
        yield from _standard_findings(place, imports.get(node.domain))
    else:
        yield place.finding(
            rules.FOREIGN_OP,
            f"{node.domain}::{node.op_type} is neither standard ONNX nor of the dialect, and the file has no function for it",
            "Replace it, or add its function to the file.",
        )


def _call_findings(place: NodePlace, function: ir.Function) -> Iterator[Finding]:
    given, takes = len(place.node.inputs), len(function.inputs)
    if given > takes:
        reason = f"it has {given} inputs; the function takes {takes}"
        yield place.finding(rules.OPERAND_COUNT, reason, "Remove what is too many.")


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
    if schema is None or schema.deprecated:
        what = "has no op" if schema is None else "has given up"
        hint = _meant(node.op_type, _names(node.domain)) if schema is None else ""
        reason = f"standard ONNX {what} {node.op_type} in opset {opset}{hint}"
        yield place.finding(rules.UNKNOWN_OP, reason, "Correct the name, or export for an opset that has it.")
        return
    yield from _findings(place, _standard_expectation(schema))


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
    """What an op asks of a node with so many inputs.

    Args:
        op: The op.
        form: The names of the node's inputs.
        count: How many inputs the node has.
        free: Attributes that the node may have beside those of the op.
    """
    attributes = {a.name: ATTRIBUTE_TYPES[a.kind].name for a in op.attributes}
    required = tuple(a.name for a in op.attributes if a.is_required)
    outputs = (1, len(op.outputs))
    if op.is_variadic:
        scales = tuple(f"scale_x_{i}" for i in range(count))
        attributes |= dict.fromkeys(scales, "FLOAT")
        return _Expectation(attributes, (*required, *scales), (1, _MANY), (), outputs, free, is_strict=False)
    needed = _needed(op, form if op.forms else op.inputs)
    least = max((i + 1 for i, name in enumerate(needed) if name), default=0)
    return _Expectation(attributes, required, (least, len(needed)), needed, outputs, free, is_strict=False)


def _needed(op: Op, inputs: Iterable[str]) -> tuple[str, ...]:
    """The names of an op's inputs, empty for those that may be left out."""
    optional = op.optional_inputs | _COMPLETED.get(op.name, frozenset())
    return tuple("" if name in optional else name for name in inputs)


def _findings(place: NodePlace, expected: _Expectation) -> Iterator[Finding]:
    yield from _attribute_findings(place, expected)
    node = place.node
    for what, count, (low, high) in (
        ("inputs", len(node.inputs), expected.inputs),
        ("outputs", len(node.outputs), expected.outputs),
    ):
        if not low <= count <= high:
            remedy = "Add what is missing." if count < low else "Remove what is too many."
            yield place.finding(rules.OPERAND_COUNT, f"it has {count} {what}; the op takes {_range(low, high)}", remedy)
    lacking = [name for name, value in zip(expected.needed, node.inputs, strict=False) if name and value is None]
    if lacking:
        yield place.finding(rules.OPERAND_COUNT, f"its input {listing(lacking)} is left out", "Connect it.")


def _attribute_findings(place: NodePlace, expected: _Expectation) -> Iterator[Finding]:
    node = place.node
    for name, attribute in node.attributes.items():
        kind = expected.attributes.get(name)
        if kind is None and name not in expected.free:
            yield place.finding(
                rules.UNKNOWN_ATTRIBUTE,
                f"{node.op_type} has no attribute {name!r}{_meant(name, expected.attributes)}",
                "Correct or remove it.",
                severity=None if expected.is_strict else WARNING,
            )
        elif kind is not None and attribute.type.name != kind:
            reason = f"the attribute {name!r} is of the type {attribute.type.name}, not {kind}"
            yield place.finding(rules.ATTRIBUTE_TYPE, reason, f"Write it as {kind}.")
    missing = [name for name in expected.required if name not in node.attributes]
    if missing:
        yield place.finding(rules.MISSING_ATTRIBUTE, f"it lacks {listing(missing)}", "Add what is missing.")


def _open_attributes(place: NodePlace) -> Iterator[Finding]:
    """Attributes that take their value from the caller of a function, at a node outside of any function."""
    for name, attribute in place.node.attributes.items():
        if attribute.is_ref():
            reason = f"the attribute {name!r} stands for one of a function, and the node is in none"
            yield place.finding(rules.ATTRIBUTE_TYPE, reason, "Give it a value.")


def _range(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high >= _MANY else f"{low} to {high}"


def _empty_lists(place: NodePlace) -> Iterator[Finding]:
    for name, attribute in place.node.attributes.items():
        if attribute.type in _LISTS and not attribute.is_ref() and not attribute.value:
            yield place.finding(rules.EMPTY_LIST, f"the attribute {name!r} is an empty list", "Remove the attribute.")


_NODE = re.compile(r"name: ?(?P<name>.*?) ?OpType: (?P<type>\S+)", re.IGNORECASE)


def onnx_verdict(light: onnx.ModelProto, checked: CheckedModel, explained: Collection[str]) -> Iterator[Finding]:
    """The first complaint of onnx's checker, and of its inference where the file is all standard.

    Args:
        light: The model, which may lack its weights (`without_weights`).
        checked: The same, for the names of its nodes.
        explained: Nodes that have errors already (as findings name them): a complaint about one of them says nothing new.
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
    text = " ".join(message.partition("==> Context")[0].split()).rstrip(". ")
    place = _place_of(message, checked)
    if place is None:
        if not explained:
            yield model_finding(rule, f"the onnx package says: {text}", "Repair it, or export again.")
    elif str(place) not in explained:
        yield place.finding(rule, f"the onnx package says: {text}", "Repair it, or export again.")


def _place_of(message: str, checked: CheckedModel) -> NodePlace | None:
    """The node that a message is about: the last one that it names, if no other has this name and type."""
    found = list(_NODE.finditer(" ".join(message.split())))
    if not found:
        return None
    name, op_type = found[-1]["name"].strip(), found[-1]["type"]
    same = [place for place in checked.places if (place.node.name or "") == name and place.node.op_type == op_type]
    return same[0] if len(same) == 1 else None


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
            made = light.input.add()
            made.name = tensor.name
            made.type.tensor_type.elem_type = tensor.data_type
            for size in tensor.dims:
                made.type.tensor_type.shape.dim.add().dim_value = size


_REMEDY = "Change the setting, or keep the layer in float."


def setting_findings(light: onnx.ModelProto, checked: CheckedModel) -> Iterator[Finding]:
    """Everything that `linger run` would refuse.

    Args:
        light: The model, which may lack its weights (`linger.checks.findings.schemas.without_weights`); without wrong schemas.
        checked: The same, for the places of its nodes.
    """
    try:
        bring_to_normal_form(ir.from_proto(light))
    except LingerError as error:
        refused = list(_refused(light, checked))
        yield from refused or [model_finding(rules.UNSUPPORTED_SETTING, _sentence(str(error)), _REMEDY)]


def _refused(light: onnx.ModelProto, checked: CheckedModel) -> Iterator[Finding]:
    copy = ir.from_proto(light)
    pairs = list(zip([place.node for place in places_of(copy.graph)], checked.places, strict=True))
    copy.graph.sort()
    with suppress(LingerError):  # as far as it comes; what stops it is refused below
        infer_element_types(copy.graph)
    for node, place in pairs:
        if not is_dialect(node):
            continue
        try:
            require_settings(node, op_of(node))
        except LingerError as error:
            reason = str(error).removeprefix(f"{describe(node)}: ")
            yield place.finding(rules.UNSUPPORTED_SETTING, _sentence(reason), _REMEDY)


def _sentence(text: str) -> str:
    """The text without its full stop; it may already say what to do."""
    return text.rstrip(".")
