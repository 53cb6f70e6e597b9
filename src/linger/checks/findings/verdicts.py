# SPDX-License-Identifier: Apache-2.0
"""What the onnx package and linger's own reference refuse in a file, as findings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import suppress

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import CheckedModel, NodePlace, model_finding, places_of
from linger.errors import LingerError
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import describe, is_dialect, op_of
from linger.graph.core.finding import Finding
from linger.graph.core.tensor_types import infer_element_types
from linger.graph.files.model_io import INLINE_BYTES
from linger.graph.forms.normal_form import bring_to_normal_form, require_settings

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
        light: The model, which may lack its weights (`linger.checks.findings.verdicts.without_weights`); without wrong schemas.
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
