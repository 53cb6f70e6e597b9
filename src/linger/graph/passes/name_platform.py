# SPDX-License-Identifier: Apache-2.0
"""Name the chip in every node: packers take a file that names none for venus."""

from __future__ import annotations

import onnx_ir as ir

from linger.dialect import ops
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe, is_dialect
from linger.graph.core.walking import all_nodes

QUANT_MODE = "floor_add"
"""How all of them round: ⌊v + ½⌋."""


def name_platform(model: ir.Model, platform: str) -> Changes:
    """Write `platform` and `quant_mode` into the dialect nodes that compute the same on every chip.

    Leaves: the chip's name in every dialect node but Dequants, and but nodes of ops that have an arithmetic of their own on
    some chip. Those say themselves what they compute, and naming another chip would change it.
    """
    changes = Changes()
    known = ops()
    for node in all_nodes(model):
        if not is_dialect(node) or node.op_type == "Dequant" or "platform" in node.attributes:
            continue
        if node.op_type in known and known[node.op_type].variants:
            continue
        for name, value in (("platform", platform), ("quant_mode", QUANT_MODE)):
            node.attributes[name] = ir.AttrString(name, value)
        changes.note(describe(node), f"is for {platform}")
    return changes
