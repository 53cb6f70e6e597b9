"""linger verify."""

from tests.support.command import run


def test_verdict_is_printed(folder):
    done = run("verify", "m.onnx", cwd=folder)
    assert done.returncode == 0
    assert "0 of 48 integers differ" in done.stdout
    assert done.stderr == ""


def test_inputs_are_read(folder):
    assert "0 of 6 integers differ" in run("verify", "m.onnx", "--inputs", "x.npz", cwd=folder).stdout


def test_missing_file_is_one_line(fails):
    fails(
        "verify",
        "none.onnx",
        code=2,
        message="linger: none.onnx: there is no such file. Give the path of an ONNX model.\n",
    )


def test_broken_file_is_one_line(fails):
    fails("verify", "broken.onnx", code=1, message="not a complete ONNX model")


def test_missing_argument_is_a_usage_error(fails):
    fails("verify", code=2, message="Missing argument")
