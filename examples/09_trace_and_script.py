# SPDX-License-Identifier: Apache-2.0
"""Trace against script: a trace writes down what happened once, a script keeps the loop.

    python examples/09_trace_and_script.py

One model repeats a convolution as often as its second input says. Traced with 3, the file holds three convolutions
and repeats three times for ever; scripted, it holds one inside a `Loop` that counts at run time. Writes traced.onnx and
scripted.onnx; prints both:

    traced with 3  Conv Conv Conv          asked for 2: repeats 3   asked for 5: repeats 3
    scripted       Loop(Conv)              asked for 2: repeats 2   asked for 5: repeats 5
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import torch
from torch import Tensor, nn

import linger


class Repeat(nn.Module):
    """The same 3×3 convolution, `times` over; its weights are whole numbers, so results are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        nn.init.uniform_(self.conv.weight, -2, 2).data.round_()

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        for _ in range(int(times)):
            x = self.conv(x)
        return x


def listing(graph: onnx.GraphProto) -> str:
    """The convolutions and loops of a graph."""
    names = []
    for node in graph.node:
        if node.op_type == "Loop":
            names.append(f"Loop({listing(node.attribute[0].g)})")
        elif node.op_type == "Conv":
            names.append("Conv")
    return " ".join(names)


def repeats(path: str, model: Repeat, x: Tensor, times: int) -> int:
    """How often the file really applied the convolution when asked for `times`."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    # a traced count is a constant: the file has no input for it
    given = {"x": x.numpy(), "times": np.array(times)}
    found = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]
    with torch.no_grad():
        return next(n for n in range(10) if np.array_equal(found, model(x, torch.tensor(n)).numpy()))


def main() -> None:
    torch.manual_seed(0)
    model, x = Repeat().eval(), torch.randint(-3, 4, (1, 2, 6, 6)).float()
    for kind, subject in (("traced with 3", model), ("scripted", torch.jit.script(model))):
        path = f"{kind.split()[0]}.onnx"
        linger.onnx.export(subject, (x, torch.tensor(3)), path, input_names=["x", "times"], opset_version=12)
        counted = [f"asked for {times}: repeats {repeats(path, model, x, times)}" for times in (2, 5)]
        print(f"{kind:14} {listing(onnx.load(path).graph):16} {'   '.join(counted)}")


if __name__ == "__main__":
    main()
