"""linger check."""

import json
import re
import sys

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from linger.cli import load_commands, main
from linger.graph import save
from tests.graph.files.test_external_data import with_weights
from tests.support.check_cases import text_model


@pytest.fixture
def models(folder, monkeypatch):
    """good.onnx has nothing, warned.onnx a dead node and an open size, wrong.onnx an odd scale and many dead nodes."""
    monkeypatch.chdir(folder)
    dead = " ".join(f"[k{i}] k{i} = Abs(x)" for i in range(9))
    texts = {
        "good": text_model("[n] y = Neg(x)", domains=""),
        "warned": text_model(
            "[n] y = Neg(x) [m] z = Abs(x)", inputs="float[n,2] x", outputs="float[n,2] y", domains=""
        ),
        "wrong": text_model(
            f"[q] q = thinker.Quant<data_bits=8, scale_x=3.0>(x) [d] y = thinker.Dequant<scale_o=3.0>(q) {dead}"
        ),
    }
    for name, proto in texts.items():
        onnx.save(proto, folder / f"{name}.onnx")
    return folder


def run(*arguments):
    result = CliRunner().invoke(load_commands(), ["check", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout


def fails(capsys, monkeypatch, *arguments):
    """Exit code and the one line of an error, through the program's own entry."""
    monkeypatch.setattr(sys, "argv", ["linger", "check", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert captured.out == ""
    return stop.value.code, captured.err


@pytest.mark.parametrize(
    ("file", "severity", "code"),
    [
        ("good.onnx", "note", 0),
        ("warned.onnx", "error", 0),
        ("warned.onnx", "warning", 1),
        ("warned.onnx", "note", 1),
        ("wrong.onnx", "error", 1),
        ("wrong.onnx", "note", 1),
    ],
)
def test_the_exit_code_follows_the_worst_finding(models, file, severity, code):
    assert run(file, "--fail-on", severity)[0] == code


def test_errors_fail_by_default(models):
    assert (run("wrong.onnx")[0], run("warned.onnx")[0]) == (1, 0)


def test_the_table_is_folded_unless_all_is_asked_for(models):
    _, text = run("wrong.onnx")
    assert "LGR402 odd-scale" in text
    assert "… 6 more" in text
    assert "k8 (Abs)" not in text
    assert text.rstrip().endswith("wrong.onnx: 2 errors, 9 warnings, 0 notes.")
    _, whole = run("wrong.onnx", "--all")
    assert "k8 (Abs)" in whole


def test_lines_are_not_broken_in_a_file_or_a_pipe(models):
    name = "a_very_long_name_" * 20
    onnx.save(text_model(f"[n] y = Neg(x) [{name}] z = Abs(x)", domains=""), models / "long.onnx")
    assert name in run("long.onnx")[1]


def test_several_files_at_once(models):
    code, text = run("good.onnx", "warned.onnx", "--fail-on", "warning")
    assert code == 1
    assert "good.onnx: nothing found." in text
    assert "warned.onnx: 0 errors, 1 warning, 1 note." in text


def test_json_and_sarif_for_programs(models):
    code, text = run("wrong.onnx", "good.onnx", "--format", "json")
    assert code == 1
    read = json.loads(text)
    assert [(f["path"], f["ok"]) for f in read["files"]] == [("wrong.onnx", False), ("good.onnx", True)]
    code, text = run("wrong.onnx", "--format", "sarif", "--all")
    assert code == 1
    assert len(json.loads(text)["runs"][0]["results"]) == 11


@pytest.mark.parametrize("form", ["table", "json", "sarif"])
def test_a_report_in_a_file_is_what_would_be_printed(models, form):
    _, printed = run("wrong.onnx", "--format", form)
    code, rest = run("wrong.onnx", "--format", form, "--out", "report")
    assert (code, rest) == (1, "")
    assert (models / "report").read_text(encoding="utf-8") == printed


def test_rules_are_left_out_by_id_or_name(models):
    assert run("wrong.onnx", "--ignore", "LGR402")[0] == 0
    assert run("wrong.onnx", "--ignore", "odd-scale,dead-node", "--fail-on", "note")[0] == 0
    assert run("warned.onnx", "--ignore", "dead-node", "--ignore", "LGR211", "--fail-on", "note")[0] == 0


def test_a_chip_may_be_asked(models):
    _, text = run("good.onnx", "--target", "venus")
    assert "LGR902 target-op" in text
    assert "venus's packer has no Neg" in text
    assert "good.onnx for venus: " in text


def test_weights_beside_the_model(models):
    save(with_weights(np.ones(5000, np.float32)), models / "big.onnx", external_data=True)
    assert run("big.onnx")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "none.onnx: there is no such file"),
        (["."], 2, "this is a folder"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        (["good.onnx", "--target", "pluto"], 2, "there is no chip 'pluto'"),
        (["good.onnx", "--ignore", "LGR000"], 2, "there is no rule LGR000"),
        (["good.onnx", "--out", "no/such/folder.json"], 2, "does not exist"),
        (["broken.onnx", "good.onnx", "none.onnx"], 2, "none.onnx: there is no such file"),
        (["broken.onnx", "good.onnx", "none.onnx"], 2, "broken.onnx: this is not a complete ONNX model"),
    ],
    ids=["missing", "folder", "broken", "chip", "rule", "out", "several", "several-first"],
)
def test_what_cannot_be_done_is_one_line(models, capsys, monkeypatch, arguments, code, message):
    before = sorted(path.name for path in models.iterdir())
    found, text = fails(capsys, monkeypatch, *arguments)
    assert found == code
    assert message in text
    assert "Traceback" not in text
    assert sorted(path.name for path in models.iterdir()) == before


def test_an_unreadable_file_leaves_an_old_report_as_it_is(models, capsys, monkeypatch):
    (models / "report.json").write_text("old")
    fails(capsys, monkeypatch, "good.onnx", "none.onnx", "--format", "json", "--out", "report.json")
    assert (models / "report.json").read_text() == "old"


@pytest.mark.parametrize("arguments", [[], ["good.onnx", "--format", "xml"], ["good.onnx", "--fail-on", "never"]])
def test_wrong_usage(models, arguments):
    assert run(*arguments)[0] == 2


def test_help_names_every_option(models):
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("--help")[1])
    for option in ("--target", "--format", "--out", "--fail-on", "--ignore", "--all"):
        assert option in text
