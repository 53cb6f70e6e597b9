"""Intervals by hand: what a value can be, and the C type that holds it."""

import pytest

from linger.numeric.c.intervals import RANGES, hull, is_inside, meet, square, times


def test_products_of_intervals_by_hand():
    # the extremes are products of ends: −128·127 = −16256, −128·−128 = 16384
    assert times((-128, 127), (-128, 127)) == (-16256, 16384)
    assert times((-3, -2), (4, 5)) == (-15, -8)
    assert times((0, 0), (-7, 9)) == (0, 0)


@pytest.mark.parametrize(("numbers", "squares"), [((-128, 127), (0, 16384)), ((3, 5), (9, 25)), ((-5, -3), (9, 25))])
def test_a_number_times_itself_is_not_negative(numbers, squares):
    assert square(numbers) == squares


def test_intervals_that_meet_and_join():
    assert meet((-5, 5), (0, 9)) == (0, 5)
    assert hull([(-5, 5), (0, 9)]) == (-5, 9)
    assert is_inside((0, 127), RANGES["int8_t"])
    assert not is_inside((0, 128), RANGES["int8_t"])
