"""F.pad on quantised tensors: zeros around, the same scale; what is no padding with zeros stays float."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import linger
from linger.errors import UnsupportedError
from linger.quantization.qtensor import QTensor
from tests.support.wired import after, picture

PADS = {
    "F.pad": lambda h: F.pad(h, (1, 2)),
    "two axes": lambda h: F.pad(h, (1, 0, 2, 1), "constant", 0),
    "by keyword": lambda h: F.pad(input=h, pad=[0, 1], mode="constant", value=0.0),
    "every axis": lambda h: F.pad(h, (1, 1, 1, 1, 1, 1, 0, 1)),
    "crop": lambda h: F.pad(h, (-1, 0, 0, -2)),
    "crop and pad": lambda h: F.pad(h, (-1, 2, 3, -2)),
    "nothing": lambda h: F.pad(h, (0, 0)),
    "ZeroPad2d": nn.ZeroPad2d((1, 2, 0, 1)),
    "ConstantPad2d": nn.ConstantPad2d(1, 0.0),
}


@pytest.mark.parametrize("function", PADS.values(), ids=PADS.keys())
def test_numbers_stay_and_zeros_come(function, tmp_path):
    model = after(lambda h: (h.clone(), function(h)))
    h, result = model(picture())
    assert isinstance(result, QTensor)
    assert (result.scale, result.bits) == (h.scale, h.bits)
    assert torch.equal(result.dequantize(), function(h.dequantize()))
    assert linger.coverage(model).float_ops == ()
    path = tmp_path / "model.onnx"
    for opset in (11, 12, 18):
        linger.onnx.export(model, (picture(),), path, opset_version=opset)
        assert linger.verify(model, path, [picture(seed=4)]).ok


REFUSED = {
    "reflect": lambda h: F.pad(h, (1, 1, 1, 1), mode="reflect"),
    "ones": lambda h: F.pad(h, (1, 1), value=1.0),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED.keys())
def test_other_pads_are_computed_in_float_and_said(function):
    model = after(lambda h: (h.clone(), function(h)))
    h, result = model(picture())
    assert torch.equal(result, function(h.dequantize()))
    (record,) = linger.coverage(model).float_ops
    assert "pad with zeros" in record.reason


def test_gradient_is_that_of_padding():
    model = after(lambda h: F.pad(h, (1, 1))).train()
    model(picture()).sum().backward()
    assert float(model.conv.bias.grad.min()) == 2 * 36.0  # 2 pictures of 6·6 pixels, each counted once


def test_the_newer_exporter_says_that_it_cannot(tmp_path):
    model = after(lambda h: F.pad(h, (1, 2)))
    with pytest.raises(UnsupportedError, match="Export with dynamo=False"):
        linger.onnx.export(model, (picture(),), tmp_path / "model.onnx", dynamo=True, opset_version=18)
