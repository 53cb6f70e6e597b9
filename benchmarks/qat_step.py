# SPDX-License-Identifier: Apache-2.0
"""What training as integers costs: CIFAR ResNet-18, batch 16, one thread, everything quantized.

The ratio of a training step and of an exact integer evaluation to the float model's, measured side by side. The bars are for the
full width; narrower networks (`--width`) have none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from cifar_resnet import ResNet18
from rows import Row, measured, parser, report
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


def rows(options: argparse.Namespace) -> list[Row]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, target = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 100, (options.batch,))
    models = {"float": ResNet18(width=options.width), "integers": ResNet18(width=options.width)}
    linger.init(linger.trace_layers(models["integers"], x[:1]))
    network = f"ResNet-18 (CIFAR), width {options.width}, batch {options.batch}"
    is_full = options.width >= _WIDTH
    steps = {name: training_step(model.train(), x, target) for name, model in models.items()}
    trained = measured(
        f"QAT step / float step, {network}",
        steps,
        base="float",
        rounds=options.rounds,
        bar=STEP_BAR if is_full else None,
    )
    runs = {name: evaluation(model.eval(), x) for name, model in models.items()}
    evaluated = measured(
        f"exact / float evaluation, {network}",
        runs,
        base="float",
        rounds=options.rounds,
        bar=EVALUATION_BAR if is_full else None,
        detail=str(linger.coverage(models["integers"])),
    )
    return [trained, evaluated]


def main() -> None:
    arguments = parser(__doc__, rounds=12)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--width", type=int, default=_WIDTH)
    report(rows, arguments)


if __name__ == "__main__":
    main()
