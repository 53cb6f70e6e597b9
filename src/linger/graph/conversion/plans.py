# SPDX-License-Identifier: Apache-2.0
"""How each node is converted between the older dialect (domain `thinker`) and the newer one (domain `linger`): one plan per node.

The name of an op in the other dialect, and the differences, are in the op's file (`newer=`). `_planners` has the
table of the ops that need more than other names and attributes, in both directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Newer, Op, find_op, is_known
from linger.errors import listing
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
    known_width,
    newer_attributes,
    older_op,
    plan_as_newer,
    plan_as_older,
    plan_standard,
    platform_named,
    renamed,
    replace_inputs,
    rewrite,
    sizes_of,
)
from linger.graph.core.dialects import (
    CELL_BITS,
    CELL_SCALE,
    DEFAULT_PLATFORM,
    DEQUANT,
    DIALECTS,
    NEWER,
    NEWER_OPS,
    OLDER,
    QUANT,
    QUANT_MODE,
    REQUANT,
    NewerOp,
    input_names,
)
from linger.graph.core.nodes import is_dialect
from linger.graph.core.rewiring import drop_unused
from linger.numeric.onnx.writer import integer_type
from linger.targets import chips_with

_FLOAT_LAYER = "Keep the layer in float, or replace it."
_KEEP = "Keep the file in the domain thinker, or convert the rest of it with partial=True."
_BETWEEN = " between Unsqueeze and Squeeze"
_IMAGE_AXES = 4
_ROW_AXES = 3
_WEIGHTS = 4


def plan_older(node: ir.Node, rewriter: NodeRewriter) -> Plan:
    """How to write a node of the newer dialect in the older one; NoEquivalent where it cannot be."""
    newer = NEWER_OPS.get(node.op_type)
    if newer is None:
        raise NoEquivalent(f"linger knows no op {node.op_type!r} of the domain linger", _FLOAT_LAYER)
    if newer.older is None:
        raise NoEquivalent(f"the domain thinker has no such op: {newer.why_not}", _FLOAT_LAYER)
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if not node.outputs:
        raise NoEquivalent("it has no output", "Remove it.")
    if is_known(newer.older):
        op = find_op(newer.older)
        return _planners(newer, op)[0](node, newer, op, rewriter)
    axes = known_ints(node, "axes") if "axes" in node.attributes else None

    def edit() -> None:
        rewrite(node, "", "Squeeze", {})
        if axes is not None:
            rewriter.set_axes(node, axes)

    return Plan(edit, "became standard Squeeze")


def _older_plain(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Plan a node without special needs; softmax names its axis `dim`, on chips other than venus also `axis`."""
    has_both = newer.renamed.get("axis") == "dim" and any(v.has_attribute("axis") for v in op.variants.values())
    axis = known(node, "axis") if has_both else None
    if axis is None or not older_op(node, op.name).has_attribute("axis"):
        return plan_as_older(node, newer)
    return plan_as_older(node, newer, {"axis": axis, "dim": axis})


def _older_quant(node: ir.Node, newer: NewerOp, _op: Op, _rewriter: NodeRewriter) -> Plan:
    if known(node, "zero_point", 0) != 0:
        raise NoEquivalent(
            f"its zero_point is {known(node, 'zero_point')}; the domain thinker has symmetric numbers only",
            "Export it again without a zero point.",
        )
    return plan_as_older(node, newer)


def _older_product(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Plan a matrix product; packers accept only as many axes as the customary newer op has."""
    axes, most = max(axes_of(value) or 0 for value in node.inputs), op.newer[0].axes or 0
    reason = f"a product of tensors of {axes} axes; packers take {op.name} of at most {most}"
    doubt = (reason, "Merge the leading axes with a Reshape before the device gets it.")
    return plan_as_older(node, newer, doubts=(doubt,) if axes > most else ())


def _older_curve(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
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
        name = f"{node.outputs[0].name}_requant"
        kind = integer_type(wanted)
        wide = rewriter.before(node, REQUANT, node.inputs[:1], written, name=name, domain=OLDER, element=kind)
        node.replace_input_with(0, wide)
        renaming.edit()

    return Plan(edit, f"{renaming.what} behind a Requant")


def _older_of_one_chip(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Plan GELU or SiLU, which compute with the pieces of one chip on every chip."""
    platform = platform_named(node)
    (chip,) = chips_with(op.name)
    doubt = (f"only {chip} has {op.name}; the node is for {platform}", "Compare a few outputs on the chip.")
    return plan_as_older(node, newer, doubts=() if platform == chip else (doubt,))


def _older_standard(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Integer MaxPool is of the standard domain in the older files too."""
    known_ints(node, "kernel_shape", op.window_axes)
    given = {newer.renamed.get(n, n): a for n, a in node.attributes.items()}
    return plan_standard(node, op, {n: renamed(a, n) for n, a in given.items() if op.has_attribute(n)})


def _older_repeating(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Rows of a table: scale and width of the output repeat those of the table."""
    if known(node, "axis", 0) != 0:
        raise NoEquivalent(f"it looks up along axis {known(node, 'axis')}", "Look up rows (axis 0) of the table.")
    sources = {name: newer.older_names.get(source, source) for name, source in op.repeats.items()}
    missing = {n: s for n, s in sources.items() if n not in node.attributes and s in node.attributes}
    return plan_as_older(node, newer, {name: known(node, source) for name, source in missing.items()})


def _older_batch_norm(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """The older op has the running statistics as inputs, which nothing reads: 0 and 1 per channel.

    QBatchNorm1d of [n, c] or [n, c, length] becomes a batch norm of an image.
    """
    axes = axes_of(node.inputs[0])
    is_flat = newer.declared.axes is not None
    if is_flat and axes not in (2, 3):
        reason = "the number of axes of its input is not known to be 2 or 3"
        raise NoEquivalent(reason, "Export with shapes of every tensor.")
    alpha = node.inputs[1] if len(node.inputs) >= len(newer.inputs) else None
    sizes = sizes_of(alpha)
    channels = sizes[0] if sizes else None
    if alpha is None or channels is None:
        raise NoEquivalent("it has no factors or offsets, or their number is not known", EXPORT_AGAIN)
    title = alpha.name or "batch_norm"
    renaming = plan_as_older(node, newer)

    def edit() -> None:
        unread = [
            rewriter.constant(node, np.full(channels, value, np.float32), f"{title}_{name}")
            for name, value in op.unread_inputs.items()
        ]
        replace_inputs(node, [*node.inputs[: len(newer.inputs)], *unread])
        renaming.edit()
        if is_flat:
            _stand_between(node, rewriter, tuple(range(2, 2 + _IMAGE_AXES - (axes or 0))))

    return Plan(edit, f"{renaming.what}{_BETWEEN if is_flat else ''}")


def _older_pool(node: ir.Node, newer: NewerOp, _op: Op, _rewriter: NodeRewriter) -> Plan:
    """QAvgPool2d: its divisor must be the area of the window."""
    return plan_as_older(node, newer, doubts=_check_pool(node, known_ints(node, "kernel_shape")))


def _older_global_pool(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """QGlobalAveragePool2d: a window of the size of the image."""
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


def _older_row(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a window over one axis as a window over an image of one row."""
    axes, weight = axes_of(node.inputs[0]), node.inputs[1] if len(node.inputs) > 1 else None
    if axes not in (None, _ROW_AXES):
        raise NoEquivalent(f"its input has {axes} axes, not {_ROW_AXES}", "Add the axis of the batch.")
    doubts: Doubts = ()
    if op.weight_axes is None:
        weight, doubts = None, _check_pool(node, known_ints(node, "kernel_shape", 1))
    elif weight is None or axes_of(weight) not in (None, _ROW_AXES):
        raise NoEquivalent("its weight is missing, or has other axes than [in, out, k]", EXPORT_AGAIN)
    window: dict[str, tuple[int, ...]] = {}
    for name, first in (("kernel_shape", 1), ("strides", 1), ("stride", 1), ("dilations", 1), ("output_padding", 0)):
        if name in node.attributes:
            window["strides" if name == "stride" else name] = (first, *known_ints(node, name, 1))
    if "pads" in node.attributes:
        begin, end = known_ints(node, "pads", 2)
        window["pads"] = (0, begin, 0, end)
    renaming = plan_as_older(node, newer, window, doubts=doubts)

    def edit() -> None:
        if weight is not None:
            _make_weight_a_row(node, rewriter)
        _stand_between(node, rewriter, (2,))
        renaming.edit()

    return Plan(edit, f"{renaming.what}{_BETWEEN}", doubts)


def _make_weight_a_row(node: ir.Node, rewriter: NodeRewriter) -> None:
    """Reshape a weight [in, out, k] to [in, out, 1, k]; a constant that only this node reads keeps its name."""
    weight = node.inputs[1]  # not the one of the plan: the node that makes it may have been rewritten since
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
    """Let a node work on an image: axes of size 1 are added before it and removed behind it."""
    x = node.inputs[0]
    assert x is not None  # the plan looked at it
    node.replace_input_with(0, rewriter.unsqueezed(node, x, axes))
    rewriter.squeeze_behind(node, axes)


def _older_recurrent(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
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
            real = [_real_state(node, index + 1, *formats[name], rewriter) for index, name in enumerate(states)]
            if len(states) < most - fewest:  # a cell state that is left out is zero
                zero_name = f"{node.outputs[0].name}_c"
                real.append(rewriter.before(node, "Sub", [real[0]] * 2, name=zero_name, element=real[0].dtype))
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
    shape = rewriter.before(node, "Shape", [x], name=f"{preferred_name}_shape")
    parts = []
    for axis, name in ((time, "time"), (batch, "batch")):
        index = rewriter.constant(node, np.array([axis], np.int64), f"{preferred_name}_{name}_axis")
        parts.append(rewriter.before(node, "Gather", [shape, index], name=f"{preferred_name}_{name}"))
    return rewriter.before(node, "Expand", parts, name=preferred_name)


def _real_state(node: ir.Node, index: int, scale: float, bits: int, rewriter: NodeRewriter) -> ir.Value:
    """Return the real tensor that an integer state was quantized from, or a Dequant if no Quant made the state."""
    value = node.inputs[index]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == QUANT and maker.domain in DIALECTS:
        stated = [None if a is None else a.value for a in map(maker.attributes.get, ("scale_x", "data_bits"))]
        before = maker.inputs[0] if maker.inputs else None
        if before is not None and stated == [scale, bits]:
            return before
    name = f"{node.outputs[0].name}_state_{index}"
    kind = ir.DataType.FLOAT
    return rewriter.before(node, DEQUANT, [value], {"scale_o": scale}, name=name, domain=OLDER, element=kind)


def plan_newer(node: ir.Node, rewriter: NodeRewriter) -> Plan:
    """How to write a node of the older dialect in the newer one; NoEquivalent where it cannot be."""
    if not is_known(node.op_type):
        raise NoEquivalent(f"linger has no op {node.op_type!r}", _KEEP)
    op = find_op(node.op_type, platform_named(node))
    if not node.outputs:
        raise NoEquivalent("it has no output", "Remove it.")
    if op.standard_name is not None:  # integer Relu, MaxPool and Clip are standard in files of both dialects
        return plan_standard(node, op, {name: a for name, a in node.attributes.items() if op.has_attribute(name)})
    if not node.inputs or node.inputs[0] is None:
        raise NoEquivalent("its first input is missing", "Connect it.")
    if op.name == REQUANT and _is_taken_in(node):
        return Plan(lambda: drop_unused(node.outputs, upstream=False), "taken in by what follows")
    newer = NEWER_OPS[_name_for(node, op).name]
    return _planners(newer, find_op(op.name))[1](node, newer, op, rewriter)


def _name_for(node: ir.Node, op: Op) -> Newer:
    """The newer name: the customary one, unless the node's tensors have other axes than it takes."""
    names = [newer for newer in op.newer if not newer.unlike]
    if not names:
        why = next((f"{newer.name} {newer.unlike}" for newer in op.newer), op.why_not_newer)
        raise NoEquivalent(f"the domain linger has no such op: {why}", _KEEP)
    axes = names[0].axes
    is_other = axes is not None and any(axes_of(value) not in (None, axes) for value in node.inputs)
    return next((newer for newer in names if newer.axes is None), names[0]) if is_other else names[0]


def _newer_plain(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """Plan a node without special needs; an older node may not state the widths of its inputs."""
    if not op.is_variadic and newer.own <= newer.declared.own.keys():
        return plan_as_newer(node, newer, op)
    real = [str(i) for i, value in enumerate(node.inputs) if value is not None and value.dtype == ir.DataType.FLOAT]
    if real:
        raise NoEquivalent(f"its input {listing(real)} is real; {newer.name} takes integers only", _KEEP)
    inputs = [f"x_{i}" for i in range(len(node.inputs))] if op.is_variadic else newer.inputs
    names = list(map("{}_bits".format, inputs))
    if op.has_attribute("data_bits") and "data_bits" in node.attributes:  # what the node states holds for all inputs
        return plan_as_newer(node, newer, op, dict.fromkeys(names[: len(node.inputs)], known(node, "data_bits")))
    return plan_as_newer(node, newer, op, dict(zip(names, map(rewriter.width, node.inputs), strict=False)))


def _newer_curve(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
    """A Requant that only widens is removed: the newer op takes narrow input."""
    before = _widening(node)
    if before is None:
        return plan_as_newer(node, newer, op, {"x_bits": rewriter.width(node.inputs[0])})
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
    is_signed = getattr(maker.inputs[0], "dtype", None) != ir.DataType.UINT8  # narrow input of the newer op is
    is_exact = is_signed and shift > 0 and target == known_number(node, "scale_x") == source * 2.0**shift
    return maker if is_exact else None


def _is_taken_in(node: ir.Node) -> bool:
    """Whether every user of a Requant is a curve, whose older op requires a width that the newer one does not, and absorbs it."""
    users = node.outputs[0].consumers()
    ops = [find_op(user.op_type) if is_dialect(user) and is_known(user.op_type) else None for user in users]
    are_curves = bool(users) and all(op is not None and op.input_bits is not None for op in ops)
    return are_curves and not node.outputs[0].is_graph_output() and all(_widening(user) is node for user in users)


def _newer_batch_norm(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Plan a batch norm without its running statistics, which the newer op does not have and nothing reads."""
    renaming = plan_as_newer(node, newer, op)

    def edit() -> None:
        replace_inputs(node, node.inputs[: len(newer.inputs)])
        renaming.edit()

    return Plan(edit, f"{renaming.what}, without running statistics")


def _newer_repeating(node: ir.Node, newer: NewerOp, op: Op, _rewriter: NodeRewriter) -> Plan:
    """Plan a Gather, whose newer form states scale and width only once."""
    attributes = newer_attributes(node, newer, op)
    for name in op.repeats:
        attributes.pop(name)
    if any(known(node, name) != known(node, source) for name, source in op.repeats.items()):
        raise NoEquivalent("its rows have another scale or width than its table", "Make them the table's.")
    return Plan(lambda: rewrite(node, NEWER, newer.name, attributes), f"became {newer.name} of the domain linger")


def _newer_recurrent(node: ir.Node, newer: NewerOp, op: Op, rewriter: NodeRewriter) -> Plan:
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
        states = []
        for scale, bits, state in [(*formats[name], now[name]) for name in formats if name in now]:
            written = {"data_bits": bits, "platform": attributes["platform"].value, "scale_x": scale, "zero_point": 0}
            kind, title = integer_type(bits), f"{node.outputs[0].name}_state"
            states.append(rewriter.before(node, QUANT, [state], written, name=title, domain=NEWER, element=kind))
        replace_inputs(node, [now["x"], *states, *node.inputs[-_WEIGHTS:]])
        rewrite(node, NEWER, newer.name, attributes)

    return Plan(edit, f"became {newer.name}")


def _are_full(lengths: ir.Value | None, node: ir.Node) -> bool:
    """Whether every sequence is as long as the input."""
    content, sizes = content_of(lengths), sizes_of(node.inputs[0]) or ()
    time = 1 if known(node, "batch_first", 0) else 0
    is_known_length = content is not None and len(sizes) > time and sizes[time] is not None
    return is_known_length and bool(np.all(content == sizes[time]))


Planner = Callable[[ir.Node, NewerOp, Op, NodeRewriter], Plan]


def _planners(newer: NewerOp, op: Op) -> tuple[Planner, Planner]:
    """How nodes of an op are written in the older and in the newer dialect; most need only other names and attributes."""
    cases: tuple[tuple[bool, Planner, Planner], ...] = (
        (newer.name == QUANT, _older_quant, _newer_plain),
        (op.standard_name is not None, _older_standard, _newer_plain),
        (op.is_recurrent, _older_recurrent, _newer_recurrent),
        (bool(op.repeats), _older_repeating, _newer_repeating),
        (bool(op.unread_inputs), _older_batch_norm, _newer_batch_norm),
        (newer.declared.is_global, _older_global_pool, _newer_plain),
        (op.window_axes > 0 and newer.declared.axes is not None, _older_row, _newer_plain),
        (op.window_axes > 0 and op.weight_axes is None, _older_pool, _newer_plain),
        (op.input_bits is not None, _older_curve, _newer_curve),
        (len(chips_with(op.name)) == 1, _older_of_one_chip, _newer_plain),
        (op.newer[0].axes is not None, _older_product, _newer_plain),
    )
    return next(
        ((to_older, to_newer) for applies, to_older, to_newer in cases if applies), (_older_plain, _newer_plain)
    )
