# SPDX-License-Identifier: Apache-2.0
"""Nine trained networks from float to a proven integer file, in one table.

    python examples/14_real_models.py

Each is calibrated on real data (photographs, a recorded conversation, cepstra of vowels), measured against its float
self, exported, and compared integer by integer: torch simulation, numpy reference, stock ONNX Runtime. What stays float,
and how much of the work is integers, stands beside it. `--quick` takes less data. Needs the packages of
requirements-models.txt and the extra `demo`; keeps no file.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from real_models import crepe, enlarger, faces, pictures, voice, vowels
from real_models.packages import REQUIREMENTS, need
from real_models.proof import Outcome
from rich.console import Console

from linger.records.rich_table import table

RUNS: dict[str, tuple[Callable[[Path], Outcome], Callable[[Path], Outcome]]] = {
    "crepe": (crepe.run, lambda folder: crepe.run(folder, judged_every=24, proven_on=8)),
    "enlarger": (enlarger.run, lambda folder: enlarger.run(folder, side=64)),
    "pnet": (lambda folder: faces.run(folder, "pnet"), lambda folder: faces.run(folder, "pnet", every=4)),
    "rnet": (lambda folder: faces.run(folder, "rnet"), lambda folder: faces.run(folder, "rnet", every=4)),
    "onet": (lambda folder: faces.run(folder, "onet"), lambda folder: faces.run(folder, "onet", every=4, proven_on=4)),
    "pictures": (pictures.run, lambda folder: pictures.run(folder, views=1, proven_on=1)),
    "voice": (voice.run, lambda folder: voice.run(folder, seconds=12, proven_on=20)),
    "lstm": (lambda folder: vowels.run(folder, "lstm"), lambda folder: vowels.run(folder, "lstm", epochs=8, tuned=1)),
    "gru": (lambda folder: vowels.run(folder, "gru"), lambda folder: vowels.run(folder, "gru", epochs=8, tuned=1)),
}
"""Each in full and quick."""


def row(outcome: Outcome) -> list[str]:
    figures = "\n".join(f"{name} {figure:.4g}" for name, figure in outcome.figures.items())
    left = "\n".join(f"{count} × {op}" for op, count in outcome.float_ops.items()) or "none"
    verdict = f"{outcome.proof.differing} of {outcome.proof.integers:,}"
    return [outcome.name, figures, verdict, left, f"{100 * outcome.share:.1f} %"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less data")
    parser.add_argument("--only", nargs="+", choices=RUNS, help="these networks only", default=list(RUNS))
    options = parser.parse_args()
    need(*REQUIREMENTS)
    torch.set_num_threads(1)
    logging.getLogger("linger").setLevel(logging.ERROR)  # the table says what stays float
    console = Console(width=140)
    rows, is_proven = [], True
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only:
            outcome = RUNS[name][1 if options.quick else 0](Path(folder))
            rows.append(row(outcome))
            is_proven = is_proven and outcome.proof.ok
            console.print(f"{outcome.name}: {outcome.proof.summary()}", soft_wrap=True, highlight=False)
    columns = ("network", "against float", "integers that differ", "float ops left", "work as integers")
    console.print(table("trained networks as integers", columns, rows))
    return 0 if is_proven else 1


if __name__ == "__main__":
    raise SystemExit(main())
