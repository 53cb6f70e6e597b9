# SPDX-License-Identifier: Apache-2.0
"""Give Dequants the scale that their tensor has."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe
from linger.graph.facts.claims import read_scale
from linger.graph.facts.propagation import propagate


def rescale_dequant(model: ir.Model) -> Changes:
    """Set `scale_o` of every Dequant to the scale of its tensor, where that is known from another node.

    Requires: sorted nodes. Leaves: Dequants with another scale only of tensors whose scale is not known, or is contradicted.
    """
    changes = Changes()
    for node, scale in propagate(model).wrong_scales:
        old = read_scale(node, "scale_o")
        node.attributes["scale_o"] = ir.AttrFloat32("scale_o", scale)
        was = "it had none" if old is None else f"it was {old:g}"
        tensor = node.inputs[0]
        assert tensor is not None  # its scale is known
        changes.note(describe(node), f"scale_o is {scale:g}, the scale of {tensor.name!r}; {was}")
    return changes
