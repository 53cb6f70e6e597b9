# SPDX-License-Identifier: Apache-2.0
"""An op that torch's tracing exporter does not know although ONNX has it: asinh, declared in one line.

    python examples/07_asinh.py

Keeps no file; prints:

    nodes: Asinh
    1 output on 2 inputs, all within tolerance
    output  type     shape     max abs  max rel  tolerance
    y       float32  1×5, 8×5  0        0        7.6e-07    ok
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

import linger


class Model(nn.Module):
    """One op."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.asinh(x)


def main(folder: Path) -> int:
    torch.manual_seed(0)
    path, axes = folder / "asinh.onnx", {"x": {0: "n"}, "y": {0: "n"}}
    # without the declaration: "Exporting the operator 'aten::asinh' to ONNX opset version 12 is not supported"
    with linger.onnx.operator("aten::asinh", to="Asinh"):
        linger.onnx.export(
            Model(),
            (torch.rand(1, 5),),
            path,
            opset_version=12,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes=axes,
        )
    print(f"nodes: {', '.join(node.op_type for node in onnx.load(path).graph.node)}")

    # torch and ONNX Runtime side by side, at the size of the export and at another
    comparison = linger.onnx.compare(Model(), path, [torch.rand(1, 5), 10 * torch.randn(8, 5)])
    print(comparison)
    return 0 if comparison.ok else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        raise SystemExit(main(Path(temporary)))
