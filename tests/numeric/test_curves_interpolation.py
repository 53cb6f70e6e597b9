"""The geometry of interpolation, held against torch."""

import itertools
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F

from tests.support.arithmetic import curves

pytestmark = pytest.mark.needs_torch

SIZES = (1, 2, 3, 5, 7, 8, 13, 33)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_places_are_torchs(mode):
    for old, new in itertools.product(SIZES, (*SIZES, 100, 257)):
        expected = F.interpolate(torch.arange(old).float()[None, None], size=new, mode=mode)[0, 0].long().tolist()
        assert list(curves.nearest_places(old, new, None, is_exact=mode == "nearest-exact")) == expected


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("factor", [0.3, 0.5, 0.75, 1.1, 1.3, 1.7, 2.5, 3.3333, 7.01])
def test_nearest_places_by_a_factor_are_torchs(mode, factor):
    for old in SIZES:
        new = curves.output_sizes((old,), None, factor)[0][0]
        if new:
            x = torch.arange(old).float()[None, None]
            expected = F.interpolate(x, scale_factor=factor, mode=mode)[0, 0].long().tolist()
            assert list(curves.nearest_places(old, new, factor, is_exact=mode == "nearest-exact")) == expected


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("factor", [None, 0.6, 1.5, 2.0, 2.7])
def test_linear_weights_are_torchs(align_corners, factor):
    for old, wanted in itertools.product(SIZES, SIZES):
        new = wanted if factor is None else int(old * factor)
        if new == 0:
            continue
        setting = {"size": new} if factor is None else {"scale_factor": factor}
        expected = F.interpolate(torch.eye(old)[None], mode="linear", align_corners=align_corners, **setting)[0].T
        weights = torch.tensor(curves.linear_weights(old, new, factor, align_corners=align_corners))
        assert weights.sum(1).tolist() == [2**14] * new
        assert weights.min() >= 0
        # half a step of Q14, and torch's own float32: positions up to 33 are off by 2^-18
        assert (weights / 2**14 - expected).abs().max() <= 2.0**-15 + 2.0**-17


def test_weights_by_hand():
    # 2 → 3, corners aligned: the middle is half of both
    assert curves.linear_weights(2, 3, None, align_corners=True) == ((16384, 0), (8192, 8192), (0, 16384))
    # 3 → 2: (0 + ½)·1½ − ½ = ¼ and 1¾
    assert curves.linear_weights(3, 2, None, align_corners=False) == ((12288, 4096, 0), (0, 4096, 12288))
    # 3 → 7, corners aligned: a third is 5461.33 → 5461, two thirds 10922.67 → 10923
    assert curves.linear_weights(3, 7, None, align_corners=True)[1] == (10923, 5461, 0)
    assert curves.linear_weights(3, 7, None, align_corners=True)[2] == (5461, 10923, 0)
    # one pixel
    assert curves.linear_weights(1, 3, None, align_corners=False) == ((16384,),) * 3
    assert curves.linear_weights(4, 1, None, align_corners=True) == ((16384, 0, 0, 0),)


def test_ties_of_a_weight_go_up():
    # 2 → 2^15 + 1, corners aligned: place 1 is 2^-15, half a step of Q14
    assert Fraction(1, 2**15) * 2**14 == Fraction(1, 2)
    assert curves.linear_weights(2, 2**15 + 1, None, align_corners=True)[1] == (16383, 1)


def test_sizes():
    assert curves.output_sizes((4, 5), 7, None) == ((7, 7), (None, None))
    assert curves.output_sizes((4, 5), None, (2, 0.5)) == ((8, 2), (2.0, 0.5))
    assert curves.output_sizes((4, 5), None, None) is None
    assert curves.output_sizes((4, 5), 3, 2.0) is None
    assert curves.output_sizes((4, 5), (1, 2, 3), None) is None
    assert curves.output_sizes((4, 5), None, (1.0,)) is None
