"""The reference kernel against arithmetic by definition."""

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel, integer_dtype
from tests.support.big_int import convolved, convolved_signal, convolved_transposed, multiplied

K = NumpyKernel()

CONVOLUTIONS = {
    "plain": {},
    "strided": {"strides": (2, 3)},
    "uneven pads": {"pads": (0, 1, 2, 3)},
    "dilated": {"dilations": (2, 1)},
    "groups": {"group": 2},
    "everything": {"strides": (2, 1), "pads": (2, 0, 1, 1), "dilations": (1, 2), "group": 2},
}


@pytest.mark.parametrize("geometry", CONVOLUTIONS.values(), ids=CONVOLUTIONS.keys())
def test_convolution(geometry, draw):
    full = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1} | geometry
    x = draw.integers(-128, 128, (2, 4, 5, 6)).astype(np.int8)
    w = draw.integers(-128, 128, (6, 4 // full["group"], 3, 2)).astype(np.int8)
    b = draw.integers(-(2**31), 2**31, 6).astype(np.int32)
    found = K.conv2d(x, w, b, x_bits=8, w_bits=8, **full)
    np.testing.assert_array_equal(found, convolved(x, w, b, **full))


SIGNALS = {
    "plain": {},
    "strided, uneven pads": {"strides": (2,), "pads": (0, 3)},
    "dilated": {"dilations": (3,)},
    "everything": {"strides": (3,), "pads": (2, 1), "dilations": (2,), "group": 2},
}


@pytest.mark.parametrize("geometry", SIGNALS.values(), ids=SIGNALS.keys())
def test_convolution_over_one_axis(geometry, draw):
    full = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "group": 1} | geometry
    x = draw.integers(-128, 128, (2, 4, 9)).astype(np.int8)
    w = draw.integers(-128, 128, (6, 4 // full["group"], 3)).astype(np.int8)
    b = draw.integers(-(2**31), 2**31, 6).astype(np.int32)
    found = K.conv1d(x, w, b, x_bits=8, w_bits=8, **full)
    np.testing.assert_array_equal(found, convolved_signal(x, w, b, **full))


TRANSPOSED = {
    "plain": {},
    "strided": {"strides": (2, 3)},
    "uneven pads": {"pads": (0, 1, 1, 0), "strides": (2, 2)},
    "output padding": {"strides": (2, 3), "output_padding": (1, 2), "pads": (1, 1, 1, 1)},
    "dilated": {"dilations": (2, 3)},
    "groups": {"group": 2, "strides": (2, 2)},
}


@pytest.mark.parametrize("geometry", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_transposed_convolution(geometry, draw):
    full = {
        "strides": (1, 1),
        "pads": (0, 0, 0, 0),
        "output_padding": (0, 0),
        "dilations": (1, 1),
        "group": 1,
    } | geometry
    x = draw.integers(-128, 128, (2, 4, 3, 4)).astype(np.int8)
    w = draw.integers(-128, 128, (4, 3, 3, 2)).astype(np.int8)
    b = draw.integers(-(2**31), 2**31, 3 * full["group"]).astype(np.int32)
    np.testing.assert_array_equal(
        K.conv_transpose2d(x, w, b, x_bits=8, w_bits=8, **full), convolved_transposed(x, w, b, **full)
    )


def test_linear(draw):
    x, w = draw.integers(-128, 128, (3, 50)).astype(np.int8), draw.integers(-128, 128, (4, 50)).astype(np.int8)
    b = draw.integers(-(2**31), 2**31, 4).astype(np.int32)
    np.testing.assert_array_equal(K.linear(x, w, b, x_bits=8, w_bits=8), multiplied(x, w, b))


def test_linear_does_not_overflow_the_type_of_its_inputs():
    # 3·32767·32767 = 3221028867 is beyond int32
    x = np.full((1, 3), 32767, np.int16)
    assert K.linear(x, x, None, x_bits=16, w_bits=16).tolist() == [[3221028867.0]]


def test_window_sum_counts_padding_as_zero():
    # windows of 2×2 one apart, a row above: 1 + 2, 2 + 3, then 1 + 2 + 4 + 5, 2 + 3 + 5 + 6
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int8)[None, None]
    found = K.window_sum(x, kernel_shape=(2, 2), strides=(1, 1), pads=(1, 0, 0, 0))
    assert found.tolist() == [[[[3, 5], [12, 16]]]]


def test_window_sum_does_not_overflow_the_type_of_its_input():
    x = np.full((1, 1, 4, 4), -128, np.int8)
    assert K.window_sum(x, kernel_shape=(4, 4), strides=(4, 4), pads=(0, 0, 0, 0)).tolist() == [[[[-2048.0]]]]


@pytest.mark.parametrize(
    ("pads", "expected"),
    [
        # five columns, windows of two every three: 0–1, 3–4
        pytest.param((0, 0, 0, 0), [2, 5], id="fits"),
        # padded to six on the right: columns 3–4; a third window would begin beyond the image and is dropped
        pytest.param((0, 0, 0, 1), [2, 5], id="window in the padding is dropped"),
        # padded on the left: −1–0, 2–3, and 5 would begin beyond
        pytest.param((0, 1, 0, 0), [1, 4], id="left"),
    ],
)
def test_ceil_mode_drops_windows_that_begin_in_the_padding(pads, expected):
    x = np.array([1, 2, 3, 4, 5], np.int8).reshape(1, 1, 1, 5)
    found = K.max_pool2d(x, kernel_shape=(1, 2), strides=(1, 3), pads=pads, dilations=(1, 1), ceil_mode=1)
    assert found.reshape(-1).tolist() == expected


def test_lookup_and_comparison():
    index = np.array([[2.0, 0.0], [1.0, 2.0]])
    assert K.lookup([10.0, -20.0, 30.5], index).tolist() == [[30.5, 10.0], [-20.0, 30.5]]
    found = K.where_less(np.array([1.0, 2.0, 3.0]), np.array(2.0), np.array(7.0), np.array(9.0))
    assert found.tolist() == [7.0, 9.0, 9.0]


def test_split_and_concat_undo_each_other(draw):
    x = draw.integers(-128, 128, (2, 6)).astype(np.int8)
    parts = K.split(x, 3, -1)
    assert [p.shape for p in parts] == [(2, 2)] * 3
    np.testing.assert_array_equal(K.concat(parts, -1), x)


def test_scan_stacks_the_states():
    # 1, 1·2 + 2, …: state = 2·state + item
    steps = np.array([[1.0], [2.0], [3.0]])
    last, stacks = K.scan(lambda states, item: (2 * states[0] + item,), (np.array([0.0]),), steps, stacked=1)
    assert stacks[0].tolist() == [[1.0], [4.0], [11.0]]
    assert last[0].tolist() == [11.0]


@pytest.mark.parametrize("exponent", range(32))
def test_powers_of_two_are_exact(exponent):
    assert K.pow2(K.scalar(exponent)).item() == 2**exponent


@pytest.mark.parametrize(("bits", "dtype"), [(4, np.int8), (8, np.int8), (16, np.int16), (32, np.int32)])
def test_store_uses_the_smallest_type(bits, dtype):
    assert K.store(K.scalar(3.0), bits).dtype == integer_dtype(bits) == dtype


def test_clip_keeps_what_is_inside():
    found = K.clip(np.array([-9.0, -8.0, 0.0, 7.0, 8.0]), K.scalar(-8.0), K.scalar(7.0))
    assert found.tolist() == [-8.0, -8.0, 0.0, 7.0, 7.0]
