"""The reciprocal of a window that the file measures itself is the one that Python computes for a known window."""

import numpy as np

from tests.support.arithmetic import NumpyKernel, curves, fixed


def test_every_area_has_the_reciprocal_of_the_device():
    areas = [*range(1, 1200), 56 * 56, 224 * 224, 2**20 - 1, 2**22, 2**22 + 1, curves.LARGEST_AREA - 1]
    found = curves.window_reciprocal(NumpyKernel(), np.array(areas, np.float64).reshape(1, 1, 1, -1))
    np.testing.assert_array_equal(found.ravel(), [fixed.window_reciprocal((area,)) for area in areas])


def test_by_hand():
    # 6 = ¾·8: ⌊32·¾⌋ = 24, r0 = 2^29·32/24 = 715827883 (rounded up), which is the fixed point; the factor is r/2^(29+3)
    found = curves.window_reciprocal(NumpyKernel(), np.array([[[[6.0, 4.0]]]])).ravel()
    assert found[0] == 715827883 / 2**32
    assert found[1] == 0.25
