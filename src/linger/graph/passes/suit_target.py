# SPDX-License-Identifier: Apache-2.0
"""Adapt a model to the packer of a chip: replace idle Clips, give every node its own parameters, name the chip in every node."""

from __future__ import annotations

import onnx_ir as ir

from linger.dialect import DOMAIN, ops
from linger.graph.core.dialects import DEQUANT, NEWER_OPS, QUANT_MODE, is_newer
from linger.graph.core.finding import Changes
from linger.graph.core.nodes import all_nodes, describe, is_dialect, tensor_names
from linger.graph.core.rewiring import is_used, remove_nodes
from linger.graph.core.tensor_types import integer_bits
from linger.numeric.fixed import limits

CHIP_ATTRIBUTES = ("platform", "quant_mode")
"""What a node says of its chip."""


def replace_idle_clips(model: ir.Model) -> Changes:
    """Turn integer Clips from 0 to the type's largest number or beyond into Relu (ReLU6 at a scale from 32 on, at 8 bits).

    Requires: element types are known. Leaves: Clips on integers only where the upper bound acts or the lower one is
    neither 0 nor out of reach; the same integers.
    """
    changes = Changes()
    for node in [node for node in all_nodes(model) if node.op_type == "Clip"]:
        x = node.inputs[0] if node.inputs else None
        bits = None if x is None else integer_bits(x.dtype)
        if x is not None and bits is not None:
            _replace_if_idle(node, x, limits(bits), changes)
    _drop_thresholds(model.graph)
    return changes


def _drop_thresholds(graph: ir.Graph) -> None:
    """Remove bounds of Clips that nothing uses any more."""
    for name, value in list(graph.initializers.items()):
        if name.rpartition(".")[2].startswith(("min_thresh", "max_thresh")) and not is_used(value):
            del graph.initializers[name]


def _replace_if_idle(node: ir.Node, x: ir.Value, ends: tuple[int, int], changes: Changes) -> None:
    """Make a Clip of integers a Relu, or remove it, where the ends of their type limit them as much as it does."""
    smallest, largest = ends
    low, high = _bound(node, 1, smallest), _bound(node, 2, largest)
    if low is None or high is None or high < largest:
        return
    if low == 0:
        _become_relu(node)
        changes.note(describe(node), f"was a Clip from 0 to {high}, which the type itself keeps to")
    elif low <= smallest and not node.outputs[0].is_graph_output():
        changes.note(describe(node), "removed: it limits nothing")
        node.outputs[0].replace_all_uses_with(x)
        remove_nodes([node])


def _bound(node: ir.Node, index: int, otherwise: int) -> int | None:
    """A bound of a Clip as a number, `otherwise` where it is left out; None where it is computed."""
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


def own_parameters(model: ir.Model) -> Changes:
    """Give every dialect node parameters that no other node reads, one behind the other in the list of initializers.

    Packers copy the parameters of a node as one block that begins at the first of them, so a bias that lies elsewhere, because
    two nodes share it, is read from a stranger's bytes. Leaves: shared parameters only where they are inputs of the graph.
    """
    changes, names = Changes(), tensor_names(model)
    owners: dict[ir.Value, ir.Node] = {}
    for node in model.graph:
        own = parameters_of(node)
        shared = [value for value in own if owners.setdefault(value, node) is not node or _is_read_elsewhere(value)]
        for value in shared:
            copy = ir.Value(name=names.choose(str(value.name)), type=value.type, shape=value.shape)
            assert value.const_value is not None  # it is an initializer
            copy.const_value = ir.tensor(value.const_value, name=copy.name)
            model.graph.register_initializer(copy)
            node.replace_input_with(list(node.inputs).index(value), copy)
        if shared:
            what = ", ".join(str(value.name) for value in shared)
            changes.note(describe(node), f"got a copy of {what}, because nodes must not share parameters")
    if _put_side_by_side(model.graph):
        changes.note("the graph", "lists the parameters of every node one behind the other")
    return changes


def parameters_of(node: ir.Node) -> tuple[ir.Value, ...]:
    """Weight and bias of a node, and what else of the kind its op has; nothing where it has one parameter only."""
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    name = node.op_type if is_dialect(node) else "" if newer is None else newer.older or ""
    op = ops().get(name)
    if op is None or not (op.weight_axes is not None or op.normalises):
        return ()
    found = (v for v in node.inputs[1:] if v is not None and v.is_initializer() and not v.is_graph_input())
    values = tuple(dict.fromkeys(found))
    return values if len(values) > 1 else ()


def _is_read_elsewhere(value: ir.Value) -> bool:
    """Whether a node reads it that has it not among its parameters, or it is an output."""
    return value.is_graph_output() or any(value not in parameters_of(node) for node, _ in value.uses())


def _put_side_by_side(graph: ir.Graph) -> bool:
    """Move parameters behind the first one of their node; False where all lie so."""
    behind = {value: own[1:] for node in graph if (own := parameters_of(node)) for value in own[:1]}
    moved = {value for own in behind.values() for value in own}
    before = list(graph.initializers.values())
    after = [each for value in before if value not in moved for each in (value, *behind.get(value, ()))]
    if before != after:
        graph.initializers.clear()
        for value in after:
            graph.register_initializer(value)
    return before != after


def name_platform(model: ir.Model, platform: str) -> Changes:
    """Write `platform` and `quant_mode` into the dialect nodes that compute the same on every chip.

    Leaves: the chip's name in every dialect node except Dequants and ops that some chip computes in its own way: naming
    another chip would change what those compute.
    """
    changes = Changes()
    known = ops()
    for node in all_nodes(model):
        if not is_dialect(node) or node.op_type == DEQUANT or "platform" in node.attributes:
            continue
        if node.op_type in known and known[node.op_type].variants:
            continue
        for name, value in zip(CHIP_ATTRIBUTES, (platform, QUANT_MODE), strict=True):
            node.attributes[name] = ir.AttrString(name, value)
        changes.note(describe(node), f"is for {platform}")
    return changes
