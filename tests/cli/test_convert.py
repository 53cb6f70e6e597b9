"""linger convert."""

from pathlib import Path

import onnx
import pytest

from linger.cli.convert import convert
from linger.errors import GraphError, UnsupportedError, UsageError
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


def test_into_a_file_of_ones_own(newer, capsys):
    convert(Path("n.onnx"), "thinker", Path("older.onnx"))
    convert(Path("older.onnx"), "linger", Path("older.onnx"))
    assert types(newer / "older.onnx") == [("linger", "QAdd")]
    assert "older.onnx: 1 nodes converted" in capsys.readouterr().out


def test_in_part(newer, capsys):
    convert(Path("glu.onnx"), "thinker", partial=True)
    shown = capsys.readouterr().out
    assert "QGLU" in shown
    assert "1 nodes converted, 1 left as they are" in shown
    assert types(newer / "glu_thinker.onnx") == [("thinker", "iqAdd"), ("linger", "QGLU")]


@pytest.mark.parametrize(
    ("model", "to", "out", "error", "message"),
    [
        ("glu.onnx", "thinker", None, UnsupportedError, r"y \(QGLU\)"),
        ("no.onnx", "thinker", None, UsageError, "there is no such file"),
        ("n.onnx", "../onnx", None, UsageError, "there is no dialect"),
        ("broken.onnx", "thinker", None, GraphError, "broken.onnx"),
        (".", "thinker", None, UsageError, "this is a folder"),
        ("n.onnx", "thinker", "no/y.onnx", UsageError, "does not exist"),
    ],
    ids=["no equivalent", "missing", "dialect", "broken", "folder", "output"],
)
def test_wrong_calls_write_nothing(newer, model, to, out, error, message):
    before = sorted(p.name for p in newer.iterdir())
    with pytest.raises(error, match=message):
        convert(Path(model), to, None if out is None else Path(out))
    assert sorted(p.name for p in newer.iterdir()) == before
