# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 for 32×32 pictures, in plain torch: the float model of the benchmarks."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu1, self.relu2 = nn.ReLU(inplace=True), nn.ReLU(inplace=True)  # a tool may keep one range for a module
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """relu(f(x) + shortcut(x))."""
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        result: Tensor = self.relu2(out)
        return result


class ResNet18(nn.Module):
    """Stem, four stages of two blocks, global pool, linear."""

    def __init__(self, classes: int = 100, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(
            *(
                nn.Sequential(BasicBlock(a, b, 1 if i == 0 else 2), BasicBlock(b, b, 1))
                for i, (a, b) in enumerate(itertools.pairwise(sizes))
            )
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(sizes[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.pool(self.stages(x))
        result: Tensor = self.fc(torch.flatten(x, 1))
        return result
