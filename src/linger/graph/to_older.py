# SPDX-License-Identifier: Apache-2.0
"""Nodes of the newer dialect (domain `linger`) as nodes of the older one (domain `thinker`): one plan per node."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Op
from linger.errors import listing
from linger.graph.conversion_plan import (
    NoEquivalent,
    Plan,
    Scene,
    content_of,
    drop_unused,
    known,
    known_ints,
    known_number,
    made_attributes,
    renamed,
    replace_inputs,
    rewrite,
    sizes_of,
)
from linger.graph.dialects import NEWER_OPS, OLDER, NewerOp
from linger.graph.older_attributes import older_attributes, older_op, platform_named, unknown_attributes
from linger.graph.to_older_recurrent import plan_recurrent
from linger.numeric.onnx_writer import integer_type

_FLOAT_LAYER = "Keep the layer in float, or replace it."
_MOST_PACKED_AXES = 3
_PICTURE_AXES = 4


def plan_older(node: ir.Node, scene: Scene) -> Plan:
    """How to write a node of the newer dialect in the older one.

    Raises:
        NoEquivalent: It cannot be written there.
    """
    newer = NEWER_OPS.get(node.op_type)
    if newer is None:
        raise NoEquivalent(f"the domain linger has no op {node.op_type!r} that linger knows", _FLOAT_LAYER)
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if newer.older is None:
        raise NoEquivalent(f"the domain thinker has no such op: {newer.why_not}", _FLOAT_LAYER)
    plan = _SPECIAL.get(newer.name, _plan_plain)
    return plan(node, newer, scene)


def _plan_plain(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Another name, the attributes renamed."""
    del scene
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op)
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op))


def _became(node: ir.Node, newer: NewerOp, op: Op) -> str:
    dropped = unknown_attributes(node, newer, op)
    return f"became {op.name}" + (f", without {listing(dropped)}" if dropped else "")


def _plan_quant(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    if known(node, "zero_point", 0) != 0:
        raise NoEquivalent(
            f"its zero_point is {known(node, 'zero_point')}; the domain thinker has symmetric numbers only",
            "Export it again without a zero point.",
        )
    return _plan_plain(node, newer, scene)


def _plan_product(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    plain = _plan_plain(node, newer, scene)
    axes = max(len(sizes_of(value) or ()) for value in node.inputs)
    if axes <= _MOST_PACKED_AXES:
        return plain
    doubt = (
        f"a product of tensors of {axes} axes; packers take BmmInt of at most {_MOST_PACKED_AXES}",
        "Merge the leading axes with a Reshape before the device gets it.",
    )
    return Plan(plain.edit, plain.what, (doubt,))


def _plan_curve(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Sigmoid and tanh: venus wants 16 bits, so narrower input is shifted left first, which loses nothing."""
    op = older_op(node, newer.older or "")
    bits, x = known(node, "x_bits"), node.inputs[0]
    attributes = older_attributes(node, newer, op)
    if op.input_bits is None or not isinstance(bits, int) or bits >= op.input_bits:
        return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op))
    source = known_number(node, "scale_x")
    widened = source * 2.0 ** (op.input_bits - bits)
    attributes |= made_attributes({"scale_x": widened})
    written = {"data_bits": bits, "o_bits": op.input_bits, "scale_x": source, "scale_o": widened}
    shift = made_attributes(written) | {n: a for n, a in attributes.items() if n in ("platform", "quant_mode")}

    def edit() -> None:
        wide = scene.before(
            node,
            "Requant",
            [x],
            [shift[name] for name in sorted(shift)],
            domain=OLDER,
            wish=f"{node.outputs[0].name}_requant",
            like=x,
            element=integer_type(op.input_bits),
        )
        node.replace_input_with(0, wide)
        rewrite(node, OLDER, op.name, attributes)

    return Plan(edit, f"became Requant and {op.name}")


def _plan_long_curve(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    plain = _plan_plain(node, newer, scene)
    platform = platform_named(node)
    if platform == "venusA":
        return plain
    return Plan(
        plain.edit,
        plain.what,
        ((f"only venusA has {newer.older}; the node names {platform}", "Compare a few outputs on the chip."),),
    )


def _plan_softmax(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Venus reads its axis from `dim`, other chips from `axis`; their nodes carry both."""
    del scene
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op)
    if any(a.name == "axis" for a in op.attributes) and "axis" in node.attributes:
        attributes["axis"] = renamed(node.attributes["axis"], "axis")
        attributes["dim"] = renamed(node.attributes["axis"], "dim")
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op))


def _plan_batch_norm(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """The older op has the running statistics as inputs, which nothing reads: 0 and 1 per channel."""
    channels = (sizes_of(node.inputs[1]) or (None,))[0] if len(node.inputs) > 1 else None
    if channels is None or len(node.inputs) < 3:
        raise NoEquivalent("it has no factors or offsets, or their number is not known", "Export the file again.")
    op = older_op(node, newer.older or "")
    attributes = older_attributes(node, newer, op)
    wish = node.inputs[1].name if node.inputs[1] is not None else "bn"

    def edit() -> None:
        inputs = list(node.inputs[:3])
        inputs.append(scene.constant(node, np.zeros(channels, np.float32), f"{wish}_running_mean"))
        inputs.append(scene.constant(node, np.ones(channels, np.float32), f"{wish}_running_var"))
        replace_inputs(node, inputs)
        rewrite(node, OLDER, op.name, attributes)

    return Plan(edit, _became(node, newer, op))


def _plan_flat_batch_norm(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    axes = len(sizes_of(node.inputs[0]) or ())
    if axes not in (2, 3):
        raise NoEquivalent(
            "the number of axes of its input is not known to be 2 or 3", "Export with shapes of every tensor."
        )
    flat = _plan_batch_norm(node, newer, scene)
    added = tuple(range(2, 2 + _PICTURE_AXES - axes))

    def edit() -> None:
        flat.edit()
        _stand_between(node, scene, added)

    return Plan(edit, f"{flat.what} between Unsqueeze and Squeeze")


def _stand_between(node: ir.Node, scene: Scene, axes: Sequence[int]) -> None:
    """Let a node work on a picture: axes of size 1 come in before it and go behind it."""
    x = node.inputs[0]
    assert x is not None  # the plan looked at it
    node.replace_input_with(0, scene.unsqueezed(node, x, axes))
    scene.behind(node, "Squeeze", axes)


def _check_pool(node: ir.Node, kernel: Sequence[int]) -> tuple[tuple[str, str], ...]:
    """Divisors that the older op cannot express; doubts about two roundings."""
    area = math.prod(kernel)
    if not known(node, "count_include_pad", 1) and any(known(node, "pads", ()) or ()):
        raise NoEquivalent(
            "count_include_pad=0 with padding: its windows have different divisors",
            "Export it again with count_include_pad=True, or without padding.",
        )
    divisor = known(node, "divisor_override", -1)
    if divisor not in (-1, 0, area):
        raise NoEquivalent(
            f"divisor_override={divisor} differs from the window's area {area}",
            "Export it again without divisor_override.",
        )
    if known(node, "scale_x") == known(node, "scale_o") or area & (area - 1) == 0:
        return ()
    return (
        (
            f"an area of {area}, no power of two, and another scale behind it: the mean and the change of scale are "
            "rounded at once, which nobody has compared with a chip",
            "Compare a few outputs on the chip, or give its output the scale of its input.",
        ),
    )


def _plan_pool(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    doubts = _check_pool(node, known_ints(node, "kernel_shape"))
    plain = _plan_plain(node, newer, scene)
    return Plan(plain.edit, plain.what, doubts)


def _plan_global_pool(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    del scene
    sizes = sizes_of(node.inputs[0])
    if sizes is None or len(sizes) != _PICTURE_AXES or None in sizes[2:]:
        raise NoEquivalent(
            "AvgPool2dInt needs the size of the picture, which the file does not tell", "Export with fixed sizes."
        )
    kernel = tuple(size or 0 for size in sizes[2:])
    doubts = _check_pool(node, kernel)
    op = older_op(node, newer.older or "")
    window = {"kernel_shape": kernel, "strides": kernel, "pads": (0, 0, 0, 0)}
    attributes = older_attributes(node, newer, op, window)
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op), doubts)


def _plan_row(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """A window over one axis, as one over a picture of one row."""
    axes = sizes_of(node.inputs[0])
    if axes is not None and len(axes) != _PICTURE_AXES - 1:
        raise NoEquivalent(f"its input has {len(axes)} axes, not 3", "Add the axis of the batch.")
    op = older_op(node, newer.older or "")
    doubts = _check_pool(node, known_ints(node, "kernel_shape", 1)) if newer.name == "QAvgPool1d" else ()
    attributes = older_attributes(node, newer, op, _on_a_row(node))

    def edit() -> None:
        if len(node.inputs) > 1:
            _make_weight_a_row(node, scene)
        _stand_between(node, scene, (2,))
        rewrite(node, OLDER, op.name, attributes)

    return Plan(edit, f"{_became(node, newer, op)} between Unsqueeze and Squeeze", doubts)


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
    assert weight is not None  # a convolution has one
    content = content_of(weight)
    if content is None or weight.producer() is not None:
        node.replace_input_with(1, scene.unsqueezed(node, weight, (2,)))
        return
    row = content[:, :, None, :]
    if len(weight.uses()) > 1 or weight.is_graph_input() or weight.is_graph_output():
        node.replace_input_with(1, scene.constant(node, row, f"{weight.name}_row"))
        return
    weight.const_value = ir.tensor(row, name=weight.name)
    weight.shape = ir.Shape(row.shape)


def _plan_largest(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Integer MaxPool is of the standard domain in the older files too."""
    del scene
    if "kernel_shape" not in node.attributes:
        raise NoEquivalent("it lacks kernel_shape", "Export the file again.")
    kept = ("kernel_shape", "strides", "pads", "dilations", "ceil_mode")
    given = {newer.renamed.get(n, n): a for n, a in node.attributes.items()}
    attributes = {n: renamed(a, n) for n, a in given.items() if n in kept}
    return Plan(lambda: rewrite(node, "", "MaxPool", attributes), "became standard MaxPool")


def _plan_rows(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """Rows of a table: scale and width of the output repeat those of the table."""
    del scene
    if known(node, "axis", 0) != 0:
        raise NoEquivalent(f"it looks up along axis {known(node, 'axis')}", "Look up rows (axis 0) of the table.")
    op = older_op(node, newer.older or "")
    repeated: dict[str, Any] = {}
    for own, source in (("scale_o", "scale_w"), ("o_bits", "w_bits")):
        if own not in node.attributes and source in node.attributes:
            repeated[own] = known(node, source)
    attributes = older_attributes(node, newer, op, repeated)
    return Plan(lambda: rewrite(node, OLDER, op.name, attributes), _became(node, newer, op))


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
    "QBatchNorm1d": _plan_flat_batch_norm,
    "QBatchNorm2d": _plan_batch_norm,
    "QAvgPool1d": _plan_row,
    "QAvgPool2d": _plan_pool,
    "QGlobalAveragePool2d": _plan_global_pool,
    "QConvTranspose1d": _plan_row,
    "QMaxPool2d": _plan_largest,
    "QLSTM": plan_recurrent,
    "QGRU": plan_recurrent,
    "Gather": _plan_rows,
    "Squeeze": _plan_squeeze,
}
