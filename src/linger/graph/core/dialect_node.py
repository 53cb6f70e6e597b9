# SPDX-License-Identifier: Apache-2.0
"""Read a dialect node: its op, its chip and its attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from linger.dialect import DOMAIN, Op, find_op
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
    found = node.attributes.get("platform")
    return found.value if found is not None and isinstance(found.value, str) else None


def op_of(node: ir.Node) -> Op:
    """The op of a dialect node, with the arithmetic of the chip that the node names."""
    return find_op(node.op_type, platform_of(node))


def attributes_of(node: ir.Node, op: Op) -> dict[str, Any]:
    """The op's attributes as Python values, defaults filled in; attributes the schema does not know are left out.

    Raises:
        GraphError: A required attribute is missing, one is of another kind than the op's, or a scale is no scale.
    """
    known = {a.name: a.kind for a in op.attributes}
    wrong = [problem for a in node.attributes.values() if (problem := _problem(a, op, known)) is not None]
    if wrong:
        raise GraphError(f"{describe(node)}: {listing(wrong)}. Export the layer again, or set it by hand.")
    given = {
        name: tuple(attr.value) if isinstance(attr.value, (list, tuple)) else attr.value
        for name, attr in node.attributes.items()
        if name in known or op.is_variadic_attribute(name)
    }
    try:
        return op.complete(given)
    except UsageError as error:
        raise GraphError(f"{describe(node)}: {error}") from error


def _problem(attribute: ir.Attr, op: Op, known: Mapping[str, str]) -> str | None:
    """Why the op does not accept an attribute, or None."""
    kind = known.get(attribute.name, "float" if op.is_variadic_attribute(attribute.name) else None)
    if kind is None or attribute.is_ref():
        return None
    if attribute.type != ATTRIBUTE_TYPES[kind]:
        return f"{attribute.name} is of kind {attribute.type.name.lower()}, not {ATTRIBUTE_TYPES[kind].name.lower()}"
    if attribute.name.startswith("scale") and not (math.isfinite(attribute.value) and attribute.value > 0):
        return f"{attribute.name} = {attribute.value:g} is no scale, which is a number above 0"
    if attribute.name.endswith("bits") and not 1 < attribute.value <= _WIDEST:
        return f"{attribute.name} = {attribute.value} is no width, which is 2 to {_WIDEST}"
    return None


def opset_of(model: ir.Model) -> int:
    """Version of the standard opset a model is written for."""
    version = model.graph.opset_imports.get("")
    if version is None:
        raise GraphError("the model imports no standard opset. Add an opset_import for the domain ''.")
    return version
