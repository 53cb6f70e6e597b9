# SPDX-License-Identifier: Apache-2.0
"""An op that torch does not export although ONNX has it: asinh, declared in one line.

Prints:

    without a declaration: Exporting the operator 'aten::asinh' to ONNX opset version 12 is not supported
    with it the file holds: Asinh
    1 outputs on 2 inputs, all within tolerance
    output  type     shape     max abs  max rel  tolerance
    y       float32  1×5, 8×5  2.4e-07  1.6e-07  2.9e-06    ok
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


def export(path: Path) -> None:
    names = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "n"}, "y": {0: "n"}}}
    linger.onnx.export(Model(), (torch.rand(1, 5),), path, opset_version=12, **names)


def main(folder: Path) -> int:
    torch.manual_seed(0)
    path = folder / "asinh.onnx"
    try:
        export(path)
    except linger.UsageError as error:
        print("without a declaration:", str(error).partition("model: ")[2].partition(". ")[0])

    with linger.onnx.operator("aten::asinh", to="Asinh"):
        export(path)
    print("with it the file holds:", ", ".join(node.op_type for node in onnx.load(path).graph.node))

    # torch and ONNX Runtime side by side, at the size of the export and at another
    comparison = linger.onnx.compare(Model(), path, [torch.rand(1, 5), 10 * torch.randn(8, 5)])
    print(comparison)
    return 0 if comparison.ok else 1


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        raise SystemExit(main(Path(temporary)))
