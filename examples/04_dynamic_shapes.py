# SPDX-License-Identifier: Apache-2.0
"""Sizes that stay open: the three forms of `dynamic_axes`, `dynamic_shapes`, and a quantized model.

    python examples/04_dynamic_shapes.py

Exports one model five times (list.onnx, names.onnx, …), prints the input's shape as it stands in the file, and runs every file at three sizes
that were not exported:

    names      x: [batch, 3, height, width]  equal at 3 of 3 other sizes
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

import linger

SIZES = ((1, 3, 9, 9), (5, 3, 12, 7), (2, 3, 21, 33))
OPEN = {0: "batch", 2: "height", 3: "width"}
FORMS = {
    "list": {"dynamic_axes": {"x": [0, 2, 3], "y": [0, 1]}},
    "names": {"dynamic_axes": {"x": OPEN, "y": {0: "batch", 1: "features"}}},
    "mixed": {"dynamic_axes": {"x": [0, 2, 3], "y": {0: "batch", 1: "features"}}},
    "shapes": {"dynamic_shapes": {"x": OPEN}},
}


class AnySize(nn.Module):
    """Pictures of any size to one row each; weights are whole numbers, so every float sum is exact."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.pool = nn.MaxPool2d(2)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -3, 3).data.round_()

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(torch.relu(self.conv(x))).view(x.size(0), -1)


def shape_in_file(path: str) -> str:
    dims = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    return "[" + ", ".join(str(dim.dim_param or dim.dim_value) for dim in dims) + "]"


def count_equal(model: nn.Module, path: str) -> int:
    """At how many of the sizes the file gives exactly torch's numbers."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    equal = 0
    for size in SIZES:
        x = torch.randint(0, 5, size).float()
        with torch.no_grad():
            expected = np.asarray(model(x))
        equal += np.array_equal(session.run(None, {"x": x.numpy()})[0], expected)
    return equal


def show(kind: str, model: nn.Module, example: Tensor, form: dict[str, object]) -> None:
    path = f"{kind}.onnx"
    linger.onnx.export(model, (example,), path, input_names=["x"], output_names=["y"], **form)
    print(f"{kind:10} x: {shape_in_file(path)}  equal at {count_equal(model, path)} of {len(SIZES)} other sizes")


def main() -> None:
    torch.manual_seed(0)
    model, example = AnySize().eval(), torch.randint(0, 5, (2, 3, 10, 11)).float()
    for kind, form in FORMS.items():
        show(kind, model, example, form)
    linger.init(model)
    with linger.calibration():
        model(example)
    show("quantized", model, example, FORMS["names"])


if __name__ == "__main__":
    main()
