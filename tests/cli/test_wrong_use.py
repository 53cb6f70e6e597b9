"""The command line in the hands of somebody who gets everything wrong: one sentence each, and nothing on disk."""

import logging
import os

import numpy as np
import onnx
import pytest

from tests.support.command import run

LONG = "n" * 5000
ODD = ("empty", "garbage", "text", "dir", "missing", "pipe", "loop", LONG, "", ".", "/", "a\nb", "m.onnx/x")


@pytest.fixture
def mess(folder):
    (folder / "empty").write_bytes(b"")
    (folder / "garbage").write_bytes(bytes(range(256)))
    (folder / "text").write_text("hello\n")
    (folder / "dir").mkdir()
    (folder / "dir" / "x").write_text("1")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    np.savez(folder / "other.npz", a=np.zeros(2), b=np.zeros(2))
    np.savez(folder / "shape.npz", x=np.zeros((1, 4), np.float32))
    np.savez(folder / "letters.npz", x=np.array([["a", "b", "c"]]))
    return folder


def refused(folder, *arguments, codes=(1, 2)):
    before = sorted(p.name for p in folder.iterdir())
    done = run(*arguments, cwd=folder)
    assert done.returncode in codes, arguments
    assert done.stderr.startswith("linger: "), (arguments, done.stderr)
    assert done.stderr.count("\n") == 1, (arguments, done.stderr)
    assert len(done.stderr) < 6000
    assert sorted(p.name for p in folder.iterdir()) == before, arguments


def test_what_libraries_log_of_a_file_is_not_shown(folder, monkeypatch):
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }'
    )
    proto.graph.initializer[0].ClearField("name")
    onnx.save(proto, folder / "unnamed.onnx")
    monkeypatch.setattr(logging.root, "handlers", [])  # as in a process of its own, where such lines go to stderr
    done = run("check", "unnamed.onnx", cwd=folder)
    assert "unnamed.onnx: 1 error" in done.stdout
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("command", ["check", "inspect", "memory", "run", "verify", "repair", "vectors", "convert"])
def test_models_that_are_none(mess, command):
    for name in ODD:
        refused(mess, command, name, *(("--to", "linger") if command == "convert" else ()))


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "m.onnx", "--inputs"),
        ("verify", "m.onnx", "--inputs"),
        ("verify", "m.onnx", "--recordings"),
        ("verify", "--certificate"),
        ("vectors", "m.onnx", "--inputs"),
        ("compare", "m.onnx", "m.onnx", "--inputs"),
    ],
    ids=" ".join,
)
def test_inputs_that_are_none(mess, arguments):
    for name in (*ODD, "other.npz", "shape.npz", "letters.npz"):
        if name == "other.npz" and "--recordings" in arguments:
            continue  # tensors that the file does not have are a difference, with its own sentence
        refused(mess, *arguments, name)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "m.onnx", "--output"),
        ("check", "m.onnx", "--out"),
        ("verify", "m.onnx", "--write-certificate"),
        ("vectors", "m.onnx", "--out"),
        ("convert", "m.onnx", "--to", "linger", "--out"),
    ],
    ids=" ".join,
)
def test_targets_that_cannot_be_written(mess, arguments):
    for name in ("dir", "missing/x", LONG, "loop", "/", "m.onnx/x"):
        refused(mess, *arguments, name, codes=(2,))


def test_a_seed_below_zero_is_wrong_usage(mess):
    done = run("run", "m.onnx", "--seed", "-1", cwd=mess)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


RESHAPE = """<ir_version: 8, opset_import: ["": 13]>
g (float[n,3] x) => (float[n,k] y) <int64[2] s = {4, -1}> { y = Reshape(x, s) }"""


@pytest.mark.parametrize("command", ["run", "verify", "vectors"])
def test_onnx_runtimes_own_log_stays_inside(mess, command):
    onnx.save(onnx.parser.parse_model(RESHAPE), mess / "reshape.onnx")
    refused(mess, command, "reshape.onnx")
