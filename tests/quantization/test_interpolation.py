"""Interpolation of quantized images, from calibration to the file."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from tests.support.wired import Wired, after, image, quantize

BILINEAR = {
    "twice": lambda h: F.interpolate(h, scale_factor=2, mode="bilinear"),
    "corners": lambda h: F.interpolate(h, (9, 11), mode="bilinear", align_corners=True),
    "smaller": lambda h: F.interpolate(h, scale_factor=(0.6, 0.8), mode="bilinear", align_corners=False),
    "nn.Upsample": nn.Upsample(scale_factor=1.5, mode="bilinear"),
    "nn.Upsample to a size": nn.Upsample(size=(4, 13), mode="bilinear", align_corners=True),
    "nn.UpsamplingBilinear2d": nn.UpsamplingBilinear2d(scale_factor=2),
}
NEAREST = {
    "a factor": lambda h: F.interpolate(h, scale_factor=1.7),
    "a size": lambda h: F.interpolate(h, (5, 4)),
    "exact": lambda h: F.interpolate(h, scale_factor=1.3, mode="nearest-exact"),
    "whole": lambda h: F.interpolate(h, scale_factor=3.0),
    "nn.Upsample": nn.Upsample(scale_factor=2.5),
    "of signals": lambda h: F.interpolate(h.flatten(1, 2), scale_factor=2.0),
}


def both(function, out_bits=8):
    def forward(m, x):
        h = m.conv(x)
        return h.clone(), function(h)

    model = Wired(forward)
    linger.quant_module(model, out_bits=out_bits)
    return quantize(model, image())


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("function", BILINEAR.values(), ids=BILINEAR.keys())
@pytest.mark.thin
def test_bilinear(function, bits, tmp_path):
    model = both(function, bits)
    h, y = model(image())
    assert (y.scale, y.bits) == (h.scale, h.bits)
    real = function(h.dequantize().double()) * h.scale
    spread = float(2**bits - 1)
    assert (y.integers() - real).abs().max() <= 0.5 + spread * 2.0**-14 + 1e-6  # the stated error, and float64
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("options", [{"form": "bare"}, {"dynamo": True}, {"opset_version": 11}], ids=str)
@pytest.mark.parametrize("function", [BILINEAR["twice"], NEAREST["a factor"]], ids=["bilinear", "nearest"])
def test_every_kind_of_file(function, options, tmp_path):
    model = after(function)
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", **options)
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


def test_matrices_are_stored_in_sixteen_bits(tmp_path):
    model = after(BILINEAR["twice"])
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", form="bare")
    graph = onnx.load(tmp_path / "net.onnx").graph
    (node,) = [n for n in graph.node if n.op_type == "iqInterpolate"]
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    rows, columns = (stored[name] for name in node.input[1:])
    assert (rows.shape, rows.dtype, columns.shape, columns.dtype) == ((6, 12), np.int16, (6, 12), np.int16)


def test_batch_may_stay_open(tmp_path):
    model = after(BILINEAR["twice"])
    axes = {"x": {0: "n"}}
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx", input_names=["x"], dynamic_axes=axes)
    assert linger.verify(model, tmp_path / "net.onnx", (image(5),)).ok


@pytest.mark.parametrize("function", NEAREST.values(), ids=NEAREST.keys())
def test_nearest_moves_pixels(function, tmp_path):
    model = both(function)
    h, y = model(image())
    assert (y.scale, y.bits) == (h.scale, h.bits)
    assert torch.equal(y.dequantize(), function(h.dequantize()))
    assert not linger.coverage(model).float_ops
    linger.onnx.export(model, (image(),), tmp_path / "net.onnx")
    assert linger.verify(model, tmp_path / "net.onnx", (image(),)).ok


@pytest.mark.parametrize("function", [BILINEAR["twice"], NEAREST["a factor"]], ids=["bilinear", "nearest"])
def test_gradient_is_torchs(function):
    model, seen = after(function).train(), {}

    def forward(m, x):
        h = m.conv(x)
        h.content.retain_grad()
        seen["h"] = h.content
        return function(h)

    model.run = forward
    y = model(image())
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
    (y * weight).sum().backward()
    h = seen["h"].detach().clone().requires_grad_()
    (function(h) * weight).sum().backward()
    torch.testing.assert_close(seen["h"].grad, h.grad)  # a factor of two has exact weights


def test_other_modes_stay_float_and_say_why():
    model = after(lambda h: F.interpolate(h, scale_factor=2, mode="bicubic"))
    (record,) = linger.coverage(model).float_ops
    assert "mode='bicubic'" in record.reason
