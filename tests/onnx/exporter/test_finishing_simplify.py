"""Simplified files compute the same."""

import importlib.util

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import linger
from linger.errors import GraphError, UsageError
from tests.support.models import small_net


@pytest.fixture(autouse=True)
def _installed():
    if importlib.util.find_spec("onnxslim") is None:
        pytest.skip("onnxslim is not installed (extra simplify)")


def test_dialect_nodes_functions_and_scalar_nodes_are_kept(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", simplify=True, input_names=["x"])
    proto = onnx.load(tmp_path / "net.onnx")
    assert proto.functions
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok
    constants = {n.output[0] for n in proto.graph.node if n.op_type == "Constant"}
    scalars = [n.input[1] for n in proto.graph.node if n.name in ("iqMul", "iqAdd")]
    assert len(scalars) == 2
    assert set(scalars) <= constants


def test_integer_ends_are_compared_too(tmp_path):
    model, x = small_net()
    linger.onnx.export(model, (x,), tmp_path / "net.onnx", simplify=True, is_input_quant=True, input_names=["x"])
    assert onnx.load(tmp_path / "net.onnx").graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.INT8


def test_a_file_that_does_not_run_is_one_sentence(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(1, 3, 8, 8)
    model = linger.init(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)).eval()).eval()
    with linger.calibration():
        model(x)
    with pytest.raises(GraphError, match=r"does not run \(.*\)\. Export with simplify=False"):
        linger.onnx.export(model, (x,), tmp_path / "net.onnx", simplify=True)
    assert not (tmp_path / "net.onnx").exists()


def test_flatten_of_a_float_model_becomes_one_node(tmp_path):
    class Flat(nn.Module):
        def forward(self, x):
            return x.view(x.shape[0], -1) * 2

    x = torch.randn(2, 3, 4)
    axes = {"x": {0: "n"}}
    for name, wanted in (("plain", False), ("simple", True)):
        linger.onnx.export(
            Flat(), (x,), tmp_path / f"{name}.onnx", simplify=wanted, input_names=["x"], dynamic_axes=axes
        )
    plain, simple = (onnx.load(tmp_path / f"{n}.onnx").graph.node for n in ("plain", "simple"))
    assert len(simple) < len(plain)
    y = linger.Session(tmp_path / "simple.onnx").run(None, {"x": x.numpy()})[0]
    np.testing.assert_array_equal(y, (x.view(2, -1) * 2).numpy())


def test_a_tool_that_breaks_the_model_is_caught(tmp_path, monkeypatch):
    def breaks(proto):
        proto.graph.initializer[0].raw_data = bytes(len(proto.graph.initializer[0].raw_data))
        return proto

    monkeypatch.setattr("onnxslim.slim", breaks)
    with pytest.raises(GraphError, match="computes another"):
        linger.onnx.export(nn.Linear(3, 2), (torch.randn(2, 3),), tmp_path / "net.onnx", simplify=True)
    assert list(tmp_path.iterdir()) == []


def test_missing_tools_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'linger-nn\[simplify\]'"):
        linger.onnx.export(nn.Linear(3, 2), (torch.randn(2, 3),), tmp_path / "net.onnx", simplify=True)
