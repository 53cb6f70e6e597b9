# SPDX-License-Identifier: Apache-2.0
"""How standard ops treat quantised integers: which move or select them, which join them, which compare them."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.schema import takes
from linger.graph.core.tensor_types import INTEGERS, constant_type
from linger.graph.qdq.qdq_node import COMPARE, MOVE, MOVE_BYTES, bounds_of

WHOLE_NUMBERS = INTEGERS | {ir.DataType.INT64}

_MOVED = dict.fromkeys((*MOVE, *MOVE_BYTES, *COMPARE, "Compress", "Resize", "TopK"), (0,))
_JOINED = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
_JOINED_ALL = frozenset({"Concat", "Max", "Min"})
_COMPARED = {
    **dict.fromkeys(("ArgMax", "ArgMin"), (0,)),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"), (0, 1)),
}

SHAPE_OPS = frozenset({"Shape", "Size"})
"""Ops that read the shape of a tensor and never its numbers."""

INTEGER_OPS = frozenset(
    {"Cast", "CastLike", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear", "BitShift",
     "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
)  # fmt: skip
"""Ops that read integers as they are; what these stand for is stated elsewhere, or nowhere."""

_CASTS = frozenset({"Cast", "CastLike"})
_EXACT_COMPARISON_BITS = 16
"""Wider integers may be equal as float32, so comparing them is not comparing what they stand for."""

# measured with ONNX Runtime 1.31.1; Relu, MaxPool and Clip do not count: on integers they are dialect ops
_WITHOUT_KERNEL = {
    ir.DataType.INT8: frozenset[str](),
    ir.DataType.INT16: frozenset(
        {
            "Pad",
            "Max",
            "Min",
            "Where",
            "DepthToSpace",
            "SpaceToDepth",
            "Resize",
            "ReduceMax",
            "ReduceMin",
            "ArgMax",
            "ArgMin",
        }
    ),
    ir.DataType.INT32: frozenset({"DepthToSpace", "SpaceToDepth"}),
}
_ADOPTED = frozenset({"Relu", "MaxPool", "Clip"})
_RESIZE_KERNEL_OPSET = 13


def moved_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node whose numbers come out unchanged; where there are several, they must have one scale."""
    if node.op_type in _JOINED_ALL:
        return tuple(range(len(node.inputs)))
    if node.op_type == "Resize" and _text(node, "mode", "nearest") != "nearest":
        return ()
    if node.op_type == "Clip" and ("min" in node.attributes or "max" in node.attributes):
        return ()  # before opset 11: bounds are real numbers
    return _JOINED.get(node.op_type, _MOVED.get(node.op_type, ()))


def moved_outputs(node: ir.Node) -> int:
    """How many outputs carry the numbers on; the others are indices."""
    return len(node.outputs) if node.op_type == "Split" else 1


def sources_of_output(node: ir.Node, index: int) -> list[ir.Value | None]:
    """The inputs of a standard node whose numbers come out, unchanged, at an output."""
    if index >= moved_outputs(node):
        return []
    return [node.inputs[i] for i in moved_inputs(node) if i < len(node.inputs)]


def compared_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node that are compared; at one scale, integers compare as the real numbers do."""
    return _COMPARED.get(node.op_type, ())


def data_of(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node that are moved, selected or compared, and so may stay integers."""
    return moved_inputs(node) or compared_inputs(node)


def integer_inputs(node: ir.Node, opset: int) -> tuple[int, ...]:
    """Inputs of a standard node that must be integers: the op takes only integers, or meets a constant of integers."""
    if node.op_type in INTEGER_OPS - _CASTS:
        return tuple(i for i in range(len(node.inputs)) if not takes_reals(node, i, opset))
    together = [i for i in (*data_of(node), *bounds_of(node)) if i < len(node.inputs)]
    others = tuple(i for i in together if not _is_integer_constant(node.inputs[i]))
    return others if len(others) < len(together) else ()


def _is_integer_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        return constant_type(producer) in INTEGERS
    return value.const_value is not None and value.const_value.dtype in INTEGERS


def can_run(node: ir.Node, element: ir.DataType | None, bits: int | None, opset: int) -> bool:
    """Whether ONNX and ONNX Runtime have a node of this type for integers of an element type."""
    if node.op_type in _COMPARED and (bits is None or bits > _EXACT_COMPARISON_BITS):
        return False
    if node.op_type in _ADOPTED:
        return len(node.outputs) == 1
    if element is None or element not in INTEGERS or node.op_type in _WITHOUT_KERNEL[element]:
        return False
    if node.op_type == "Resize" and opset < _RESIZE_KERNEL_OPSET:
        return False
    return takes(node.op_type, min(data_of(node), default=0), element, opset)


def can_take(node: ir.Node, index: int, element: ir.DataType | None, opset: int) -> bool:
    """Whether an input of a standard node may have an element type; True also where floats are not allowed either."""
    if element is None or node.op_type in _ADOPTED or not takes_reals(node, index, opset):
        return True
    return takes(node.op_type, index, element, opset)


def takes_reals(node: ir.Node, index: int, opset: int) -> bool:
    """Whether an input of a standard node may hold floats."""
    return takes(node.op_type, index, ir.DataType.FLOAT, opset)


def _text(node: ir.Node, name: str, default: str) -> str:
    found = node.attributes.get(name)
    if found is None or found.type != ir.AttributeType.STRING:
        return default
    return "" if found.is_ref() else found.as_string()  # what the caller of a function gives is not known
