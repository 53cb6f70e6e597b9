# SPDX-License-Identifier: Apache-2.0
"""One trunk, two heads: a model with several outputs, each under its own name in the file.

Prints the outputs of the file and how far they are from torch, in float and as integers; then runs one head alone:

    float      what   shape (1, 5)  largest difference 3.0e-08
    quantised  what   shape (1, 5)  largest difference 0.0e+00
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import linger

HEADS = ["what", "where"]


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


def compare(kind: str, model: nn.Module, path: str, picture: Tensor) -> None:
    """Run the file, print every output's shape and its distance from torch's."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found = session.run(HEADS, {"picture": picture.numpy()})
    with torch.no_grad():
        expected = [np.asarray(head) for head in model(picture)]
    for name, ours, theirs in zip(HEADS, found, expected, strict=True):
        print(f"{kind:9}  {name:5}  shape {ours.shape}  largest difference {np.abs(ours - theirs).max():.1e}")


def main() -> None:
    torch.manual_seed(0)
    model = TwoHeads().eval()
    pictures = torch.rand(16, 1, 12, 12)
    names = {"input_names": ["picture"], "output_names": HEADS, "opset_version": 12}
    linger.onnx.export(model, (pictures[:1],), "two_heads.onnx", **names)
    compare("float", model, "two_heads.onnx", pictures[:1])

    linger.init(model)
    with linger.calibration():
        model(pictures)
    linger.onnx.export(model, (pictures[:1],), "two_heads_int.onnx", **names)
    compare("quantised", model, "two_heads_int.onnx", pictures[:1])

    session = onnxruntime.InferenceSession("two_heads_int.onnx", providers=["CPUExecutionProvider"])
    (box,) = session.run(["where"], {"picture": pictures[:1].numpy()})
    print(f"one head alone: where {box.shape}")


if __name__ == "__main__":
    main()
