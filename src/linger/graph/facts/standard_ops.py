# SPDX-License-Identifier: Apache-2.0
"""How standard ops treat quantised integers: which move or select them, which join them, which only look."""

from __future__ import annotations

import onnx_ir as ir

from linger.graph.core.schema import takes
from linger.graph.core.tensor_types import INTEGERS, constant_type

WHOLE = INTEGERS | {ir.DataType.INT64}

_MOVED = dict.fromkeys(
    (
        "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Pad", "Gather", "GatherElements",
        "GatherND", "Expand", "Tile", "Split", "Compress", "DepthToSpace", "SpaceToDepth", "Resize", "ReduceMax",
        "ReduceMin", "TopK", "Relu", "Clip", "MaxPool",
    ),
    (0,),
)  # fmt: skip
_JOINED = {"Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2)}
_JOINED_ALL = frozenset({"Concat", "Max", "Min"})
_COMPARED = {
    **dict.fromkeys(("ArgMax", "ArgMin"), (0,)),
    **dict.fromkeys(("Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"), (0, 1)),
}
_BESIDE = {"Clip": (1, 2), "Pad": (2,)}
"""Inputs that are of the type of the data: bounds, the border."""

LOOKING = frozenset({"Shape", "Size"})
"""Ops that never touch the numbers."""

RAW = frozenset(
    {"Cast", "CastLike", "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DequantizeLinear", "BitShift",
     "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"}
)  # fmt: skip
"""Ops that are about integers as such; what the integers stand for is stated elsewhere, or nowhere."""

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
    """Inputs of a standard node whose numbers come out as they are; several where they must have one scale."""
    if node.op_type in _JOINED_ALL:
        return tuple(range(len(node.inputs)))
    if node.op_type == "Resize" and _text(node, "mode", "nearest") != "nearest":
        return ()
    if node.op_type == "Clip" and ("min" in node.attributes or "max" in node.attributes):
        return ()  # before opset 11: bounds are real numbers
    return _JOINED.get(node.op_type, _MOVED.get(node.op_type, ()))


def compared_inputs(node: ir.Node) -> tuple[int, ...]:
    """Inputs of a standard node that are compared, so that the answer is that for the real numbers."""
    return _COMPARED.get(node.op_type, ())


def inputs_beside(node: ir.Node) -> tuple[int, ...]:
    """Inputs that must be of the type of the data and are no data: bounds and borders."""
    return tuple(i for i in _BESIDE.get(node.op_type, ()) if i < len(node.inputs) and node.inputs[i] is not None)


def integer_inputs(node: ir.Node, opset: int) -> tuple[int, ...]:
    """Inputs of a standard node that must be integers: the op is about integers, or a constant beside them is one."""
    if node.op_type in RAW - _CASTS:
        return tuple(i for i in range(len(node.inputs)) if not takes(node.op_type, i, ir.DataType.FLOAT, opset))
    data = moved_inputs(node) or compared_inputs(node)
    together = [i for i in (*data, *inputs_beside(node)) if i < len(node.inputs)]
    constant = {i for i in together if _is_integer_constant(node.inputs[i])}
    return tuple(i for i in together if i not in constant) if constant else ()


def _is_integer_constant(value: ir.Value | None) -> bool:
    if value is None or value.is_graph_input():
        return False
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        return constant_type(producer) in INTEGERS
    return value.const_value is not None and value.const_value.dtype in INTEGERS


def moved_outputs(node: ir.Node) -> int:
    """How many outputs carry the numbers on; the others are indices."""
    return len(node.outputs) if node.op_type == "Split" else 1


def can_run(node: ir.Node, element: ir.DataType | None, bits: int | None, opset: int) -> bool:
    """Whether ONNX and its runtime have a node of this type for integers of a type."""
    if node.op_type in _COMPARED and (bits is None or bits > _EXACT_COMPARISON_BITS):
        return False
    if node.op_type in _ADOPTED:
        return len(node.outputs) == 1
    if element not in INTEGERS or element is None or node.op_type in _WITHOUT_KERNEL[element]:
        return False
    if node.op_type == "Resize" and opset < _RESIZE_KERNEL_OPSET:
        return False
    data = (*moved_inputs(node), *compared_inputs(node))
    return takes(node.op_type, data[0] if data else 0, element, opset)


def can_take(node: ir.Node, index: int, element: ir.DataType | None, opset: int) -> bool:
    """Whether an input of a standard node may have an element type; where floats may not stand either, nothing is said."""
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
