"""The module behind an op that cannot be exported."""

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError
from linger.onnx.exporter.tracing import callers_of
from linger.simulation import ExampleCall


class Odd(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.inside = nn.Sequential(nn.ReLU(), Odd())

    def forward(self, x):
        return self.inside(self.first(x))


X = torch.ones(1, 3)


def test_unsupported_op_names_its_module_and_leaves_no_file(tmp_path):
    with pytest.raises(UsageError, match=r"inside\.1 \(Odd\): torch cannot export the model: .*bessel_j0"):
        linger.onnx.export(Net(), (X,), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_message_without_an_op_names_the_model():
    assert callers_of(Net(), ExampleCall((X,), {}), "something else") == "Net"


def test_failing_model_names_the_model():
    assert callers_of(Net(), ExampleCall((torch.ones(1, 7),), {}), "aten::relu") == "Net"


def test_hooks_are_gone_afterwards():
    model = Net()
    assert callers_of(model, ExampleCall((X,), {}), "aten::relu") == "inside.0 (ReLU)"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
