"""iqWhere by hand: o = sat(⌊x·so/sx + ½⌋) where the mask is set, sat(⌊y·so/sy + ½⌋) elsewhere."""

import numpy as np
import pytest

from tests.support.hand_worked import assert_gives, int8, int16
from tests.support.ops import find_op

iq_where = find_op("iqWhere")

MASKS = {"booleans": np.array([True, False, True]), "zeros and ones": int8(1, 0, 1)}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(
    ("x", "y", "scales", "expected"),
    [
        pytest.param(int8(1, -128, 100), int8(2, -127, 7), (16.0, 16.0, 16.0), int8(1, -127, 100), id="equal scales"),
        # x/4: 2 → ½ → 1, −2 → −½ → 0; y/2: −3 → −3/2 → −1
        pytest.param(int8(2, 9, -2), int8(9, -3, 9), (64.0, 32.0, 16.0), int8(1, -1, 0), id="both shifted"),
        # ·4: 128 → 127, −132 → −128; what is not chosen does not matter
        pytest.param(int8(32, 1, -33), int8(1, -33, 1), (16.0, 16.0, 64.0), int8(127, -128, -128), id="left shift"),
    ],
)
def test_where(x, y, mask, scales, expected):
    attributes = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    assert_gives(iq_where, [x, y, mask], attributes, expected)


def test_a_masked_score_is_the_lowest_of_sixteen_bits():
    attributes = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0, "o_bits": 16}
    scores, mask = int8([[5, -128], [127, 0]]), np.array([False, True])  # one mask for every row
    lowest = int16(-32768).reshape(())
    assert_gives(iq_where, [lowest, scores, mask], attributes, int16([[5, -32768], [127, -32768]]))
