# SPDX-License-Identifier: Apache-2.0
"""What the file says of each tensor of its main graph: who makes it, in which order, and its scale."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from linger.graph.dialect_node import is_dialect
from linger.graph.search import inner_graphs

_MOVING = frozenset(
    {
        "Clip",
        "Compress",
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "ReverseSequence",
        "ShuffleChannel",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "iqPad",
    }
)
"""Ops whose outputs have the scale of their first input."""

_LINEAR = ("DequantizeLinear", "QuantizeLinear")


@dataclass(frozen=True)
class TensorFact:
    """One tensor of the main graph, in the order of execution.

    Attributes:
        name: The tensor's name.
        node: The name of the node that makes it; empty for an input.
        op_type: That node's type; `Input` for an input.
        order: Its place in the order of execution.
        scale: What real values are multiplied with to give its integers (for a float tensor: those it was made from).
    """

    name: str
    node: str
    op_type: str
    order: int
    scale: float | None


def tensor_facts(model: ir.Model) -> dict[str, TensorFact]:
    """Inputs and node outputs of a sorted main graph by name, in the order of execution."""
    found: dict[str, TensorFact] = {}
    for value in inputs_of(model):
        found[value.name or ""] = TensorFact(value.name or "", "", "Input", len(found), None)
    for node in model.graph:
        for index, output in enumerate(node.outputs):
            if output.name:
                scale = _scale(node, index, found)
                found[output.name] = TensorFact(output.name, node.name or "", node.op_type, len(found), scale)
    for value in inputs_of(model):
        scale = _quantised_input_scale(value)
        if scale is not None:
            old = found[value.name or ""]
            found[old.name] = TensorFact(old.name, old.node, old.op_type, old.order, scale)
    return found


def inputs_of(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller has to give: those without a content of their own."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def inner_tensor_count(model: ir.Model) -> int:
    """How many tensors lie in branches and loops, where a comparison of the main graph does not look."""
    inner = [graph for node in model.graph for graph in inner_graphs(node)]
    count = 0
    while inner:
        graph = inner.pop()
        for node in graph:
            count += sum(1 for output in node.outputs if output.name)
            inner += inner_graphs(node)
    return count


def _scale(node: ir.Node, index: int, found: dict[str, TensorFact]) -> float | None:
    if index and node.op_type != "Split":
        return None  # the states of a recurrent node are real, in formats of their own
    if node.op_type == "Quant":
        return _attribute(node, "scale_x")
    if (scale := _attribute(node, "scale_o")) is not None:
        return scale
    if node.op_type in _LINEAR:
        return _linear_scale(node)
    if node.op_type in _MOVING or is_dialect(node):
        return _input_scale(node, 0, found)
    if node.op_type == "Concat":
        scales = {_input_scale(node, i, found) for i in range(len(node.inputs))}
        return scales.pop() if len(scales) == 1 else None
    return None


def _attribute(node: ir.Node, name: str) -> float | None:
    found = node.attributes.get(name)
    if found is None or found.is_ref() or found.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
        return None
    return float(found.value) or None


def _input_scale(node: ir.Node, index: int, found: dict[str, TensorFact]) -> float | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    fact = None if value is None or value.name is None else found.get(value.name)
    # a float input of the file has no integers behind it, whatever its consumer does with it
    return None if fact is None or fact.op_type == "Input" else fact.scale


def _linear_scale(node: ir.Node) -> float | None:
    """Of QuantizeLinear and DequantizeLinear the scale divides; ours multiplies. Only one for the whole tensor counts."""
    step = node.inputs[1] if len(node.inputs) > 1 else None
    if step is None or step.const_value is None or step.const_value.size != 1:
        return None
    if _zero_point(node) != 0:
        return None
    divisor = float(step.const_value.numpy().reshape(())[()])
    return 1.0 / divisor if divisor else None


def _zero_point(node: ir.Node) -> int | None:
    point = node.inputs[2] if len(node.inputs) > 2 else None  # x, scale, zero point
    if point is None:
        return 0
    if point.const_value is None or point.const_value.size != 1:
        return None
    return int(point.const_value.numpy().reshape(())[()])


def _quantised_input_scale(value: ir.Value) -> float | None:
    """An integer input has the scale that its consumers expect, where they agree."""
    if value.dtype is None or not value.dtype.is_integer():
        return None
    expected = {_attribute(node, "scale_x") for node, index in value.uses() if index == 0}
    return expected.pop() if len(expected) == 1 else None
