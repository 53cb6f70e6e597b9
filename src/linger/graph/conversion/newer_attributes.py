# SPDX-License-Identifier: Apache-2.0
"""The attributes that a node of the older dialect has in the newer one, and the widths it does not say itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.errors import listing
from linger.graph.conversion.node_rewriter import rewrite
from linger.graph.conversion.older_attributes import platform_named, unknown_arithmetic
from linger.graph.conversion.plan import EXPORT_AGAIN, NoEquivalent, Plan, made_attributes, renamed
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import NEWER, QUANT_MODE, NewerOp, claims, is_newer

_USUAL_BITS = 8
_WITHOUT_ROUNDING = frozenset({"Quant", "Dequant", "Gather"})
"""Ops that round in one way only, or not at all: their nodes name no quant_mode."""

_FAR = 64
"""How many Relus, pools and the like are looked through for a width."""

_MOVES = frozenset(
    {"Clip", "Expand", "Flatten", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
) | {"Transpose", "Unsqueeze"}
"""Standard ops whose output has the width of their first input."""


def plan_renamed(node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None) -> Plan:
    """The plan for a node that gets another name and other attributes, and nothing else."""
    attributes = newer_attributes(node, newer, op, more)
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def newer_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None
) -> dict[str, ir.Attr]:
    """The node's attributes under their newer names; widths that older nodes do not say come from their tensors.

    Raises:
        NoEquivalent: Attributes are missing, or ask for another arithmetic than linger's.
    """
    unknown = unknown_arithmetic(node)
    if unknown:
        raise NoEquivalent(listing(unknown), EXPORT_AGAIN)
    written = made_attributes(more or {})
    missing = [a.name for a in op.attributes if a.is_required and a.name not in node.attributes]
    if missing:
        raise NoEquivalent(f"it lacks {listing(missing)}", EXPORT_AGAIN)
    for attribute in op.attributes:
        name = newer.older_names.get(attribute.name, attribute.name)
        if attribute.kind == "str" or name in written:
            continue  # platform_quant, castor_mode, mode, and the chip, which is written below
        given = node.attributes.get(attribute.name)
        written |= made_attributes({name: attribute.default}) if given is None else {name: renamed(given, name)}
    if op.is_variadic:
        written |= {name: a for name, a in node.attributes.items() if op.is_variadic_attribute(name)}
    if newer.name == "Dequant":
        return written
    written |= made_attributes({"platform": platform_named(node)})
    return written if newer.name in _WITHOUT_ROUNDING else written | made_attributes({"quant_mode": QUANT_MODE})


def width_of(value: ir.Value | None) -> int:
    """The width of an integer tensor: what the node says that made it, else that of its storage; 8 where nothing is known.

    Raises:
        NoEquivalent: It holds no numbers.
    """
    for _ in range(_FAR):
        maker = None if value is None else value.producer()
        if maker is None:
            break
        said = _width_said(maker)
        if said is not None:
            return said
        if not _is_move(maker):
            break
        value = maker.inputs[0]
    if value is None or value.dtype in (None, ir.DataType.UNDEFINED):
        return _USUAL_BITS
    if value.dtype == ir.DataType.STRING:
        raise NoEquivalent(f"{value.name!r} holds texts, not integers", EXPORT_AGAIN)
    return int(value.dtype.itemsize * 8)


def _width_said(node: ir.Node) -> int | None:
    """The width of a node's first output, where an attribute or its default says it."""
    if is_newer(node):
        claim = claims(node).outputs.get(0)
        name, default = None if claim is None else claim.bits, None
    elif is_dialect(node) and is_known(node.op_type):
        op = find_op(node.op_type)
        name = op.output_bits
        default = next((a.default for a in op.attributes if a.name == name), None)
    else:
        return None
    found = node.attributes.get(str(name))
    bits = default if found is None or found.is_ref() else found.value
    return bits if isinstance(bits, int) else None


def _is_move(node: ir.Node) -> bool:
    """Whether a node's output has the width of its first input, of whatever domain the node is."""
    is_known_move = node.op_type in _MOVES or (is_dialect(node) and is_known(node.op_type))
    return bool(node.inputs) and is_known_move
