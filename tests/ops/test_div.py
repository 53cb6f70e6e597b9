"""iqDiv by hand and by fractions: rounded once, half up; divisors of zero saturate."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.support.hand_worked import assert_gives, int8, int16, torch_object
from tests.support.ops import Refusal, find_op, limits, round_half_up
from tests.support.samples import run_numpy

iq_div = find_op("iqDiv")


def attributes(scale_x=1.0, scale_y=1.0, scale_o=1.0, **more):
    return {"scale_x": scale_x, "scale_y": scale_y, "scale_o": scale_o} | more


def test_ties_of_every_sign():
    x, y = int8(1, -1, 1, -1, 3, -3, 3, -3), int8(2, 2, -2, -2, 2, 2, -2, -2)
    # ½ → 1, −½ → 0, −½ → 0, ½ → 1, 1½ → 2, −1½ → −1, −1½ → −1, 1½ → 2
    assert_gives(iq_div, [x, y], attributes(), int8(1, 0, 0, 1, 2, -1, -1, 2))


def test_divisors_of_zero_saturate_by_sign():
    x, y = int8(1, -1, 0, 127, -128), int8(0, 0, 0, 0, 0)
    assert_gives(iq_div, [x, y], attributes(), int8(127, -128, 0, 127, -128))
    wide = attributes(o_bits=16)
    assert_gives(iq_div, [int16(1, -1, 0), int16(0, 0, 0)], wide, int16(32767, -32768, 0))


def test_extremes():
    x, y = int8(-128, -128, 127, 127, -128), int8(-1, 1, -1, -128, -128)
    # 128 → 127, −128, −127, −0.99 → −1, 1
    assert_gives(iq_div, [x, y], attributes(), int8(127, -128, -127, -1, 1))


def test_scales():
    # 12/16 divided by 3/8 is 2: at scale 16 it is 32; −5/16 by 3/8 is −⅚, ·16 = −13⅓ → −13
    assert_gives(iq_div, [int8(12, -5), int8(3, 3)], attributes(16.0, 8.0, 16.0), int8(32, -13))
    # scale ¼: 12/3·8/16/4 = ½ → 1, −5/3·8/16/4 → 0
    assert_gives(iq_div, [int8(12, -5), int8(3, 3)], attributes(16.0, 8.0, 0.25), int8(1, 0))


def test_by_a_number():
    # the number 4 as the device takes it: 6/4 = 1½ → 2, −6/4 → −1
    four = np.array(4, np.int8)
    assert_gives(iq_div, [int8(6, -6, 127), four], attributes(16.0, 1.0, 16.0), int8(2, -1, 32))


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0), (16.0, 64.0, 8.0), (64.0, 4.0, 2.0), (4.0, 64.0, 16.0)], ids=str)
def test_every_pair_of_eight_bits_by_fractions(scales):
    x, y = (a.astype(np.int8) for a in np.meshgrid(np.arange(-128, 128), np.arange(-128, 128)))
    found = run_numpy(iq_div, [x, y], attributes(*scales)).ravel().tolist()
    ratio = Fraction(scales[1]) * Fraction(scales[2]) / Fraction(scales[0])
    low, high = limits(8)

    def exact(a, b):
        if b == 0:
            return high if a > 0 else low if a < 0 else 0
        return max(low, min(high, round_half_up(a * ratio / b)))

    assert found == [exact(a, b) for a, b in zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)]


PLAIN = [name for name in iq_div.functions if "__r" not in name]


@pytest.mark.parametrize("name", PLAIN)
def test_bound_name_is_the_division_of_torch(name):
    assert torch_object(name)(torch.tensor([6.0]), 4).tolist() == [1.5]
    bind = iq_div.functions[name]
    assert bind(None, 4) == {}
    assert "floor" in bind(None, 4, rounding_mode="floor").reason
    assert isinstance(bind(None, 0), Refusal)


def test_reversed():
    bind = iq_div.functions["torch.Tensor.__rtruediv__"]
    assert torch.Tensor.__rtruediv__(torch.tensor([4.0]), 6).tolist() == [1.5]
    assert bind(None, 6) == {}
    assert iq_div.orders[bind] == ("y", "x")
