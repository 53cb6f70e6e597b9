# SPDX-License-Identifier: Apache-2.0
"""What training as integers costs: CIFAR ResNet-18, batch 16, one thread, everything quantised.

Prints the ratio of a training step and of an exact integer evaluation to the float model's, measured side by side, with
the quartiles of the single rounds. The bars are 1.10 and 1.05; narrower networks are shown without one.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from cifar_resnet import ResNet18
from interleaved import samples
from torch import Tensor, nn

import linger

STEP_BAR = 1.10
EVALUATION_BAR = 1.05
_WIDTH = 64
"""The width that the bars are for."""


def training_step(model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    return step


def evaluation(model: nn.Module, x: Tensor) -> Callable[[], None]:
    def run() -> None:
        with torch.no_grad():
            model(x)

    return run


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each claim: its text, the ratio of the medians, quartiles of the single rounds, the bar and a remark."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, target = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 100, (options.batch,))
    plain, quantised = ResNet18(width=options.width), ResNet18(width=options.width)
    linger.init(linger.trace_layers(quantised, x[:1]))
    quantised.train()
    steps = {"float": training_step(plain, x, target), "integers": training_step(quantised, x, target)}
    trained = samples(steps, rounds=options.rounds)
    plain.eval()
    quantised.eval()
    evaluated = samples({"float": evaluation(plain, x), "integers": evaluation(quantised, x)}, rounds=options.rounds)
    network = f"ResNet-18 (CIFAR), width {options.width}, batch {options.batch}"
    covered = str(linger.coverage(quantised))
    return [
        _row(f"QAT step / float step, {network}", trained, STEP_BAR if options.width >= _WIDTH else None, covered),
        _row(f"exact / float evaluation, {network}", evaluated, EVALUATION_BAR if options.width >= _WIDTH else None),
    ]


def _row(claim: str, times: dict[str, list[float]], bar: float | None, remark: str = "") -> dict[str, Any]:
    plain, integers = (statistics.median(times[name]) for name in ("float", "integers"))
    ratios = [b / a for a, b in zip(times["float"], times["integers"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    detail = f"float {plain * 1e3:.0f} ms, integers {integers * 1e3:.0f} ms, 1 thread" + (
        f"; {remark}" if remark else ""
    )
    return {"claim": claim, "figure": integers / plain, "bar": bar, "low": low, "high": high, "detail": detail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=_WIDTH)
    for row in measure(parser.parse_args()):
        verdict = (
            ""
            if row["bar"] is None
            else f", {'within' if row['figure'] <= row['bar'] else 'ABOVE'} the bar {row['bar']}"
        )
        print(f"{row['claim']}: {row['figure']:.3f} (quartiles {row['low']:.3f}–{row['high']:.3f}{verdict})")
        print(f"  {row['detail']}")


if __name__ == "__main__":
    main()
