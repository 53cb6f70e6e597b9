"""linger run."""

import numpy as np

from tests.support.command import run


def test_outputs_are_written(folder):
    done = run("run", "m.onnx", "--inputs", "x.npz", "--output", "y.npz", "--all", cwd=folder)
    assert done.returncode == 0
    with np.load(folder / "y.npz") as file:
        assert file["y"].tolist() == [[1.0, 0.0, 7.9375]]
        assert file["q"].tolist() == [[16, -16, 127]]


def test_random_inputs_are_made_up(folder):
    done = run("run", "m.onnx", "--seed", "3", cwd=folder)
    assert done.returncode == 0
    assert "2×3" in done.stdout


def test_missing_output_folder_is_one_line(fails):
    fails("run", "m.onnx", "--output", "no/y.npz", code=2, message="does not exist")
