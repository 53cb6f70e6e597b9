"""What linger itself exports is clean, in every form."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.models import Traced, quantized, small_net

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
    result = checked(quantized(Traced(), x), (x,), tmp_path / "m.onnx", form)
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
    assert [str(f) for f in (*result.errors, *result.warnings)] == []


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
    assert [str(f) for f in result.findings] == [
        "the file names no chip; the packer takes it for venus. Nothing is to be done."
    ]


class Kinds(nn.Module):
    """Layers by name behind a convolution, and a forward that joins them."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.conv, self.run = nn.Conv2d(4, 4, 3, padding=1), forward
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x):
        return self.run(self, self.conv(x))


def borders(m, y):
    y = m.mirrored(F.pad(y, (1, 2, 1, 1), mode="reflect")) + m.circular(F.pad(y, (1, 2, 1, 1)))
    y = torch.where(y > 0, y, y.roll(1, 2)).masked_fill(y < -1, 0.5)
    return F.pad(y, (2, 1), mode="replicate")


def states(m, y):
    rows = y.flatten(2)
    _, (h, c) = m.lstm(rows)
    both, last = m.gru(rows)
    single, cell = m.lstm_cell(rows[:, 0])
    return h[-1] + last[-1], c, both[:, -1], m.gru_cell(rows[:, 1]), single, cell


def windows(m, y):
    y = torch.cat([m.up(F.max_pool2d(y, 2)), F.interpolate(F.avg_pool2d(y, 3, 2, 1), scale_factor=2)], 1)
    y = m.depthwise(m.transposed(y)).chunk(2, 1)[0]
    return m.line(y.flatten(2)), y.mean((2, 3)), y.amax((2, 3)), F.pixel_shuffle(y, 2), y.flip(2).argmax(1)


def curves(m, y):
    y = F.gelu(y) + F.silu(y) + F.hardswish(y) * F.hardsigmoid(y) + m.prelu(F.leaky_relu(y)) - y.abs().clamp(0.1, 0.9)
    return torch.tanh(y) / (1 + torch.sigmoid(y)), F.softmax(y, 1), F.log_softmax(y, -1), y.var(1), y.sin()


def products(m, y):
    rows = y.flatten(2)
    return m.encoder(m.embedding(rows.argmax(-1)) + m.linear(rows)), torch.bmm(rows, rows.transpose(1, 2))


KINDS = {
    "borders": (borders, {"mirrored": nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
                          "circular": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")}),
    "states": (states, {"lstm": nn.LSTM(64, 3, batch_first=True), "gru": nn.GRU(64, 3, batch_first=True),
                        "lstm_cell": nn.LSTMCell(64, 3), "gru_cell": nn.GRUCell(64, 3)}),
    "norms": (lambda m, y: m.sets(m.lone(m.group(m.batch(y)))),
              {"batch": nn.BatchNorm2d(4), "group": nn.GroupNorm(2, 4), "lone": nn.InstanceNorm2d(4, affine=True),
               "sets": nn.LayerNorm([4, 8, 8])}),
    "windows": (windows, {"up": nn.Upsample(scale_factor=2, mode="bilinear"), "transposed": nn.ConvTranspose2d(8, 8, 2, 2),
                          "depthwise": nn.Conv2d(8, 8, 3, groups=8, dilation=2), "line": nn.Conv1d(4, 2, 3, bias=False)}),
    "curves": (curves, {"prelu": nn.PReLU(4)}),
    "products": (products, {"encoder": nn.TransformerEncoderLayer(8, 2, 8, batch_first=True),
                            "embedding": nn.Embedding(64, 8), "linear": nn.Linear(64, 8)}),
}  # fmt: skip


@pytest.mark.parametrize("form", ["dialect", "standard"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.thin(every=5)
def test_every_kind_of_layer_is_clean(kind, form, tmp_path):
    forward, layers = KINDS[kind]
    torch.manual_seed(1)
    x = torch.randn(2, 4, 8, 8)
    model = linger.init(copy.deepcopy(Kinds(forward, **layers)).eval())
    with linger.calibration():
        model(x)
    result = checked(model, (x,), tmp_path / "m.onnx", form)
    assert [str(f) for f in (*result.errors, *result.warnings)] == []
