"""linger verify."""

import json
import re
import sys
from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from linger import Recording, cli, save_recordings
from tests.runtime.test_session import TEXT
from tests.support.c_compiler import require_compiler
from tests.support.command import run
from tests.support.recorded import Q, X, recording


@dataclass
class Done:
    """What a command did."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def call(folder, monkeypatch, capsys):
    """Runs a command in this process, which saves a second each."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")

    def run_here(*arguments):
        monkeypatch.setattr(sys, "argv", ["linger", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        shown = capsys.readouterr()
        return Done(caught.value.code or 0, shown.out, shown.err)

    return run_here


def test_verdict_is_printed(folder):
    done = run("verify", "m.onnx", cwd=folder)
    assert done.returncode == 0
    assert "0 of 90 integers differ" in done.stdout
    assert done.stderr == ""


def test_inputs_are_read(call):
    assert "0 of 6 integers differ" in call("verify", "m.onnx", "--inputs", "x.npz").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["none.onnx"], 2, "linger: none.onnx: there is no such file. Give the path of an ONNX model.\n"),
        (["broken.onnx"], 1, "not a complete ONNX model"),
        ([], 2, "Missing argument"),
    ],
    ids=["missing file", "broken file", "missing argument"],
)
def test_what_is_no_model_is_one_line(folder, call, arguments, code, message):
    before = sorted(p.name for p in folder.iterdir())
    done = call("verify", *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == before


def test_recordings_levels_and_json(folder, call):
    save_recordings([recording(), recording()], folder / "recorded")
    done = call("verify", "m.onnx", "--recordings", "recorded", "--level", "all", "--level", "basic", "--json")
    content = json.loads(done.stdout)
    assert (done.returncode, content["ok"], content["integers"], content["batches"]) == (0, True, 12, 2)
    assert content["levels"] == ["all", "basic"]
    assert [t["name"] for t in content["tensors"]] == ["q", "r"]
    assert content["narrow"] == ["q", "r"]


def test_a_difference_is_exit_code_1(folder, call):
    save_recordings(recording(integers={"q": Q, "r": Q}), folder / "wrong.npz")
    done = call("verify", "m.onnx", "--recordings", "wrong.npz", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["ok"] is False
    assert "r[0, 1] of batch 0: recording has -16, numpy has 0; made by r (Relu), its inputs agree" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_certificate_is_written_and_checked_again(folder, call):
    assert call("verify", "m.onnx", "--batches", "2", "--write-certificate", "c.json").returncode == 0
    again = call("verify", "--certificate", "c.json")
    assert again.returncode == 0
    assert "c.json holds. 0 of 24 integers differ" in again.stdout
    elsewhere = call("verify", "m.onnx", "--certificate", "c.json", "--level", "disable", "--json")
    assert json.loads(elsewhere.stdout)["levels"] == ["disable"]


def test_a_false_certificate_is_exit_code_1(folder, call):
    call("verify", "m.onnx", "--inputs", "x.npz", "--write-certificate", "c.json")
    content = json.loads((folder / "c.json").read_text())
    content["tensors"][0]["saturated"] += 1
    (folder / "c.json").write_text(json.dumps(content))
    done = call("verify", "--certificate", "c.json")
    assert done.returncode == 1
    assert done.stderr.startswith("linger: c.json: this certificate does not hold: it was changed after it was written")
    assert "q (saturated 2 instead of 1)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m.onnx", "--level", "most"), "unknown: most. Choose among disable, basic, extended, all"),
        (("m.onnx", "--recordings", "none"), "there is no such file"),
        (("m.onnx", "--recordings", "m.onnx"), "recordings are .npz files"),
        (("m.onnx", "--inputs", "broken.onnx"), "recordings are .npz files"),
        (("--certificate", "none.json"), "there is no such file"),
        (("--certificate", "c.json", "--inputs", "x.npz"), "Leave --inputs out"),
        (("--certificate", "c.json", "--write-certificate", "d.json"), "Leave --write-certificate out"),
        (("m.onnx", "--write-certificate", "none/c.json"), "does not exist"),
        (("m.onnx", "--batches", "0"), "invalid value"),
        ((".",), "this is a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_exit_code_2(folder, call, arguments, message):
    before = sorted(p.name for p in folder.iterdir())
    done = call("verify", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_recording_that_fits_no_file_is_wrong_usage(folder, call):
    save_recordings(Recording(inputs=[X, X]), folder / "two.npz")
    np.savez(folder / "z.npz", z=X, y=X)
    done = call("verify", "m.onnx", "--recordings", "two.npz")
    assert (done.returncode, "the file has 1 inputs (x), 2 were given" in done.stderr) == (2, True)
    done = call("verify", "m.onnx", "--inputs", "z.npz")
    assert (done.returncode, "it holds z, y; the model's inputs are x" in done.stderr) == (2, True)


@pytest.fixture
def c_folder(folder):
    """The model as C."""
    from linger.c import export

    require_compiler()
    return export(folder / "m.onnx", folder / "c")


def test_compiled_c_is_held_against_the_file(c_folder, call):
    shown = call("verify", "m.onnx", "--c", "c", "--batches", "2", "--write-certificate", "c.json")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert re.search(r"Witness: C \(.* -O2 on host\): 0 of 24 integers differ \(2 tensors\)", shown.stdout)
    alone = call("verify", "--certificate", "c.json", "--json")
    assert len(json.loads(alone.stdout)["not_asked"]) == 1
    content = json.loads(call("verify", "--certificate", "c.json", "--c", "c", "--json").stdout)
    assert content["not_asked"] == []
    assert [(w["integers"], w["differing"], w["origin"]["target"]) for w in content["witnesses"]] == [(24, 0, "host")]


def test_c_that_differs_is_exit_code_1(folder, c_folder, call):
    onnx.save(onnx.parser.parse_model(TEXT.replace("Relu", "Neg")), folder / "m.onnx")
    manifest = json.loads((c_folder / "manifest.json").read_text())
    manifest.pop("model", None)  # a folder that does not say what it was made from
    (c_folder / "manifest.json").write_text(json.dumps(manifest))
    done = call("verify", "m.onnx", "--c", "c")
    assert done.returncode == 1
    assert re.search(r"First: r\[0, 0\] of batch 0: numpy has .*, C \(.* on host\) has ", done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "host"), "Give the folder with --c"),
        (("--c", "none"), "there is no such folder"),
        (("--c", "."), "this is no sound folder of exported C"),
        (("--c", ".", "--target", "cortex-m5"), "Did you mean 'cortex-m55'"),
    ],
    ids=["target alone", "no folder", "no C", "unknown target"],
)
def test_wrong_use_of_c_is_exit_code_2(call, arguments, message):
    done = call("verify", "m.onnx", *arguments)
    assert (done.returncode, message in done.stderr, done.stderr.count("\n")) == (2, True, 1)


def test_open_sizes_are_tried_at_others(folder, call):
    content = json.loads(call("verify", "m.onnx", "--json").stdout)
    assert (content["sizes"], content["batches"]) == (["x 3×3", "x 4×3"], 6)
    given = json.loads(call("verify", "m.onnx", "--inputs", "x.npz", "--json").stdout)
    assert (given["sizes"], given["batches"]) == ([], 1)
