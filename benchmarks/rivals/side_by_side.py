# SPDX-License-Identifier: Apache-2.0
"""A rival's training step beside the float one, in one process: the same network, batch and optimizer as `qat_step.py`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.metadata import version

import torch
from cifar_resnet import ResNet18
from rows import QAT_STEP, Row, measured
from torch import Tensor, nn

BATCH = 16
CLASSES = 100


def resnet_row(package: str, prepare: Callable[[nn.Module, Tensor], nn.Module], options: argparse.Namespace) -> Row:
    """The row of a rival whose `prepare` turns a float model into one that is trained as integers.

    The prepared model has seen a batch before it is measured, so that calibration does not count.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, target = torch.randn(BATCH, 3, 32, 32), torch.randint(0, CLASSES, (BATCH,))
    quantized = prepare(ResNet18(CLASSES), x)
    steps = {
        "float": training_step(ResNet18(CLASSES).train(), x, target, nn.functional.cross_entropy),
        package: training_step(quantized, x, target, nn.functional.cross_entropy),
    }
    return measured(QAT_STEP, steps, base="float", rounds=options.rounds, detail=f"{package} {version(package)}")


def training_step(
    model: nn.Module, x: Tensor, target: Tensor, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[], None]:
    """Forward, backward and one step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), target).backward()
        optimizer.step()

    return step
