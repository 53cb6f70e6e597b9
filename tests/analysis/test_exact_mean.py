"""Sums without rounding, and one rounding of the mean."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.analysis import BLOCK, exact_sum, nearest, single_if_certain
from tests.support.by_sorting import exact_total, single

SINGLE_MAX = float(np.finfo(np.float32).max)
DOUBLE_MAX = float(np.finfo(np.float64).max)
SINGLE_TINY, DOUBLE_TINY = 2.0**-149, 2.0**-1074

singles = st.floats(0, allow_infinity=False, allow_nan=False, width=32)
doubles = st.floats(0, allow_infinity=False, allow_nan=False)


@settings(max_examples=150, deadline=None)
@given(st.lists(singles, max_size=40))
def test_sum_of_singles_is_that_of_fractions(numbers):
    assert exact_sum(np.array(numbers, np.float32)) == exact_total(numbers)


@settings(max_examples=150, deadline=None)
@given(st.lists(doubles, max_size=40))
def test_sum_of_doubles_is_that_of_fractions(numbers):
    assert exact_sum(np.array(numbers, np.float64)) == sum(map(Fraction, numbers), Fraction(0))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), max_size=40))
def test_sum_of_integers_does_not_wrap(numbers):
    assert exact_sum(np.array(numbers, np.uint64)) == sum(numbers)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        pytest.param(2**64 - 1, np.uint64, id="largest integer"),
        pytest.param(2**63, np.uint64, id="−2^63"),
        pytest.param(SINGLE_MAX, np.float32, id="largest single"),
        pytest.param(DOUBLE_MAX, np.float64, id="largest double"),
        pytest.param(DOUBLE_MAX / 2**900, np.float64, id="all mantissa bits"),
        pytest.param(SINGLE_TINY, np.float32, id="smallest single"),
        pytest.param(DOUBLE_TINY, np.float64, id="smallest double"),
    ],
)
def test_a_full_block_of_one_extreme_number_adds_up(value, dtype):
    assert exact_sum(np.full(BLOCK, value, dtype)) == Fraction(value) * BLOCK


def test_the_smallest_number_survives_beside_the_largest():
    block = np.array([DOUBLE_TINY, DOUBLE_MAX, DOUBLE_TINY])
    assert exact_sum(block) - Fraction(DOUBLE_MAX) == 2 * Fraction(DOUBLE_TINY)


def test_bools_are_counted_and_nothing_is_zero():
    assert exact_sum(np.array([True, False, True])) == 2
    assert exact_sum(np.empty(0, np.float32)) == exact_sum(np.empty(0, np.uint64)) == 0


fractions = st.builds(
    lambda top, bottom, shift: Fraction(top, bottom) * Fraction(2) ** shift,
    st.integers(0, 2**60),
    st.integers(1, 2**60),
    st.integers(-140, 60),
)


@settings(max_examples=300, deadline=None)
@given(fractions)
def test_nearest_single_is_the_correctly_rounded_one(value):
    assert nearest(value, np.float32) == single(value)


@settings(max_examples=300, deadline=None)
@given(fractions, st.integers(-900, 800))
def test_nearest_double_is_the_correctly_rounded_one(value, shift):
    moved = value * Fraction(2) ** shift
    assert nearest(moved, np.float64) == moved.numerator / moved.denominator  # Python rounds this correctly


@settings(max_examples=200, deadline=None)
@given(st.floats(0, SINGLE_MAX / 2, width=32))
def test_a_tie_between_singles_goes_to_the_even_mantissa(number):
    above = np.nextafter(np.float32(number), np.float32(np.inf))
    middle = (Fraction(number) + Fraction(float(above))) / 2
    even = min(np.float32(number), above, key=lambda c: int(c.view(np.uint32)) & 1)
    assert nearest(middle, np.float32) == float(even)
    hair = Fraction(1, 2**400)
    assert nearest(middle - hair, np.float32) == number  # float(value) is the tie itself, and would go wrong
    assert nearest(middle + hair, np.float32) == float(above)


@pytest.mark.parametrize("kind", [np.float32, np.float64], ids=["single", "double"])
def test_the_ends_of_a_type_are_their_own_nearest_without_a_warning(kind):
    info = np.finfo(kind)
    for number in (0.0, float(info.smallest_subnormal), float(info.tiny), float(info.max)):
        assert nearest(Fraction(number), kind) == number
    assert nearest(Fraction(float(info.max)) - 1, kind) == float(info.max)


@settings(max_examples=200, deadline=None)
@given(st.floats(float(np.finfo(np.float32).tiny), SINGLE_MAX / 2, width=32), st.integers(0, 20))
def test_no_single_is_certain_at_a_midpoint(number, power):
    above = float(np.nextafter(np.float32(number), np.float32(np.inf)))
    middle = (number + above) / 2  # exact: a double has 29 bits more
    assert single_if_certain(middle * 2**power, 2**power) is None


@settings(max_examples=200, deadline=None)
@given(st.lists(singles, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_a_certain_single_is_right_whatever_the_order_of_the_sum(numbers, order):
    shuffled = list(numbers)
    order.shuffle(shuffled)
    expected = single(exact_total(numbers) / len(numbers))
    for total in (sum(numbers), sum(shuffled), float(np.sum(np.array(numbers)))):
        assert single_if_certain(total, len(numbers)) in (None, expected)


def test_a_mean_away_from_midpoints_is_certain():
    assert single_if_certain(1.0, 3) == float(np.float32(1 / 3))
    assert single_if_certain(0.0, 7) == 0.0
    assert single_if_certain(5 * SINGLE_MAX, 5) == SINGLE_MAX
    assert single_if_certain(3 * SINGLE_TINY, 3) == SINGLE_TINY
