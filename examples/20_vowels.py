# SPDX-License-Identifier: Apache-2.0
"""Who says these vowels: an LSTM and a GRU as integers, on real speech of nine people (JapaneseVowels).

    python examples/20_vowels.py

270 takes are learnt, 370 others are judged; each has 7 to 29 frames of 12 cepstra. Both networks are trained in float,
calibrated (PTQ) and trained on as integers (QAT), exported with open batch and length, and compared with the file integer
by integer over all 370 takes. Writes vowels-output/vowels_lstm.onnx, vowels_gru.onnx and vowels.png, the confusions of
both in float and as integers; prints a table. Needs the package aeon (requirements-models.txt; only its data file is read)
and the extra `report`.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from real_models.packages import need
from real_models.proof import plain, prove, quantize
from real_models.vowels import BATCH, SPEAKERS, Part, read, train, trained
from rich.console import Console
from torch import Tensor, nn

import linger
from linger.records.rich_table import table

STAGES = ("float", "PTQ int8", "QAT int8")
DARK = 0.5
"""From this share on a square is so dark that its number is written in white."""


@dataclass(frozen=True)
class Result:
    """One network: who it heard in every take at each stage, and the proof of the last."""

    kind: str
    heard: dict[str, Tensor]
    proof: linger.Verification


@torch.no_grad()
def hear(model: nn.Module, part: Part) -> Tensor:
    return plain(model.eval()(part[0], part[1])).argmax(1)


def run(kind: str, folder: Path, *, epochs: int, tuned: int, proven_on: int) -> Result:
    """From float training to the proof."""
    learnt, judged = read("TRAIN"), read("TEST")
    model = trained(kind, epochs=epochs)
    frames, lengths, _ = learnt
    calibrated = quantize(model, [(frames[:90], lengths[:90]), (frames[90:], lengths[90:])], can_fuse=False)
    as_integers = copy.deepcopy(calibrated)
    train(as_integers, learnt, epochs=tuned, rate=1e-3)
    models = (model, calibrated, as_integers)
    heard = {stage: hear(network, judged) for stage, network in zip(STAGES, models, strict=True)}

    parts = zip(judged[0][:proven_on].split(BATCH), judged[1][:proven_on].split(BATCH), strict=True)
    axes = {"frames": {0: "batch", 1: "time"}, "lengths": {0: "batch"}}
    proof = prove(as_integers, parts, folder / f"vowels_{kind}.onnx", list(axes), dynamic_axes=axes)
    return Result(kind.upper(), heard, proof)


def share(heard: Tensor, truth: Tensor) -> float:
    return 100 * float((heard == truth).float().mean())


def draw(results: list[Result], truth: Tensor, path: Path) -> None:
    """For each network, who was heard when each person spoke: in float, and trained as integers."""
    from matplotlib.figure import Figure

    stages = (STAGES[0], STAGES[-1])
    figure = Figure(figsize=(3.6 * len(stages), 3.7 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), len(stages), squeeze=False)
    ticks = range(SPEAKERS)
    for row, result in zip(axes, results, strict=True):
        for place, stage in zip(row, stages, strict=True):
            counts = torch.zeros(SPEAKERS, SPEAKERS, dtype=torch.long)
            counts.index_put_((truth, result.heard[stage]), torch.tensor(1), accumulate=True)
            part = counts / counts.sum(1, keepdim=True)
            place.imshow(part, cmap="Blues", vmin=0, vmax=1)
            for i, j in counts.nonzero().tolist():
                color = "white" if part[i, j] > DARK else "black"
                place.text(j, i, str(int(counts[i, j])), ha="center", va="center", fontsize=8, color=color)
            place.set_title(f"{result.kind}, {stage}: {share(result.heard[stage], truth):.1f} %")
            place.set_xticks(ticks, [str(i + 1) for i in ticks])
            place.set_yticks(ticks, [str(i + 1) for i in ticks])
            place.set_xlabel("heard")
            place.set_ylabel("speaker")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=("lstm", "gru"), default=["lstm", "gru"])
    parser.add_argument("--epochs", type=int, default=30, help="of float training")
    parser.add_argument("--tuned", type=int, default=5, help="epochs of training as integers")
    parser.add_argument("--takes", type=int, default=370, help="how many test takes the proof covers")
    parser.add_argument("--folder", type=Path, default=Path("vowels-output"))
    options = parser.parse_args()
    need("aeon", "matplotlib")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # steps this small run no faster on two
    truth = read("TEST")[2]
    settings = {"epochs": options.epochs, "tuned": options.tuned, "proven_on": options.takes}
    results = [run(kind, options.folder, **settings) for kind in options.kinds]

    draw(results, truth, options.folder / "vowels.png")
    print(f"confusions: {options.folder / 'vowels.png'}")
    rows = [
        [
            result.kind,
            *(f"{share(heard, truth):.2f}" for heard in result.heard.values()),
            f"{result.proof.differing} of {result.proof.integers:,}",
        ]
        for result in results
    ]
    columns = ("network", *(f"{stage} %" for stage in STAGES), "integers that differ")
    Console().print(table(f"nine speakers, {len(truth)} test takes", columns, rows))
    return 0 if all(result.proof.ok for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
