"""Faces, as integers: the three networks of MTCNN on windows of a photograph and on small portraits."""

import pytest
from real_models import faces

from tests.support.real_models import assert_proven, require

PACKAGES = ("facenet_pytorch", "skimage")
NAMES = ["onet", "pnet", "rnet"]


def judge(outcome, name):
    assert_proven(outcome, float_ops={})
    assert outcome.figures["faces"] >= 10
    assert outcome.figures["same decision %"] >= 97
    # of the window's side: a face of 100 pixels is found within three pixels on average, ten at most
    assert outcome.figures["frame off by, mean"] <= 0.03
    assert outcome.figures["frame off by, most"] <= 0.10
    assert outcome.share == 1


@pytest.mark.parametrize("name", ["pnet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("onet", "rnet"))])
def test_faces_as_integers(name, tmp_path):
    require(*PACKAGES)
    judge(faces.run(tmp_path, name, every=4, proven_on=4), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_window_as_integers(name, tmp_path):
    require(*PACKAGES)
    judge(faces.run(tmp_path, name, proven_on=64), name)
