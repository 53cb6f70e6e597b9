"""Ranges, power-of-two scales, reciprocals."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.arithmetic import fixed


@pytest.mark.parametrize(
    ("bits", "expected"), [(4, (-8, 7)), (8, (-128, 127)), (16, (-32768, 32767)), (32, (-(2**31), 2**31 - 1))]
)
def test_limits(bits, expected):
    assert fixed.limits(bits) == expected


def test_a_bias_is_an_int32():
    assert fixed.limits(fixed.BIAS_BITS) == (-(2**31), 2**31 - 1)


@pytest.mark.parametrize(("bits", "expected"), [(2, 8), (4, 8), (8, 8), (9, 16), (16, 16), (17, 32), (32, 32)])
def test_storage_is_the_next_wider_type(bits, expected):
    assert fixed.storage_bits(bits) == expected


@settings(deadline=None)  # the machine may be busy
@given(st.integers(-(10**6), 10**6), st.integers(1, 1000))
def test_round_half_up_is_nearest_and_ties_go_up(numerator, denominator):
    value = Fraction(numerator, denominator)
    distance = fixed.round_half_up(value) - value
    assert -Fraction(1, 2) < distance <= Fraction(1, 2)


@pytest.mark.parametrize("exponent", [-149, -30, -1, 0, 1, 30, 127])
def test_powers_of_two_are_recognized(exponent):
    assert fixed.is_power_of_two(2.0**exponent)


@pytest.mark.parametrize("scale", [0.0, -1.0, -2.0, 3.0, 0.3, 127.0, math.inf, math.nan, math.nextafter(2.0, 3.0)])
def test_anything_else_is_not_a_power_of_two(scale):
    assert not fixed.is_power_of_two(scale)


@pytest.mark.parametrize(
    ("max_abs", "bits", "expected"),
    [
        # 127/1 = 127 → 2^6; 127/(127/128) = 128 exactly → 2^7, the smallest step more → 2^6
        (1.0, 8, 64.0),
        (127 / 128, 8, 128.0),
        (math.nextafter(127 / 128, 1), 8, 64.0),
        (127.0, 8, 1.0),
        (math.nextafter(127.0, 128), 8, 0.5),
        (7.0, 4, 1.0),
        (1.0, 16, 16384.0),
        (1e-12, 8, 2.0**fixed.MAX_EXPONENT),
    ],
)
def test_scale_is_the_largest_that_fits(max_abs, bits, expected):
    assert fixed.scale_for(max_abs, bits) == expected


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_zeros_get_the_scale_of_the_range_of_one(bits):
    assert fixed.scale_for(0.0, bits) == 2.0 ** (bits - 1)


@settings(deadline=None)  # the machine may be busy
@given(st.floats(1e-6, 1e30), st.sampled_from([4, 8, 16, 32]))
def test_scaled_maximum_fits_and_twice_the_scale_would_not(max_abs, bits):
    scale, top = fixed.scale_for(max_abs, bits), fixed.limits(bits)[1]
    assert fixed.is_power_of_two(scale)
    assert Fraction(max_abs) * Fraction(scale) <= top
    assert Fraction(max_abs) * Fraction(2 * scale) > top or scale == 2.0**fixed.MAX_EXPONENT


@pytest.mark.parametrize("area", [1, 2, 4, 8, 16, 64, 256])
def test_reciprocal_of_a_power_of_two_is_exact(area):
    assert fixed.window_reciprocal((1, area)) == 1 / area


@pytest.mark.parametrize(
    ("kernel", "reciprocal"),
    [
        # area 6: n = 3, d = ¾, ⌊32·d⌋ = 24, r0 = rhu(2^34/24) = 715827883; t = rhu(2^31 − 1073741824.5) = 2^30, so r stays
        ((2, 3), 715827883 / 2**32),
        # area 10: n = 4, d = ⅝, ⌊32·d⌋ = 20, r0 = rhu(858993459.2) = 858993459; t = rhu(2^31 − 1073741823.75) = 2^30
        ((2, 5), 858993459 / 2**33),
    ],
)
def test_reciprocal_worked_by_hand(kernel, reciprocal):
    assert fixed.window_reciprocal(kernel) == reciprocal


def rounded_products(area):
    """⌊sum·r + ½⌋ for every sum of `area` int8 values, in integers; also the sums themselves."""
    sums = np.arange(-128 * area, 127 * area + 1, dtype=np.int64)
    numerator, denominator = fixed.window_reciprocal((1, area)).as_integer_ratio()
    return sums, (2 * sums * numerator + denominator) // (2 * denominator)


@pytest.mark.parametrize("area", [a for a in range(3, 128) if a & (a - 1)])
def test_reciprocal_differs_from_division_at_ties_only(area):
    sums, found = rounded_products(area)
    exact = (2 * sums + area) // (2 * area)
    is_tie = (2 * sums) % (2 * area) == area
    np.testing.assert_array_equal(found[~is_tie], exact[~is_tie])


@pytest.mark.parametrize("area", [6, 12, 18, 22, 36, 42, 100, 110, 126])
def test_negative_ties_go_down_where_the_reciprocal_is_too_large(area):
    sums, found = rounded_products(area)
    is_tie = (2 * sums) % (2 * area) == area
    away = np.sign(sums) * ((np.abs(sums) + area // 2) // area)  # from zero, both ways
    np.testing.assert_array_equal(found[is_tie], away[is_tie])


@pytest.mark.parametrize("area", [10, 14, 20, 28, 30])
def test_positive_ties_go_down_where_the_reciprocal_is_too_small(area):
    sums, found = rounded_products(area)
    is_tie = (2 * sums) % (2 * area) == area
    toward = np.sign(sums) * ((np.abs(sums) - area // 2) // area)  # to zero, both ways
    np.testing.assert_array_equal(found[is_tie], toward[is_tie])


@pytest.mark.parametrize("side", range(1, 16))
def test_runs_are_the_windows_of_adaptive_pooling(side):
    for count in range(1, 20):
        windows = [
            (start, start + run.size)
            for run in fixed.adaptive_runs(side, count)
            for start in range(run.start, run.end - run.size + 1, run.stride)
        ]
        assert windows == [(i * side // count, math.ceil((i + 1) * side / count)) for i in range(count)]
        if side % count == 0:
            assert len(fixed.adaptive_runs(side, count)) == 1


# halves between two neighbors go to the even one; 3.4028236e38 is the first that is infinite
@pytest.mark.parametrize(
    "value", [0.0, 0.1, 1 + 2.0**-24, 1 + 3 * 2.0**-24, 1e-46, 2.0**-149, 3.4028234e38, 3.4028236e38]
)
def test_float32_is_what_a_buffer_holds(value):
    with np.errstate(over="ignore"):
        assert fixed.as_float32(value) == float(np.float32(value))


@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (1, 3), (2, 3), (7, 7)], ids=str)
@pytest.mark.parametrize("zero_point", [0, 128])
def test_a_mean_by_one_factor_is_exact_or_refused(kernel, zero_point):
    area, factor = math.prod(kernel), Fraction(fixed.window_reciprocal(kernel))
    found = fixed.exact_mean(kernel, 1.0, (-128, 127), (-128, 127), zero=128, zero_point=zero_point)
    is_refused = zero_point == 0 and (area & (area - 1)) != 0  # no whole bias
    is_refused |= zero_point == 128 and area == 4  # −½ is a tie, which half to even does not round up
    assert (found is None) == is_refused
    for total in range(-128 * area, 127 * area + 1) if found else ():
        exact = min(max(math.floor(total * factor + Fraction(1, 2)), -128), 127)
        product = Fraction(float(np.float32(total + found[1]) * np.float32(found[0])))
        assert min(max(round(product) + zero_point, 0), 255) == exact + 128  # round() is half to even


def test_windows_with_too_many_sums_have_no_factor():
    assert fixed.exact_mean((65, 64), 1.0, (0, 127), (-128, 127), zero=0, zero_point=0) is None
