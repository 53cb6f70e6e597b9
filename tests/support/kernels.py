"""Which kernels ONNX Runtime chooses, read in the graph that it optimized, whatever this CPU has."""

import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx_ir.passes.common import RemoveUnusedNodesPass

LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_ALL")

OPERANDS = {
    "ConvInteger": (0, 1),
    "MatMulInteger": (0, 1),
    "MatMulIntegerToFloat": (0, 1),
    "QLinearConv": (0, 3),
    "QLinearMatMul": (0, 3),
    "QGemm": (0, 3),
    "DynamicQuantizeMatMul": (0, 1),
    "DynamicQuantizeLSTM": (0, 1),
    "QAttention": (0, 1),
}
"""The two factors of each op that multiplies bytes; DynamicQuantize… makes unsigned bytes of its data itself."""

MOVING = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "Transpose", "Relu", "Clip", "MaxPool", "NhwcMaxPool", "Identity", "Pad"}
    | {"Flatten", "Reshape", "Squeeze", "Unsqueeze", "DepthToSpace", "Constant", "Cast"}
)
"""Ops that give the same numbers in float and on integers: it does not matter which kernel runs them."""

_NAMES = {onnx.TensorProto.INT8: "s8", onnx.TensorProto.UINT8: "u8", onnx.TensorProto.FLOAT: "u8"}


def optimized(model, level):
    """The graph that ONNX Runtime would run, without nodes that lead nowhere."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{level}")
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        content = ir.to_proto(model).SerializeToString()
        ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.load(options.optimized_model_filepath)))
    RemoveUnusedNodesPass()(found)
    return found


def kernels(model, level):
    """How often each op that computes occurs, with the bytes that it multiplies: {"QLinearConv u8×s8": 2, "Add": 1}."""
    return Counter(_label(node) for node in optimized(model, level).graph.all_nodes() if node.op_type not in MOVING)


def _label(node):
    if node.op_type not in OPERANDS:
        return node.op_type.removeprefix("Fused")  # the same numbers, and those of Relu at once
    return f"{node.op_type} {'×'.join(_factor(node, side) for side in (0, 1))}"


def _factor(node, side):
    value = node.inputs[OPERANDS[node.op_type][side]]
    if (
        value.dtype is None
    ):  # onnx's inference does not know ONNX Runtime's own ops, but their zero points are constants
        value = node.inputs[(4, 5)[side] if node.op_type == "MatMulIntegerToFloat" else (2, 5)[side]]
    return _NAMES[value.dtype]


def mixed_products(model, level):
    """The products of unsigned and signed bytes of which a pair may leave 16 bits.

    Twice the largest number times the largest weight decides: 2·255·64 = 32640 and, where a ReLU ends at 127,
    2·127·128 = 32512 fit, 2·255·65 = 33150 and 2·128·128 = 32768 do not.
    """
    found = [node for node in optimized(model, level).graph.all_nodes() if node.op_type in OPERANDS]
    return [_label(node) for node in found if {_factor(node, 0), _factor(node, 1)} == {"u8", "s8"} and _can_leave(node)]


LARGEST = 2**15 - 1
TAKING = MOVING - {"QuantizeLinear", "DequantizeLinear", "Cast", "Clip", "Constant"} | {
    "Gather",
    "GatherElements",
    "Slice",
}
"""Ops whose result has no number but 0 that their first input lacks."""


def _can_leave(node):
    left, right = (_largest(node.inputs[place]) for place in OPERANDS[node.op_type])
    return 2 * left * right > LARGEST


def _largest(value):
    """The largest magnitude that a tensor of bytes may have: as far as constants, Clips and tables in front of it tell."""
    if value.const_value is not None:
        return int(np.abs(value.const_value.numpy().astype(int)).max(initial=0))
    node = value.producer()
    if node is None or value.dtype == ir.DataType.INT8:
        return 255
    if node.op_type == "Clip" and len(node.inputs) > 2 and node.inputs[2] is not None:
        return _largest(node.inputs[2])
    if node.op_type == "Concat":
        return max(_largest(x) for x in node.inputs)
    return _largest(node.inputs[0]) if node.op_type in TAKING else 255
