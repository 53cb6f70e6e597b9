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
    return done


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
@pytest.mark.thin
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
        ("run", "m.onnx", "--out"),
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


# where versions of typer differ in signs and in the case of a name, the parts of the sentence are compared
WRONG = {
    "no such command": ("quantise", "no such command 'quantise'"),
    "a command misspelt": ("verfy m.onnx", "Did you mean 'verify'?"),
    "an option for none": ("--nothing", ("no such option", "--nothing")),
    "no such option": ("ops --color", ("ops: no such option", "--color")),
    "an option misspelt": ("run m.onnx --sed 3", "--seed"),
    "no value": ("check m.onnx --target", "check: option '--target' requires an argument"),
    "no argument": ("inspect", ("inspect: missing argument", "'model'")),
    "no second argument": ("compare m.onnx", ("compare: missing argument", "'b'")),
    "one too many": ("run m.onnx x.npz", "run: got unexpected extra argument"),
    "no subcommand": ("analyse", "analyse: missing command"),
    "a subcommand misspelt": ("analyse weigths w.pt", "Did you mean 'weights'?"),
    "a seed below zero": ("run m.onnx --seed -1", "invalid value for '--seed'"),
    "a seed that is none": ("compare m.onnx m.onnx --seed x", "invalid value for '--seed'"),
    "no batches": ("verify m.onnx --batches 0", "invalid value for '--batches'"),
    "half a batch": ("vectors m.onnx --batches 0.5", "invalid value for '--batches'"),
    "a depth below zero": ("inspect m.onnx --depth -2", "invalid value for '--depth'"),
    "no such format": ("check m.onnx --format xml", "'xml' is not one of 'table', 'json', 'sarif'"),
    "no such format of vectors": ("vectors m.onnx --format xml", "choose among"),
    "two formats": ("check m.onnx --json --format sarif", "exclude each other"),
    "two tables": ("analyse weights w.pt --json --csv", "--json and --csv exclude each other"),
    "two places": ("run m.onnx --out a.npz --output b.npz", "--out and --output exclude each other"),
    "no such severity": ("check m.onnx --fail-on never", "invalid value for '--fail-on'"),
    "no such chip": ("check m.onnx --target pluto", "there is no chip 'pluto'"),
    "a chip misspelt": ("memory m.onnx --target Venus", "is 'venus' meant?"),
    "no such chip to show": ("targets pluto", "there is no chip 'pluto'"),
    "no such rule to ignore": ("check m.onnx --ignore LGR000", "there is no rule LGR000"),
    "no such rule to repair": ("repair m.onnx --rule no_rule", "no_rule"),
    "no such dialect": ("convert m.onnx --to tflite", "tflite"),
    "no such engine": ("compare m.onnx m.onnx --engine tensorrt", "tensorrt"),
    "no such level": ("verify m.onnx --level most", "most"),
    "no model": ("verify", "verify: Missing argument"),
    "a certificate and inputs": ("verify --certificate c.json --inputs x.npz", "Leave --inputs out"),
    "a machine and no C": ("verify m.onnx --target cortex-m4", "Give the folder with --c"),
    "sizes and inputs": ("run m.onnx --inputs x.npz --shape 1x3", "Leave --shape or --inputs out"),
    "sizes that do not fit": ("run m.onnx --shape 1x4", "--shape does not fit the file"),
    "no such machine": ("c m.onnx out --target cortex-m5", "Did you mean 'cortex-m55'?"),
    "batches and no proof": ("c m.onnx out --batches 2", "--batches belongs to --prove"),
    "an image of no kind": ("memory m.onnx --plot p.gif", "p.gif"),
    "one file for two": ("memory m.onnx --out p.svg --plot p.svg", "Give each a file of its own"),
    "no such schema": ("schema verfy", "is 'verify' meant?"),
    "a port beyond all": ("view m.onnx --port 70000", "invalid value for '--port'"),
    "a model to view that is none": ("view missing.onnx --no-browser", "missing.onnx: there is no such file"),
    "no epochs": ("demo --epochs 0", "invalid value for '--epochs'"),
    "a demo over others' files": ("demo --out dir", "not ours to replace"),
    "a demo in no folder": ("demo --out none/x", "does not exist"),
    "a model without data": ("quantize net.py:make", "--data"),
    "bits that nobody has": ("quantize net.py:make --data x.npz --bits 7", "7"),
    "a report of nothing": ("report", "report: missing argument"),
    "a report of no file": ("report none.onnx", "none.onnx"),
    "a doctor for somebody": ("doctor me", "doctor: got unexpected extra argument"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_usage_is_one_sentence_and_exit_code_2(mess, arguments, message):
    if arguments.startswith("view"):
        pytest.importorskip("netron")
    done = refused(mess, *arguments.split(), codes=(2,))
    said = done.stderr if isinstance(message, str) else done.stderr.lower()
    assert all(part in said for part in ([message] if isinstance(message, str) else message))
    assert done.stdout == ""


def test_there_are_many_wrong_uses_of_every_command():
    from linger.cli import COMMANDS

    assert len({arguments for arguments, _ in WRONG.values()}) >= 30
    assert set(COMMANDS) - {arguments.split()[0] for arguments, _ in WRONG.values()} == set()


RESHAPE = """<ir_version: 8, opset_import: ["": 13]>
g (float[n,3] x) => (float[n,k] y) <int64[2] s = {4, -1}> { y = Reshape(x, s) }"""


@pytest.mark.parametrize("command", ["run", "verify", "vectors"])
def test_onnx_runtimes_own_log_stays_inside(mess, command):
    onnx.save(onnx.parser.parse_model(RESHAPE), mess / "reshape.onnx")
    refused(mess, command, "reshape.onnx")
