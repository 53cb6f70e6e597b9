"""Borders of quantized tensors and of convolutions, from calibration to the file."""

import itertools

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.functions import COPYING_MODES, can_copy, pad_by_copying
from tests.support.int64 import convolved, convolved_signal, requantized
from tests.support.models import quantized
from tests.support.wired import Wired, after, image, quantize

CONSTANT = {
    "zeros": lambda h: F.pad(h, (1, 2, 0, 1)),
    "by name": lambda h: F.pad(input=h, pad=(1, 1), mode="constant", value=0),
    "channels too": lambda h: F.pad(h, (1, 1, 1, 1, 0, 2)),
    "cut": lambda h: F.pad(h, (-1, 1, 2, -2)),
    "a constant": lambda h: F.pad(h, (1, 1, 1, 1), value=0.5),
    "nn.ZeroPad2d": nn.ZeroPad2d((1, 0, 2, 1)),
    "nn.ConstantPad2d": nn.ConstantPad2d(1, -0.25),
    "torch.constant_pad_nd": lambda h: torch.constant_pad_nd(h, (0, 3), 0.5),
}
COPIES = {
    "reflect": lambda h: F.pad(h, (2, 1, 1, 3), mode="reflect"),
    "reflect, one axis": lambda h: F.pad(h, (0, 2, 0, 0), "reflect"),
    "replicate": lambda h: F.pad(h, (2, 9, 1, 0), mode="replicate"),
    "circular": lambda h: F.pad(h, (2, 6, 1, 3), mode="circular"),
    "nn.ReflectionPad2d": nn.ReflectionPad2d((1, 2, 3, 0)),
    "nn.ReplicationPad2d": nn.ReplicationPad2d(2),
    "nn.CircularPad2d": nn.CircularPad2d(1),
    "of signals": lambda h: F.pad(h.flatten(1, 2), (3, 2), mode="reflect"),
    "nn.ReflectionPad1d": lambda h: nn.ReflectionPad1d(2)(h.flatten(1, 2)),
    "nn.ReplicationPad1d": lambda h: nn.ReplicationPad1d(2)(h.flatten(1, 2)),
}
EVERY = {**CONSTANT, **COPIES}


def both(function):
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    return quantize(Wired(forward), image())


@pytest.mark.parametrize("function", EVERY.values(), ids=EVERY.keys())
@pytest.mark.thin(every=5)
def test_border_of_a_quantized_tensor(function, tmp_path):
    model = both(function)
    h, y = model(image())
    assert (y.scale, y.bits) == (h.scale, h.bits)
    # the constants are whole steps at this scale, so nothing is rounded
    assert h.scale >= 4
    assert torch.equal(y.dequantize(), function(h.dequantize()))
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("function", [CONSTANT["a constant"], COPIES["reflect"], COPIES["replicate"]])
@pytest.mark.parametrize("options", [{"opset": 11}, {"opset": 17}, {"form": "bare"}, {"dynamo": True}], ids=str)
@pytest.mark.thin(every=2)
def test_every_kind_of_file(function, options, tmp_path):
    model = after(function)
    options = {"opset_version" if key == "opset" else key: value for key, value in options.items()}
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", **options)
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("function", [CONSTANT["a constant"], COPIES["reflect"], COPIES["circular"]])
def test_sixteen_bits_and_open_sizes(function, tmp_path):
    model = Wired(lambda m, x: function(m.conv(x)))
    linger.quant_module(model, out_bits=16)
    model = quantize(model, image())
    assert model(image()).bits == 16
    axes = {"x": {0: "n", 2: "h", 3: "w"}}
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=axes)
    assert linger.verify(model, tmp_path / "net.onnx", (torch.randn(3, 3, 9, 7),)).ok


def test_zeros_are_written_as_the_dialects_pad(tmp_path):
    model = after(CONSTANT["zeros"])
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", form="bare")
    graph = onnx.load(tmp_path / "net.onnx").graph
    (node,) = [n for n in graph.node if n.op_type == "iqPad"]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    places, value = (stored[name] for name in node.input[1:])
    assert (places.tolist(), places.dtype) == ([0, 0, 0, 1, 0, 0, 1, 2], np.int64)
    assert (value.shape, value.dtype) == ((), np.int8)
    assert {a.name for a in node.attribute} == {"mode", "platform_quant"}


def test_a_constant_that_does_not_fit_stays_float_and_says_why():
    model = after(lambda h: F.pad(h, (1, 1), value=-1e9))
    (record,) = linger.coverage(model).float_ops
    assert "does not fit into 8 bits" in record.reason


def test_constant_between_the_steps_is_rounded():
    h, y = both(lambda h: F.pad(h, (0, 1), value=0.3))(image())
    assert (y.integers()[..., -1] == int(np.floor(0.3 * h.scale + 0.5))).all()


@pytest.mark.parametrize(
    "function", [lambda h: F.pad(h, (1, 1), value=-0.5), lambda h: torch.clamp(h, max=-0.5)], ids=["pad", "clamp"]
)
def test_a_negative_constant_after_relu_is_not_taken_for_a_positive_one(function):
    def forward(m, x):
        h = function(torch.relu(m.conv(x)))
        return h.clone(), torch.relu(h)

    model = quantize(Wired(forward), image())
    before, after_relu = model(image())
    assert not before.is_nonnegative
    assert before.integers().min() < 0
    assert after_relu.integers().min() == 0


def test_gradient_of_copies_adds_up():
    model, seen = after(COPIES["replicate"]).train(), {}

    def forward(m, x):
        h = m.conv(x)
        h.content.retain_grad()
        seen["h"] = h.content
        return COPIES["replicate"](h)

    model.run = forward
    model(image()).sum().backward()
    h = seen["h"].detach().clone().requires_grad_()
    COPIES["replicate"](h).sum().backward()
    assert torch.equal(seen["h"].grad, h.grad)


@pytest.mark.parametrize("mode", COPYING_MODES)
def test_copies_are_those_of_torch(mode):
    x = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    for pad in itertools.product(range(4), range(4)):
        assert torch.equal(pad_by_copying(x, pad, mode), F.pad(x[:, :, :, :], (*pad, 0, 0), mode=mode))
        both_axes = (*pad, *reversed(pad))
        assert can_copy(x.shape, both_axes, mode)
        assert torch.equal(pad_by_copying(x, both_axes, mode), F.pad(x, both_axes, mode=mode))


def test_what_cannot_be_copied():
    shape = (1, 2, 3, 4)
    assert not can_copy(shape, (4, 0), "reflect")
    assert can_copy(shape, (3, 3), "reflect")
    assert not can_copy(shape, (5, 0), "circular")
    assert can_copy(shape, (4, 4), "circular")
    assert can_copy(shape, (9, 9), "replicate")
    assert not can_copy((1, 2, 0), (1, 1), "replicate")
    assert not can_copy(shape, (-1, 0), "replicate")
    assert not can_copy(shape, (1, 1), "constant")
    assert not can_copy(shape, (1,), "reflect")


class Bordered(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv, self.last = conv, type(conv)(4, 2, 1)

    def forward(self, x):
        return self.last(torch.relu(self.conv(x)))


LAYERS = {
    f"{mode}, {name}": layer
    for mode in COPYING_MODES
    for name, layer in {
        "images": nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode=mode),
        "same": nn.Conv2d(3, 4, (2, 3), padding="same", dilation=(1, 2), padding_mode=mode),
        "strided": nn.Conv2d(3, 4, 3, 2, padding=1, padding_mode=mode),
        "valid": nn.Conv2d(3, 4, 3, padding="valid", padding_mode=mode),
        "signals": nn.Conv1d(3, 4, 5, padding=2, padding_mode=mode),
        "even signals": nn.Conv1d(3, 4, 4, padding="same", padding_mode=mode),
    }.items()
}


@pytest.mark.parametrize("conv", LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.thin(every=5)
def test_convolution_with_a_border_of_copies(conv, tmp_path):
    torch.manual_seed(3)
    conv = type(conv)(
        3, 4, conv.kernel_size, conv.stride, conv.padding, conv.dilation, padding_mode=conv.padding_mode
    )  # fmt: skip
    x = torch.randn(2, 3, 8, 7) if conv.weight.dim() == 4 else torch.randn(2, 3, 9)
    expected_size = conv(x).shape
    reversed_pads = conv._reversed_padding_repeated_twice
    model, seen = quantized(Bordered(conv), x), {}
    model.conv.register_forward_hook(lambda m, args, y: seen.update(y=y))
    model(x)
    assert seen["y"].shape == expected_size
    scale_x = model.conv.read("scale_x")
    integers = np.clip(np.floor(x.numpy() * np.float32(scale_x) + np.float32(0.5)), -128, 127)
    mode = conv.padding_mode
    padded = (
        F.pad(torch.from_numpy(integers), reversed_pads, mode=mode).numpy().astype(np.int64)
        if any(reversed_pads)
        else integers.astype(np.int64)
    )
    frozen = model.conv.freeze(scale_x)
    product = convolved if conv.weight.dim() == 4 else convolved_signal
    total = product(padded, frozen.weight_integers.numpy(), frozen.bias_integers.numpy(), model.conv.geometry)
    expected = requantized(total, scale_x * frozen.scale_w, seen["y"].scale, 8)
    if model.conv.is_ahead_of_relu:
        expected = np.maximum(expected, 0)
    np.testing.assert_array_equal(seen["y"].integers().numpy(), expected)
    linger.onnx.export(model, (x,), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (x,)).ok


def test_a_folded_batch_norm_behind_a_border_of_copies():
    torch.manual_seed(2)
    pair = nn.Sequential(linger.NormalizeConvBN2d(3, 4, 3, padding_mode="reflect", padding=1)).eval()
    x = image()
    real = pair(x)
    model = quantize(pair, x)
    y = model(x)
    assert y.shape == real.shape
    # two roundings to 8 bits of 27 products: well below a twentieth of the range, while a border of zeros is beyond it
    assert (y.dequantize() - real).abs().max() < real.abs().max() / 20
