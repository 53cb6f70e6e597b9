# SPDX-License-Identifier: Apache-2.0
"""What the packer of a chip wants: no Clips that limit nothing, and the chip's name in every node."""

from __future__ import annotations

import onnx_ir as ir

from linger.dialect import DOMAIN, ops
from linger.graph.core.changes import Changes
from linger.graph.core.dialect_node import describe, is_dialect
from linger.graph.core.tensor_types import INTEGERS
from linger.graph.core.walking import all_nodes
from linger.numeric.fixed import limits


def replace_idle_clips(model: ir.Model) -> Changes:
    """Make Relu of integer Clips from 0 to the type's largest number or beyond (ReLU6 at a scale from 32 on, at 8 bits).

    Requires: element types are known. Leaves: Clips on integers only where the upper bound acts or the lower one is
    neither 0 nor out of reach; the same integers.
    """
    changes = Changes()
    for node in list(all_nodes(model)):
        x = node.inputs[0] if node.inputs else None
        if node.op_type != "Clip" or x is None or x.dtype not in INTEGERS or x.dtype is None:
            continue
        smallest, largest = limits(int(x.dtype.itemsize * 8))
        low, high = _bound(node, 1, smallest), _bound(node, 2, largest)
        if low is None or high is None or high < largest:
            continue
        if low == 0:
            _become_relu(node)
            changes.note(describe(node), f"was a Clip from 0 to {high}, which the type itself keeps to")
        elif low <= smallest and not node.outputs[0].is_graph_output():
            changes.note(describe(node), "removed: it limits nothing")
            node.outputs[0].replace_all_uses_with(x)
            assert node.graph is not None  # the node came from a graph
            node.graph.remove(node, safe=True)
    for name in [n for n, v in model.graph.initializers.items() if not v.uses() and not v.is_graph_output()]:
        if name.rpartition(".")[2].startswith(("min_thresh", "max_thresh")):
            del model.graph.initializers[name]
    return changes


def _bound(node: ir.Node, index: int, otherwise: int) -> int | None:
    """A bound as a number; None where it is computed."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return otherwise
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else int(tensor.numpy())


def _become_relu(node: ir.Node) -> None:
    node.resize_inputs(1)
    node.op_type = "Relu"
    if is_dialect(node):
        node.domain = DOMAIN


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
