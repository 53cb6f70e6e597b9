"""Softmax in Q15: every kernel gives the integers of the device's steps, and they are near the real function."""

import numpy as np
import pytest

from tests.support.arithmetic import NumpyKernel
from tests.support.arithmetic import curves as device
from tests.support.integer_softmax import softmax_q15, to_q25
from tests.support.onnx_body import assert_kernels_give
from tests.support.wide_curves import arcs_softmax, venus_a_softmax

pytestmark = pytest.mark.needs_torch


def body(fraction, axis=-1):
    def run(k, x):
        return k.store(device.softmax(k, k.wide(x), source=k.scalar(2.0**fraction), axis=axis), 32)

    return run


def exact(x, fraction):
    rows = [softmax_q15(to_q25(row, fraction)) for row in x.reshape(-1, x.shape[-1]).tolist()]
    return np.array(rows, np.int32).reshape(x.shape)


@pytest.mark.parametrize(
    ("bits", "fraction"),
    # Q5 of 32 bits saturates in Q25, and then a difference has all of 32 bits
    [(8, 3), (8, 0), (8, -2), (8, 7), (16, 8), (16, 0), (16, 12), (32, 25), (32, 22), (32, 5), (32, 30)],
)
def test_rows_of_every_width(bits, fraction, draw):
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    x = draw.integers(low, high, (40, 12), endpoint=True).astype(f"int{bits}")
    x[0, :2] = low, high
    x[1] = high
    x[2] = low
    x[3] = draw.integers(0, 3, 12)
    assert_kernels_give(body(fraction), [x], exact(x, fraction), element_bits=bits)


def test_odd_differences_of_all_bits_are_rounded_exactly(draw):
    # the product with log2(e) has up to 62 bits; float64 alone would miss some of these
    near = draw.integers(-(1 << 28), 1, (2000, 1))
    x = np.concatenate([near, np.zeros_like(near)], axis=1).astype(np.int32)
    assert_kernels_give(body(25), [x], exact(x, 25), element_bits=32, opsets=(12,))


@pytest.mark.parametrize("length", [1, 2, 3, 100, 2048])
def test_rows_of_every_length(length, draw):
    x = draw.integers(-20, 21, (3, length)).astype(np.int8)
    assert_kernels_give(body(3), [x], exact(x, 3), opsets=(12,))


def test_sum_of_more_than_255_alike_saturates():
    # 300·8388668 does not fit in 32 bits: the device divides by 256 instead, 2^15/256 = 128
    x = np.zeros((1, 300), np.int8)
    assert_kernels_give(body(3), [x], np.full((1, 300), 128, np.int32), opsets=(12,))


def test_another_axis(draw):
    x = draw.integers(-128, 128, (3, 4, 5)).astype(np.int8)
    assert_kernels_give(body(4, axis=1), [x], exact(x.swapaxes(1, 2), 4).swapaxes(1, 2))


def test_it_is_near_the_real_function(draw):
    x = draw.integers(-128, 128, (500, 8)).astype(np.int8)
    real = np.exp(x / 8 - (x / 8).max(axis=1, keepdims=True))
    real /= real.sum(axis=1, keepdims=True)
    # steps of Q15: half for the last rounding, 2^15·60/2^23 for the polynomial (4194334 instead of 4194304 at −1, in
    # two places), and 2^15·0.0732^4 for the reciprocal (the seed at 1 is 0.4634 instead of ½; each step squares the error)
    assert np.abs(exact(x, 3) - real * 2**15).max() < 0.5 + 0.24 + 0.95


CHIPS = {
    "arcs": (device.softmax_by_division, arcs_softmax),
    "venusA": (device.softmax_with_rounded_powers, venus_a_softmax),
}
each_chip = pytest.mark.parametrize(("compute", "exactly"), CHIPS.values(), ids=CHIPS.keys())


def body_of(compute, fraction, axis=-1):
    def run(k, x):
        return k.store(compute(k, k.wide(x), source=k.scalar(2.0**fraction), axis=axis), 32)

    return run


def exact_of(exactly, x, fraction):
    rows = [exactly(to_q25(row, fraction)) for row in x.reshape(-1, x.shape[-1]).tolist()]
    return np.array(rows, np.int32).reshape(x.shape)


@each_chip
@pytest.mark.parametrize(
    ("bits", "fraction"), [(8, 3), (8, 0), (8, -2), (8, 7), (16, 8), (16, 12), (32, 25), (32, 5), (32, 30)]
)
def test_rows_of_every_width_on_other_chips(compute, exactly, bits, fraction, draw):
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    x = draw.integers(low, high, (40, 12), endpoint=True).astype(f"int{bits}")
    x[0, :2] = low, high
    x[1] = high
    x[2] = low
    x[3] = draw.integers(0, 3, 12)
    assert_kernels_give(body_of(compute, fraction), [x], exact_of(exactly, x, fraction), element_bits=bits)


@each_chip
@pytest.mark.parametrize("length", [1, 2, 3, 100, 300, 2048])
def test_rows_of_every_length_on_other_chips(compute, exactly, length, draw):
    x = draw.integers(-20, 21, (3, length)).astype(np.int8)
    assert_kernels_give(body_of(compute, 3), [x], exact_of(exactly, x, 3), opsets=(12,))


@each_chip
def test_sums_that_saturate_on_other_chips(compute, exactly):
    x = np.zeros((1, 300), np.int8)
    expected = exact_of(exactly, x, 3)
    assert expected.max() in (127, 128)  # 1/256 in Q15, and not 1/300
    assert_kernels_give(body_of(compute, 3), [x], expected, opsets=(12,))


@each_chip
def test_every_pair_of_8_bit_numbers_on_other_chips(compute, exactly):
    low = np.arange(0, -256, -1)
    x = np.stack([low, np.zeros_like(low)], axis=1).astype(np.int16)
    for fraction in (2, 4):
        assert_kernels_give(
            body_of(compute, fraction), [x], exact_of(exactly, x, fraction), opsets=(12,), element_bits=16
        )


@each_chip
def test_many_rows_show_how_every_step_rounds(compute, exactly, draw):
    # the exponentials' last bit is 2^-8 of a step of the output: it takes many numbers to see it
    x = draw.integers(-(2**28), 2**28, (3000, 6)).astype(np.int32)
    found = body_of(compute, 25)(NumpyKernel(), x)
    np.testing.assert_array_equal(found, exact_of(exactly, x, 25))


@each_chip
def test_other_chips_are_near_the_real_function(compute, exactly, draw):
    x = draw.integers(-128, 128, (500, 8)).astype(np.int8)
    real = np.exp(x / 8 - (x / 8).max(axis=1, keepdims=True))
    real /= real.sum(axis=1, keepdims=True)
    # measured on arcs: at most 0.6 steps of Q15
    assert np.abs(exact_of(exactly, x, 3) - real * 2**15).max() < 0.6
