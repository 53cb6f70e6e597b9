# SPDX-License-Identifier: Apache-2.0
"""An ONNX file is a protobuf message: walk it from the model down to the attributes, with nothing but `onnx`.

    python examples/10_read_the_protobuf.py

Exports a small quantized model (small.onnx) and prints what the file holds, level by level: model (versions, domains), graph
(inputs, outputs, open sizes), tensors (integer weights), nodes with their attributes, functions (the nodes' bodies):

    node   thinker::Conv2dInt  0.Quant, 0.weight, 0.bias -> 0.Conv2dInt
      scale_o = 64.0
"""

from __future__ import annotations

import onnx
import torch
from onnx import AttributeProto, TensorProto, ValueInfoProto
from torch import nn

import linger

FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
}


def quantized_file(path: str) -> None:
    """A convolution and a linear layer, calibrated on random numbers and exported."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    linger.init(model)
    with linger.calibration():
        model.eval()(torch.randn(8, 1, 6, 6))
    axes = {"picture": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["picture"], "output_names": ["scores"]}
    linger.onnx.export(model, torch.randn(1, 1, 6, 6), path, dynamic_axes=axes, **names)


def kind(element_type: int) -> str:
    return TensorProto.DataType.Name(element_type).lower()


def described(value: ValueInfoProto) -> str:
    tensor = value.type.tensor_type
    shape = ", ".join(str(dim.dim_param or dim.dim_value) for dim in tensor.shape.dim)
    return f"{value.name}: {kind(tensor.elem_type)}[{shape}]"


def content(attribute: AttributeProto) -> object:
    """An attribute keeps its value in the one field that its type names."""
    value = getattr(attribute, FIELDS[attribute.type])
    return value.decode() if isinstance(value, bytes) else value


def main() -> None:
    quantized_file("small.onnx")
    model = onnx.load("small.onnx")
    domains = ", ".join(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in model.opset_import)
    print(f"model  IR version {model.ir_version}, opsets: {domains}, written by {model.producer_name}")

    graph = model.graph
    print(f"graph  {graph.name}: {len(graph.node)} nodes, {len(graph.initializer)} tensors")
    print(f"  inputs   {'; '.join(map(described, graph.input))}")
    print(f"  outputs  {'; '.join(map(described, graph.output))}")
    for tensor in graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        print(f"tensor {tensor.name}: {kind(tensor.data_type)}{list(tensor.dims)}, {values.min()} to {values.max()}")
    for node in graph.node:
        print(f"node   {node.domain or 'ai.onnx'}::{node.op_type}  {', '.join(node.input)} -> {', '.join(node.output)}")
        for attribute in node.attribute:
            print(f"  {attribute.name} = {content(attribute)}")
    for function in model.functions:
        print(f"function {function.domain}::{function.name}: {len(function.node)} nodes of its own")


if __name__ == "__main__":
    main()
