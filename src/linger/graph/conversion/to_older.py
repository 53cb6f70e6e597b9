# SPDX-License-Identifier: Apache-2.0
"""Convert nodes of the newer dialect (domain `linger`) to the older one (domain `thinker`): one plan per node.

The older op of a newer one, and the differences, are in the op's file (`newer=`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Op, find_op, is_known
from linger.graph.conversion.node_rewriter import (
    EXPORT_AGAIN,
    Doubts,
    NodeRewriter,
    NoEquivalent,
    Plan,
    axes_of,
    content_of,
    known,
    known_ints,
    known_number,
    made_attributes,
    older_op,
    plan_as_older,
    platform_named,
    renamed,
    replace_inputs,
    require_standard,
    rewrite,
    sizes_of,
)
from linger.graph.core.dialects import (
    CELL_BITS,
    CELL_SCALE,
    DEFAULT_PLATFORM,
    DEQUANT,
    DIALECTS,
    NEWER_OPS,
    OLDER,
    QUANT,
    QUANT_MODE,
    REQUANT,
    NewerOp,
    input_names,
)
from linger.numeric.onnx.writer import integer_type
from linger.targets import chips_with

_FLOAT_LAYER = "Keep the layer in float, or replace it."
_COMPARE = "Compare a few outputs on the chip."
_BETWEEN = "{} between Unsqueeze and Squeeze"
_IMAGE_AXES = 4
_ROW_AXES = 3
_WEIGHTS = 4


def plan_older(node: ir.Node, rewriter: NodeRewriter) -> Plan:
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
    if not is_known(newer.older):
        return _plan_squeeze(node, rewriter)
    op = find_op(newer.older)
    return _planner(newer, op)(node, newer, op, rewriter)


def _plan_squeeze(node: ir.Node, rewriter: NodeRewriter) -> Plan:
    axes = known_ints(node, "axes") if "axes" in node.attributes else None

    def edit() -> None:
        rewrite(node, "", "Squeeze", {})
        if axes is not None:
            rewriter.set_axes(node, axes)

    return Plan(edit, "became standard Squeeze")


def _plan_plain(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a node without special needs; softmax names its axis `dim`, on chips other than venus also `axis`."""
    del rewriter
    has_both = newer.renamed.get("axis") == "dim" and any(v.has_attribute("axis") for v in op.variants.values())
    axis = known(node, "axis") if has_both else None
    if axis is None or not older_op(node, op.name).has_attribute("axis"):
        return plan_as_older(node, newer)
    return plan_as_older(node, newer, {"axis": axis, "dim": axis})


def _plan_quant(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    del op, rewriter
    if known(node, "zero_point", 0) != 0:
        raise NoEquivalent(
            f"its zero_point is {known(node, 'zero_point')}; the domain thinker has symmetric numbers only",
            "Export it again without a zero point.",
        )
    return plan_as_older(node, newer)


def _plan_product(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a matrix product; packers accept only as many axes as the customary newer op has."""
    del rewriter
    axes, most = max(axes_of(value) or 0 for value in node.inputs), op.newer[0].axes or 0
    if axes <= most:
        return plan_as_older(node, newer)
    doubt = (
        f"a product of tensors of {axes} axes; packers take {op.name} of at most {most}",
        "Merge the leading axes with a Reshape before the device gets it.",
    )
    return plan_as_older(node, newer, doubts=(doubt,))


def _plan_curve(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Sigmoid and tanh: venus wants 16 bits, so narrower input is shifted left first, which loses nothing."""
    wanted, bits = older_op(node, op.name).input_bits, known(node, "x_bits")
    if wanted is None or not isinstance(bits, int) or not 0 < bits < wanted:
        return plan_as_older(node, newer)
    source = known_number(node, "scale_x")
    widened = source * 2.0 ** (wanted - bits)
    renaming = plan_as_older(node, newer, {"scale_x": widened})
    written: dict[str, Any] = {"data_bits": bits, "o_bits": wanted, "scale_o": widened, "scale_x": source}
    platform = platform_named(node)
    if platform != DEFAULT_PLATFORM:
        written |= {"platform": platform, "quant_mode": QUANT_MODE}

    def edit() -> None:
        wide = rewriter.before(
            node,
            REQUANT,
            [node.inputs[0]],
            made_attributes(written).values(),
            domain=OLDER,
            preferred_name=f"{node.outputs[0].name}_requant",
            like=node.inputs[0],
            element=integer_type(wanted),
        )
        node.replace_input_with(0, wide)
        renaming.edit()

    return Plan(edit, f"{renaming.what} behind a Requant")


def _plan_of_one_chip(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan GELU or SiLU, which compute with the pieces of one chip on every chip."""
    del rewriter
    platform = platform_named(node)
    (chip,) = chips_with(op.name)
    reason = f"only {chip} has {op.name}; the node is for {platform}"
    return plan_as_older(node, newer, doubts=() if platform == chip else ((reason, _COMPARE),))


def _plan_standard(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Integer MaxPool is of the standard domain in the older files too."""
    del rewriter
    known_ints(node, "kernel_shape", op.window_axes)
    given = {newer.renamed.get(n, n): a for n, a in node.attributes.items()}
    attributes = {n: renamed(a, n) for n, a in given.items() if op.has_attribute(n)}
    require_standard(node, op, attributes)
    return Plan(lambda: rewrite(node, "", op.standard_name or "", attributes), f"became standard {op.standard_name}")


def _plan_repeating(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Rows of a table: scale and width of the output repeat those of the table."""
    del rewriter
    if known(node, "axis", 0) != 0:
        raise NoEquivalent(f"it looks up along axis {known(node, 'axis')}", "Look up rows (axis 0) of the table.")
    sources = {name: newer.older_names.get(source, source) for name, source in op.repeats.items()}
    missing = {n: s for n, s in sources.items() if n not in node.attributes and s in node.attributes}
    return plan_as_older(node, newer, {name: known(node, source) for name, source in missing.items()})


def _plan_batch_norm(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """The older op has the running statistics as inputs, which nothing reads: 0 and 1 per channel."""
    alpha = node.inputs[1] if len(node.inputs) >= len(newer.inputs) else None
    sizes = sizes_of(alpha)
    channels = sizes[0] if sizes else None
    if alpha is None or channels is None:
        raise NoEquivalent("it has no factors or offsets, or their number is not known", EXPORT_AGAIN)
    count, title = channels, alpha.name or "batch_norm"
    renaming = plan_as_older(node, newer)

    def edit() -> None:
        unread = [
            rewriter.constant(node, np.full(count, value, np.float32), f"{title}_{name}")
            for name, value in op.unread_inputs.items()
        ]
        replace_inputs(node, [*node.inputs[: len(newer.inputs)], *unread])
        renaming.edit()

    return Plan(edit, renaming.what)


def _plan_flat_batch_norm(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan QBatchNorm1d of [n, c] or [n, c, length] as a batch norm of a image."""
    axes = axes_of(node.inputs[0])
    if axes is None or axes not in (2, 3):
        raise NoEquivalent(
            "the number of axes of its input is not known to be 2 or 3", "Export with shapes of every tensor."
        )
    norm = _plan_batch_norm(node, newer, op, rewriter)
    added = tuple(range(2, 2 + _IMAGE_AXES - axes))

    def edit() -> None:
        norm.edit()
        _stand_between(node, rewriter, added)

    return Plan(edit, _BETWEEN.format(norm.what))


def _plan_pool(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """QAvgPool2d: its divisor must be the area of the window."""
    del op, rewriter
    return plan_as_older(node, newer, doubts=_check_pool(node, known_ints(node, "kernel_shape")))


def _plan_global_pool(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """QGlobalAveragePool2d: a window of the size of the image."""
    del rewriter
    sizes = sizes_of(node.inputs[0])
    kernel = () if sizes is None or len(sizes) != _IMAGE_AXES else tuple(n for n in sizes[2:] if n is not None)
    if len(kernel) != op.window_axes:
        raise NoEquivalent(
            f"{op.name} needs the size of the image, which the file does not tell", "Export with fixed sizes."
        )
    window = {"kernel_shape": kernel, "strides": kernel, "pads": (0, 0, 0, 0)}
    return plan_as_older(node, newer, window, doubts=_check_pool(node, kernel))


def _check_pool(node: ir.Node, kernel: Sequence[int]) -> Doubts:
    """Refuse divisors that the older op cannot express; warn if the result would be rounded twice."""
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


def _plan_row(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a window over one axis as a window over a image of one row."""
    axes, has_weight = axes_of(node.inputs[0]), op.weight_axes is not None
    if axes not in (None, _ROW_AXES):
        raise NoEquivalent(f"its input has {axes} axes, not {_ROW_AXES}", "Add the axis of the batch.")
    if has_weight:
        _check_weight(node)
    doubts = () if has_weight else _check_pool(node, known_ints(node, "kernel_shape", 1))
    renaming = plan_as_older(node, newer, _on_a_row(node), doubts=doubts)

    def edit() -> None:
        if has_weight:
            _make_weight_a_row(node, rewriter)
        _stand_between(node, rewriter, (2,))
        renaming.edit()

    return Plan(edit, _BETWEEN.format(renaming.what), doubts)


def _check_weight(node: ir.Node) -> None:
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    if weight is None or axes_of(weight) not in (None, _ROW_AXES):
        raise NoEquivalent("its weight is missing, or has other axes than [in, out, k]", EXPORT_AGAIN)


def _on_a_row(node: ir.Node) -> dict[str, tuple[int, ...]]:
    """Return the geometry of a window over one axis in two axes, of which the first has size 1."""
    geometry = {}
    for name, first in (("kernel_shape", 1), ("strides", 1), ("stride", 1), ("dilations", 1), ("output_padding", 0)):
        if name in node.attributes:
            geometry["strides" if name == "stride" else name] = (first, *known_ints(node, name, 1))
    if "pads" in node.attributes:
        begin, end = known_ints(node, "pads", 2)
        geometry["pads"] = (0, begin, 0, end)
    return geometry


def _make_weight_a_row(node: ir.Node, rewriter: NodeRewriter) -> None:
    """Reshape a weight [in, out, k] to [in, out, 1, k]; a constant that only this node reads keeps its name."""
    weight = node.inputs[1]
    assert weight is not None  # the plan looked at it
    content = None if weight.producer() is not None else content_of(weight)
    if content is None:
        node.replace_input_with(1, rewriter.unsqueezed(node, weight, (2,)))
        return
    row = content[:, :, None, :]
    if len(weight.uses()) > 1 or weight.is_graph_input() or weight.is_graph_output():
        node.replace_input_with(1, rewriter.constant(node, row, f"{weight.name}_row"))
        return
    weight.const_value = ir.tensor(row, name=weight.name)
    weight.shape = ir.Shape(row.shape)


def _stand_between(node: ir.Node, rewriter: NodeRewriter, axes: Sequence[int]) -> None:
    """Let a node work on a image: axes of size 1 are added before it and removed behind it."""
    x = node.inputs[0]
    assert x is not None  # the plan looked at it
    node.replace_input_with(0, rewriter.unsqueezed(node, x, axes))
    rewriter.squeeze_behind(node, axes)


def _plan_recurrent(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """One direction of one layer. Integer states were made by a Quant of their own, which the older op does itself."""
    fewest, most = 1 + _WEIGHTS, len(newer.inputs)
    if not fewest <= len(node.inputs) <= most:
        raise NoEquivalent(f"it has {len(node.inputs)} inputs, not {fewest} to {most}", EXPORT_AGAIN)
    if axes_of(node.inputs[0]) not in (None, _ROW_AXES):
        raise NoEquivalent(f"its input has {axes_of(node.inputs[0])} axes, not {_ROW_AXES}", EXPORT_AGAIN)
    if known(node, "num_layers", 1) != 1:
        raise NoEquivalent(f"it has {known(node, 'num_layers')} layers", "Export one node per layer.")
    doubt = (
        f"the tools of the domain linger simulate this cell in Q15; engines run it as {op.name}, and so does linger",
        "Compare with the chip, not with that simulation.",
    )
    renaming = plan_as_older(node, newer, doubts=(doubt,))
    formats = {
        "h": (known_number(node, "scale_h"), known(node, "o_bits")),
        "c": (known_number(node, "scale_c", CELL_SCALE), CELL_BITS),
    }
    if known_number(node, "scale_o") != formats["h"][0]:
        raise NoEquivalent(
            f"its output has scale {known(node, 'scale_o')}, its state {formats['h'][0]}; {op.name} has one for both",
            "Export it again with one scale for both.",
        )
    time = 1 if known(node, "batch_first", 0) else 0
    states = [name for name in input_names(node, newer) if name in formats]

    def edit() -> None:
        inputs = [node.inputs[0]]
        if states:
            real = [_real(node, index + 1, *formats[name], rewriter) for index, name in enumerate(states)]
            if len(states) < most - fewest:  # a cell state that is left out is zero
                zero_name = f"{node.outputs[0].name}_c"
                real.append(rewriter.before(node, "Sub", [real[0], real[0]], preferred_name=zero_name, like=real[0]))
            inputs += [_lengths(node, time, rewriter), *real]
        replace_inputs(node, [*inputs, *node.inputs[-_WEIGHTS:]])
        renaming.edit()
        node.op_type = op.bare_name(len(node.inputs))

    return Plan(edit, renaming.what, renaming.doubts)


def _lengths(node: ir.Node, time: int, rewriter: NodeRewriter) -> ir.Value:
    """Return lengths with every sequence full, since the older op has no form with a state and no lengths."""
    x, batch = node.inputs[0], 1 - time
    sizes = sizes_of(x)
    preferred_name = f"{node.outputs[0].name}_lengths"
    if sizes is not None and sizes[time] is not None and sizes[batch] is not None:
        return rewriter.constant(node, np.full(sizes[batch] or 0, sizes[time], np.int64), preferred_name)
    shape = rewriter.before(node, "Shape", [x], preferred_name=f"{preferred_name}_shape")
    parts = []
    for axis, name in ((time, "time"), (batch, "batch")):
        index = rewriter.constant(node, np.array([axis], np.int64), f"{preferred_name}_{name}_axis")
        parts.append(rewriter.before(node, "Gather", [shape, index], preferred_name=f"{preferred_name}_{name}"))
    return rewriter.before(node, "Expand", parts, preferred_name=preferred_name)


def _real(node: ir.Node, index: int, scale: float, bits: int, rewriter: NodeRewriter) -> ir.Value:
    """Return the real tensor that an integer state was quantized from, or a Dequant if no Quant made the state."""
    value = node.inputs[index]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == QUANT and maker.domain in DIALECTS:
        stated = [None if a is None else a.value for a in map(maker.attributes.get, ("scale_x", "data_bits"))]
        before = maker.inputs[0] if maker.inputs else None
        if before is not None and stated == [scale, bits]:
            return before
    return rewriter.before(
        node,
        DEQUANT,
        [value],
        made_attributes({"scale_o": scale}).values(),
        domain=OLDER,
        preferred_name=f"{node.outputs[0].name}_state_{index}",
        like=value,
        element=ir.DataType.FLOAT,
    )


Planner = Callable[[ir.Node, NewerOp, Op, NodeRewriter], Plan]


def _planner(newer: NewerOp, op: Op) -> Planner:
    """How nodes of an op are planned; most need nothing but other attributes."""
    cases: tuple[tuple[bool, Planner], ...] = (
        (newer.name == QUANT, _plan_quant),
        (op.standard_name is not None, _plan_standard),
        (op.is_recurrent, _plan_recurrent),
        (bool(op.repeats), _plan_repeating),
        (bool(op.unread_inputs) and newer.declared.axes is not None, _plan_flat_batch_norm),
        (bool(op.unread_inputs), _plan_batch_norm),
        (newer.declared.is_global, _plan_global_pool),
        (op.window_axes > 0 and newer.declared.axes is not None, _plan_row),
        (op.window_axes > 0 and op.weight_axes is None, _plan_pool),
        (op.input_bits is not None, _plan_curve),
        (len(chips_with(op.name)) == 1, _plan_of_one_chip),
        (op.newer[0].axes is not None, _plan_product),
    )
    return next((planner for applies, planner in cases if applies), _plan_plain)
