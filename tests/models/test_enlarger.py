"""Enlarged photographs, as integers: waifu2x's upconv7."""

import pytest
from real_models import enlarger

from tests.support.real_models import assert_proven, require

PACKAGES = ("waifu2x", "skimage", "sklearn")


def judge(outcome):
    """No photograph loses more than half a decibel against the float network."""
    assert_proven(outcome, float_ops={})
    lost = {name: figure for name, figure in outcome.figures.items() if name.endswith("dB lost")}
    assert {name: figure for name, figure in lost.items() if figure > 0.5} == {}
    assert len(lost) == 3
    assert outcome.share == 1


@pytest.mark.slow
def test_enlarged_as_integers(tmp_path):
    require(*PACKAGES)
    judge(enlarger.run(tmp_path, side=64))


@pytest.mark.slow
def test_enlarged_as_integers_on_larger_pictures(tmp_path):
    require(*PACKAGES)
    judge(enlarger.run(tmp_path, side=192))


@pytest.mark.slow
def test_8_bits_lose_more_than_a_decibel(tmp_path):
    """Why the layers are wide: the reason given in the example is true."""
    require(*PACKAGES)
    outcome = enlarger.run(tmp_path, side=128, widths={})
    assert_proven(outcome, float_ops={})
    assert outcome.figures["flower dB lost"] > 1
