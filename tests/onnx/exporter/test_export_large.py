"""Models too large for one protobuf."""

import io
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
import torch

import linger
from linger.errors import UsageError
from tests.support.models import SmallNet, settle

THREE_GIGABYTES = """
import re, torch, linger
from pathlib import Path
from torch import nn
class Big(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8192, 8192, bias=False) for _ in range(12))
    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x
model = Big().eval()
size = sum(p.numel() * 4 for p in model.parameters())
linger.onnx.export(model, (torch.randn(1, 8192),), "big.onnx", input_names=["x"])
# not ru_maxrss: that of a new process starts with the peak of the one that started it
print(size, int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024)
"""


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr("linger.onnx.exporter.export.LIMIT", 1000)


def test_weights_are_streamed_beside_the_file(tmp_path, small_limit):
    model = settle(SmallNet()).eval()
    x = torch.randn(2, 1, 8, 8)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", input_names=["x"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.onnx", "net.onnx.data"]
    assert (tmp_path / "net.onnx").stat().st_size < 10_000
    session = ort.InferenceSession(tmp_path / "net.onnx", providers=["CPUExecutionProvider"])
    # float32: ten layers of at most 8·9 products, each rounded to 2^-24 relative
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], model(x).detach().numpy(), atol=1e-5)


def test_keyword_inputs_keep_the_models_own_names(tmp_path, small_limit):
    model = settle(SmallNet()).eval()
    linger.onnx.export(model, (), tmp_path / "net.onnx", kwargs={"x": torch.randn(2, 1, 8, 8)})
    assert "fc.weight" in linger.graph.load(tmp_path / "net.onnx").graph.initializers


def test_file_object_cannot_take_it(small_limit):
    with pytest.raises(UsageError, match="larger than 2 GB"):
        linger.onnx.export(SmallNet(), (torch.randn(1, 1, 8, 8),), io.BytesIO())


@pytest.mark.slow
def test_three_gigabytes_need_less_than_one_and_a_half_times_the_weights(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", THREE_GIGABYTES], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    size, peak = map(int, done.stdout.split())
    assert size > 3e9
    assert peak < 1.5 * size
    session = ort.InferenceSession(tmp_path / "big.onnx", providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones((1, 8192), np.float32)})[0].shape == (1, 8192)
