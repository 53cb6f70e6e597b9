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


def test_what_runs_a_file_needs_neither_torch_nor_pictures(folder):
    commands = [["run", "m.onnx"], ["verify", "m.onnx"], ["vectors", "m.onnx"], ["compare", "m.onnx", "m.onnx"]]
    commands.append(["report", "m.onnx"])
    assert not imported(folder, *commands) & {"torch", "matplotlib", "safetensors", "onnxscript"}
