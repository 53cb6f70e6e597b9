# SPDX-License-Identifier: Apache-2.0
"""Read a dialect node: its op, its chip and its attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import onnx_ir as ir

from linger.dialect import DOMAIN, AttributeKind, Op, find_op
from linger.errors import GraphError, UsageError, listing, printable
from linger.numeric.onnx.writer import ATTRIBUTE_TYPES

_WIDEST = 32
_INSIDE = f"{DOMAIN}."


def is_dialect(node: ir.Node) -> bool:
    """Whether a node belongs to the dialect, in its plain domain or in a sub-domain of a function variant."""
    return is_dialect_domain(node.domain)


def is_dialect_domain(domain: str) -> bool:
    """Whether a domain is the dialect's or one of its sub-domains."""
    return domain == DOMAIN or domain.startswith(_INSIDE)


def describe(node: ir.Node) -> str:
    """The name and the type of a node, for a message."""
    return printable(f"{node.name or (node.outputs[0].name if node.outputs else '?')} ({node.op_type})")


def platform_of(node: ir.Node) -> str | None:
    """The chip that a node names."""
    found = node.attributes.data.get("platform")
    return found.value if found is not None and isinstance(found.value, str) else None


def op_of(node: ir.Node) -> Op:
    """The op of a dialect node, with the arithmetic of the chip that the node names."""
    return find_op(node.op_type, platform_of(node))


def attributes_of(node: ir.Node, op: Op) -> dict[str, Any]:
    """The op's attributes as Python values, defaults filled in; attributes the schema does not know are left out.

    Raises:
        GraphError: A required attribute is missing, one is of another kind than the op's, or a scale is no scale.
    """
    kinds = _kinds(op)
    wrong: list[str] = []
    given: dict[str, Any] = {}
    for name, attribute in node.attributes.data.items():
        kind = kinds.get(name) or ("float" if op.is_variadic_attribute(name) else None)
        if kind is None:
            continue
        value = given[name] = attribute.value
        if isinstance(value, list):
            given[name] = tuple(value)
        problem = None if attribute.is_ref() else _problem(attribute, ATTRIBUTE_TYPES[kind])
        wrong += [] if problem is None else [problem]
    if wrong:
        raise GraphError(f"{describe(node)}: {listing(wrong)}. Export the layer again, or set it by hand.")
    try:
        return op.complete(given)
    except UsageError as error:
        raise GraphError(f"{describe(node)}: {error}") from error


@cache
def _kinds(op: Op) -> Mapping[str, AttributeKind]:
    return {attribute.name: attribute.kind for attribute in op.attributes}


def _problem(attribute: ir.Attr, kind: ir.AttributeType) -> str | None:
    """Why an op does not accept an attribute, or None."""
    name, value = attribute.name, attribute.value
    if attribute.type != kind:
        return f"{name} is of kind {attribute.type.name.lower()}, not {kind.name.lower()}"
    if name.startswith("scale") and not (math.isfinite(value) and value > 0):
        return f"{name} = {value:g} is no scale, which is a number above 0"
    if name.endswith("bits") and not 1 < value <= _WIDEST:
        return f"{name} = {value} is no width, which is 2 to {_WIDEST}"
    return None


def opset_of(model: ir.Model) -> int:
    """Version of the standard opset a model is written for."""
    version = model.graph.opset_imports.get("")
    if version is None:
        raise GraphError("the model imports no standard opset. Add an opset_import for the domain ''.")
    return version
