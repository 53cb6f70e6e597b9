# SPDX-License-Identifier: Apache-2.0
"""A linear layer, exported, run in ONNX Runtime and compared: in float, then as integers.

    python examples/02_linear.py

Writes linear.onnx and linear_int.onnx; prints the nodes and the result of both files beside torch's, and the proof that the integers are the same:

    float      Gemm                     torch [-7.0, 12.0, -14.5]  ONNX Runtime [-7.0, 12.0, -14.5]
    quantized  Quant LinearInt Dequant  torch [-7.0, 12.0, -14.5]  ONNX Runtime [-7.0, 12.0, -14.5]
    0 of 12 integers differ (2 tensors, 1 batch).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

import linger

WEIGHTS = torch.tensor([[0.5, -1.0, 2.0], [1.0, 3.0, -0.5], [-2.0, 0.25, 1.5]])
BIAS = torch.tensor([1.0, 0.0, -1.0])
X = torch.tensor([[4.0, 2.0, -4.0], [0.5, 1.0, 2.0]])


def linear() -> nn.Module:
    """y = x·Wᵀ + b with weights that can be checked by hand."""
    model = nn.Sequential(nn.Linear(3, 3))
    with torch.no_grad():
        model[0].weight.copy_(WEIGHTS)
        model[0].bias.copy_(BIAS)
    return model.eval()


def show(kind: str, model: nn.Module, path: Path, x: Tensor) -> None:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    in_runtime = session.run(["y"], {"x": x.numpy()})[0]
    with torch.no_grad():
        in_torch = np.asarray(model(x))
    nodes = " ".join(node.op_type for node in onnx.load(path).graph.node)
    print(f"{kind:10} {nodes:24} torch {in_torch[0].tolist()}  ONNX Runtime {in_runtime[0].tolist()}")
    assert np.array_equal(in_torch, in_runtime), "these numbers are exact in float32"


def main() -> None:
    names = {"input_names": ["x"], "output_names": ["y"], "opset_version": 12}
    model = linear()
    linger.onnx.export(model, (X,), "linear.onnx", **names)
    show("float", model, Path("linear.onnx"), X)

    quantized = linger.init(linear())
    with linger.calibration():
        quantized(X)
    linger.onnx.export(quantized, (X,), "linear_int.onnx", **names)
    show("quantized", quantized, Path("linear_int.onnx"), X)
    print(linger.verify(quantized, "linear_int.onnx", (X,)).summary())


if __name__ == "__main__":
    main()
