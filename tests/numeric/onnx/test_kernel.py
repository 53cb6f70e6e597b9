"""Windows, moves and steps in time as ONNX Runtime computes them."""

import numpy as np
import pytest

from tests.support.onnx_body import assert_kernels_give, interpret_onnx

pytestmark = pytest.mark.needs_torch

OPSETS = pytest.mark.parametrize("opset", [11, 12, 13, 18])


@OPSETS
def test_window_sum_of_large_windows(opset):
    # 64·64 windows of the extremes: −2^19 and 127·4096, and one less
    x = np.full((1, 3, 64, 64), -128, np.int8)
    x[:, 1:] = 127
    x[0, 2, 0, 0] = 126

    def body(k, x):
        return k.window_sum(x, kernel_shape=(64, 64), strides=(64, 64), pads=(0, 0, 0, 0))

    found = interpret_onnx(body, [x], opset=opset)
    assert found.reshape(-1).tolist() == [-128 * 4096, 127 * 4096, 127 * 4096 - 1]


@OPSETS
def test_window_sum_of_wide_numbers(opset):
    # 32·32 windows of zeros, of the extremes −2^25 and 32767·1024, and one less
    x = np.zeros((1, 4, 32, 32), np.int16)
    x[:, 1], x[:, 2:] = -32768, 32767
    x[0, 3, 0, 0] = 32766

    def body(k, x):
        return k.window_sum(x, kernel_shape=(32, 32), strides=(32, 32), pads=(0, 0, 0, 0))

    found = interpret_onnx(body, [x], opset=opset, element_bits=16)
    assert found.reshape(-1).tolist() == [0, -32768 * 1024, 32767 * 1024, 32767 * 1024 - 1]


@OPSETS
def test_split_halves(opset):
    x = np.arange(12, dtype=np.int8).reshape(2, 6)
    expected = np.concatenate([x[:, 4:], x[:, :2]], axis=1)

    def body(k, x):
        first, _, last = k.split(x, 3, -1)
        return k.concat([last, first], -1)

    assert_kernels_give(body, [x], expected, opsets=[opset])
