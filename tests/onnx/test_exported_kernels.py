"""No exported form leads ONNX Runtime to products of unsigned and signed bytes that saturate on x64 without VNNI."""

import io
import logging

import pytest
import torch
from torch import nn

import linger
from linger.graph import load
from tests.support.kernels import LEVELS, mixed_products
from tests.support.lowering import attach_functions

pytestmark = pytest.mark.needs_torch


class Everything(nn.Module):
    """Every op that multiplies, with short and long sums, a sum of two tensors, data of two and of three axes."""

    def __init__(self):
        super().__init__()
        self.conv, self.depthwise = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8)
        self.along, self.up = nn.Conv1d(8, 4, 3), nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.flat, self.rows = nn.Linear(8, 6), nn.Linear(8, 6)
        self.lstm, self.gru = nn.LSTM(6, 4, batch_first=True), nn.GRU(4, 3, batch_first=True)

    def forward(self, x):
        x = torch.relu(self.depthwise(self.conv(x)))
        flat, rows = self.flat(x[:, :, 0, 0]), self.rows(x[:, :, :, 0].transpose(1, 2))
        states = self.gru(self.lstm(rows)[0])[0]
        return self.up(x), flat + flat, self.along(x[:, :, 0]), states, torch.bmm(rows, rows.transpose(1, 2))


def made(**numbers):
    """The quantized network, and what it was calibrated on."""
    torch.manual_seed(0)
    net, x = Everything(), torch.randn(2, 3, 8, 8)
    net = linger.init(net, **numbers).eval()
    with linger.calibration():
        net(x)
    return net, x


@pytest.fixture(scope="module")
def quantized():
    return made()


@pytest.fixture(scope="module")
def extended():
    return made(per_channel=True, unsigned=True)


def exported(quantized, **options):
    net, x = quantized
    written = io.BytesIO()
    linger.onnx.export(net, (x,), written, **options)
    return written.getvalue()


@pytest.mark.parametrize("form", ["dialect", "standard", "bare", "qdq"])
def test_no_form_multiplies_unsigned_by_signed_bytes(quantized, form):
    """None but those that fit in 16 bits in pairs: weights within ±64, and data up to 127 behind a ReLU (`byte_forms`)."""
    content = exported(quantized, form=form)
    model = load(content)
    if form == "bare":
        attach_functions(model)  # as linger.Session does to run it
    assert [mixed_products(model, level) for level in LEVELS] == [[]] * len(LEVELS)
    assert linger.verify(quantized[0], content, quantized[1]).ok  # on this CPU, as ONNX Runtime optimizes it


@pytest.mark.parametrize("opset", [12, 13])
@pytest.mark.parametrize("form", ["dialect", "standard", "bare", "qdq"])
@pytest.mark.thin(every=2)
def test_no_form_of_other_numbers_does_either(extended, form, opset):
    """With a scale for each channel and activations of 0 … 255: signed weights beside those only within ±64."""
    content = exported(extended, form=form, opset_version=opset)
    model = load(content)
    if form == "bare":
        attach_functions(model)
    assert [mixed_products(model, level) for level in LEVELS] == [[]] * len(LEVELS)
    assert linger.verify(extended[0], content, extended[1]).ok
    if form == "dialect":
        own = {name for node in model.graph for name in node.attributes}
        assert {"exponents_w", "o_unsigned"} <= own


def test_symmetric_qdq_says_which_layers_would(quantized, caplog):
    """Zero points of 0, as TensorRT wants them, leave ONNX Runtime the choice: the export names the layers and the cure."""
    with caplog.at_level(logging.WARNING):
        content = exported(quantized, form="qdq", qdq_symmetric=True)
    assert mixed_products(load(content), "ENABLE_ALL")
    (said,) = [record.getMessage() for record in caplog.records if "VNNI" in record.getMessage()]
    for layer in ("conv.Conv2dInt", "flat.LinearInt", "rows.LinearInt", "along.Conv1dInt"):
        assert layer in said.partition("VNNI")[2]
    assert "session.disable_quant_qdq" in said
