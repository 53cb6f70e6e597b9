# SPDX-License-Identifier: Apache-2.0
"""Nodes of the older dialect (domain `thinker`) as nodes of the newer one (domain `linger`): one plan per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.errors import listing
from linger.graph.conversion.newer_attributes import newer_attributes, plan_renamed, width_of
from linger.graph.conversion.node_rewriter import Scene, axes_of, drop_unused, replace_inputs, rewrite
from linger.graph.conversion.older_attributes import platform_named
from linger.graph.conversion.plan import NoEquivalent, Plan, known, known_number, known_width, require_standard
from linger.graph.conversion.to_newer_recurrent import plan_recurrent
from linger.graph.core.dialect_node import is_dialect
from linger.graph.core.dialects import NEWER, NEWER_OPS, NewerOp

_BATCHED_AXES = 3
_KEEP = "Keep the file in the domain thinker, or convert the rest of it with partial=True."

_NEWER_NAMES: Mapping[str, str] = {
    **{op.older: op.name for op in NEWER_OPS.values() if op.older is not None},
    "Conv2dInt": "QConv2d",
    "ConvTranspose2dInt": "QConvTranspose2d",
    "BatchNorm2dInt": "QBatchNorm2d",
    "AvgPool2dInt": "QAvgPool2d",
    "BmmInt": "QBmm",
}
"""The newer op for each older one; of several the customary."""

_WHY_NOT = {
    "LayerNormInt": "QLayerNorm normalises to Q15 in 32 bits, LayerNormInt to Q10 in 16 bits, so their numbers differ",
    "Requant": "it changes a scale only together with another computation; a Requant goes only where it widens the input "
    "of iqSigmoid and iqTanh",
}


def plan_newer(node: ir.Node, scene: Scene) -> Plan:
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
    if op.name == "Requant" and _is_taken_in(node):
        return Plan(lambda: drop_unused(node.outputs[0]), "taken in by what follows")
    if op.name not in _NEWER_NAMES:
        raise NoEquivalent(f"the domain linger has no such op: {_WHY_NOT.get(op.name, 'none computes this')}", _KEEP)
    newer = NEWER_OPS[_NEWER_NAMES[op.name]]
    return _SPECIAL.get(op.name, _plan_plain)(node, newer, op, scene)


def _plan_standard(node: ir.Node, op: Op) -> Plan:
    """Integer Relu, MaxPool and Clip are of the standard domain in files of both dialects."""
    known_names = {a.name for a in op.attributes}
    attributes = {name: a for name, a in node.attributes.items() if name in known_names}
    require_standard(node, op, attributes)
    return Plan(lambda: rewrite(node, "", op.standard_name or "", attributes), f"became standard {op.standard_name}")


def _plan_plain(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    return plan_renamed(node, newer, op)


def _plan_quant(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    return plan_renamed(node, newer, op, {"zero_point": 0})


def _plan_of_tensors(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """Ops whose older node does not say how wide its inputs are."""
    real = [str(i) for i, value in enumerate(node.inputs) if value is not None and value.dtype == ir.DataType.FLOAT]
    if real:
        raise NoEquivalent(f"its input {listing(real)} is real; {newer.name} takes integers only", _KEEP)
    names = [f"x_{i}" for i in range(len(node.inputs))] if op.is_variadic else newer.inputs[: len(node.inputs)]
    widths = {
        f"{name}_bits": scene.width(value) or width_of(value) for name, value in zip(names, node.inputs, strict=False)
    }
    if "data_bits" in node.attributes and op.name == "BmmInt":  # one width for both matrices
        widths = {f"{name}_bits": known(node, "data_bits") for name in names}
    chosen = newer
    if op.name == "BmmInt" and any(axes_of(v) not in (None, _BATCHED_AXES) for v in node.inputs):
        chosen = NEWER_OPS["QMatmul"]
    return plan_renamed(node, chosen, op, widths)


def _plan_curve(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """A Requant that only widens goes: the newer op takes narrow input."""
    before = _widening(node)
    if before is None:
        return plan_renamed(node, newer, op, {"x_bits": scene.width(node.inputs[0]) or width_of(node.inputs[0])})
    taken = {"x_bits": known_width(before, "data_bits"), "scale_x": known_number(before, "scale_x")}
    renaming = plan_renamed(node, newer, op, taken)

    def edit() -> None:
        node.replace_input_with(0, before.inputs[0])
        renaming.edit()
        drop_unused(before.outputs[0])

    return Plan(edit, f"{renaming.what}, with the Requant before it")


def _widening(node: ir.Node) -> ir.Node | None:
    """The Requant in front of a curve, where it does nothing but shift left into a wider type."""
    value = node.inputs[0]
    maker = None if value is None else value.producer()
    if maker is None or not is_dialect(maker) or maker.op_type != "Requant" or maker.graph is not node.graph:
        return None
    source, target = known_number(maker, "scale_x"), known_number(maker, "scale_o")
    shift = known_width(maker, "o_bits") - known_width(maker, "data_bits")
    is_exact = shift > 0 and target == known_number(node, "scale_x") == source * 2.0**shift
    return maker if is_exact else None


def _is_taken_in(node: ir.Node) -> bool:
    """Whether everyone who uses a Requant is a curve that takes it in."""
    output = node.outputs[0]
    users = output.consumers()
    is_curve = all(is_dialect(user) and user.op_type in ("iqSigmoid", "iqTanh") for user in users)
    return bool(users) and not output.is_graph_output() and is_curve and all(_widening(u) is node for u in users)


def _plan_batch_norm(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """The newer op has no running statistics; nothing reads them."""
    plain = _plan_plain(node, newer, op, scene)

    def edit() -> None:
        replace_inputs(node, node.inputs[:3])
        plain.edit()

    return Plan(edit, f"{plain.what}, without running statistics")


def _plan_pool(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    del scene
    return plan_renamed(node, newer, op, {"count_include_pad": 1, "divisor_override": -1})


def _plan_rows(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """The newer Gather says scale and width once."""
    del scene
    attributes = newer_attributes(node, newer, op)
    for own in ("scale_o", "o_bits"):
        attributes.pop(own)
    if (known(node, "scale_o"), known(node, "o_bits")) != (known(node, "scale_w"), known(node, "parameter_bits")):
        raise NoEquivalent("its rows have another scale or width than its table", "Make them the table's.")
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), "became Gather of the domain linger")


Planner = Callable[[ir.Node, NewerOp, Op, Scene], Plan]

_SPECIAL: Mapping[str, Planner] = {
    "Quant": _plan_quant,
    **dict.fromkeys(("iqAdd", "iqMul", "BmmInt", "iqCat", "iqGelu", "iqSwish"), _plan_of_tensors),
    **dict.fromkeys(("iqSigmoid", "iqTanh"), _plan_curve),
    "BatchNorm2dInt": _plan_batch_norm,
    "AvgPool2dInt": _plan_pool,
    "Gather": _plan_rows,
    **dict.fromkeys(("LSTMInt", "GRUInt"), plan_recurrent),
}
