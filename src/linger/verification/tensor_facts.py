# SPDX-License-Identifier: Apache-2.0
"""What the file says of each tensor of its main graph: who makes it, in which order, its scale and width."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from linger.graph.core.walking import graphs_in
from linger.graph.facts.propagation import Propagation, propagate
from linger.graph.facts.stated_formats import is_dequant

_MOVING = frozenset({"Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"})
"""Float ops whose outputs hold the numbers of their first input: what came from a Dequant still lies on its grid."""


@dataclass(frozen=True)
class TensorFact:
    """One tensor of the main graph, in the order of execution.

    Attributes:
        name: The tensor's name.
        node: The name of the node that makes it; empty for an input.
        op_type: That node's type; `Input` for an input.
        order: Its place in the order of execution.
        scale: What real values are multiplied with to give its integers (for a float tensor: those it was made from).
        bits: The width of its integers.
    """

    name: str
    node: str
    op_type: str
    order: int
    scale: float | None = None
    bits: int | None = None


def tensor_facts(model: ir.Model) -> dict[str, TensorFact]:
    """Inputs and node outputs of a sorted main graph by name, in the order of execution."""
    known = propagate(model)
    found: dict[str, TensorFact] = {}
    for value in inputs_of(model):
        name, fact = value.name or "", known.fact(value)
        scale = fact.scale if fact.scale is not None else _expected_scale(value)
        found[name] = TensorFact(name, "", "Input", len(found), scale, fact.bits)
    for node in model.graph:
        for output in node.outputs:
            if output.name:
                scale = _scale(node, output, known, found)
                bits = known.fact(output).bits
                found[output.name] = TensorFact(output.name, node.name or "", node.op_type, len(found), scale, bits)
    return found


def inputs_of(model: ir.Model) -> list[ir.Value]:
    """The inputs that a caller has to give: those without a content of their own."""
    return [value for value in model.graph.inputs if value.name not in model.graph.initializers]


def inner_tensor_count(model: ir.Model) -> int:
    """How many tensors lie in branches and loops, where a comparison of the main graph does not look."""
    inner = graphs_in(model.graph)[1:]
    return sum(bool(output.name) for place in inner for node in place.graph for output in node.outputs)


def _scale(node: ir.Node, output: ir.Value, known: Propagation, found: dict[str, TensorFact]) -> float | None:
    if is_dequant(node):
        return _attribute(node, "scale_o") or known.fact(node.inputs[0]).scale
    if node.op_type == "DequantizeLinear" and not node.domain:
        return _linear_scale(node)
    fact = known.fact(output)
    if fact.scale is not None or node.op_type not in _MOVING or node.domain:
        return fact.scale
    first = node.inputs[0] if node.inputs else None
    moved = None if first is None else found.get(first.name or "")
    return None if moved is None else moved.scale


def _attribute(node: ir.Node, name: str) -> float | None:
    found = node.attributes.get(name)
    if found is None or found.is_ref() or found.type not in (ir.AttributeType.FLOAT, ir.AttributeType.INT):
        return None
    return float(found.value) or None


def _linear_scale(node: ir.Node) -> float | None:
    """The scale of DequantizeLinear divides; ours multiplies. Only one for the whole tensor counts."""
    step = node.inputs[1] if len(node.inputs) > 1 else None
    if step is None or step.const_value is None or step.const_value.size != 1:
        return None
    length = float(step.const_value.numpy().reshape(())[()])
    return 1.0 / length if length else None


def _expected_scale(value: ir.Value) -> float | None:
    """An integer input has the scale that its consumers expect, where they agree."""
    if value.dtype is None or not value.dtype.is_integer():
        return None
    expected = {_attribute(node, "scale_x") for node, index in value.uses() if index == 0}
    return expected.pop() if len(expected) == 1 else None
