"""linger vectors."""

import numpy as np
import onnx
import pytest

from tests.support.in_process import command
from tests.support.small_dialect import X, model

__all__ = ["command"]  # a fixture


@pytest.fixture
def folder(tmp_path):
    onnx.save(model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=X)
    return tmp_path


def test_a_folder_beside_the_model(folder, command):
    done = command("vectors", "m.onnx", "--inputs", "x.npz", "--header")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "m_vectors: 5 tensors, 1 batch.\n"
    assert sorted(p.name for p in (folder / "m_vectors").iterdir()) == [
        "README.txt",
        "batch_000.npz",
        "bin",
        "manifest.json",
        "text",
        "vectors.h",
    ]
    assert command("compare", "m.onnx", "m_vectors").returncode == 0


def test_options(folder, command):
    done = command("vectors", "m.onnx", "--out", "v", "--format", "bin", "--batches", "2", "--seed", "3")
    assert done.stdout == "v: 5 tensors, 2 batches.\n"
    assert sorted(p.name for p in (folder / "v").iterdir()) == ["README.txt", "bin", "manifest.json"]
    again = command("vectors", "m.onnx", "--out", "v")
    assert again.returncode == 2
    assert "v: the folder exists" in again.stderr
    assert command("vectors", "m.onnx", "--out", "v", "--force").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.onnx",), "no such file"),
        (("m.onnx", "--format", "hex"), "choose among npz, bin, text and all"),
        (("m.onnx", "--inputs", "none.npz"), "no such file"),
        (("m.onnx", "--batches", "0"), "invalid value"),
    ],
    ids=["model", "format", "inputs", "batches"],
)
def test_wrong_usage_is_one_line_and_leaves_nothing(folder, command, arguments, message):
    before = sorted(p.name for p in folder.iterdir())
    done = command("vectors", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == before
