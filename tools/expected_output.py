# SPDX-License-Identifier: Apache-2.0
"""Run the examples with small arguments and store what they print in tests/data/examples.

    python tools/expected_output.py              # all of them
    python tools/expected_output.py 02 19        # these

`tests/test_examples.py` compares every line with it. The rule: what `VARYING` matches depends on the machine, because it comes
from float sums, a clock or a compiler; it is stored as `#`. Where something is, columns change their width with it, so blanks
and the lines of a table count as one there. All else must be equal.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).resolve().parent.parent
STORED = REPOSITORY / "tests" / "data" / "examples"
WIDTH = "140"
"""Columns of the terminal that an example believes to have."""

ARGUMENTS = {
    "01_digits": ["--seeds", "1", "--epochs", "2", "--folder", "digits"],
    "11_super_resolution": ["--steps", "200"],
    "14_real_models": ["--quick", "--only", "enlarger", "pnet", "rnet"],  # tests/models runs the others
    "15_transformer": ["--seeds", "1", "--epochs", "2", "--folder", "transformer"],
    "17_microcontroller": ["--epochs", "2", "--images", "24", "--budget", "2 trials"],
    "18_voice_activity": ["--seconds", "12"],
    "19_many_processes": ["--processes", "1", "2", "--epochs", "1", "--images", "90"],
    "20_vowels": ["--kinds", "gru", "--epochs", "2", "--tuned", "1", "--takes", "30"],
}
"""For a short run; the other examples have none."""

DECIMALS = r"-?\d+(\.\d+)+(e[-+]\d+)?"
"""Accuracies, decibels, differences between float results, versions of compilers."""

MEASURED = rf"{DECIMALS}|\d[\d,]*(?= ?(%|dB|bytes))|(?<![\w.,])\d[\d,]*(?= *│)"
"""And whole numbers with a unit, or at the end of a cell of a table."""

ADVISED = rf"{MEASURED}|(?<=reaches )\d+|(?<=range to )\d+|(?<=beyond )\d+|(?<=others )\d+"
"""And the ends of ranges in the sentences of `linger.advise`."""

VARYING = {
    "01_digits": DECIMALS,
    "03_two_heads": r"(?<=1×\d    )\S+ +\S+ +\S+",
    "05_conv_bn_activation": r"\d\.\de-\d+",
    "07_asinh": r"(?<=8×5  )\S+ +\S+ +\S+",
    "08_deform_conv2d": r"(?<=9×7  )\S+ +\S+ +\S+",
    "11_super_resolution": DECIMALS,
    "12_tame_outliers": ADVISED,
    "13_ten_worst": ADVISED,
    "14_real_models": MEASURED,
    "15_transformer": DECIMALS,
    "17_microcontroller": MEASURED,
    "18_voice_activity": MEASURED,
    "19_many_processes": rf"{DECIMALS}|\b[0-9a-f]{{8}}\b|\d+(?= of 25)",
    "20_vowels": DECIMALS,
}
"""What depends on the machine, by example; the others print the same everywhere."""


def masked(name: str, printed: str) -> str:
    """An example's output by the rule above."""
    lines = [line.rstrip() for line in printed.splitlines()]
    if name in VARYING:
        lines = [re.sub(VARYING[name], "#", line) for line in lines]
        lines = [re.sub(r"[─━]+", "─", re.sub(" +", " ", line)) for line in lines]
    return "\n".join(lines) + "\n"


def expected(name: str) -> str:
    """What is stored of an example."""
    return (STORED / f"{name}.txt").read_text(encoding="utf-8")


def run(path: Path, folder: Path) -> str:
    """What an example prints, run in a folder and in this process: importing torch takes longer than most examples."""
    printed = io.StringIO()
    with (
        contextlib.chdir(folder),
        mock.patch.object(sys, "argv", [str(path), *ARGUMENTS.get(path.stem, [])]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        mock.patch.dict(os.environ, {"COLUMNS": WIDTH}),
        contextlib.redirect_stdout(printed),
    ):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    return printed.getvalue()


def main() -> int:
    """Run the examples whose numbers are given, or all, and store what they print."""
    chosen = sys.argv[1:] or ["[0-9][0-9]"]
    paths = sorted(path for number in chosen for path in (REPOSITORY / "examples").glob(f"{number}_*.py"))
    STORED.mkdir(parents=True, exist_ok=True)
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            printed = run(path, Path(folder))
        (STORED / f"{path.stem}.txt").write_text(masked(path.stem, printed), encoding="utf-8")
        print(path.stem, flush=True)
    return 0 if paths else 2


if __name__ == "__main__":
    raise SystemExit(main())
