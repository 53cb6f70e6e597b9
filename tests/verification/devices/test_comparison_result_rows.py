"""Two tensors in LSB, with numbers worked out by hand."""

import json
import math

import numpy as np
import pytest

from linger.verification.devices.comparison_result import DifferingElement, TensorDifference, in_units, saturated


def difference(a, b, **settings):
    row = TensorDifference("t", "t")
    row.add(0, np.asarray(a), np.asarray(b), **settings)
    return row


def test_integers_are_counted_in_lsb():
    row = difference(np.array([[1, 2, 3, 4]], np.int8), np.array([[1, 5, 3, 3]], np.int8), scale_a=16.0, scale_b=16.0)
    assert (row.values, row.differing, row.largest, row.mean) == (4, 2, 3.0, 1.0)  # |−3| + |1| over 4
    assert row.first == DifferingElement(0, (0, 1), 2, 5)
    assert row.largest_real == 3 / 16
    assert row.unit == "LSB"
    assert not row.ok


def test_equal_tensors_are_ok():
    row = difference(np.array([1, 2], np.int8), np.array([1, 2], np.int8))
    assert row.ok
    assert (row.first, row.largest, row.notes) == (None, 0.0, {})


def test_the_widest_difference_of_int8_is_not_wrapped():
    assert difference(np.array([-128], np.int8), np.array([127], np.int8)).largest == 255


def test_other_storage_of_the_same_numbers_is_equal_and_noted():
    row = difference(np.array([1, -2], np.int8), np.array([1, -2], np.int16))
    assert row.ok
    assert list(row.notes) == ["int8 against int16"]


@pytest.mark.parametrize("swapped", [False, True], ids=["integers first", "floats first"])
def test_floats_meet_integers_through_the_scale(swapped):
    q, real = np.array([16, -8, 3], np.int8), np.array([1.0, -0.5, 0.25], np.float32)
    a, b = (real, q) if swapped else (q, real)
    row = difference(a, b, scale_a=16.0, scale_b=16.0)
    # 0.25·16 = 4, the integer is 3
    assert (row.differing, row.largest, row.largest_real, row.scale) == (1, 1.0, 1 / 16, 16.0)


def test_floats_of_half_width_meet_integers_beyond_their_range():
    # 5000·16 = 80000, more than the largest of float16, 65504
    assert difference(np.int32([80000]), np.float16([5000.0]), scale_a=16.0).ok
    assert difference(np.int32([80000]), np.float16([5004.0]), scale_a=16.0).largest == 64.0


def test_the_scale_of_the_integers_counts_where_only_they_have_one():
    assert difference(np.array([1.0]), np.array([16], np.int8), scale_b=16.0).ok
    assert difference(np.array([16], np.int8), np.array([1.0]), scale_a=16.0).ok


def test_floats_with_a_scale_are_counted_in_lsb():
    row = difference(np.float32([1.0, 2.0]), np.float32([1.0, 1.75]), scale_a=8.0)
    assert (row.differing, row.largest, row.largest_real, row.unit) == (1, 2.0, 0.25, "LSB")


def test_floats_without_a_scale_are_real_numbers():
    row = difference(np.float32([1.0, 2.0]), np.float32([1.0, 1.75]))
    assert (row.largest, row.largest_real, row.unit, row.scale) == (0.25, 0.25, "real", None)


def test_other_scales_are_real_differences_and_noted():
    row = difference(np.array([8, 16], np.int8), np.array([8, 32], np.int8), scale_a=8.0, scale_b=16.0)
    # in units of a: 8·8/16 = 4 and 32·8/16 = 16
    assert (row.differing, row.largest, row.first.index) == (1, 4.0, (0,))
    assert list(row.notes) == ["scale 8 against 16"]


@pytest.mark.parametrize(("tolerance", "differing"), [(0.0, 2), (1e-3, 1), (1e-1, 0)], ids=str)
def test_tolerance_is_a_part_of_the_largest_value(tolerance, differing):
    a, b = np.float32([10.0, 1.0, 1.0]), np.float32([10.0, 1.009, 1.5])
    assert difference(a, b, tolerance=tolerance).differing == differing


def test_tolerance_is_not_for_numbers_with_a_scale():
    assert difference(np.float32([1.0, 100.0]), np.float32([1.125, 100.0]), scale_a=8.0, tolerance=0.5).differing == 1
    assert difference(np.int8([1, 100]), np.int8([2, 100]), tolerance=0.5).differing == 1


def test_nan_equals_nan_and_nothing_else():
    row = difference(np.float32([np.nan, np.nan, np.inf, np.inf]), np.float32([np.nan, 1.0, np.inf, -np.inf]))
    assert row.differing == 2
    assert row.largest == math.inf
    assert json.dumps(row.as_dict(), allow_nan=False)


def test_sizes_of_one_do_not_matter_and_are_noted():
    row = difference(np.zeros((1, 3), np.int8), np.zeros((3,), np.int8))
    assert row.ok
    assert list(row.notes) == ["shape 1x3 against 3"]


def test_other_sizes_are_a_difference_of_all():
    row = difference(np.zeros((2, 3), np.int8), np.zeros((3, 2), np.int8))
    assert row.differing == 6
    assert row.first == DifferingElement(0, (), "shape 2x3", "shape 3x2")


def test_an_empty_tensor_against_a_full_one_differs():
    assert not difference(np.zeros((0,), np.int8), np.zeros((3,), np.int8)).ok
    assert difference(np.zeros((0, 2), np.int8), np.zeros((0, 2), np.int8)).ok


def test_batches_add_up_and_the_first_place_stays():
    row = TensorDifference("t", "t")
    row.add(0, np.int8([1, 2]), np.int8([1, 2]))
    row.add(1, np.int8([1, 2]), np.int8([1, 4]))
    row.add(2, np.int8([1, 2]), np.int8([9, 2]))
    assert (row.values, row.differing, row.largest, row.first) == (6, 2, 8.0, DifferingElement(1, (1,), 2, 4))
    assert row.mean == 10 / 6


@pytest.mark.parametrize(
    ("array", "bits", "count"),
    [
        (np.int8([127, -128, 126, 0]), None, 2),
        (np.int8([7, -8, 6, 0]), 4, 2),
        (np.int16([32767, 127]), None, 1),
        (np.int64([2**63 - 1]), None, 0),
        (np.uint8([255, 0]), None, 0),
        (np.float32([1.0]), None, 0),
    ],
    ids=["int8", "4 bits", "int16", "int64", "uint8", "float"],
)
def test_saturated(array, bits, count):
    assert saturated(array, bits) == count


def test_saturated_integers_of_both_are_counted():
    row = difference(np.int8([127, 0]), np.int8([127, -128]))
    assert (row.saturated_a, row.saturated_b) == (1, 2)


def test_large_integers_are_compared_exactly():
    # float64 cannot tell these two apart
    assert difference(np.int64([2**53]), np.int64([2**53 + 1])).differing == 1


def test_units():
    assert in_units(np.int8([3]), 8.0, 16.0).tolist() == [6.0]
    assert in_units(np.int8([3]), None, 16.0).tolist() == [3]
    assert in_units(np.float32([0.5]), 8.0, 16.0).tolist() == [8.0]


def test_booleans_are_compared():
    assert difference(np.array([True, False]), np.array([True, True])).differing == 1
