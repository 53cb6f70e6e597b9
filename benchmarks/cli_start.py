# SPDX-License-Identifier: Apache-2.0
"""CPU time of commands from start to end, side by side: user and system time of a process of its own, median of several.

The commands take turns, so that a busy machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from rows import Row, parser, report, spread_of

MODEL = """<ir_version: 6, opset_import: ["": 11, "thinker": 1]>
g (float[n,3] x) => (float[n,3] y) {
  q = thinker.Quant<data_bits=8, scale_x=16.0>(x)
  y = thinker.Dequant<scale_o=16.0>(q)
}"""
PAGES = ("--help", "--version", "check --help", "ops")
ON_A_FILE = ("inspect m.onnx", "check m.onnx", "fix m.onnx", "run m.onnx", "verify m.onnx")
COMMANDS = {
    "python, nothing": ["-c", "pass"],
    "python, import typer and rich": ["-c", "import typer, typer.rich_utils"],
    "python, import onnx_ir": ["-c", "import onnx_ir"],
    "python, import onnxruntime": ["-c", "import onnxruntime"],
    **{f"linger {text}": ["-c", "from linger.cli import main; main()", *text.split()] for text in (*PAGES, *ON_A_FILE)},
}


def cpu_seconds(arguments: list[str], folder: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], cwd=folder, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(onnx.parser.parse_model(MODEL), Path(folder) / "m.onnx")
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(options.rounds):
            for name, arguments in COMMANDS.items():
                times[name].append(cpu_seconds(arguments, folder))
    return [spread_of(name, found, unit="s") for name, found in times.items()]


def main() -> None:
    report(rows, parser(__doc__, rounds=5))


if __name__ == "__main__":
    main()
