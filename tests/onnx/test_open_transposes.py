"""Files with open sizes in which a transpose stands before a product: ONNX Runtime must not crash on them."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import linger


class Transposed(nn.Module):
    def __init__(self, by_matmul):
        super().__init__()
        self.first, self.second, self.by_matmul = nn.Linear(6, 8), nn.Linear(8, 3), by_matmul

    def forward(self, x):
        y = self.first(x).transpose(0, 1)
        return torch.matmul(y, self.first(x).permute(1, 2, 0)) if self.by_matmul else self.second(y)


RUN = "import sys, onnxruntime; onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])"


@pytest.mark.parametrize("by_matmul", [False, True], ids=["linear", "matmul"])
@pytest.mark.parametrize("form", ["dialect", "standard"])
def test_session_survives(tmp_path, form, by_matmul):
    """In a process of its own: a crash would take the tests with it."""
    torch.manual_seed(0)
    model, x = linger.init(Transposed(by_matmul).eval()), torch.randn(5, 4, 6)
    with linger.calibration():
        model(x)
    path = tmp_path / "model.onnx"
    linger.onnx.export(model, (x,), path, input_names=["x"], dynamic_axes={"x": [0, 1]}, form=form)
    assert subprocess.run([sys.executable, "-c", RUN, str(path)], check=False).returncode == 0
    assert linger.verify(model, path, (torch.randn(3, 7, 6),)).ok
