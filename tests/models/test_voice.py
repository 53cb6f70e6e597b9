"""Who speaks when, as integers: silero-vad over a recorded conversation, chunk by chunk, its state carried on."""

import pytest
import torch
from real_models import voice
from real_models.packages import conversation

from tests.support.real_models import assert_proven, require

PACKAGES = ("silero_vad", "pyannote.audio")


def test_rebuilt_network_is_the_original():
    require(*PACKAGES)
    model, filters = voice.load()
    sound = conversation()[8 * 16000 : 10 * 16000]
    shipped = voice.original()
    with torch.no_grad():
        expected = [shipped(part[None], 16000) for part in sound.split(voice.CHUNK) if len(part) == voice.CHUNK]
    found, _ = voice.stream(model, voice.spectra(sound, filters))
    # the script and the layers add the same products in different orders on some CPUs. A result passes sums of 3·129, 3·128,
    # 3·64, 3·64, 256 and 128 products; any order moves each by at most n·2^-24 of what is added, together 1539·2^-24 < 1e-4
    torch.testing.assert_close(found, torch.cat(expected)[:, 0], rtol=0, atol=1e-4)


def judge(outcome):
    assert_proven(outcome, float_ops={})
    assert outcome.figures["same decision %"] >= 98
    assert outcome.share == 1


@pytest.mark.slow
def test_decisions_as_integers(tmp_path):
    require(*PACKAGES)
    outcome = voice.run(tmp_path, seconds=12, proven_on=20)
    judge(outcome)
    assert 50 <= outcome.figures["with speech"] <= outcome.figures["chunks"] - 50


@pytest.mark.slow
def test_decisions_over_the_whole_conversation(tmp_path):
    require(*PACKAGES)
    outcome = voice.run(tmp_path, proven_on=300)
    judge(outcome)
    assert outcome.figures["chunks"] == 937
