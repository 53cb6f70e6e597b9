"""LeakyReLU and PReLU of quantized tensors: slopes as integers that still learn, from calibration to the file."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger import init
from linger.errors import UsageError
from tests.support.functions import is_parameter
from tests.support.int64 import requantized
from tests.support.wired import Wired, after, image, quantize

SLOPES = torch.tensor([0.1, -0.5, 1.75, 0.25])


class Bent(nn.Module):
    """A convolution and a PReLU."""

    def __init__(self, slopes):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.act = nn.PReLU(len(slopes))
        self.fc = nn.Conv2d(4, 2, 1)
        with torch.no_grad():
            self.act.weight.copy_(slopes)

    def forward(self, x):
        return self.fc(self.act(self.conv(x)))


def bent(slopes=SLOPES):
    torch.manual_seed(5)
    return quantize(Bent(slopes), image())


LEAKY = {
    "F": lambda h: F.leaky_relu(h, 0.1),
    "F, in place": lambda h: F.leaky_relu(h, 0.1, inplace=True),
    "F, underscore": lambda h: F.leaky_relu_(h, 0.1),
    "nn": nn.LeakyReLU(0.1),
    "nn, in place": nn.LeakyReLU(0.1, inplace=True),
}


@pytest.mark.parametrize("function", LEAKY.values(), ids=LEAKY.keys())
def test_leaky_relu_keeps_the_scale(function, tmp_path):
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    model = quantize(Wired(forward), image())
    h, y = model(image())
    assert (y.scale, y.bits) == (h.scale, h.bits)
    before = h.integers().numpy().astype(np.int64)
    expected = np.where(before > 0, before, (before * 26214 + 2**17) >> 18)  # 0.1 is 26214/2^18, ties up
    np.testing.assert_array_equal(y.integers().numpy(), expected)
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_leaky_relu_that_widens_the_range_stays_float_and_says_why():
    model = after(lambda h: F.leaky_relu(h, 3.0))
    (record,) = linger.coverage(model).float_ops
    assert "use PReLU" in record.reason


@pytest.mark.parametrize("slopes", [SLOPES, SLOPES[:1], -3 * SLOPES], ids=["each", "shared", "steep"])
@pytest.mark.parametrize("options", [{}, {"form": "bare"}, {"dynamo": True}], ids=["dialect", "bare", "dynamo"])
def test_prelu_from_calibration_to_the_file(slopes, options, tmp_path):
    model = bent(slopes)
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", **options)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "net.onnx").graph.initializer}
    assert stored["act.weight"].dtype == np.int16
    assert stored["act.weight"].shape == (len(slopes),)
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("slopes", [SLOPES, SLOPES[:1]], ids=["each", "shared"])
def test_prelu_computes_the_integers_of_the_formula(slopes):
    model, seen = bent(slopes), {}
    model.act.register_forward_hook(lambda m, args, y: seen.update(x=args[0], y=y))
    model(image())
    x, y = seen["x"], seen["y"]
    scale_w = 2.0 ** np.floor(np.log2(32767 / slopes.abs().max().item()))
    w = np.floor(slopes.numpy().astype(np.float64) * scale_w + 0.5).astype(np.int64)
    integers = x.integers().numpy().astype(np.int64)
    product = integers * np.where(integers > 0, int(scale_w), w.reshape(1, -1, 1, 1))
    np.testing.assert_array_equal(y.integers().numpy(), requantized(product, x.scale * scale_w, y.scale, 8))
    assert y.scale <= x.scale
    assert y.bits == x.bits == 8


def test_output_that_outgrows_the_input_gets_a_coarser_scale():
    model, seen = bent(torch.tensor([8.0])), {}
    model.act.register_forward_hook(lambda m, args, y: seen.update(x=args[0], y=y))
    model(image())
    assert seen["y"].scale < seen["x"].scale
    real = F.prelu(seen["x"].dequantize(), torch.tensor([8.0]))
    assert (seen["y"].dequantize() - real).abs().max() <= 0.5 / seen["y"].scale  # 8 is exact, so half a step


@pytest.mark.parametrize("slopes", [SLOPES, SLOPES[:1]], ids=["each", "shared"])
def test_slopes_learn(slopes):
    model = bent(slopes).train()
    seen = {}

    def keep(module, args):
        args[0].content.retain_grad()
        seen["x"] = args[0].content

    model.act.register_forward_pre_hook(keep)
    y = model.act(model.conv(image()))
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    (y * weight).sum().backward()
    x, w = seen["x"].detach().clone().requires_grad_(), model.act.weight.detach().clone().requires_grad_()
    (F.prelu(x, w) * weight).sum().backward()
    torch.testing.assert_close(model.act.weight.grad, w.grad)  # a sum in another order
    # the slopes are rounded to 16 bits: 2^-15 of the largest
    assert (seen["x"].grad - x.grad).abs().max() <= weight.abs().max() * slopes.abs().max() * 2.0**-15
    before = model.act.weight.detach().clone()
    torch.optim.SGD(model.parameters(), 0.1).step()
    assert not torch.equal(model.act.weight, before)


def test_a_changed_slope_is_in_the_next_file(tmp_path):
    model = bent()
    with torch.no_grad():
        model.act.weight.fill_(0.5)
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "net.onnx").graph.initializer}
    assert stored["act.weight"].tolist() == [16384] * 4  # ½ at scale 2^15
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_function_with_a_parameter_of_the_model(tmp_path):
    class Own(Bent):
        def forward(self, x):
            return self.fc(F.prelu(self.conv(x), self.act.weight))

    torch.manual_seed(5)
    model = quantize(Own(SLOPES), image())
    assert torch.equal(model(image()).integers(), bent()(image()).integers())
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_checkpoint_is_loaded_into_a_fresh_model():
    model = bent()
    fresh = init(Bent(torch.zeros(4))).eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(image()).integers(), model(image()).integers())


def test_torch_export_of_a_quantized_prelu():
    model = bent()
    with torch.no_grad():
        expected = model(image()).dequantize()
        program = torch.export.export(model, (image(),))
    assert torch.equal(program.module()(image()), expected)


def test_slopes_without_a_value_are_an_error():
    model = bent()
    with torch.no_grad():
        model.act.weight.fill_(float("nan"))
    with pytest.raises(UsageError, match=r"act\.iqPRelu: the slopes hold NaN"):
        model(image())


def test_what_counts_as_a_parameter():
    assert is_parameter(torch.ones(2))
    assert not is_parameter(torch.ones(2, dtype=torch.int8))
    assert not is_parameter(0.5)


def test_types_may_be_named_to_init():
    model = init(Bent(SLOPES), quant_modules=[nn.Conv2d, nn.PReLU, nn.LeakyReLU])
    assert isinstance(model.act, nn.PReLU)
