# SPDX-License-Identifier: Apache-2.0
"""Nodes that fit their schema and that linger still refuses to compute."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import onnx
import onnx_ir as ir

from linger.checks.findings.node_places import Whole, model_finding, places_of
from linger.errors import LingerError
from linger.graph.core import check_rules as rules
from linger.graph.core.dialect_node import describe, is_dialect, op_of
from linger.graph.core.finding import Finding
from linger.graph.core.tensor_types import infer_element_types
from linger.graph.forms.normal_form import bring_to_normal_form, require_settings

_REMEDY = "Change the setting, or keep the layer in float."


def setting_findings(light: onnx.ModelProto, whole: Whole) -> Iterator[Finding]:
    """What `linger run` would refuse, all of it.

    Args:
        light: The model, which may lack its weights (`linger.checks.findings.onnx_verdict.without_weights`); without wrong schemas.
        whole: The same, for the places of its nodes.
    """
    try:
        bring_to_normal_form(ir.from_proto(light))
    except LingerError as error:
        refused = list(_refused(light, whole))
        yield from refused or [model_finding(rules.UNSUPPORTED_SETTING, _sentence(str(error)), _REMEDY)]


def _refused(light: onnx.ModelProto, whole: Whole) -> Iterator[Finding]:
    copy = ir.from_proto(light)
    pairs = list(zip([place.node for place in places_of(copy.graph)], whole.places, strict=True))
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
    """Without its full stop; what to do may be part of it."""
    return text.rstrip(".")
