"""Models that keep state in attributes between calls: a file starts from the state that was there, and the state stays."""

import pytest
import torch
from torch import nn

import linger
from linger import QTensor

X = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(3))


class Stream(nn.Module):
    """A recurrent layer that goes on where it stopped, and what it saw last."""

    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(4, 5), nn.Linear(5, 2)
        self.reset()

    def reset(self):
        self.h = self.c = None
        self.last = {"y": [torch.zeros(3, 2, 5)]}

    def forward(self, x):
        state = None if self.h is None else (self.h, self.c)
        y, (self.h, self.c) = self.rnn(x, state)
        before, self.last["y"] = self.last["y"][0], [y]
        return self.fc(y + before)


def quantized():
    torch.manual_seed(0)
    model = linger.init(Stream()).eval()
    with pytest.warns(UserWarning, match="Quant saw nothing but zeros"):  # the first state is a float tensor
        calibrate(model)
    model.reset()
    return model


def calibrate(model):
    with linger.calibration(), torch.no_grad():
        model(X)
        model(X * 2)  # ranges of a given state


def simulated(model):
    with torch.no_grad():
        return model(X).dequantize().clone()


def run(path):
    return torch.from_numpy(linger.Session(path).run(None, {"x": X.numpy()})[0])


@pytest.mark.parametrize("is_dynamo", [False, True], ids=["traced", "dynamo"])
def test_file_is_the_model_freshly_reset_and_the_model_stays_so(tmp_path, is_dynamo):
    model, path = quantized(), tmp_path / "net.onnx"
    first = model.last["y"][0]
    linger.onnx.export(model, (X,), path, input_names=["x"], dynamo=is_dynamo)
    assert model.h is model.c is None
    assert model.last["y"][0] is first
    assert linger.verify(model, path, X).ok
    assert model.h is model.c is None
    assert model.last["y"][0] is first
    expected = simulated(model)
    assert torch.equal(run(path), expected)
    assert not torch.equal(simulated(model), expected)  # the model itself goes on


def test_state_of_an_earlier_pass_is_where_the_file_starts(tmp_path):
    model, path = quantized(), tmp_path / "net.onnx"
    simulated(model)
    kept = (model.h, model.c, model.last["y"][0])
    assert isinstance(model.last["y"][0], QTensor)
    linger.onnx.export(model, (X,), path, input_names=["x"], verify=True)
    assert all(now is then for now, then in zip((model.h, model.c, model.last["y"][0]), kept, strict=True))
    assert torch.equal(run(path), simulated(model))


def test_state_with_a_gradient_is_exported(tmp_path):
    model, path = quantized(), tmp_path / "net.onnx"
    model(X)  # as training leaves it
    assert model.c.requires_grad
    linger.onnx.export(model, (X,), path, input_names=["x"])
    assert model.c.requires_grad
    assert torch.equal(run(path), simulated(model))


def test_float_model_too(tmp_path):
    torch.manual_seed(0)
    model, path = Stream().eval(), tmp_path / "net.onnx"
    linger.onnx.export(model, (X,), path, input_names=["x"])
    assert model.h is None
    with torch.no_grad():
        torch.testing.assert_close(run(path), model(X), rtol=1e-5, atol=1e-6)  # float32 sums in another order
