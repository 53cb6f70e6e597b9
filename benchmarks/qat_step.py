# SPDX-License-Identifier: Apache-2.0
"""What training as integers costs: CIFAR ResNet-18, batch 16, one thread, everything quantised.

Prints the ratio of a training step and of an exact integer evaluation to the float model's, measured side by side.
The bars are 1.2 for both.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from cifar_resnet import ResNet18
from interleaved import medians
from torch import Tensor, nn

import linger

BAR = 1.2


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, target = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 100, (options.batch,))
    plain, quantised = ResNet18(width=options.width), ResNet18(width=options.width)
    linger.init(linger.trace_layers(quantised, x[:1]))
    quantised.train()
    steps = {"float": training_step(plain, x, target), "integers": training_step(quantised, x, target)}
    trained = medians(steps, rounds=options.rounds)
    plain.eval()
    quantised.eval()
    evaluated = medians({"float": evaluation(plain, x), "integers": evaluation(quantised, x)}, rounds=options.rounds)
    covered = linger.coverage(quantised)
    print(f"ResNet-18 width {options.width}, batch {options.batch}, 1 thread: {covered}")
    for name, times in (("training step", trained), ("exact evaluation", evaluated)):
        ratio = times["integers"] / times["float"]
        verdict = "within" if ratio <= BAR else "ABOVE"
        print(
            f"{name}: float {times['float'] * 1e3:.0f} ms, integers {times['integers'] * 1e3:.0f} ms, ratio {ratio:.3f} ({verdict} the bar {BAR})"
        )


if __name__ == "__main__":
    main()
