# SPDX-License-Identifier: Apache-2.0
"""One trunk, two heads: a model with several outputs, each under its own name in the file.

    python examples/03_two_heads.py

Writes two_heads.onnx and two_heads_int.onnx; prints a table per file (float, then quantized) that compares every output with
torch's, and what one head alone gives:

    one head alone: where (1, 4)
    quantized: 2 outputs on 1 input, all within tolerance
    output  type     shape  max abs  max rel  tolerance
    what    float32  1×5    0        0        0          ok
    where   float32  1×4    0        0        0          ok
"""

from __future__ import annotations

import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger

NAMES = {"input_names": ["picture"], "output_names": ["what", "where"], "opset_version": 12}


class TwoHeads(nn.Module):
    """A class per picture and a box per picture, from the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Conv2d(1, 8, 3, stride=2)
        self.what = nn.Linear(8, 5)
        self.where = nn.Linear(8, 4)

    def forward(self, picture: Tensor) -> tuple[Tensor, Tensor]:
        features = F.adaptive_avg_pool2d(F.relu(self.trunk(picture)), 1).flatten(1)
        return self.what(features), self.where(features)


def main() -> None:
    torch.manual_seed(0)
    model = TwoHeads().eval()
    pictures = torch.rand(16, 1, 12, 12)
    linger.onnx.export(model, (pictures[:1],), "two_heads.onnx", **NAMES)
    print(f"float: {linger.onnx.compare(model, 'two_heads.onnx', pictures[:1])}")

    linger.init(model)
    with linger.calibration():
        model(pictures)
    linger.onnx.export(model, (pictures[:1],), "two_heads_int.onnx", **NAMES)
    session = onnxruntime.InferenceSession("two_heads_int.onnx", providers=["CPUExecutionProvider"])
    (box,) = session.run(["where"], {"picture": pictures[:1].numpy()})
    print(f"one head alone: where {box.shape}")
    print(f"quantized: {linger.onnx.compare(model, 'two_heads_int.onnx', pictures[:1])}")


if __name__ == "__main__":
    main()
