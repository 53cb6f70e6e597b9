# SPDX-License-Identifier: Apache-2.0
"""Convolution, batch norm, activation: the batch norm is gone after export, in float and as integers.

    python examples/05_conv_bn_activation.py

In float, torch folds it into the convolution's weights. For integers, `trace_layers` fuses the three for training,
and the export writes one `Conv2dInt` whose integer weights hold the batch norm. Writes cba.onnx
and cba_int.onnx; prints the nodes of both:

    float      Conv Relu
    quantized  Quant Conv2dInt Relu Dequant
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

import linger


def trained_model() -> nn.Module:
    """A batch norm that has seen data: its statistics are neither 0 nor 1."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    for _ in range(20):
        model(3 * torch.randn(8, 3, 12, 12) + 1)
    return model.eval()


def nodes(path: str) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def main() -> None:
    torch.manual_seed(0)
    model, x = trained_model(), 3 * torch.randn(64, 3, 12, 12) + 1
    layers = " ".join(type(layer).__name__ for layer in model)
    print(f"model      {layers}")

    linger.onnx.export(model, (x[:1],), "cba.onnx", opset_version=15)
    print(f"float      {' '.join(nodes('cba.onnx'))}")
    session = onnxruntime.InferenceSession("cba.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: x[:1].numpy()})[0]
    with torch.no_grad():
        expected = model(x[:1]).numpy()
    print(f"           largest difference from torch {np.abs(found - expected).max():.1e}")

    quantized = linger.init(linger.trace_layers(model, x[:1]))
    with linger.calibration():
        quantized(x)
    linger.onnx.export(quantized, (x[:1],), "cba_int.onnx", opset_version=15)
    print(f"quantized  {' '.join(nodes('cba_int.onnx'))}")
    print(f"           {linger.verify(quantized, 'cba_int.onnx', (x[:1],)).summary()}")
    assert not [name for name in nodes("cba.onnx") + nodes("cba_int.onnx") if "BatchNorm" in name]


if __name__ == "__main__":
    main()
