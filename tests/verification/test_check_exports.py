"""What linger itself exports is clean, in every form."""

import pytest
import torch
from torch import nn

import linger
from tests.support.models import Traced, quantised, small_net

pytestmark = pytest.mark.needs_torch

FORMS = ("dialect", "bare", "standard", "qdq")


def checked(model, inputs, path, form, **options):
    linger.onnx.export(model, inputs, path, form=form, **options)
    return linger.check(path)


@pytest.mark.parametrize("form", FORMS)
def test_a_convolutional_network(form, tmp_path):
    net, x = small_net()
    names = {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    result = checked(net, (x[:1],), tmp_path / "m.onnx", form, **names)
    assert [str(f) for f in (*result.errors, *result.warnings)] == []
    # the open batch; in QDQ files the half-up form of docs/export.md
    assert {f.rule for f in result.notes} == ({"LGR211", "LGR701", "LGR702"} if form == "qdq" else {"LGR211"})


@pytest.mark.parametrize("form", FORMS)
def test_a_float_island(form, tmp_path):
    x = torch.randn(5, 6)
    result = checked(quantised(Traced(), x), (x,), tmp_path / "m.onnx", form)
    assert [str(f) for f in (*result.errors, *result.warnings)] == []


class Sequences(nn.Module):
    """Embedding, both recurrent layers, layer norm, tanh, softmax and sigmoid."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(9, 6), nn.LSTM(6, 5, bidirectional=True)
        self.gru, self.norm, self.linear = nn.GRU(10, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, tokens):
        y, _ = self.lstm(self.embedding(tokens))
        y, _ = self.gru(y)
        return torch.softmax(self.linear(torch.tanh(self.norm(y))), -1), torch.sigmoid(y)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_recurrent_network(form, tmp_path):
    tokens = torch.randint(0, 9, (7, 2), generator=torch.Generator().manual_seed(0))
    kinds = [nn.Embedding, nn.LSTM, nn.GRU, nn.LayerNorm, nn.Linear]
    model = linger.init(Sequences(), quant_modules=kinds).eval()
    with linger.calibration():
        model(tokens)
    result = checked(model, (tokens,), tmp_path / "m.onnx", form)
    assert [str(f) for f in result.errors] == []
    # written out in standard nodes, states that nobody reads are still computed
    assert {f.rule for f in result.warnings} == (set() if form in ("dialect", "bare") else {"LGR205"})


@pytest.mark.parametrize("outputs", [False, True], ids=["float", "integer"])
def test_for_a_chip(outputs, tmp_path):
    x = torch.randn(16, 1, 8, 8)
    net = linger.init(
        nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)), target="venus"
    )
    net.eval()
    with linger.calibration():
        net(x)
    linger.onnx.export(net, (x[:1],), tmp_path / "m.onnx", is_input_quant=outputs)
    result = linger.check(tmp_path / "m.onnx", "venus")
    assert [str(f) for f in result.findings] == []
