"""Inputs chosen to break things: every tie and its neighbors, every extreme, sums that float32 cannot hold.

All ways to compute an op (numpy, torch, ONNX Runtime on functions and on the expansion, default optimization) are held
to (n + 2^(s−1)) >> s with saturation, in Python's integers.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.support.big_int import convolved, multiplied, requantized, requantized_array
from tests.support.hand_worked import assert_gives
from tests.support.ops import find_op

pytestmark = pytest.mark.needs_torch

SHIFTS = range(23)
LINEAR, CONV, ADD, MUL, QUANT = (find_op(name) for name in ("LinearInt", "Conv2dInt", "iqAdd", "iqMul", "Quant"))


def product_attributes(shift, o_bits=8, x_bits=8):
    return {
        "data_bits": x_bits,
        "parameter_bits": 8,
        "o_bits": o_bits,
        "scale_x": 16.0,
        "scale_w": 64.0,
        "scale_o": 1024.0 / 2.0**shift,
    }


def conv_attributes(w, shift, o_bits=8, **geometry):
    usual = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    return product_attributes(shift, o_bits) | {"kernel_shape": w.shape[2:]} | usual | geometry


def accumulators(shift):
    """Every tie of an 8-bit output and its two neighbors; beyond both ends too. Without a shift, every integer."""
    if shift == 0:
        return list(range(-140, 141))
    ties = [(n << shift) + (1 << (shift - 1)) for n in range(-131, 131)]
    ends = [-(2**31) + 3, 2**31 - 4]
    return [tie + near for tie in ties for near in (-1, 0, 1)] + ends


def injected(shift, x):
    """(biases, accumulators): the bias brings x·1 to the accumulator."""
    wanted = np.array(accumulators(shift), np.int64)
    return (wanted - x).astype(np.int32), wanted


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.thin(every=5)
def test_linear_at_every_tie(shift):
    b, wanted = injected(shift, 3)
    w = np.ones((len(b), 1), np.int8)
    expected = requantized_array(wanted, shift).reshape(1, -1)
    assert_gives(LINEAR, [np.array([[3]], np.int8), w, b], product_attributes(shift), expected)


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.thin(every=5)
def test_convolution_at_every_tie(shift):
    b, wanted = injected(shift, -3)
    w = np.ones((len(b), 1, 1, 1), np.int8)
    expected = requantized_array(wanted, shift).reshape(1, -1, 1, 1)
    assert_gives(CONV, [np.full((1, 1, 1, 1), -3, np.int8), w, b], conv_attributes(w, shift), expected)


@pytest.mark.parametrize("shift", [1, 4, 9, 15])
def test_sixteen_bit_output_at_its_ends(shift):
    ties = [(n << shift) + (1 << (shift - 1)) for n in (-32770, -32769, -32768, -1, 0, 32766, 32767)]
    wanted = np.array([tie + near for tie in ties for near in (-1, 0, 1)], np.int64)
    x, w = np.array([[5]], np.int8), np.ones((len(wanted), 1), np.int8)
    expected = requantized_array(wanted, shift, 16).reshape(1, -1)
    assert_gives(LINEAR, [x, w, (wanted - 5).astype(np.int32)], product_attributes(shift, 16), expected)


EXTREMES = [-128, -127, -1, 0, 1, 127]


@pytest.mark.parametrize("shift", [0, 6, 7, 8, 14])
def test_extreme_inputs_times_extreme_weights(shift):
    x, w = np.array(EXTREMES, np.int8).reshape(-1, 1), np.array(EXTREMES, np.int8).reshape(-1, 1)
    assert_gives(LINEAR, [x, w, None], product_attributes(shift), requantized_array(multiplied(x, w), shift))
    image, kernels = x.reshape(1, 1, -1, 1), w.reshape(-1, 1, 1, 1)
    expected = requantized_array(convolved(image, kernels), shift)
    assert_gives(CONV, [image, kernels, None], conv_attributes(kernels, shift), expected)


@pytest.mark.parametrize("shift", [10, 17, 22])
def test_rows_of_extremes_saturate_on_both_sides(shift):
    # four rows of −128 or 127 against four of the same: sums of ±2^14 per product, 600 products
    rows = np.array([[-128] * 600, [127] * 600, [-128, 127] * 300, [127, -128] * 300], np.int8)
    expected = requantized_array(multiplied(rows, rows), shift)
    assert_gives(LINEAR, [rows, rows, None], product_attributes(shift), expected)


def near_float32_limit(channels):
    """x and w whose sum of products is around 2^24 and odd: no float32 beyond 2^24 is equal to it."""
    x, w = np.full((1, channels), -128, np.int8), np.full((1, channels), -128, np.int8)
    x[0, -1], w[0, -1] = -1, 1
    return x, w


@pytest.mark.parametrize("channels", [1023, 1024, 1025, 1026, 2049, 3073])
def test_linear_keeps_every_bit_beyond_2_24(channels):
    x, w = near_float32_limit(channels)
    expected = np.array([[(channels - 1) * 2**14 - 1]], np.int32)
    assert_gives(LINEAR, [x, w, None], product_attributes(0, 32), expected)


@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 0, 2, 1)], ids=["no pads", "uneven pads"])
@pytest.mark.parametrize("group", [1, 2], ids=["one group", "two groups"])
def test_convolution_keeps_every_bit_beyond_2_24(group, pads, draw):
    # 130 channels of 3×3: up to 1170·2^14 = 1.14·2^24 per group
    x = draw.choice(np.array([-128, -127, 126, 127], np.int8), (1, 130 * group, 4, 3))
    x[:] = np.where(draw.random(x.shape) < 0.97, -128, x)
    w = np.where(draw.random((2 * group, 130, 3, 3)) < 0.97, -128, 127).astype(np.int8)
    b = draw.integers(-(2**20), 2**20, 2 * group).astype(np.int32)
    sums = convolved(x, w, b, pads=pads, group=group)
    assert np.abs(sums).max() > 2**24
    assert_gives(CONV, [x, w, b], conv_attributes(w, 0, 32, pads=pads, group=group), sums.astype(np.int32))


@pytest.mark.parametrize("shift", [0, 17, 18, 22])
def test_bias_beyond_2_24(shift, draw):
    b = np.array([2**24, 2**24 + 1, -(2**24) - 1, 2**25 + 3, 2**31 - 70000, -(2**31) + 70000], np.int32)
    x, w = draw.integers(-128, 128, (3, 4)).astype(np.int8), draw.integers(-128, 128, (6, 4)).astype(np.int8)
    expected = requantized_array(multiplied(x, w, b), shift, 32)
    assert_gives(LINEAR, [x, w, b], product_attributes(shift, 32), expected)
    image, kernels = x.reshape(3, 4, 1, 1), w.reshape(6, 4, 1, 1)
    assert_gives(CONV, [image, kernels, b], conv_attributes(kernels, shift, 32), expected.reshape(3, 6, 1, 1))


@pytest.mark.parametrize("shift", [18, 20])
def test_many_channels_and_a_large_bias_meet_at_a_tie(shift):
    # 2048 products of 2^14 are 2^25; the bias moves the sum to a tie of the shift and to its neighbors
    wanted = np.array([(n << shift) + (1 << (shift - 1)) + near for n in (-2, 3, 40) for near in (-1, 0, 1)], np.int64)
    x, w = np.full((1, 2048), -128, np.int8), np.full((len(wanted), 2048), -128, np.int8)
    expected = requantized_array(wanted, shift).reshape(1, -1)
    assert_gives(LINEAR, [x, w, (wanted - 2**25).astype(np.int32)], product_attributes(shift), expected)


PAIRS = np.array(list(itertools.product(range(-128, 128), repeat=2)), np.int8)
LEFT, RIGHT = np.ascontiguousarray(PAIRS[:, 0]), np.ascontiguousarray(PAIRS[:, 1])


@pytest.mark.parametrize(
    "shifts",
    [(0, 0), (1, 1), (0, 1), (3, 0), (2, 5), (7, 1), (8, 8), (-1, 0), (-2, 3)],
    ids=lambda s: f"{s[0]} and {s[1]}",
)
def test_sum_of_every_pair(shifts):
    attributes = {"scale_x": 16.0 * 2.0 ** shifts[0], "scale_y": 16.0 * 2.0 ** shifts[1], "scale_o": 16.0}
    left, right = ([requantized(v, shift, 32) for v in range(-128, 128)] for shift in shifts)
    expected = [requantized(a + b, 0) for a, b in itertools.product(left, right)]
    assert_gives(ADD, [LEFT, RIGHT], attributes, np.array(expected, np.int8))


@pytest.mark.parametrize("shift", [-1, 0, 1, 4, 7, 8, 13, 15])
def test_product_of_every_pair(shift):
    attributes = {"scale_x": 16.0, "scale_y": 64.0, "scale_o": 1024.0 / 2.0**shift}
    expected = requantized_array(LEFT.astype(np.int64) * RIGHT, shift)
    assert_gives(MUL, [LEFT, RIGHT], attributes, expected)


def nearest_float32(value: Fraction) -> Fraction:
    """Rounded to 24 significant bits, ties to even, as IEEE 754 says (normal range)."""
    if value == 0:
        return value
    exponent = math.floor(math.log2(abs(value)))
    exponent += (abs(value) >= Fraction(2) ** (exponent + 1)) - (abs(value) < Fraction(2) ** exponent)
    quantum = Fraction(2) ** max(exponent - 23, -149)
    return round(value / quantum) * quantum


def quantized(value: np.float32, scale: float) -> int:
    """sat8(⌊f32(x·scale + ½)⌋) in fractions; x·scale is exact, the scale being a power of two."""
    total = nearest_float32(Fraction(float(value)) * Fraction(scale) + Fraction(1, 2))
    return max(-128, min(127, math.floor(total)))


@pytest.mark.parametrize("scale", [0.25, 1.0, 16.0, 128.0])
def test_quant_on_dense_values_and_around_ties(scale):
    grid = (np.arange(-1060, 1060) / np.float32(8 * scale)).astype(np.float32)  # eighths of a step: ties among them
    around = [grid]
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        step = grid
        for _ in range(2):
            step = np.nextafter(step, direction)
            around.append(step)
    values = np.concatenate(around)
    expected = np.array([quantized(v, scale) for v in values], np.int8)
    assert_gives(QUANT, [values], {"data_bits": 8, "scale_x": scale}, expected)
