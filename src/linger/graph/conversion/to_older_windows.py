# SPDX-License-Identifier: Apache-2.0
"""Pools, batch norms and windows over one axis of the newer dialect: the older one has them for pictures only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from linger.graph.conversion.node_rewriter import Scene, axes_of, content_of, replace_inputs, sizes_of
from linger.graph.conversion.older_attributes import plan_renamed
from linger.graph.conversion.plan import EXPORT_AGAIN, NoEquivalent, Plan, known, known_ints
from linger.graph.core.dialects import NewerOp

_PICTURE_AXES = 4
_ROW_AXES = 3
_OF_A_BATCH_NORM = 3
_BETWEEN = "{} between Unsqueeze and Squeeze"

Doubts = tuple[tuple[str, str], ...]


def plan_batch_norm(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """The older op has the running statistics as inputs, which nothing reads: 0 and 1 per channel."""
    alpha = node.inputs[1] if len(node.inputs) >= _OF_A_BATCH_NORM else None
    sizes = sizes_of(alpha)
    channels = sizes[0] if sizes else None
    if alpha is None or channels is None:
        raise NoEquivalent("it has no factors or offsets, or their number is not known", EXPORT_AGAIN)
    count, title = channels, alpha.name or "batch_norm"
    renaming = plan_renamed(node, newer)

    def edit() -> None:
        mean = scene.constant(node, np.zeros(count, np.float32), f"{title}_running_mean")
        variance = scene.constant(node, np.ones(count, np.float32), f"{title}_running_var")
        replace_inputs(node, [*node.inputs[:_OF_A_BATCH_NORM], mean, variance])
        renaming.edit()

    return Plan(edit, renaming.what)


def plan_flat_batch_norm(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """QBatchNorm1d of [n, c] or [n, c, length], as one of a picture."""
    axes = axes_of(node.inputs[0])
    if axes is None or axes not in (2, 3):
        raise NoEquivalent(
            "the number of axes of its input is not known to be 2 or 3", "Export with shapes of every tensor."
        )
    norm = plan_batch_norm(node, newer, scene)
    added = tuple(range(2, 2 + _PICTURE_AXES - axes))

    def edit() -> None:
        norm.edit()
        _stand_between(node, scene, added)

    return Plan(edit, _BETWEEN.format(norm.what))


def plan_pool(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """QAvgPool2d: its divisor must be the area of the window."""
    del scene
    return plan_renamed(node, newer, doubts=_check_pool(node, known_ints(node, "kernel_shape")))


def plan_global_pool(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """QGlobalAveragePool2d: a window of the size of the picture."""
    del scene
    sizes = sizes_of(node.inputs[0])
    kernel = () if sizes is None or len(sizes) != _PICTURE_AXES else tuple(n for n in sizes[2:] if n is not None)
    if len(kernel) != 2:
        raise NoEquivalent(
            "AvgPool2dInt needs the size of the picture, which the file does not tell", "Export with fixed sizes."
        )
    window = {"kernel_shape": kernel, "strides": kernel, "pads": (0, 0, 0, 0)}
    return plan_renamed(node, newer, window, doubts=_check_pool(node, kernel))


def _check_pool(node: ir.Node, kernel: Sequence[int]) -> Doubts:
    """Divisors that the older op cannot express; doubts about two roundings."""
    area = math.prod(kernel)
    if not known(node, "count_include_pad", 1) and "pads" in node.attributes and any(known_ints(node, "pads")):
        raise NoEquivalent(
            "count_include_pad=0 with padding: its windows have different divisors",
            "Export it again with count_include_pad=True, or without padding.",
        )
    divisor = known(node, "divisor_override", -1)
    if divisor not in (-1, area):
        raise NoEquivalent(
            f"divisor_override={divisor} differs from the window's area {area}",
            "Export it again without divisor_override.",
        )
    if known(node, "scale_x") == known(node, "scale_o") or area & (area - 1) == 0:
        return ()
    reason = (
        f"an area of {area}, no power of two, and another scale behind it: the mean and the change of scale are rounded at "
        "once, which nobody has compared with a chip"
    )
    return ((reason, "Compare a few outputs on the chip, or give its output the scale of its input."),)


def plan_row(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """A window over one axis, as one over a picture of one row."""
    axes = axes_of(node.inputs[0])
    if axes not in (None, _ROW_AXES):
        raise NoEquivalent(f"its input has {axes} axes, not {_ROW_AXES}", "Add the axis of the batch.")
    if "w" in newer.inputs:
        _check_weight(node)
    doubts = _check_pool(node, known_ints(node, "kernel_shape", 1)) if newer.name == "QAvgPool1d" else ()
    renaming = plan_renamed(node, newer, _on_a_row(node), doubts=doubts)

    def edit() -> None:
        if "w" in newer.inputs:
            _make_weight_a_row(node, scene)
        _stand_between(node, scene, (2,))
        renaming.edit()

    return Plan(edit, _BETWEEN.format(renaming.what), doubts)


def _check_weight(node: ir.Node) -> None:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or axes_of(weight) not in (None, _ROW_AXES):
        raise NoEquivalent("its weight is missing, or has other axes than [in, out, k]", EXPORT_AGAIN)


def _on_a_row(node: ir.Node) -> dict[str, tuple[int, ...]]:
    """The geometry of a window over one axis in two: the first axis has size 1."""
    made = {}
    for name, first in (("kernel_shape", 1), ("strides", 1), ("stride", 1), ("dilations", 1), ("output_padding", 0)):
        if name in node.attributes:
            made["strides" if name == "stride" else name] = (first, *known_ints(node, name, 1))
    if "pads" in node.attributes:
        begin, end = known_ints(node, "pads", 2)
        made["pads"] = (0, begin, 0, end)
    return made


def _make_weight_a_row(node: ir.Node, scene: Scene) -> None:
    """A weight [in, out, k] as [in, out, 1, k]; a constant of this node alone keeps its name."""
    weight = node.inputs[1]
    assert weight is not None  # the plan looked at it
    content = None if weight.producer() is not None else content_of(weight)
    if content is None:
        node.replace_input_with(1, scene.unsqueezed(node, weight, (2,)))
        return
    row = content[:, :, None, :]
    if len(weight.uses()) > 1 or weight.is_graph_input() or weight.is_graph_output():
        node.replace_input_with(1, scene.constant(node, row, f"{weight.name}_row"))
        return
    weight.const_value = ir.tensor(row, name=weight.name)
    weight.shape = ir.Shape(row.shape)


def _stand_between(node: ir.Node, scene: Scene, axes: Sequence[int]) -> None:
    """Let a node work on a picture: axes of size 1 come in before it and go behind it."""
    x = node.inputs[0]
    assert x is not None  # the plan looked at it
    node.replace_input_with(0, scene.unsqueezed(node, x, axes))
    scene.squeeze_behind(node, axes)
