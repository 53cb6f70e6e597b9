"""The vocabulary suffices for hard cases: piecewise-linear functions, products of all kinds.

Each body is interpreted by all kernels (ONNX Runtime at opsets 11, 12 and 18) and held against Python's integers or
against vectors recorded from the engine.
"""

import itertools
import math

import numpy as np
import onnx
import pytest

from tests.support.arithmetic import blocks, fixed
from tests.support.big_int import convolved, convolved_signal, convolved_transposed, multiplied, requantized_array
from tests.support.onnx_body import assert_kernels_give
from tests.support.paper_bodies import (
    VENUS_SIGMOID,
    VENUS_TANH,
    sigmoid_q7,
    sigmoid_q7_body,
    tanh_q7,
    tanh_q7_body,
)

pytestmark = pytest.mark.needs_torch

EVERY_INT16 = np.arange(-32768, 32768, dtype=np.int32).astype(np.int16)

CURVES = {
    # the largest errors over all inputs, as measured on the device, in units of the output
    "sigmoid": (VENUS_SIGMOID, lambda x: 1 / (1 + np.exp(-x)), 6.3e-4),
    "tanh": (VENUS_TANH, np.tanh, 1.32e-3),
}


def segments_body(segments):
    return lambda k, x: k.store(blocks.saturate(k, segments.body(k, k.wide(x)), 32), 32)


@pytest.mark.parametrize("segments", [VENUS_SIGMOID, VENUS_TANH], ids=["sigmoid", "tanh"])
def test_sixteen_segments_on_every_int16(segments):
    expected = np.array([segments.exact(x) for x in EVERY_INT16.tolist()], np.int32)
    assert_kernels_give(segments_body(segments), [EVERY_INT16], expected, element_bits=16)


@pytest.mark.parametrize(("segments", "curve", "bound"), CURVES.values(), ids=CURVES.keys())
def test_segments_stay_near_the_curve(segments, curve, bound):
    found = np.array([segments.exact(x) for x in EVERY_INT16.tolist()]) / 2**15
    error = np.abs(found - curve(EVERY_INT16 / 2**11)).max()
    # the bound is stated to two or three digits: half a digit more, and not a better curve than the device's
    assert 0.98 * bound < error < 1.01 * bound


def test_sigmoid_is_monotone_and_half_at_zero():
    found = [VENUS_SIGMOID.exact(x) for x in EVERY_INT16.tolist()]
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert VENUS_SIGMOID.exact(0) == 16384


@pytest.mark.parametrize(
    ("case", "exact"), [("iqsigmoid_int16_a", sigmoid_q7), ("iqtanh_int16_a", tanh_q7)], ids=["sigmoid", "tanh"]
)
def test_segments_give_the_recorded_vectors(shared, case, exact):
    # a LinearInt at shift 0 builds a quarter of all int16 values in Q11: x·1 + b
    model = onnx.load(shared / "golden" / "ops" / f"{case}.onnx")
    w, b = (onnx.numpy_helper.to_array(t) for t in model.graph.initializer)
    with np.load(shared / "golden" / "ops" / f"{case}.npz") as vectors:
        x, expected = np.floor(vectors["input"] * 4 + 0.5).astype(np.int64), vectors["output"] * 128
    inputs = multiplied(x, w, b)
    assert len(np.unique(inputs)) == 16384
    found = [[exact(v) for v in row] for row in inputs.tolist()]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("body", "exact"), [(sigmoid_q7_body, sigmoid_q7), (tanh_q7_body, tanh_q7)], ids=["by segments", "by table"]
)
def test_q7_functions_saturate_their_input(body, exact):
    x = np.array([-(2**20), -32769, -32768, -2048, -1, 0, 1, 2048, 32767, 32768, 2**20], np.int32)
    expected = np.array([exact(v) for v in x.tolist()], np.int8)
    assert_kernels_give(lambda k, x: k.store(body(k, k.wide(x)), 8), [x], expected, element_bits=32)


GROUPED = {
    "depthwise": {"group": 4, "pads": (1, 1, 1, 1)},
    "two groups, strided, uneven pads": {"group": 2, "strides": (2, 1), "pads": (0, 1, 2, 0)},
    "two groups, dilated": {"group": 2, "dilations": (1, 2)},
}


@pytest.mark.parametrize("x_bits", [8, 16])
@pytest.mark.parametrize("geometry", GROUPED.values(), ids=GROUPED.keys())
def test_grouped_convolution_to_sixteen_bits(geometry, x_bits, draw):
    full = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)} | geometry
    low, high = fixed.limits(x_bits)
    x = draw.integers(low, high, (1, 4, 5, 6), endpoint=True).astype(f"int{x_bits}")
    w = draw.integers(-128, 128, (8, 4 // full["group"], 3, 2)).astype(np.int8)
    b = draw.integers(-(2**26), 2**26, 8).astype(np.int32)
    shift = x_bits + 2

    def body(k, x, w, b):
        total = k.conv2d(x, w, b, x_bits=x_bits, w_bits=8, **full)
        return blocks.requantize(k, total, source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=16)

    expected = requantized_array(convolved(x, w, b, **full), shift, 16)
    assert_kernels_give(body, [x, w, b], expected, element_bits=x_bits)


GROUPED_SIGNALS = {
    "depthwise": {"group": 4, "pads": (1, 1)},
    "two groups, strided, uneven pads": {"group": 2, "strides": (2,), "pads": (0, 2)},
    "dilated": {"group": 1, "dilations": (3,)},
}


@pytest.mark.parametrize("x_bits", [8, 16])
@pytest.mark.parametrize("geometry", GROUPED_SIGNALS.values(), ids=GROUPED_SIGNALS.keys())
def test_convolution_over_one_axis_to_sixteen_bits(geometry, x_bits, draw):
    full = {"strides": (1,), "pads": (0, 0), "dilations": (1,)} | geometry
    low, high = fixed.limits(x_bits)
    x = draw.integers(low, high, (2, 4, 9), endpoint=True).astype(f"int{x_bits}")
    w = draw.integers(-128, 128, (8, 4 // full["group"], 3)).astype(np.int8)
    b = draw.integers(-(2**26), 2**26, 8).astype(np.int32)
    shift = x_bits + 2

    def body(k, x, w, b):
        total = k.conv1d(x, w, b, x_bits=x_bits, w_bits=8, **full)
        return blocks.requantize(k, total, source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=16)

    expected = requantized_array(convolved_signal(x, w, b, **full), shift, 16)
    assert_kernels_give(body, [x, w, b], expected, element_bits=x_bits)


TRANSPOSED = {
    "plain": {},
    "strided, padded": {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)},
    "two groups": {"group": 2, "strides": (2, 3), "output_padding": (0, 2)},
    "uneven pads, dilated": {"pads": (0, 1, 2, 0), "dilations": (2, 1)},
}


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("geometry", TRANSPOSED.values(), ids=TRANSPOSED.keys())
def test_transposed_convolution_to_sixteen_bits(geometry, bits, draw):
    full = {
        "strides": (1, 1),
        "pads": (0, 0, 0, 0),
        "output_padding": (0, 0),
        "dilations": (1, 1),
        "group": 1,
    } | geometry
    low, high = fixed.limits(bits)
    x = draw.integers(low, high, (1, 4, 3, 4), endpoint=True).astype(f"int{bits}")
    w = draw.integers(low, high, (4, 3, 3, 2), endpoint=True).astype(f"int{bits}")
    b = draw.integers(-(2**26), 2**26, 3 * full["group"]).astype(np.int32)
    shift = 2 * bits - 9

    def body(k, x, w, b):
        total = k.conv_transpose2d(x, w, b, x_bits=bits, w_bits=bits, **full)
        return blocks.requantize(k, total, source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=16)

    expected = requantized_array(convolved_transposed(x, w, b, **full), shift, 16)
    assert_kernels_give(body, [x, w, b], expected, element_bits=bits)


def test_transposed_convolution_of_sixteen_bit_extremes():
    # 48 products of −32768·−32768 and one of −32767·−32767: every bit of the sum counts
    x, w = (np.full(shape, -32768, np.int16) for shape in ((1, 49, 1, 1), (49, 1, 1, 1)))
    x[0, 0, 0, 0] = w[0, 0, 0, 0] = -32767
    geometry = {"strides": (1, 1), "pads": (0, 0, 0, 0), "output_padding": (0, 0), "dilations": (1, 1), "group": 1}
    expected = np.array(48 * 2**30 + 32767**2, np.float64).reshape(1, 1, 1, 1)
    assert_kernels_give(
        lambda k, x, w: k.conv_transpose2d(x, w, None, x_bits=16, w_bits=16, **geometry),
        [x, w],
        expected,
        element_bits=16,
    )


@pytest.mark.parametrize(
    ("first", "second"), [((2, 3, 4), (2, 4, 5)), ((3, 4), (4, 2)), ((2, 1, 3, 4), (3, 4, 2)), ((0, 2, 3), (0, 3, 1))]
)
@pytest.mark.parametrize("bits", [8, 16])
def test_matrix_products_over_leading_axes(first, second, bits, draw):
    low, high = fixed.limits(bits)
    kind = np.int8 if bits == 8 else np.int16
    x, y = (draw.integers(low, high + 1, shape).astype(kind) for shape in (first, second))
    expected = np.matmul(x.astype(object), y.astype(object)) if x.size else np.zeros((*first[:-1], second[-1]))
    expected = np.clip(expected.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)

    def body(k, x, y):
        return k.store(blocks.saturate(k, k.matmul(x, y), 32), 32)

    assert_kernels_give(body, [x, y], expected, element_bits=bits)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_largest_and_sum_along_an_axis_keep_it(axis, draw):
    x = draw.integers(-(2**31), 2**31, (3, 4, 50)).astype(np.int32)
    wide = x.astype(np.float64)
    for name, expected in (("max_along", wide.max(axis, keepdims=True)), ("sum_along", wide.sum(axis, keepdims=True))):
        assert_kernels_give(lambda k, x, name=name: getattr(k, name)(k.wide(x), axis), [x], expected, element_bits=32)


def test_logarithms_round_to_the_same_integers():
    x = np.arange(1, 5001, dtype=np.int32)
    expected = np.array([math.floor(math.log(v) * 256) for v in x.tolist()], np.int32)

    def body(k, x):
        return k.store(k.floor(k.mul(k.log(k.wide(x)), k.scalar(256.0))), 32)

    assert_kernels_give(body, [x], expected, element_bits=32)


@pytest.mark.parametrize("bits", [8, 16])
def test_rows_of_a_table(bits, draw):
    low, high = fixed.limits(bits)
    table = draw.integers(low, high, (7, 3), endpoint=True).astype(f"int{bits}")
    index = draw.integers(0, 7, (2, 4)).astype(np.int32)
    expected = np.array([[table[i].tolist() for i in row] for row in index.tolist()], table.dtype)
    for constants in (frozenset({0}), frozenset({1})):
        settings = {"element_bits": bits, "constants": constants}
        assert_kernels_give(lambda k, w, i: k.rows(w, i), [table, index], expected, **settings)


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 5, 3), (2, 5, 3, 4), (0, 5, 3)], ids=str)
def test_a_vector_meets_the_channels(shape, draw):
    x = draw.integers(-128, 128, shape).astype(np.int8)
    w = draw.integers(-128, 128, 1 if len(shape) == 1 else 5).astype(np.int16)
    expected = x.astype(np.int32) * w.astype(np.int32).reshape(-1, *[1] * (len(shape) - 2))
    assert_kernels_give(lambda k, x, w: k.store(k.mul(k.wide(x), k.wide(k.per_channel(w, x))), 32), [x, w], expected)


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 2, 3, 0), (-1, 0, 2, -2), (0, -1, -1, 0)], ids=str)
def test_a_border_of_one_number(bits, pads, draw):
    low, high = fixed.limits(bits)
    x = draw.integers(low, high + 1, (3, 4)).astype(f"int{bits}")
    rows = [[high] * (pads[1] + 4 + pads[3]) for _ in range(pads[0] + 3 + pads[2])]
    for (row, column), number in np.ndenumerate(x):
        if 0 <= row + pads[0] < len(rows) and 0 <= column + pads[1] < len(rows[0]):
            rows[row + pads[0]][column + pads[1]] = int(number)
    expected = np.array(rows, f"int{bits}")
    inputs = [x, np.array(pads, np.int64), np.array(high, x.dtype)]
    assert_kernels_give(lambda k, *inputs: k.pad(*inputs), inputs, expected, element_bits=bits, opsets=(11, 12, 13, 18))


@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 3), 2), ((1, 6, 2, 2), 3), ((0, 4, 1), 4), ((1, 130, 1), 65)], ids=str
)
def test_channels_dealt_out(shape, groups, draw):
    x = draw.integers(-128, 128, shape).astype(np.int8)
    order = [group * (shape[1] // groups) + place for place in range(shape[1] // groups) for group in range(groups)]
    assert_kernels_give(lambda k, x: k.shuffle(x, groups), [x], x[:, order])


@pytest.mark.parametrize("batch", [0, 2])
def test_pictures_turned_between_products(batch, draw):
    x = draw.integers(-128, 128, (batch, 2, 3, 4)).astype(np.int8)
    w, v = draw.integers(-128, 128, (4, 5)).astype(np.int16), draw.integers(-128, 128, (3, 2)).astype(np.int16)
    expected = np.einsum("nchw,wx,hy->ncyx", *(a.astype(np.int64) for a in (x, w, v))).astype(np.int32)

    def body(k, x, w, v):
        return k.store(k.swap_height_width(k.matmul(k.swap_height_width(k.matmul(x, w)), v)), 32)

    assert_kernels_give(body, [x, w, v], expected)


@pytest.mark.parametrize("shape", [(2, 3, 8), (6, 8), (2, 2, 4), (0, 3, 8)], ids=str)
def test_lines_as_long_as_a_vector_and_back(shape, draw):
    x = draw.integers(-128, 128, shape).astype(np.int8)
    w = draw.integers(-128, 128, 8).astype(np.int8)
    expected = x.reshape(x.size // 8, 8).astype(np.float64)
    assert_kernels_give(lambda k, x, w: k.lines(k.wide(x), w), [x, w], expected)
    assert_kernels_give(lambda k, x, w: k.line_length(k.lines(x, w)), [x, w], np.array(8.0))
    both_ways = x.astype(np.float64) + 1
    assert_kernels_give(
        lambda k, x, w: k.reshape_like(k.add(k.lines(k.wide(x), w), k.scalar(1.0)), x), [x, w], both_ways
    )


@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (3, 6, 2), (3, 6), (0, 6, 4)], ids=str)
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_lines_of_channel_groups(shape, groups, draw):
    x = draw.integers(-128, 128, shape).astype(np.int8)
    expected = x.reshape(shape[0] * groups, math.prod(shape[1:]) // groups).astype(np.float64)
    assert_kernels_give(lambda k, x: k.group_lines(k.wide(x), groups), [x], expected)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (2, 3, 4, 5)], ids=str)
def test_one_number_per_channel(shape, draw):
    x, w = draw.integers(-128, 128, shape).astype(np.int8), np.array([1, -2, 3], np.int8)
    expected = np.stack([x[:, c] * float(w[c]) for c in range(3)], axis=1)

    def body(k, x, w):
        return k.mul(k.wide(x), k.per_channel(k.wide(w), x))

    assert_kernels_give(body, [x, w], expected)


def test_numbers_to_hold_against_a_matrix():
    x = np.array([[0, 7], [5, 8], [8, 1], [9, -1]], np.int8)
    # how many of 1, 8, 9 are not above x
    expected = np.array([[[0, 1], [1, 2], [2, 1], [3, 0]]], np.float64)

    def body(k, x):
        reached = k.where_less(k.wide(x), k.ladder((1.0, 8.0, 9.0)), k.scalar(0.0), k.scalar(1.0))
        return k.sum_along(reached, 0)

    assert_kernels_give(body, [x], expected)
