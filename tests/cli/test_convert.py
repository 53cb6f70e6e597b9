"""linger convert."""

import onnx
import pytest

from tests.support.command import run
from tests.support.newer_text import VENUS, parse, types

PAIR = f"{VENUS}, x_bits=8, y_bits=8, o_bits=8, scale_x=16.0, scale_y=16.0, scale_o=16.0"


@pytest.fixture
def newer(folder, monkeypatch):
    body = f"a = linger.QAdd<{PAIR}>(x, x) y = linger.QGLU<dim=0>(a)"
    onnx.save(parse(body, "int8[2] x", "int8[2] y"), folder / "glu.onnx")
    onnx.save(parse(f"y = linger.QAdd<{PAIR}>(x, x)", "int8[2] x", "int8[2] y"), folder / "n.onnx")
    monkeypatch.chdir(folder)
    return folder


def test_from_the_command_line(newer):
    done = run("convert", "n.onnx", "--to", "thinker", cwd=newer)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "n_thinker.onnx: 1 nodes converted, 0 left as they are."
    assert types(newer / "n_thinker.onnx") == [("thinker", "iqAdd")]


def test_into_a_file_of_ones_own(newer):
    run("convert", "n.onnx", "--to", "thinker", "--out", "older.onnx", cwd=newer)
    done = run("convert", "older.onnx", "--to", "linger", "--out", "older.onnx", cwd=newer)
    assert types(newer / "older.onnx") == [("linger", "QAdd")]
    assert "older.onnx: 1 nodes converted" in done.stdout


def test_in_part(newer):
    done = run("convert", "glu.onnx", "--to", "thinker", "--partial", cwd=newer)
    assert "QGLU" in done.stdout
    assert "1 nodes converted, 1 left as they are" in done.stdout
    assert types(newer / "glu_thinker.onnx") == [("thinker", "iqAdd"), ("linger", "QGLU")]


@pytest.mark.parametrize(
    ("model", "to", "out", "code", "message"),
    [
        ("glu.onnx", "thinker", None, 1, "y (QGLU)"),
        ("no.onnx", "thinker", None, 2, "there is no such file"),
        ("n.onnx", "../onnx", None, 2, "there is no dialect"),
        ("broken.onnx", "thinker", None, 1, "broken.onnx"),
        (".", "thinker", None, 2, "this is a folder"),
        ("n.onnx", "thinker", "no/y.onnx", 2, "does not exist"),
    ],
    ids=["no equivalent", "missing", "dialect", "broken", "folder", "output"],
)
def test_wrong_calls_write_nothing(newer, fails, model, to, out, code, message):
    more = () if out is None else ("--out", out)
    fails("convert", model, "--to", to, *more, code=code, message=message)
