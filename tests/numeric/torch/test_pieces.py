"""Curves by table: the values of the pieces, at every scale and width of the output."""

import numpy as np
import pytest
import torch

from tests.support.arithmetic import NumpyKernel, blocks, tables
from tests.support.torch_arithmetic import gates

pytestmark = pytest.mark.needs_torch

EVERY_INT16 = np.arange(-32768, 32768)


@pytest.mark.parametrize("pieces", [tables.SIGMOID, tables.TANH], ids=["sigmoid", "tanh"])
@pytest.mark.parametrize(("scale_o", "bits"), [(128.0, 8), (64.0, 8), (8.0, 4), (32768.0, 16)])
def test_values_are_those_of_the_blocks(pieces, scale_o, bits):
    k = NumpyKernel()
    y = blocks.piecewise_linear(k, EVERY_INT16.astype(np.float64), source=k.scalar(4096.0), pieces=pieces)
    expected = blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=bits)
    found = gates.look_up(torch.from_numpy(EVERY_INT16 / np.float32(4096)), pieces, 4096.0, scale_o, bits)
    np.testing.assert_array_equal(found.numpy() * scale_o, expected)


def test_shape_stays():
    assert gates.look_up(torch.zeros(2, 0, 3), tables.TANH, 4096.0, 128.0, 8).shape == (2, 0, 3)
    assert gates.look_up(torch.tensor(1.0), tables.TANH, 4096.0, 128.0, 8).item() == 97 / 128


@pytest.mark.parametrize("pieces", [tables.GELU, tables.SILU], ids=["GELU", "SiLU"])
@pytest.mark.parametrize(("scale_x", "scale_o", "bits"), [(2048.0, 2048.0, 16), (2.0, 4.0, 8), (2.0**20, 2.0**27, 32)])
@pytest.mark.parametrize("carrier", [np.float32, np.float64], ids=["16 bits", "32 bits"])
def test_long_curves_are_those_of_the_blocks(pieces, scale_x, scale_o, bits, carrier):
    k = NumpyKernel()
    y = blocks.long_piecewise_linear(k, EVERY_INT16.astype(np.float64), source=k.scalar(scale_x), pieces=pieces)
    expected = blocks.requantize(k, y, source=k.scalar(tables.ONE), target=k.scalar(scale_o), bits=bits)
    found = gates.look_up(torch.from_numpy((EVERY_INT16 / scale_x).astype(carrier)), pieces, scale_x, scale_o, bits)
    np.testing.assert_array_equal(found.numpy() * scale_o, expected)


@pytest.mark.parametrize("pieces", [tables.GELU, tables.SILU], ids=["GELU", "SiLU"])
@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_long_curves_have_the_same_integers_with_scales_on_a_device(pieces, bits):
    scales = (2048.0, 2.0 ** (bits - 5))
    on_device = [torch.tensor(scale, dtype=torch.float64) for scale in scales]
    x = torch.from_numpy((EVERY_INT16 / scales[0]).astype(np.float32))
    found = gates.look_up(x, pieces, *on_device, bits)
    expected = gates.look_up(x, pieces, *scales, bits)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "pieces", [tables.ARCS_SIGMOID, tables.VENUS_A_TANH], ids=["sigmoid of arcs", "tanh of venusA"]
)
@pytest.mark.parametrize(("scale_x", "scale_o", "bits"), [(16.0, 128.0, 8), (1.0, 64.0, 8), (64.0, 32768.0, 16)])
def test_wide_values_are_those_of_the_blocks(pieces, scale_x, scale_o, bits):
    every = np.arange(-128, 128)
    k = NumpyKernel()
    y = blocks.wide_piecewise_linear(k, every.astype(np.float64), source=k.scalar(scale_x), pieces=pieces)
    curve = k.scalar(blocks.WIDE_CURVE_SCALE)
    expected = blocks.requantize(k, y, source=curve, target=k.scalar(scale_o), bits=bits)
    found = gates.look_up(torch.from_numpy(every / np.float32(scale_x)), pieces, scale_x, scale_o, bits)
    np.testing.assert_array_equal(found.numpy() * scale_o, expected)
