# SPDX-License-Identifier: Apache-2.0
"""Outliers that float does not feel and int8 does: found by the analysis, tamed by the lines it prints.

    python examples/12_tame_outliers.py

A CNN is trained on handwritten digits. Then two layers get outliers that change nothing in float: weights that read a
channel which is always zero, and a channel with a huge output that nobody reads. `linger.advise` names both, its lines are
executed as printed, and a short fine-tuning follows, with and without them. Prints the advice, the verdict and a table of four
accuracies; writes nothing. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn

import linger
from linger.records.rich_table import table


class Net(nn.Module):
    """8×8 grey pictures to ten digits."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, padding=1)
        self.second = nn.Conv2d(16, 32, 3, padding=1)
        self.third = nn.Conv2d(32, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.relu(self.third(F.relu(self.second(x))))
        return self.fc(F.max_pool2d(x, 2).flatten(1))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    pictures = (data.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(pictures, data.target, test_size=540, random_state=0, stratify=data.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in split)
    return train_x, train_y.long(), test_x, test_y.long()


def epochs(x: Tensor, y: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        for chosen in torch.randperm(len(x), generator=generator).split(64):
            yield x[chosen], y[chosen]


def train(model: nn.Module, x: Tensor, y: Tensor, *, count: int, rate: float) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    model.train()
    for pictures, labels in epochs(x, y, count):
        optimizer.zero_grad()
        F.cross_entropy(model(pictures), labels).backward()
        optimizer.step()


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return 100.0 * float((model(x).detach().argmax(1) == y).float().mean())


def silence(model: Net) -> None:
    """Channel 0 of the first layer is always zero, channel 0 of the last one is read by nobody; training fills the gaps."""
    with torch.no_grad():
        model.first.weight[0], model.first.bias[0] = 0.0, -1.0
        model.fc.weight[:, :4] = 0.0


def plant(model: Net) -> None:
    """Outliers in the weights that read the silent channel, and in the output that nobody reads."""
    with torch.no_grad():
        model.second.weight[:4, 0, 0, 0] = 60.0
        model.third.bias[0] = 400.0


def quantize(model: nn.Module, x: Tensor, y: Tensor, *, count: int) -> nn.Module:
    """Calibrate, then train a little as integers."""
    made = linger.init(model)
    made.eval()
    with linger.calibration():
        made(x[:256])
    if count:
        train(made, x, y, count=count, rate=1e-4)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    need("sklearn")
    torch.manual_seed(0)
    train_x, train_y, test_x, test_y = digits()
    model = Net()
    for _ in range(3):
        train(model, train_x, train_y, count=options.epochs // 3, rate=2e-3)
        silence(model)
    in_float = accuracy(model, test_x, test_y)
    plant(model)
    assert accuracy(model, test_x, test_y) == in_float, "float does not feel the outliers"

    advice = linger.advise(model, train_x[:256])
    for item in advice.worst(2).items:
        print(f"{item.name} ({item.role}): {item.advice}")
    print(*advice.lines, sep="\n")

    calibrated = accuracy(quantize(copy.deepcopy(model), train_x, train_y, count=0), test_x, test_y)
    trained = accuracy(quantize(copy.deepcopy(model), train_x, train_y, count=2), test_x, test_y)
    exec("\n".join(advice.lines), {"linger": linger, "torch": torch, "model": model})
    tamed = linger.normalize_layers(model)
    train(tamed, train_x, train_y, count=2, rate=1e-4)
    saved = accuracy(quantize(tamed, train_x, train_y, count=2), test_x, test_y)

    print(f"lost: {in_float - trained:.2f} points without the advice, {max(in_float - saved, 0.0):.2f} with it")
    rows = [
        ["float", f"{in_float:.2f}"],
        ["int8, calibrated", f"{calibrated:.2f}"],
        ["int8, two epochs of training", f"{trained:.2f}"],
        ["int8, limited as advised, then the same", f"{saved:.2f}"],
    ]
    Console().print(table(f"digits, {len(test_x)} test images", ("network", "right %"), rows))


if __name__ == "__main__":
    main()
