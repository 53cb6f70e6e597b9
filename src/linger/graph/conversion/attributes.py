# SPDX-License-Identifier: Apache-2.0
"""Translate the attributes of a node to the other dialect; plan nodes that need no other change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.errors import listing
from linger.graph.conversion.node_rewriter import rewrite
from linger.graph.conversion.plan import EXPORT_AGAIN, Doubts, NoEquivalent, Plan, known, made_attributes, renamed
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import (
    DEFAULT_PLATFORM,
    NEWER,
    NEWER_OPS,
    OLDER,
    QUANT_MODE,
    NewerOp,
    is_newer,
    unknown_arithmetic,
)

_USUAL_BITS = 8
_EVERYWHERE = frozenset({"platform", "quant_mode"})
_ALWAYS_WRITTEN = frozenset({"ceil_mode", "data_bits", "num_layers", "dropout"})
"""Attributes with a default that older files write nevertheless, as they do those of text (`castor_mode`, …)."""

_FAR = 64
"""How many Relus, pools and the like are looked through for a width."""

_MOVES = frozenset(
    {"Clip", "Expand", "Flatten", "Identity", "MaxPool", "Pad", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Tile"}
) | {"Transpose", "Unsqueeze"}
"""Standard ops whose output has the width of their first input."""


def platform_named(node: ir.Node) -> str:
    """The chip of a node of either dialect."""
    named = known(node, "platform", DEFAULT_PLATFORM)
    return named if isinstance(named, str) else DEFAULT_PLATFORM


def older_op(node: ir.Node, name: str) -> Op:
    """The op of the older dialect with the arithmetic of the node's chip.

    Raises:
        NoEquivalent: The op computes differently on different chips, and this one's arithmetic is not known; or the node
            rounds in a way that no op of the older dialect does.
    """
    mode = known(node, "quant_mode", QUANT_MODE)
    if mode != QUANT_MODE:
        raise NoEquivalent(
            f"it rounds by {mode!r}; the domain thinker rounds by ⌊v + ½⌋ only, which is {QUANT_MODE!r}",
            f"Export it again with round_mode: {QUANT_MODE}.",
        )
    platform = platform_named(node)
    op = find_op(name)
    if op.variants and platform not in (DEFAULT_PLATFORM, *op.variants):
        raise NoEquivalent(
            f"what {op.name} computes on {platform!r} is not known",
            f"Export it for {listing((DEFAULT_PLATFORM, *op.variants))}.",
        )
    return op.for_platform(platform)


def older_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None
) -> dict[str, ir.Attr]:
    """Return the node's attributes under their older names; the newer dialect's gaps get the customary values.

    Args:
        node: A node of the newer dialect.
        newer: Its op.
        op: The older op.
        more: Values to add, or to write instead of those of the node, by their older names.

    Raises:
        NoEquivalent: Attributes are missing.
    """
    given = {newer.renamed.get(n, n): a for n, a in [*node.attributes.items()][::-1] if n not in _EVERYWHERE}
    written = {name: renamed(attribute, name) for name, attribute in given.items() if op.has_attribute(name)}
    written |= made_attributes(more or {})
    _require(op, written, newer.older_names)
    written = made_attributes(_customary(op)) | written
    if op.name.startswith("iq") and _is_usual_width(written.get("o_bits")):
        del written["o_bits"]  # older files leave it out
    if platform_named(node) != DEFAULT_PLATFORM and op.has_integer_output:
        written |= made_attributes({"platform": platform_named(node), "quant_mode": QUANT_MODE})
    return written


def _require(op: Op, given: Mapping[str, ir.Attr], names: Mapping[str, str]) -> None:
    """Refuse a node without an attribute that its op must have; `names` are what its own dialect calls them."""
    missing = [names.get(a.name, a.name) for a in op.attributes if a.is_required and a.name not in given]
    if missing:
        raise NoEquivalent(f"it lacks {listing(missing)}", EXPORT_AGAIN)


def _customary(op: Op) -> dict[str, Any]:
    """The defaults that older files write."""
    optional = [a for a in op.attributes if not a.is_required and a.name not in _EVERYWHERE]
    return {a.name: a.default for a in optional if a.kind == "str" or a.name in _ALWAYS_WRITTEN}


def plan_as_older(node: ir.Node, newer: NewerOp, more: Mapping[str, Any] | None = None, *, doubts: Doubts = ()) -> Plan:
    """The plan for a node that gets its older name and attributes, and nothing else."""
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op, more)
    dropped = _unknown_attributes(node, newer, op)
    what = f"became {op.name}" + (f", without {listing(dropped)}" if dropped else "")
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), what, doubts)


def _unknown_attributes(node: ir.Node, newer: NewerOp, op: Op) -> list[str]:
    """Attributes that neither dialect knows; they are left out."""
    names = [n for n in node.attributes if n not in newer.own | _EVERYWHERE and not _is_width_of_part(n)]
    return [n for n in names if not op.has_attribute(newer.renamed.get(n, n))]


def _is_usual_width(attribute: ir.Attr | None) -> bool:
    return attribute is not None and not attribute.is_ref() and attribute.value == _USUAL_BITS


def _is_width_of_part(name: str) -> bool:
    """Whether a name is x_0_bits, x_1_bits, … of QCat."""
    return name.startswith("x_") and name.endswith("_bits") and name[2:-5].isdigit()


def newer_attributes(
    node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None
) -> dict[str, ir.Attr]:
    """The node's attributes under their newer names, with those that only the newer op has.

    Args:
        node: A node of the older dialect.
        newer: The newer op.
        op: Its own op.
        more: Values to add, or to write instead of those of the node, by their newer names.

    Raises:
        NoEquivalent: Attributes are missing, or ask for another arithmetic than linger's.
    """
    unknown = unknown_arithmetic(node)
    if unknown:
        raise NoEquivalent(listing(unknown), EXPORT_AGAIN)
    _require(op, node.attributes, {})
    written = made_attributes({**newer.fixed, **(more or {})})
    for attribute in op.attributes:
        name = newer.older_names.get(attribute.name, attribute.name)
        if attribute.kind == "str" or name in written:
            continue  # platform_quant, castor_mode, mode, and the chip, which is written below
        given = node.attributes.get(attribute.name)
        written |= made_attributes({name: attribute.default}) if given is None else {name: renamed(given, name)}
    written |= {name: a for name, a in node.attributes.items() if op.is_variadic_attribute(name)}
    return written | made_attributes(_chip_and_rounding(node, newer, op))


def _chip_and_rounding(node: ir.Node, newer: NewerOp, op: Op) -> dict[str, str]:
    """Return the attributes in which newer nodes state their chip and rounding."""
    chip = {"platform": platform_named(node)} if op.has_integer_output else {}
    return chip | ({"quant_mode": QUANT_MODE} if newer.declared.has_rounding else {})


def plan_as_newer(node: ir.Node, newer: NewerOp, op: Op, more: Mapping[str, Any] | None = None) -> Plan:
    """The plan for a node that gets its newer name and attributes, and nothing else."""
    attributes = newer_attributes(node, newer, op, more)
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name}")


def width_of(value: ir.Value | None) -> int:
    """Return the width of an integer tensor: as its producer states it, else that of its storage, else 8.

    Raises:
        NoEquivalent: It holds no numbers.
    """
    for _ in range(_FAR):
        maker = None if value is None else value.producer()
        if maker is None:
            break
        stated = _stated_width(maker)
        if stated is not None:
            return stated
        if not _is_move(maker):
            break
        value = maker.inputs[0]
    if value is None or value.dtype in (None, ir.DataType.UNDEFINED):
        return _USUAL_BITS
    if value.dtype == ir.DataType.STRING:
        raise NoEquivalent(f"{value.name!r} holds texts, not integers", EXPORT_AGAIN)
    return int(value.dtype.itemsize * 8)


def _stated_width(node: ir.Node) -> int | None:
    """The width of a node's first output, where an attribute or its default states it."""
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    name, default = newer.result.bits if newer is not None and newer.result is not None else None, None
    if is_dialect(node) and is_known(node.op_type):
        op = find_op(node.op_type)
        name, default = op.output_bits, op.default(op.output_bits)
    given = node.attributes.get(str(name))
    bits = default if given is None or given.is_ref() else given.value
    return bits if isinstance(bits, int) else None


def _is_move(node: ir.Node) -> bool:
    """Whether a node's output has the width of its first input; the node may be of any domain."""
    is_known_move = node.op_type in _MOVES or (is_dialect(node) and is_known(node.op_type))
    return bool(node.inputs) and is_known_move
