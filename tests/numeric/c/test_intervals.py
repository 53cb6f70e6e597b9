"""Intervals by hand: what a value can be, and the C type that holds it."""

import pytest

from tests.support.c_units import nodes


def test_products_of_intervals_by_hand():
    # the extremes are products of ends: −128·127 = −16256, −128·−128 = 16384
    assert nodes.times((-128, 127), (-128, 127)) == (-16256, 16384)
    assert nodes.times((-3, -2), (4, 5)) == (-15, -8)
    assert nodes.times((0, 0), (-7, 9)) == (0, 0)


@pytest.mark.parametrize(("numbers", "squares"), [((-128, 127), (0, 16384)), ((3, 5), (9, 25)), ((-5, -3), (9, 25))])
def test_a_number_times_itself_is_not_negative(numbers, squares):
    assert nodes.square(numbers) == squares


def test_intervals_that_meet_and_join():
    assert nodes.meet((-5, 5), (0, 9)) == (0, 5)
    assert nodes.hull([(-5, 5), (0, 9)]) == (-5, 9)
    assert nodes.is_inside((0, 127), nodes.RANGES["int8_t"])
    assert not nodes.is_inside((0, 128), nodes.RANGES["int8_t"])


def test_numbers_are_written_so_that_c_reads_them():
    # C has no negative literals: −2^31 is the negative of a number that int32_t does not hold
    assert [nodes.literal(v, nodes.INT32) for v in (-(1 << 31), -(1 << 31) + 1, -7, 7)] == [
        "INT32_MIN",
        "-2147483647",
        "-7",
        "7",
    ]
    assert [nodes.literal(v, nodes.INT64) for v in (-(1 << 63), -7, 0)] == ["INT64_MIN", "(-INT64_C(7))", "INT64_C(0)"]
    assert nodes.literal(-128, "int8_t") == "-128"


def test_a_mask_is_exact_within_one_block():
    assert nodes.masked((-1, -1), 4) == (15, 15)
    assert nodes.masked((16, 31), 4) == (0, 15)
    assert nodes.masked((17, 30), 4) == (1, 14)
    assert nodes.masked((3, 18), 4) == (0, 15)


def test_quotients_shifts_and_sums_by_hand():
    assert nodes.floor_divided((-7, 9), (2, 3)) == (-4, 4)
    assert nodes.shifted((-7, 9), (0, 1)) == (-7, 9)
    assert nodes.shifted((-7, 9), (1, 2)) == (-4, 4)
    assert nodes.sums((-2, 3), 4) == (-8, 12)
    assert nodes.sums((2, 3), 4) == (0, 12)  # a sum of none of them is 0


def test_a_real_number_is_rounded_to_the_side_that_is_asked_for():
    assert [nodes.at_exponent(x, 1, up=False) for x in (5.0, -5.0, 0.75, 6.0)] == [2, -3, 0, 3]
    assert [nodes.at_exponent(x, 1, up=True) for x in (5.0, -5.0, 0.75, 6.0)] == [3, -2, 1, 3]
    assert nodes.at_exponent(3.0, -2, up=True) == 12


def test_the_type_that_holds_all():
    assert [nodes.storage_type((0, top)) for top in (127, 128, 32767, 32768, 1 << 31, 1 << 63)] == [
        *("int8_t", "int16_t", "int16_t", nodes.INT32, nodes.INT64, None)
    ]
    assert nodes.arithmetic_type((0, 1), (-(1 << 31), 0)) == nodes.INT32
    assert nodes.arithmetic_type((0, 1), (-(1 << 31) - 1, 0)) == nodes.INT64
    assert nodes.arithmetic_type((0, 1 << 63)) is None
