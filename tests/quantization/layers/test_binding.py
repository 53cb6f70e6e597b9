"""Attributes that depend on the call: adaptive pooling and the output size of a transposed convolution."""

import torch
from torch import nn

import linger
from linger import init
from tests.support.quantized_layers import Refusal
from tests.support.wired import quantize


def test_geometry_without_a_call_is_the_layers_own():
    layer = init(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1)))[0]
    assert layer._bind(torch.randn(1, 2, 4, 4)) == layer.geometry


def test_a_function_call_is_bound_to_the_inputs_size():
    layer, uneven = init(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(3)))
    assert layer._bind(torch.randn(1, 2, 6, 4))["kernel_shape"] == (6, 4)
    assert isinstance(uneven._bind(torch.randn(1, 2, 5, 4)), Refusal)


def test_output_size_becomes_output_padding():
    layer = init(nn.Sequential(nn.ConvTranspose2d(2, 2, 3, stride=2, output_padding=1)))[0]
    x = torch.randn(1, 2, 4, 4)
    # 4 pixels of stride 2 and a kernel of 3 make 9
    assert layer._bind(x)["output_padding"] == (1, 1)
    assert layer._bind(x, [9, 10])["output_padding"] == (0, 1)
    assert layer.geometry["output_padding"] == (1, 1)


def test_what_cannot_be_bound_is_computed_in_float_and_noted():
    # an image without a batch is not cut into slices
    model, x = nn.Sequential(nn.Conv2d(2, 2, 1), nn.AdaptiveAvgPool2d(3)), torch.randn(2, 5, 4)
    model = quantize(model, x)
    with torch.no_grad():
        first = model[0](x)
        expected = nn.functional.adaptive_avg_pool2d(first.dequantize(), 3)
        assert torch.equal(model(x), expected)
        assert torch.equal(model[1]._call_in_float(first, "why"), expected)
    assert [op.op for op in linger.coverage(model).float_ops] == ["AvgPool2dInt"]
