# SPDX-License-Identifier: Apache-2.0
"""Nodes of the newer dialect (domain `linger`) as nodes of the older one (domain `thinker`): one plan per node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx_ir as ir

from linger.dialect import find_op
from linger.graph.conversion.node_rewriter import Scene, axes_of, rewrite
from linger.graph.conversion.older_attributes import older_op, plan_renamed, platform_named
from linger.graph.conversion.plan import (
    NoEquivalent,
    Plan,
    known,
    known_ints,
    known_number,
    made_attributes,
    renamed,
    require_standard,
)
from linger.graph.conversion.to_older_recurrent import plan_recurrent
from linger.graph.conversion.to_older_windows import (
    plan_batch_norm,
    plan_flat_batch_norm,
    plan_global_pool,
    plan_pool,
    plan_row,
)
from linger.graph.core.dialects import DEFAULT_PLATFORM, NEWER_OPS, OLDER, QUANT_MODE, NewerOp
from linger.numeric.onnx.writer import integer_type

_FLOAT_LAYER = "Keep the layer in float, or replace it."
_MOST_PACKED_AXES = 3
_HAS_LONG_CURVES = "venusA"


def plan_older(node: ir.Node, scene: Scene) -> Plan:
    """How to write a node of the newer dialect in the older one.

    Raises:
        NoEquivalent: It cannot be written there.
    """
    newer = NEWER_OPS.get(node.op_type)
    if newer is None:
        raise NoEquivalent(f"linger knows no op {node.op_type!r} of the domain linger", _FLOAT_LAYER)
    if newer.older is None:
        raise NoEquivalent(f"the domain thinker has no such op: {newer.why_not}", _FLOAT_LAYER)
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if not node.outputs:
        raise NoEquivalent("it has no output", "Remove it.")
    return _SPECIAL.get(newer.name, _plan_plain)(node, newer, scene)


def _plan_plain(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    del scene
    return plan_renamed(node, newer)


def _plan_quant(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    del scene
    if known(node, "zero_point", 0) != 0:
        raise NoEquivalent(
            f"its zero_point is {known(node, 'zero_point')}; the domain thinker has symmetric numbers only",
            "Export it again without a zero point.",
        )
    return plan_renamed(node, newer)


def _plan_product(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    del scene
    axes = max(axes_of(value) or 0 for value in node.inputs)
    if axes <= _MOST_PACKED_AXES:
        return plan_renamed(node, newer)
    doubt = (
        f"a product of tensors of {axes} axes; packers take BmmInt of at most {_MOST_PACKED_AXES}",
        "Merge the leading axes with a Reshape before the device gets it.",
    )
    return plan_renamed(node, newer, doubts=(doubt,))


def _plan_curve(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Sigmoid and tanh: venus wants 16 bits, so narrower input is shifted left first, which loses nothing."""
    wanted, bits = older_op(node, newer.older or "").input_bits, known(node, "x_bits")
    if wanted is None or not isinstance(bits, int) or not 0 < bits < wanted:
        return plan_renamed(node, newer)
    source = known_number(node, "scale_x")
    widened = source * 2.0 ** (wanted - bits)
    renaming = plan_renamed(node, newer, {"scale_x": widened})
    written: dict[str, Any] = {"data_bits": bits, "o_bits": wanted, "scale_o": widened, "scale_x": source}
    platform = platform_named(node)
    if platform != DEFAULT_PLATFORM:
        written |= {"platform": platform, "quant_mode": QUANT_MODE}

    def edit() -> None:
        wide = scene.before(
            node,
            "Requant",
            [node.inputs[0]],
            made_attributes(written).values(),
            domain=OLDER,
            wish=f"{node.outputs[0].name}_requant",
            like=node.inputs[0],
            element=integer_type(wanted),
        )
        node.replace_input_with(0, wide)
        renaming.edit()

    return Plan(edit, f"{renaming.what} behind a Requant")


def _plan_long_curve(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """GELU and SiLU have the pieces of one chip wherever they run."""
    del scene
    platform = platform_named(node)
    if platform == _HAS_LONG_CURVES:
        return plan_renamed(node, newer)
    reason = f"only {_HAS_LONG_CURVES} has {newer.older}; the node is for {platform}"
    return plan_renamed(node, newer, doubts=((reason, "Compare a few outputs on the chip."),))


def _plan_softmax(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Venus reads its axis from `dim`, other chips from `axis`; their nodes carry both."""
    del scene
    axis = known(node, "axis")
    op = older_op(node, newer.older or "")
    has_both = axis is not None and any(a.name == "axis" for a in op.attributes)
    return plan_renamed(node, newer, {"axis": axis, "dim": axis} if has_both else None)


def _plan_largest(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Integer MaxPool is of the standard domain in the older files too."""
    del scene
    known_ints(node, "kernel_shape", 2)
    kept = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode")
    given = {newer.renamed.get(n, n): a for n, a in node.attributes.items()}
    attributes = {n: renamed(a, n) for n, a in given.items() if n in kept}
    require_standard(node, find_op("MaxPool"), attributes)
    return Plan(lambda: rewrite(node, "", "MaxPool", attributes), "became standard MaxPool")


def _plan_rows(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Rows of a table: scale and width of the output repeat those of the table."""
    del scene
    if known(node, "axis", 0) != 0:
        raise NoEquivalent(f"it looks up along axis {known(node, 'axis')}", "Look up rows (axis 0) of the table.")
    repeated: dict[str, Any] = {}
    for own, source in (("scale_o", "scale_w"), ("o_bits", "w_bits")):
        if own not in node.attributes and source in node.attributes:
            repeated[own] = known(node, source)
    return plan_renamed(node, newer, repeated)


def _plan_squeeze(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    del newer
    axes = known_ints(node, "axes") if "axes" in node.attributes else None

    def edit() -> None:
        rewrite(node, "", "Squeeze", {})
        if axes is not None:
            scene.set_axes(node, axes)

    return Plan(edit, "became standard Squeeze")


Planner = Callable[[ir.Node, NewerOp, Scene], Plan]

_SPECIAL: Mapping[str, Planner] = {
    "Quant": _plan_quant,
    "QBmm": _plan_product,
    "QMatmul": _plan_product,
    "QSigmoid": _plan_curve,
    "QTanh": _plan_curve,
    "QGelu": _plan_long_curve,
    "QSwish": _plan_long_curve,
    "QSoftmax": _plan_softmax,
    "QBatchNorm1d": plan_flat_batch_norm,
    "QBatchNorm2d": plan_batch_norm,
    "QAvgPool1d": plan_row,
    "QAvgPool2d": plan_pool,
    "QGlobalAveragePool2d": plan_global_pool,
    "QConvTranspose1d": plan_row,
    "QMaxPool2d": _plan_largest,
    "QLSTM": plan_recurrent,
    "QGRU": plan_recurrent,
    "Gather": _plan_rows,
    "Squeeze": _plan_squeeze,
}
