# SPDX-License-Identifier: Apache-2.0
"""The op and the attributes that a node of the newer dialect has in the older one; the plan for a node that needs no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from linger.dialect import PLATFORM_QUANT, Op, find_op
from linger.errors import listing
from linger.graph.conversion.node_rewriter import rewrite
from linger.graph.conversion.plan import EXPORT_AGAIN, NoEquivalent, Plan, known, made_attributes, renamed
from linger.graph.core.dialects import DEFAULT_PLATFORM, OLDER, QUANT_MODE, NewerOp

_USUAL_BITS = 8
_EVERYWHERE = frozenset({"platform", "quant_mode"})
_ALWAYS_WRITTEN = frozenset({"ceil_mode", "data_bits", "num_layers", "dropout"})
"""Attributes with a default that files have always: with those of text (`castor_mode`, …) they are customary."""


def platform_named(node: ir.Node) -> str:
    """The chip of a node of either dialect."""
    found = known(node, "platform", DEFAULT_PLATFORM)
    return found if isinstance(found, str) else DEFAULT_PLATFORM


def unknown_arithmetic(node: ir.Node) -> list[str]:
    """Why it is not known what a node of the older dialect computes: another rounding, a chip whose own is not known."""
    variants = find_op(node.op_type).variants
    possible = {"platform_quant": (PLATFORM_QUANT, PLATFORM_QUANT.upper()), "quant_mode": (QUANT_MODE,)}
    if variants:  # other ops compute the same on every chip
        possible["platform"] = (DEFAULT_PLATFORM, *variants)
    wrong = []
    for name in ("platform", "platform_quant", "quant_mode"):
        found = node.attributes.get(name)
        if found is None or found.is_ref():
            continue
        if not isinstance(found.value, str):
            wrong.append(f"{name} is of kind {found.type.name.lower()}, not string")
        elif name in possible and found.value not in possible[name]:
            wrong.append(
                f"what it computes with {name}={found.value!r:.80} is not known, only with {listing(possible[name])}"
            )
    return wrong


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
    """The node's attributes under their older names, customary values where the newer dialect has none.

    Args:
        node: A node of the newer dialect.
        newer: Its op.
        op: The older op.
        more: Values to add, or to write instead of what the node says, by their older names.

    Raises:
        NoEquivalent: Attributes are missing.
    """
    schema = {a.name: a for a in op.attributes}
    written = made_attributes(more or {})
    for name, attribute in node.attributes.items():
        older = newer.renamed.get(name, name)
        is_known = older in schema or op.is_variadic_attribute(older)
        if is_known and name not in _EVERYWHERE and older not in written:
            written[older] = renamed(attribute, older)
    missing = [newer.older_names.get(a.name, a.name) for a in op.attributes if a.is_required and a.name not in written]
    if missing:
        raise NoEquivalent(f"it lacks {listing(missing)}", EXPORT_AGAIN)
    for name, wanted in schema.items():
        is_customary = wanted.kind == "str" or name in _ALWAYS_WRITTEN
        if not wanted.is_required and is_customary and name not in written and name not in _EVERYWHERE:
            written |= made_attributes({name: wanted.default})
    if op.name.startswith("iq") and _is_usual_width(written.get("o_bits")):
        del written["o_bits"]  # older files do not say it
    if platform_named(node) != DEFAULT_PLATFORM and op.name != "Dequant":
        written |= made_attributes({"platform": platform_named(node), "quant_mode": QUANT_MODE})
    return written


def plan_renamed(
    node: ir.Node, newer: NewerOp, more: Mapping[str, Any] | None = None, *, doubts: tuple[tuple[str, str], ...] = ()
) -> Plan:
    """The plan for a node that gets another name and other attributes, and nothing else."""
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op, more)
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op), doubts)


def _became(node: ir.Node, newer: NewerOp, op: Op) -> str:
    dropped = _unknown_attributes(node, newer, op)
    return f"became {op.name}" + (f", without {listing(dropped)}" if dropped else "")


def _unknown_attributes(node: ir.Node, newer: NewerOp, op: Op) -> list[str]:
    """Attributes that neither dialect knows; they are left out."""
    schema = {a.name for a in op.attributes} | newer.own | _EVERYWHERE
    names = (name for name in node.attributes if not _is_width_of_part(name))
    return [n for n in names if newer.renamed.get(n, n) not in schema and not op.is_variadic_attribute(n)]


def _is_usual_width(attribute: ir.Attr | None) -> bool:
    return attribute is not None and not attribute.is_ref() and attribute.value == _USUAL_BITS


def _is_width_of_part(name: str) -> bool:
    """Whether a name is x_0_bits, x_1_bits, … of QCat."""
    return name.startswith("x_") and name.endswith("_bits") and name[2:-5].isdigit()
