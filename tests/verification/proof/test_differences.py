"""Where arrays differ."""

import numpy as np
import pytest

from linger.verification.proof.comparison import far_apart, first_index, largest_distance, unequal


def test_integers_are_compared_with_equality():
    a, b = np.array([[1, 2], [3, 4]], np.int8), np.array([[1, 2], [3, 5]], np.int8)
    assert unequal(a, b).tolist() == [[False, False], [False, True]]
    assert first_index(unequal(a, b), a, b) == ((1, 1), 4, 5)


@pytest.mark.parametrize(
    ("other", "kind"), [(np.array([1, 2], np.int16), "int16[2]"), (np.array([[1, 2]], np.int8), "int8[1, 2]")]
)
def test_another_type_or_shape_is_all_wrong(other, kind):
    a = np.array([1, 2], np.int8)
    assert unequal(a, other).tolist() == [True, True]
    assert first_index(unequal(a, other), a, other) == ((), "int8[2]", kind)


def test_something_instead_of_nothing_is_one_difference():
    assert unequal(np.zeros(0, np.int8), np.zeros(5, np.int8)).sum() == 1
    assert unequal(np.zeros(0, np.int8), np.zeros(0, np.int8)).size == 0


def test_nan_equals_nan():
    a = np.array([np.nan, 1.0, np.inf], np.float32)
    assert not unequal(a, a.copy()).any()
    assert unequal(a, np.array([1.0, np.nan, -np.inf], np.float32)).all()


def test_text_is_compared_however_it_is_held():
    assert unequal(np.array(["a", "b"], object), np.array(["a", "c"])).tolist() == [False, True]


def test_floats_may_differ_by_a_thousandth_of_the_largest():
    want = np.array([1000.0, 1.0, 1.0, 5.0], np.float32)
    have = np.array([1000.9, 1.9, 2.1, 5.0], np.float32)
    assert far_apart(want, have).tolist() == [False, False, True, False]
    assert largest_distance(want, have) == pytest.approx(1.1, abs=1e-6)


def test_infinities_are_neither_near_nor_a_distance():
    want = np.array([np.inf, 1.0, np.nan, np.inf], np.float32)
    have = np.array([np.inf, 1.0, 1.0, -np.inf], np.float32)
    assert far_apart(want, have).tolist() == [False, False, True, True]
    assert largest_distance(want, have) == 0.0


def test_floats_of_another_shape_or_type_are_far_apart():
    assert far_apart(np.ones(2, np.float32), np.ones((1, 2), np.float32)).all()
    assert far_apart(np.ones(2, np.float32), np.ones(2, np.float64)).all()
    assert largest_distance(np.ones(2, np.float32), np.ones((1, 2), np.float32)) == 0.0
    assert far_apart(np.array([100], np.int64), np.array([101], np.int64)).all()
