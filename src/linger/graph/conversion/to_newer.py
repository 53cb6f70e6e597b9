# SPDX-License-Identifier: Apache-2.0
"""Convert nodes of the older dialect (domain `thinker`) to the newer one (domain `linger`): one plan per node.

The name of an op in the newer dialect, and the differences, are in the op's file (`newer=`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Newer, Op, find_op, is_known
from linger.errors import listing
from linger.graph.conversion.node_rewriter import (
    EXPORT_AGAIN,
    NodeRewriter,
    NoEquivalent,
    Plan,
    axes_of,
    content_of,
    known,
    known_number,
    known_width,
    made_attributes,
    newer_attributes,
    plan_as_newer,
    platform_named,
    replace_inputs,
    require_standard,
    rewrite,
    sizes_of,
    width_of,
)
from linger.graph.core.dialects import CELL_BITS, CELL_SCALE, NEWER, NEWER_OPS, REQUANT, NewerOp
from linger.graph.core.nodes import is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.numeric.onnx.writer import integer_type

_WEIGHTS = 4
_KEEP = "Keep the file in the domain thinker, or convert the rest of it with partial=True."


def plan_newer(node: ir.Node, rewriter: NodeRewriter) -> Plan:
    """How to write a node of the older dialect in the newer one.

    Raises:
        NoEquivalent: It cannot be written there.
    """
    if not is_known(node.op_type):
        raise NoEquivalent(f"linger has no op {node.op_type!r}", _KEEP)
    op = find_op(node.op_type, platform_named(node))
    if not node.outputs:
        raise NoEquivalent("it has no output", "Remove it.")
    if op.standard_name is not None:
        return _plan_standard(node, op)
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if op.name == REQUANT and _is_taken_in(node):
        return Plan(lambda: drop_unused(node.outputs, upstream=False), "taken in by what follows")
    newer = NEWER_OPS[_name_for(node, op).name]
    return _planner(newer, op)(node, newer, op, rewriter)


def _name_for(node: ir.Node, op: Op) -> Newer:
    """The newer name: the customary one, unless the node's tensors have other axes than it takes."""
    names = [newer for newer in op.newer if not newer.unlike]
    if not names:
        why = next((f"{newer.name} {newer.unlike}" for newer in op.newer), op.why_not_newer)
        raise NoEquivalent(f"the domain linger has no such op: {why}", _KEEP)
    axes = names[0].axes
    is_other = axes is not None and any(axes_of(value) not in (None, axes) for value in node.inputs)
    return next((newer for newer in names if newer.axes is None), names[0]) if is_other else names[0]


def _plan_standard(node: ir.Node, op: Op) -> Plan:
    """Integer Relu, MaxPool and Clip are of the standard domain in files of both dialects."""
    attributes = {name: a for name, a in node.attributes.items() if op.has_attribute(name)}
    require_standard(node, op, attributes)
    return Plan(lambda: rewrite(node, "", op.standard_name or "", attributes), f"became standard {op.standard_name}")


def _plan_plain(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    del rewriter
    return plan_as_newer(node, newer, op)


def _plan_widths(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan an op whose older node does not state the widths of its inputs."""
    real = [str(i) for i, value in enumerate(node.inputs) if value is not None and value.dtype == ir.DataType.FLOAT]
    if real:
        raise NoEquivalent(f"its input {listing(real)} is real; {newer.name} takes integers only", _KEEP)
    count = len(node.inputs)
    names = [f"x_{i}" for i in range(count)] if op.is_variadic else newer.inputs[:count]
    widths = [_width(node, value, op, rewriter) for value in node.inputs]
    return plan_as_newer(node, newer, op, {f"{n}_bits": bits for n, bits in zip(names, widths, strict=False)})


def _width(node: ir.Node, value: ir.Value | None, op: Op, rewriter: NodeRewriter) -> Any:
    """Return the width of an input; a width that the node states holds for all inputs."""
    if op.has_attribute("data_bits") and "data_bits" in node.attributes:
        return known(node, "data_bits")
    return rewriter.width(value) or width_of(value)


def _plan_curve(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """A Requant that only widens is removed: the newer op takes narrow input."""
    before = _widening(node)
    if before is None:
        return plan_as_newer(node, newer, op, {"x_bits": rewriter.width(node.inputs[0]) or width_of(node.inputs[0])})
    taken = {"x_bits": known_width(before, "data_bits"), "scale_x": known_number(before, "scale_x")}
    renaming = plan_as_newer(node, newer, op, taken)

    def edit() -> None:
        node.replace_input_with(0, before.inputs[0])
        renaming.edit()
        drop_unused(before.outputs, upstream=False)

    return Plan(edit, f"{renaming.what}, with the Requant before it")


def _widening(node: ir.Node) -> ir.Node | None:
    """The Requant in front of a curve, where it does nothing but shift left into a wider type."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is None or not is_dialect(maker) or maker.op_type != REQUANT or maker.graph is not node.graph:
        return None
    source, target = known_number(maker, "scale_x"), known_number(maker, "scale_o")
    shift = known_width(maker, "o_bits") - known_width(maker, "data_bits")
    is_exact = shift > 0 and target == known_number(node, "scale_x") == source * 2.0**shift
    return maker if is_exact else None


def _is_taken_in(node: ir.Node) -> bool:
    """Whether every user of a Requant is a curve that absorbs it."""
    output = node.outputs[0]
    users = output.consumers()
    is_inside = bool(users) and not output.is_graph_output()
    return is_inside and all(_is_curve(user) for user in users) and all(_widening(user) is node for user in users)


def _is_curve(node: ir.Node) -> bool:
    """Whether a node's op requires a width that the newer op does not require."""
    return is_dialect(node) and is_known(node.op_type) and find_op(node.op_type).input_bits is not None


def _plan_without_unread(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a batch norm without its running statistics, which the newer op does not have and nothing reads."""
    plain = _plan_plain(node, newer, op, rewriter)

    def edit() -> None:
        replace_inputs(node, node.inputs[: len(newer.inputs)])
        plain.edit()

    return Plan(edit, f"{plain.what}, without running statistics")


def _plan_repeating(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a Gather, whose newer form states scale and width only once."""
    del rewriter
    attributes = newer_attributes(node, newer, op)
    for name in op.repeats:
        attributes.pop(name)
    if any(known(node, name) != known(node, source) for name, source in op.repeats.items()):
        raise NoEquivalent("its rows have another scale or width than its table", "Make them the table's.")
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name} of the domain linger")


def _plan_recurrent(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Real states get a Quant each; the newer op has no lengths, so they are dropped, if every sequence is full."""
    if len(node.inputs) not in {len(form) for form in op.forms}:
        raise NoEquivalent(f"it has {len(node.inputs)} inputs, which no form of it has", EXPORT_AGAIN)
    given = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
    if "lengths" in given and not _are_full(given["lengths"], node):
        raise NoEquivalent(
            "its sequences have lengths, which the newer op cannot be told", "Keep the file in the domain thinker."
        )
    more: dict[str, Any] = {"has_hidden": int("h" in given)}
    if "c" in op.inputs:
        more |= {"has_cell": int("c" in given), "scale_c": CELL_SCALE}
    attributes = newer_attributes(node, newer, op, more)
    attributes.pop("dropout", None)
    formats = {"h": (known_number(node, "scale_h"), known_width(node, "o_bits")), "c": (CELL_SCALE, CELL_BITS)}

    def edit() -> None:
        now = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
        states = [
            _quantized(node, now[name], form, attributes["platform"], rewriter)
            for name, form in formats.items()
            if name in now
        ]
        replace_inputs(node, [now["x"], *states, *node.inputs[-_WEIGHTS:]])
        rewrite(node, NEWER, newer.name, attributes)

    return Plan(edit, f"became {newer.name}")


def _quantized(
    node: ir.Node, state: ir.Value | None, form: tuple[float, int], platform: ir.Attr, rewriter: NodeRewriter
) -> ir.Value:
    scale, bits = form
    written = made_attributes({"data_bits": bits, "scale_x": scale, "zero_point": 0})
    return rewriter.before(
        node,
        "Quant",
        [state],
        [written["data_bits"], platform, written["scale_x"], written["zero_point"]],
        domain=NEWER,
        preferred_name=f"{node.outputs[0].name}_state",
        like=state,
        element=integer_type(bits),
    )


def _are_full(lengths: ir.Value | None, node: ir.Node) -> bool:
    """Whether every sequence is as long as the input."""
    content, sizes = content_of(lengths), sizes_of(node.inputs[0])
    time = 1 if known(node, "batch_first", 0) else 0
    if content is None or sizes is None or len(sizes) <= time:
        return False
    return bool(np.all(content == sizes[time])) if sizes[time] is not None else False


Planner = Callable[[ir.Node, NewerOp, Op, NodeRewriter], Plan]


def _planner(newer: NewerOp, op: Op) -> Planner:
    """How nodes of an op are planned; most need nothing but other attributes."""
    cases: tuple[tuple[bool, Planner], ...] = (
        (op.is_recurrent, _plan_recurrent),
        (bool(op.repeats), _plan_repeating),
        (bool(op.unread_inputs), _plan_without_unread),
        (find_op(op.name).input_bits is not None, _plan_curve),
        (op.is_variadic or not newer.own <= newer.declared.own.keys(), _plan_widths),
    )
    return next((planner for applies, planner in cases if applies), _plan_plain)
