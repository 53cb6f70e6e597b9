# SPDX-License-Identifier: Apache-2.0
"""LSTMInt and GRUInt as QLSTM and QGRU: real states become integer ones, lengths go where they say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from linger.dialect import Op
from linger.graph.conversion.newer_attributes import newer_attributes
from linger.graph.conversion.node_rewriter import Scene, content_of, replace_inputs, rewrite, sizes_of
from linger.graph.conversion.plan import (
    EXPORT_AGAIN,
    NoEquivalent,
    Plan,
    known,
    known_number,
    known_width,
    made_attributes,
)
from linger.graph.core.dialects import CELL_BITS, CELL_SCALE, NEWER, NewerOp
from linger.numeric.onnx.writer import integer_type

_WEIGHTS = 4


def plan_recurrent(node: ir.Node, newer: NewerOp, op: Op, scene: Scene) -> Plan:
    """Real states get a Quant each; the newer op has no lengths, so only full ones can go."""
    if len(node.inputs) not in {len(form) for form in op.forms}:
        raise NoEquivalent(f"it has {len(node.inputs)} inputs, which no form of it has", EXPORT_AGAIN)
    given = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
    if "lengths" in given and not _are_full(given["lengths"], node):
        raise NoEquivalent(
            "its sequences have lengths, which the newer op cannot be told", "Keep the file in the domain thinker."
        )
    more: dict[str, Any] = {"has_hidden": int("h" in given)}
    if op.name == "LSTMInt":
        more |= {"has_cell": int("c" in given), "scale_c": CELL_SCALE}
    attributes = newer_attributes(node, newer, op, more)
    attributes.pop("dropout", None)
    formats = {"h": (known_number(node, "scale_h"), known_width(node, "o_bits")), "c": (CELL_SCALE, CELL_BITS)}

    def edit() -> None:
        now = dict(zip(op.form(len(node.inputs)), node.inputs, strict=True))
        made = [
            _quantized(node, now[name], format_, attributes["platform"], scene)
            for name, format_ in formats.items()
            if name in now
        ]
        replace_inputs(node, [now["x"], *made, *node.inputs[-_WEIGHTS:]])
        rewrite(node, NEWER, newer.name, attributes)

    return Plan(edit, f"became {newer.name}")


def _quantized(
    node: ir.Node, state: ir.Value | None, format_: tuple[float, int], platform: ir.Attr, scene: Scene
) -> ir.Value:
    scale, bits = format_
    written = made_attributes({"data_bits": bits, "scale_x": scale, "zero_point": 0})
    return scene.before(
        node,
        "Quant",
        [state],
        [written["data_bits"], platform, written["scale_x"], written["zero_point"]],
        domain=NEWER,
        wish=f"{node.outputs[0].name}_state",
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
