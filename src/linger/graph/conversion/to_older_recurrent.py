# SPDX-License-Identifier: Apache-2.0
"""QLSTM and QGRU as LSTMInt and GRUInt: integer states become real ones, and lengths are added where there is a state."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from linger.dialect import find_op
from linger.graph.conversion.node_rewriter import Scene, axes_of, replace_inputs, sizes_of
from linger.graph.conversion.older_attributes import plan_renamed
from linger.graph.conversion.plan import EXPORT_AGAIN, NoEquivalent, Plan, known, known_number, made_attributes
from linger.graph.core.dialects import CELL_BITS, CELL_SCALE, DIALECTS, OLDER, NewerOp, input_names

_WEIGHTS = 4
_AXES = 3
_OTHER_SIMULATION = (
    "the tools of the domain linger simulate this cell in Q15; engines run it as {op}, and so does linger",
    "Compare with the chip, not with that simulation.",
)


def plan_recurrent(node: ir.Node, newer: NewerOp, scene: Scene) -> Plan:
    """One direction of one layer. Integer states were made by a Quant of their own, which the older op does itself."""
    fewest, most = 1 + _WEIGHTS, len(newer.inputs)
    if not fewest <= len(node.inputs) <= most:
        raise NoEquivalent(f"it has {len(node.inputs)} inputs, not {fewest} to {most}", EXPORT_AGAIN)
    if axes_of(node.inputs[0]) not in (None, _AXES):
        raise NoEquivalent(f"its input has {axes_of(node.inputs[0])} axes, not {_AXES}", EXPORT_AGAIN)
    if known(node, "num_layers", 1) != 1:
        raise NoEquivalent(f"it has {known(node, 'num_layers')} layers", "Export one node per layer.")
    reason, remedy = _OTHER_SIMULATION
    renaming = plan_renamed(node, newer, doubts=((reason.format(op=newer.older), remedy),))
    scales = {"h": known_number(node, "scale_h"), "c": known_number(node, "scale_c", CELL_SCALE)}
    widths = {"h": known(node, "o_bits"), "c": CELL_BITS}
    if known_number(node, "scale_o") != scales["h"]:
        raise NoEquivalent(
            f"its output has scale {known(node, 'scale_o')}, its state {scales['h']}; {newer.older} has one for both",
            "Export it again with one scale for both.",
        )
    time = 1 if known(node, "batch_first", 0) else 0
    states = [name for name in input_names(node, newer) if name in scales]

    def edit() -> None:
        inputs = [node.inputs[0]]
        if states:
            real = [_real(node, i + 1, scales[name], widths[name], scene) for i, name in enumerate(states)]
            if len(states) < len(newer.inputs) - fewest:  # a cell state that is left out is zero
                real.append(
                    scene.before(node, "Sub", [real[0], real[0]], wish=f"{node.outputs[0].name}_c", like=real[0])
                )
            inputs += [_lengths(node, time, scene), *real]
        replace_inputs(node, [*inputs, *node.inputs[-_WEIGHTS:]])
        renaming.edit()
        node.op_type = find_op(node.op_type).bare_name(len(node.inputs))

    return Plan(edit, renaming.what, renaming.doubts)


def _lengths(node: ir.Node, time: int, scene: Scene) -> ir.Value:
    """Every sequence has its full length; the older op has no form with a state and without lengths."""
    x, batch = node.inputs[0], 1 - time
    sizes = sizes_of(x)
    wish = f"{node.outputs[0].name}_lengths"
    if sizes is not None and sizes[time] is not None and sizes[batch] is not None:
        return scene.constant(node, np.full(sizes[batch] or 0, sizes[time], np.int64), wish)
    shape = scene.before(node, "Shape", [x], wish=f"{wish}_shape")
    parts = []
    for axis, name in ((time, "time"), (batch, "batch")):
        index = scene.constant(node, np.array([axis], np.int64), f"{wish}_{name}_axis")
        parts.append(scene.before(node, "Gather", [shape, index], wish=f"{wish}_{name}"))
    return scene.before(node, "Expand", parts, wish=wish)


def _real(node: ir.Node, index: int, scale: float, bits: int, scene: Scene) -> ir.Value:
    """What an integer state was quantised from; where another node made it, its Dequant."""
    value = node.inputs[index]
    maker = None if value is None else value.producer()
    if maker is not None and maker.op_type == "Quant" and maker.domain in DIALECTS:
        said = [None if a is None else a.value for a in map(maker.attributes.get, ("scale_x", "data_bits"))]
        before = maker.inputs[0] if maker.inputs else None
        if before is not None and said == [scale, bits]:
            return before
    return scene.before(
        node,
        "Dequant",
        [value],
        made_attributes({"scale_o": scale}).values(),
        domain=OLDER,
        wish=f"{node.outputs[0].name}_state_{index}",
        like=value,
        element=ir.DataType.FLOAT,
    )
