"""Input arrays for commands."""

import numpy as np
import pytest

from linger import Session
from linger.cli.arguments.options import read_feeds
from linger.errors import UsageError


@pytest.fixture
def session(folder):
    return Session(folder / "m.onnx")


def test_names_may_differ_when_the_count_fits(folder, session):
    np.savez(folder / "other.npz", image=np.ones((1, 3), np.float32))
    assert list(read_feeds(folder / "other.npz", session)) == ["x"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", "no such file"),
        ("broken.onnx", "not a readable .npz"),
        ("two.npz", "it holds a, b; the model's inputs are x"),
    ],
)
def test_unusable_file_is_one_sentence(folder, session, name, message):
    np.savez(folder / "two.npz", a=np.ones(1), b=np.ones(1))
    with pytest.raises(UsageError, match=message):
        read_feeds(folder / name, session)


def test_pickled_arrays_are_never_loaded(folder, session):
    np.savez(folder / "evil.npz", x=np.array([print], dtype=object))
    with pytest.raises(UsageError, match="not a readable"):
        read_feeds(folder / "evil.npz", session)
