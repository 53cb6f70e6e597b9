"""Rounding, saturation and requantization against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.arithmetic import NumpyKernel, blocks, fixed
from tests.support.onnx_body import assert_kernels_give, interpret_numpy, interpret_torch

pytestmark = pytest.mark.needs_torch

WAYS = {"numpy": interpret_numpy, "torch": interpret_torch}
INT32 = st.integers(-(2**31), 2**31 - 1)
SHIFTS = st.integers(-8, 30)
BITS = st.sampled_from([4, 8, 16, 32])


def exact_requantized(value: int, ratio: Fraction, bits: int) -> int:
    rounded = math.floor(value * ratio + Fraction(1, 2))
    return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, rounded))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@settings(deadline=None)  # the machine may be busy
@given(numerators=st.lists(INT32, min_size=1, max_size=20), shift=st.integers(0, 20))
def test_round_half_up_equals_the_fraction(way, numerators, shift):
    # n/2^shift with |n| < 2^31 and the sum with ½ are exact in float64
    values = np.array([n / 2**shift for n in numerators])
    expected = [math.floor(Fraction(n, 2**shift) + Fraction(1, 2)) for n in numerators]
    assert way(blocks.round_half_up, [values]).tolist() == expected


def test_round_half_up_works_in_the_precision_of_its_input():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    for way in WAYS.values():
        assert way(blocks.round_half_up, [np.array([below], np.float32)]).tolist() == [1.0]
        assert way(blocks.round_half_up, [np.array([below], np.float64)]).tolist() == [0.0]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@settings(deadline=None)  # the machine may be busy
@given(values=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20), bits=BITS)
def test_saturate_limits_to_the_range(way, values, bits):
    expected = [max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, v)) for v in values]
    assert way(lambda k, x: blocks.saturate(k, x, bits), [np.array(values, np.float64)]).tolist() == expected


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@settings(deadline=None)  # the machine may be busy
@given(values=st.lists(INT32, min_size=1, max_size=20), shift=SHIFTS)
def test_rescale_equals_the_fraction(way, values, shift):
    def body(k, x):
        return blocks.rescale(k, k.wide(x), source=k.scalar(2.0**shift), target=k.scalar(1.0))

    expected = [math.floor(Fraction(v) / Fraction(2.0**shift) + Fraction(1, 2)) for v in values]
    assert way(body, [np.array(values, np.int32)]).tolist() == expected


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
@settings(deadline=None)  # the machine may be busy
@given(values=st.lists(INT32, min_size=1, max_size=20), shift=SHIFTS, bits=BITS)
def test_requantize_equals_the_fraction(way, values, shift, bits):
    def body(k, x):
        return blocks.requantize(k, k.wide(x), source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=bits)

    expected = [exact_requantized(v, 1 / Fraction(2.0**shift), bits) for v in values]
    assert way(body, [np.array(values, np.int32)]).tolist() == expected


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("shift", [-3, 0, 1, 7, 16, 22])
def test_requantize_in_onnxruntime_equals_the_fraction(shift, bits):
    step, half = Fraction(2.0**shift), Fraction(2.0 ** (shift - 1))
    edges = [n * step + half + d for n in (-129, -128, -3, -1, 0, 1, 126, 127) for d in (-1, 0, 1)]
    values = [int(edge) for edge in edges if edge.denominator == 1] + [-(2**31), 2**31 - 1, 0, 1, -1]
    expected = [exact_requantized(v, 1 / step, bits) for v in values]

    def body(k, x):
        return blocks.requantize(k, k.wide(x), source=k.scalar(2.0**shift), target=k.scalar(1.0), bits=bits)

    assert_kernels_give(body, [np.array(values, np.int32)], np.array(expected, f"int{bits}"), element_bits=32)


@pytest.mark.parametrize("f", [0, 3, 20, 34])
def test_sixths_are_rounded_half_up_without_a_mistake(f):
    # the multiples of a sixth and their neighbors 2^-f away, where the quotient is nearest to a whole number and a half
    whole = np.concatenate([np.arange(-300, 300), [2**15, -(2**15)]])
    numerators = [int(w) * 3 * 2**f + step for w in whole for step in (-1, 0, 1)]
    found = blocks.round_sixth(NumpyKernel(), np.array(numerators, np.float64) / 2**f)
    assert found.tolist() == [(m + 3 * 2**f) // (6 * 2**f) for m in numerators]


@pytest.mark.parametrize("ratio", [2.0**-6, 0.5, 1.0, 8.0], ids=str)
def test_quotients_are_rounded_as_by_fractions(ratio):
    near = np.arange(-200, 201)
    far = np.array([2**48 + step for step in range(-9, 10)] + [-(2**48) + step for step in range(-9, 10)])
    a, b = (v.ravel() for v in np.meshgrid(np.concatenate([near, far]), [1, 2, 3, 6, 7, 10, 97, 1000003]))
    exact = [fixed.round_half_up(int(x) * Fraction(ratio) / int(y)) for x, y in zip(a, b, strict=True)]

    def body(k, x, y):
        return blocks.round_quotient(k, k.wide(x), k.wide(y), ratio=k.scalar(ratio))

    assert_kernels_give(
        body, [a.astype(np.float64), b.astype(np.float64)], np.array(exact, np.float64), opsets=(11, 18)
    )
