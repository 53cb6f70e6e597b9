"""What commands import: nothing that they do not need."""

import json
import subprocess
import sys

from linger.cli import COMMANDS

HEAVY = {
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "torch",
    "sympy",
    "matplotlib",
    "safetensors",
    "onnxscript",
    "scipy",
}
CHILD = """
import json, sys
from linger.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["linger", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code or arguments == ["nosuch"], arguments
print()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(folder, *commands):
    """The heavy packages that a fresh process has after it ran some commands, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps(commands)], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return HEAVY & set(json.loads(done.stdout.splitlines()[-1]))


def test_help_and_version_import_nothing_heavy(tmp_path):
    pages = [[command, "--help"] for command in COMMANDS]
    assert imported(tmp_path, ["--help"], ["--version"], ["nosuch"], *pages) == set()


def test_the_ops_are_listed_without_onnx(tmp_path):
    assert imported(tmp_path, ["ops"]) <= {"numpy"}


def test_what_only_reads_a_file_does_not_start_a_runtime(folder):
    commands = [
        ["inspect", "m.onnx"],
        ["check", "m.onnx"],
        ["memory", "m.onnx"],
        ["convert", "m.onnx", "--to", "linger"],
        ["repair", "m.onnx"],
    ]
    assert not imported(folder, *commands) & {"onnxruntime", "torch", "matplotlib", "safetensors", "onnxscript"}


def test_what_runs_a_file_needs_neither_torch_nor_images(folder):
    commands = [["run", "m.onnx"], ["verify", "m.onnx"], ["vectors", "m.onnx"], ["compare", "m.onnx", "m.onnx"]]
    commands.append(["report", "m.onnx"])
    assert not imported(folder, *commands) & {"torch", "matplotlib", "safetensors", "onnxscript"}


REFUSED = """
import json, sys
from linger.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["linger", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code == 2, arguments
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_wrong_paths_and_settings_of_quantize_are_refused_before_torch_and_all_at_once(tmp_path):
    (tmp_path / "net.py").write_text("import torch")
    (tmp_path / "x.npz").write_bytes(b"never read")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    right = ["net.py:make", "--data", "x.npz"]
    wrong = [
        (["nosuch.py:make", "--data", "x.npz"], "nosuch.py: there is no such file"),
        (["net.py", "--data", "x.npz"], "net.py: this names no model"),
        (["net.py:make", "--data", "nosuch.npz"], "nosuch.npz: there is no such file"),
        (["net.py:make", "--data", "nosuch.py:data"], "nosuch.py: there is no such file"),
        ([*right, "--test-data", "nosuch"], "nosuch: there is no such file or folder"),
        ([*right, "--checkpoint", "nosuch.pth"], "nosuch.pth: there is no such file"),
        ([*right, "--labels", "nosuch.npy"], "nosuch.npy: there is no such file"),
        (["--config", "nosuch.yaml"], "nosuch.yaml: there is no such file"),
        ([*right, "--bits", "7"], "bits '7': no such widths"),
        ([*right, "--budget", "soon"], "budget='soon' is no budget"),
        ([*right, "--goal", "120 %"], "goal='120 %' is no share of decisions"),
        ([*right, "--target", "mars"], "there is no chip 'mars'"),
        ([*right, "--form", "odd"], "there is no form 'odd'"),
        ([*right, "--opset", "3"], "opset 3 is not available"),
        ([*right, "--out", "full"], "its content is not ours to replace"),
        ([*right, "--c", "full"], "its content is not ours to replace"),
        (["net.py:make", "--data", "full"], "full: none of its 1 files is an image or a sound"),
        (["net.py:make", "--data", "empty"], "empty: the folder is empty"),
        (["nosuch_package.nets:make", "--data", "x.npz"], "nosuch_package.nets: there is no such module here"),
        (["net.py:make", "--data", "nosuch_package:data"], "nosuch_package: there is no such module here"),
        ([*right, "--metric", "nosuch_package:f"], "nosuch_package: there is no such module here"),
        ([*right, "--scale", "loud"], "--scale loud: no such range"),
        ([*right, "--size", "1x2x3"], "--size 1x2x3: an image has a height and a width"),
        ([*right, "--mean", "grey"], "--mean grey: expected one number"),
        ([*right, "--rate", "8000"], "--rate (for sounds) means nothing for x.npz"),
    ]
    every = [
        "a.py:make",
        "--data",
        "b.npz",
        "--checkpoint",
        "c.pth",
        "--bits",
        "7",
        "--budget",
        "soon",
        "--out",
        "full",
    ]
    child = [
        sys.executable,
        "-c",
        REFUSED,
        json.dumps([["quantize", *arguments] for arguments in [*(a for a, _ in wrong), every]]),
    ]
    done = subprocess.run(child, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"torch", "onnx"} & set(json.loads(done.stdout))
    *lines, last = done.stderr.splitlines()
    assert len(lines) == len(wrong)
    for line, (_, message) in zip(lines, wrong, strict=True):
        assert message in line
    for message in ("a.py: there", "b.npz: there", "c.pth: there", "bits '7'", "budget='soon'", "full: the folder"):
        assert message in last


def test_wrong_paths_of_analyse_are_refused_before_torch(tmp_path):
    (tmp_path / "net.py").write_text("import torch")
    wrong = [
        (["weights", "nosuch.pth"], "nosuch.pth: there is no such file"),
        (["layers", "nosuch.py:make", "--shape", "1x4"], "nosuch.py: there is no such file"),
        (
            ["layers", "net.py:make", "--inputs", "nosuch.npz"],
            "nosuch.npz: there is no such file. Give an .npz or .npy file",
        ),
        (
            ["layers", "net.py:make", "--shape", "1x4", "--checkpoint", "nosuch.pth"],
            "nosuch.pth: there is no such file",
        ),
        (["layers", "net.py:make"], "give --inputs with typical data, or --shape"),
    ]
    child = [sys.executable, "-c", REFUSED, json.dumps([["analyse", *arguments] for arguments, _ in wrong])]
    done = subprocess.run(child, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "torch" not in json.loads(done.stdout)
    for line, (_, message) in zip(done.stderr.splitlines(), wrong, strict=True):
        assert message in line
