# SPDX-License-Identifier: Apache-2.0
"""CPU time of commands from start to end, side by side: user and system time of a process of its own, median of several.

The commands take turns, so that a busy machine slows all of them alike. `--before SRC` names the `src` of another commit, for
example `git worktree add ../before 7ef6fe2e` and `--before ../before/src`: `linger quantize` is then measured with both.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from rows import Row, parser, ratio_of, report, spread_of

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

START = Path(__file__).resolve().parent.parent / "docs" / "start.md"
QUANTIZE = ["quantize", "my_net.py:make_net", "--data", "my_net.py:data", "--out", "my_net", "--overwrite", "--budget"]
BAR = 0.7
"""Of the CPU time before there was a `Network`, of which nearly half is the user's: torch, scikit-learn and the training."""


def cpu_seconds(arguments: list[str], folder: str, source: Path | None = None) -> float:
    """CPU seconds of a Python process; `source` is a folder to import linger from."""
    settings = ["OMP_NUM_THREADS=1", *([] if source is None else [f"PYTHONPATH={source}"])]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        ["env", *settings, sys.executable, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(options: argparse.Namespace) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(onnx.parser.parse_model(MODEL), Path(folder) / "m.onnx")
        times: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(options.rounds):
            for name, arguments in COMMANDS.items():
                times[name].append(cpu_seconds(arguments, folder))
    return [*(spread_of(name, seconds, unit="s") for name, seconds in times.items()), quantize_row(options)]


def quantize_row(options: argparse.Namespace) -> Row:
    """CPU time of `linger quantize` on the network of the start page, beside another commit's where one is named."""
    sources = {"now": START.parent.parent / "src"} | (
        {} if options.before is None else {"before": options.before.resolve()}
    )
    (my_net,) = re.findall(r'```python title="my_net.py"\n(.*?)```', START.read_text(encoding="utf-8"), re.DOTALL)
    arguments = ["-m", "linger", *QUANTIZE, "20 trials"]
    times: dict[str, list[float]] = {name: [] for name in sources}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_net.py").write_text(my_net, encoding="utf-8")
        for turn in range(options.rounds + 1):
            for name, source in sources.items():
                seconds = cpu_seconds(arguments, folder, source)
                times[name] += [seconds] if turn else []  # the first run compiles
    if options.before is None:
        return spread_of("linger quantize, network of the start page", times["now"], unit="s")
    return ratio_of("linger quantize now / before, network of the start page", times, "now", base="before", bar=BAR)


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--before", type=Path, metavar="SRC", help="the src of another commit")
    report(rows, arguments)


if __name__ == "__main__":
    main()
