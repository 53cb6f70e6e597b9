# SPDX-License-Identifier: Apache-2.0
"""Flatten and simplify: sizes computed node by node become one Reshape (needs the extra `simplify`).

    python examples/06_flatten_and_simplify.py

A flatten that keeps the channels is exported as a small calculation of the new shape. With `simplify=True` the file
holds its result instead; linger runs both files before it writes the simpler one. Writes
float.onnx, float_simple.onnx and the same for quantized; prints the nodes before and after, in float and as integers, where the dialect's nodes stay what they are:

    float      as traced    Conv Shape Constant Constant Constant Slice Constant Concat Reshape
    float      simplified   Conv Reshape
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

import linger


class Places(nn.Module):
    """One row of features per channel: height and width become one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.conv(x), 2)


def result(path: str, x: Tensor) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x.numpy()})[0]


def show(kind: str, model: nn.Module, x: Tensor) -> None:
    """Export twice, print both node lists and whether the two files give the same numbers."""
    names = {"input_names": ["x"], "output_names": ["y"], "opset_version": 12}
    paths = {"as traced": f"{kind}.onnx", "simplified": f"{kind}_simple.onnx"}
    for how, path in paths.items():
        linger.onnx.export(model, (x,), path, **names, simplify=how == "simplified")
        print(f"{kind:10} {how:12} {' '.join(node.op_type for node in onnx.load(path).graph.node)}")
    before, after = (result(path, x) for path in paths.values())
    print(f"{kind:10} {'the same numbers' if np.array_equal(before, after) else 'OTHER NUMBERS'}")


def main() -> None:
    torch.manual_seed(0)
    model, x = Places().eval(), torch.rand(2, 3, 8, 8)
    show("float", model, x)
    linger.init(model)
    with linger.calibration():
        model(x)
    show("quantized", model, x)


if __name__ == "__main__":
    main()
