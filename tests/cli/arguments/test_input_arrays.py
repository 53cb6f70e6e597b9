"""Input arrays for commands."""

import json

import numpy as np
import pytest

from tests.support.command import run


def test_names_may_differ_when_the_count_fits(folder):
    np.savez(folder / "other.npz", image=np.ones((1, 3), np.float32))
    done = run("run", "m.onnx", "--inputs", "other.npz", "--json", cwd=folder)
    assert (done.returncode, json.loads(done.stdout)["tensors"][0]["shape"]) == (0, [1, 3])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.npz", "no such file"),
        ("broken.onnx", "not a readable .npz"),
        ("two.npz", "it holds a, b; the model's inputs are x"),
    ],
)
def test_unusable_file_is_one_sentence(folder, fails, name, message):
    np.savez(folder / "two.npz", a=np.ones(1), b=np.ones(1))
    fails("run", "m.onnx", "--inputs", name, code=2, message=message)


def test_pickled_arrays_are_never_loaded(folder, fails):
    np.savez(folder / "evil.npz", x=np.array([print], dtype=object))
    fails("run", "m.onnx", "--inputs", "evil.npz", code=2, message="not a readable")
