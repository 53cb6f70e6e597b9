"""A wide tensor in front of a narrower layer keeps its signal."""

import torch
from torch import nn

import linger
from linger import init, quant_module


class Branch(nn.Module):
    """c(x + b(x)): one operand of the sum is wide, the other is not."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = torch.relu(self.a(x))
        return self.c(x + self.b(x))


def decibel(expected, found):
    return float(10 * torch.log10(expected.square().sum() / (expected - found).square().sum()))


def quantized(*wide):
    torch.manual_seed(0)
    model = Branch().eval()
    x = torch.randn(256, 16)
    expected = model(x).detach()
    for name in wide:
        quant_module(getattr(model, name), data_bits=16, parameter_bits=16, out_bits=16)
    model = init(model).eval()
    with linger.calibration():
        model(x)
    return model, x, expected


def test_one_wide_layer_in_a_branch_does_no_harm():
    narrow, x, expected = quantized()
    wide, _, _ = quantized("b")
    with torch.no_grad():
        before, after = decibel(expected, narrow(x)), decibel(expected, wide(x))
    assert before > 25
    assert after > before - 1, "it was 0.3 dB when the low bits were dropped by their number"


def test_the_scale_follows_the_range_and_is_no_finer_than_the_source():
    model, x, _ = quantized("b")
    with torch.no_grad():
        total = torch.relu(model.a(x)).dequantize() + model.b(torch.relu(model.a(x))).dequantize()
    # the largest value of the sum fits, and twice the scale would not hold it
    scale = float(model.c.scale_x)
    largest = float(total.abs().max())
    assert largest * scale <= 127
    assert largest * scale * 2 > 127 or scale == float(model._linger_round_tensor_iqadd__default_index_0.scale_o)


def test_the_file_computes_the_same(tmp_path):
    model, x, _ = quantized("b")
    linger.onnx.export(model, (x,), tmp_path / "m.onnx")
    result = linger.verify(model, tmp_path / "m.onnx", x)
    assert result.ok
    assert any("Requant" in row.name for row in result.rows)


def test_it_trains_and_a_checkpoint_restores_it():
    model, x, _ = quantized("b")
    model.train()
    loss = model(x).square().sum()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    state = model.state_dict()
    other, _, _ = quantized("b")
    other.load_state_dict(state)
    with torch.no_grad():
        assert torch.equal(model.eval()(x).dequantize(), other.eval()(x).dequantize())
