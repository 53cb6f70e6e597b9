"""The module behind an op that cannot be exported."""

import io

import pytest
import torch
from torch import nn

import linger
from linger.errors import UsageError


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


class Failing(nn.Module):
    def forward(self, x):
        if torch.jit.is_tracing():
            raise ValueError("aten::relu, but not while the model is watched")
        return self.inside(x)

    def __init__(self):
        super().__init__()
        self.inside = nn.ReLU()


class Unnamed(Failing):
    def forward(self, x):
        if torch.jit.is_tracing():
            raise ValueError("something else")
        return self.inside(x)


def refused(model, x=X):
    with pytest.raises(UsageError) as caught:
        linger.onnx.export(model, (x,), io.BytesIO())
    return str(caught.value).partition(": ")[0]


def test_message_without_an_op_names_the_model():
    assert refused(Unnamed()) == "Unnamed"


def test_failing_model_names_the_model():
    assert refused(Net(), torch.ones(1, 7)) == "Net"


def test_hooks_are_gone_afterwards():
    model = Failing()
    assert refused(model) == "inside (ReLU)"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
