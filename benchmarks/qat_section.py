# SPDX-License-Identifier: Apache-2.0
"""The last section of docs/accuracy.md, about training as integers, put together from benchmarks/qat_methods.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accuracy_page import spread, table

REPOSITORY = Path(__file__).resolve().parents[1]
KEPT = Path(__file__).with_name("qat_methods.json")
PAGE = REPOSITORY / "docs" / "accuracy.md"
HEADING = "## Training as integers: ways to find scales"
FLOAT, RUNNING, LEARNED = "float", "running", ("tqt", "lsq")
USUAL = "running, mse"
"""The plainest way that trained narrow weights well on data left out of training (MNIST depthwise)."""
PER_CHANNEL = ", per channel"
"""At the end of the name of a method: one power of two for each output channel of weights, or row of gates."""

NEAR, NEAR_PER_CHANNEL = 0.5, 0.3
"""Points (dB where a figure is in dB) that 4-bit weights may lose against float where 8-bit weights lose no more than that."""

INTRODUCTION = f"""{HEADING}

Measured by `benchmarks/qat_methods.py`. Every cell of a network and a seed begins with the same float network and sees the same
batches; figures are of test data that nothing was chosen on. Learning rates were chosen on a part of the training data that was
left out for that (`--choose`). W4A8 has 4-bit weights and 8-bit inputs and outputs of layers. A figure with ± is the mean of
three seeds and half the distance between the largest and the smallest. *step* is the CPU time of a training step over that of
the float network. — has not been measured.

- *calibrated*: no training; narrow weights have the range of least squared error.
- *running*: ranges follow the data, those of weights the largest magnitude (`MOM`). *running, mse*: those of weights stay as
  calibration found them.
- *16 → 8 → 4*: as *running*, with `linger.Schedule` making weights narrower in two steps.
- *tqt*, *lsq*: `linger.learn_scales`, from the ranges of *calibrated*.
- *per channel*: the same with `linger.init(…, per_channel=True)`: one power of two for each output channel of weights and for each row
  of gates, which learns as the others do.

All that train keep their batch norms' statistics in the second half of the steps (`Schedule(freeze_batch_norms=…)`).
"""

Cell = dict[str, Any]


class Cells:
    """Measured figures by network, widths and method."""

    def __init__(self, content: Mapping[str, Cell]) -> None:
        self.content = dict(content)

    @classmethod
    def read(cls, path: Path) -> Cells:
        """What was kept in a file; nothing where there is none."""
        return cls(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})

    def write(self, path: Path) -> None:
        """Keep everything in a file."""
        path.write_text(json.dumps(self.content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def put(self, title: str, unit: str, widths: str, method: str, found: Sequence[float], **more: Any) -> None:
        """Add one cell, or replace it."""
        network = self.content.setdefault(title, {"unit": unit, "cells": {}})
        network["cells"][f"{widths} {method}".strip()] = {"found": list(found), **more}

    def found(self, title: str, widths: str, method: str = "") -> list[float]:
        """The figures of every seed; none where the cell was not measured."""
        cell = self.content[title]["cells"].get(f"{widths} {method}".strip())
        return [] if cell is None else list(cell["found"])


def section(cells: Cells, widths: Sequence[str], methods: Sequence[str]) -> str:
    """The text."""
    parts = [INTRODUCTION, table(("question", "answer"), answers(cells, widths))]
    for title, network in cells.content.items():
        rows = [(FLOAT, spread(cells.found(title, FLOAT)), *[""] * (2 * len(widths) - 1))]
        for method in methods:
            row = [method]
            for width in widths:
                cell = network["cells"].get(f"{width} {method}")
                row += ["—", "—"] if cell is None else [spread(cell["found"]), _cost(cell)]
            rows.append(tuple(row))
        heads = [f"{width} {what}" for width in widths for what in (network["unit"], "step")]
        parts.append(f"\n### {title}\n\n{table(('', *heads), rows)}")
    return "\n".join(parts)


def _cost(cell: Cell) -> str:
    return "—" if cell.get("cost") is None else f"{cell['cost']:.2f} ×"


def answers(cells: Cells, widths: Sequence[str]) -> list[tuple[str, str]]:
    """What the figures say: whether learned scales win anywhere, whether 4-bit weights are near float, what the files are."""
    wins = []
    for title in cells.content:
        for width in widths:
            plain = cells.found(title, width, RUNNING)
            for method in LEARNED:
                found = cells.found(title, width, method)
                if found and plain and min(found) > max(plain):
                    wins.append(f"{title}, {width}, {method}: {spread(found)} against {spread(plain)}")
    differing = [
        cell["differing"]
        for network in cells.content.values()
        for cell in network["cells"].values()
        if "differing" in cell
    ]
    return [
        ("where learned scales beat running statistics in every seed", "; ".join(wins) or "nowhere"),
        _lost(cells, USUAL, NEAR),
        *(_lost(cells, f"{method}{PER_CHANNEL}", NEAR_PER_CHANNEL) for method in (USUAL, *LEARNED)),
        ("integers of the exported files that differ", f"{sum(differing)}, in {len(differing)} files"),
    ]


def _lost(cells: Cells, method: str, limit: float) -> tuple[str, str]:
    """What 4-bit weights lose against float, in every network where 8-bit weights are near it."""
    near = []
    for title in cells.content:
        in_float, eight, four = (cells.found(title, *cell) for cell in ((FLOAT,), ("W8A8", method), ("W4A8", method)))
        if eight and four and statistics.fmean(in_float) - statistics.fmean(eight) <= limit:
            lost = statistics.fmean(in_float) - statistics.fmean(four)
            near.append(f"{title}: {lost:+.2f} ({'met' if lost <= limit else 'MISSED'})")
    return f"lost by W4A8 ({method}) where W8A8 is within {limit} of float", "; ".join(near) or "not measured"


def write_section(text: str, page: Path = PAGE) -> None:
    """Put the section at the end of the page, in place of the one that is there."""
    before = page.read_text(encoding="utf-8").partition(HEADING)[0].rstrip()
    page.write_text(f"{before}\n\n{text.rstrip()}\n", encoding="utf-8")
