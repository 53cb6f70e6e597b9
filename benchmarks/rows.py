# SPDX-License-Identifier: Apache-2.0
"""What a benchmark says: rows, each a claim with its figure, its spread and its bar; printed, and written as JSON.

A script of this folder has `rows(options) -> list[Row]`, and its `main` is `report(rows, parser(__doc__, rounds=…))`. So every
script knows `--rounds`, `--quick` (a quarter of the rounds) and `--json FILE`, which `run.py` reads.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from interleaved import samples

_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/")

# claims that a rival is measured on too: its row has the same text
QAT_STEP = "QAT step / float step, ResNet-18 (CIFAR), width 64, batch 16"
LSTM_STEP = "QAT step / float step, LSTM 32→64"
LARGE_LSTM_STEP = "QAT step / float step, LSTM 128→128"
RESNET_FILE = "file / float32 file in ONNX Runtime, ResNet-18 (CIFAR)"
DEPTHWISE_FILE = "file / float32 file in ONNX Runtime, depthwise net"
SMALL_CNN_FILE = "file / float32 file in ONNX Runtime, small CNN"


@dataclass(frozen=True)
class Row:
    """One claim. `figure` is a median, `low` and `high` are quartiles; without a figure `detail` says why it is missing."""

    claim: str
    figure: float | None
    bar: float | None = None
    low: float | None = None
    high: float | None = None
    detail: str = ""
    unit: str = "×"
    """"×" for ratios, "s", "ms", "MB", "dB", or "" for exponents and counts."""

    @property
    def is_within(self) -> bool | None:
        """Whether the figure keeps the bar; None without a bar. What could not be measured has not been kept."""
        if self.bar is None:
            return None
        return self.figure is not None and self.figure <= self.bar

    @property
    def verdict(self) -> str:
        """One word, or nothing where there is no bar."""
        if self.figure is None:
            return "not measured"
        return {None: "", True: "within", False: "ABOVE"}[self.is_within]

    def __str__(self) -> str:
        if self.figure is None:
            return f"{self.claim}: not measured: {self.detail}"
        spread = "" if self.low is None or self.high is None else f" ({shown(self.low)} to {shown(self.high)})"
        bar = "" if self.bar is None else f", {self.verdict} the bar {self.bar:g}"
        detail = f"; {self.detail}" if self.detail else ""
        return f"{self.claim}: {shown(self.figure)}{self.unit and ' '}{self.unit}{spread}{bar}{detail}"


def shown(value: float) -> str:
    """A figure with as many digits as it is worth."""
    return (
        f"{value:.0f}"
        if value >= 100
        else f"{value:.1f}"
        if value >= 10
        else f"{value:.2f}"
        if value >= 0.1
        else f"{value:.2g}"
    )


def not_measured(claim: str, reason: str, *, bar: float | None = None) -> Row:
    """A row without a figure; of the reason the first line, and of paths in it the last part."""
    line = (reason.strip() or "no reason given").splitlines()[0]
    return Row(claim, None, bar, detail=_FOLDERS.sub("", line)[:200])


def spread_of(
    claim: str, values: Sequence[float], *, bar: float | None = None, detail: str = "", unit: str = "×"
) -> Row:
    """The median of values, with their quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Row(claim, middle, bar, low, high, detail, unit)


def ratio_of(
    claim: str,
    times: Mapping[str, Sequence[float]],
    variant: str,
    *,
    base: str,
    bar: float | None = None,
    detail: str = "",
) -> Row:
    """The ratio of a variant to the base, round by round."""
    ratios = [mine / other for mine, other in zip(times[variant], times[base], strict=True)]
    medians = ", ".join(f"{name} {_duration(statistics.median(times[name]))}" for name in (base, variant))
    return spread_of(claim, ratios, bar=bar, detail=f"{medians}; {detail}" if detail else medians)


def measured(
    claim: str,
    variants: Mapping[str, Callable[[], object]],
    *,
    base: str,
    rounds: int,
    bar: float | None = None,
    warm_up: int = 2,
    detail: str = "",
) -> Row:
    """Run two variants in turn and give the ratio of the other one to the base; prints the row."""
    (variant,) = [name for name in variants if name != base]
    row = ratio_of(claim, samples(variants, rounds=rounds, warm_up=warm_up), variant, base=base, bar=bar, detail=detail)
    print(row, flush=True)
    return row


def parser(description: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """What every script understands; a script may add arguments of its own."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--quick", action="store_true", help="a quarter of the rounds, at least three")
    made.add_argument("--json", type=Path, help="write the rows to this file too")
    return made


def report(rows: Callable[[argparse.Namespace], list[Row]], arguments: argparse.ArgumentParser) -> None:
    """The `main` of a script: read the arguments, measure, print every row, write the file."""
    options = arguments.parse_args()
    if options.quick:
        options.rounds = max(3, options.rounds // 4)
    found = rows(options)
    print("\nrows:")
    for row in found:
        print(f"  {row}")
    if options.json is not None:
        options.json.write_text(json.dumps([dataclasses.asdict(row) for row in found], indent=1), encoding="utf-8")


def read(path: Path) -> list[Row]:
    """The rows that a script has written."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
