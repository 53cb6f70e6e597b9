"""linger compare."""

import json

import numpy as np
import onnx
import pytest

from tests.support.in_process import command
from tests.support.small_dialect import TENSORS, R, X, model

__all__ = ["command"]  # a fixture


@pytest.fixture
def folder(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    changed = model(("r = thinker.Relu(q)", "r = thinker.iqAbs<data_bits=8, o_bits=8, scale_x=16.0, scale_o=16.0>(q)"))
    onnx.save(changed, tmp_path / "other.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "dump.npz", **TENSORS)
    np.savez(tmp_path / "wrong.npz", x=X, r=R + 1)
    return tmp_path


def test_equal_is_exit_code_0(folder, command):
    done = command("compare", "m.onnx", "dump.npz")
    assert done.returncode == 0
    assert "Equal: 4 tensors, 24 values, 1 batch." in done.stdout
    assert done.stderr == ""


def test_different_is_exit_code_1(folder, command):
    done = command("compare", "m.onnx", "other.onnx", "--inputs", "x.npz")
    assert done.returncode == 1
    assert "First: r (Relu) at [0, 0, 0, 1] of batch 0: a has 0, b has 16." in done.stdout
    assert "Traceback" not in done.stderr


def test_json(folder, command):
    done = command("compare", "m.onnx", "wrong.npz", "--json")
    assert done.returncode == 1
    content = json.loads(done.stdout)
    assert (content["ok"], content["first"], content["differing"]) == (False, "r", 6)


def test_image(folder, command):
    assert command("compare", "m.onnx", "dump.npz", "--plot", "d.svg").returncode == 0
    assert (folder / "d.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m.onnx", "none.onnx"), "linger: none.onnx: there is no such file"),
        (("m.onnx", "empty"), "there is no dump in it"),
        (("dump.npz", "m.onnx"), "Give the ONNX file first"),
        (("m.onnx",), "missing argument"),
        (("m.onnx", "m.onnx", "--plot", "d.txt"), "Choose one of these endings"),
        (("m.onnx", "m.onnx", "--engine", "tpu"), "none of onnxruntime, numpy"),
    ],
    ids=["missing", "empty", "wrong order", "one", "image", "engine"],
)
def test_wrong_usage_is_one_line_and_exit_code_2(folder, command, arguments, message):
    (folder / "empty").mkdir()
    done = command("compare", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
