"""--shape of linger run and linger verify."""

import json

import onnx
import pytest

from tests.support.command import run

TEXT = """<ir_version: 8, opset_import: ["": 13, "thinker": 1]> g (float[n,3] x, float[m] y) => (float[n,3] z, float[m] w) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  z = thinker.Dequant<scale_o=16.0>(q)
  l = Log(y)
  r = thinker.Quant<data_bits=8, scale_x=16.0>(l)
  w = thinker.Dequant<scale_o=16.0>(r)
}"""


@pytest.fixture
def folder(tmp_path):
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path


def shapes(folder, *given):
    """The shapes of the outputs, which are those of the inputs."""
    options = [part for text in given for part in ("--shape", text)]
    done = run("run", "m.onnx", "--json", *options, cwd=folder)
    return [tensor["shape"] for tensor in json.loads(done.stdout)["tensors"]] if not done.returncode else done.stderr


def test_open_sizes_are_as_asked_and_others_as_ever(folder):
    assert shapes(folder) == [[2, 3], [2]]
    assert shapes(folder, "x=5x3", "y=7") == [[5, 3], [7]]
    assert shapes(folder, "x=4×3") == [[4, 3], [2]]


def test_all_that_is_wrong_is_named(folder):
    given = ["x=5x4", "z=1", "5x3", "x=a", "y=1x1"]
    message = shapes(folder, *given)
    assert all(text in message for text in given)
    assert message.startswith("linger: --shape does not fit the file: ")
    assert "x is nx3" in message
    assert "no such input: there are x, y" in message


def test_run_and_verify_take_shapes_and_write_nothing_else(folder):
    shown = run("run", "m.onnx", "--shape", "x=5x3", "--shape", "y=7", cwd=folder)
    assert "5×3" in shown.stdout
    # the logarithm of a negative number is remarked on by numpy, and by nobody here
    proved = run("verify", "m.onnx", "--shape", "x=5x3", "--batches", "2", cwd=folder)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert (proved.returncode, proved.stderr) == (0, "")
    # 2 · (5·3 + 2) integers, in one sentence
    assert proved.stdout.startswith("m.onnx: 0 of 34 integers differ")
    assert len(proved.stdout.splitlines()) == 1
    assert len(run("verify", "m.onnx", "--all", cwd=folder).stdout.splitlines()) > 3


def test_shapes_of_files_that_hold_inputs_are_refused(folder):
    for command in ("run", "verify"):
        done = run(command, "m.onnx", "--inputs", "x.npz", "--shape", "x=5x3", cwd=folder)
        assert done.returncode == 2
        assert "Leave --shape" in done.stderr
