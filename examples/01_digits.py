# SPDX-License-Identifier: Apache-2.0
"""From float to a proven integer file: a residual CNN on handwritten digits, three seeds.

    python examples/01_digits.py

Trains in float, quantises (calibration alone, then training as integers), exports ONNX, and compares every integer of
every layer over the whole test set: torch simulation, numpy reference, stock ONNX Runtime. Writes demo-output/digits_0.onnx
and so on; prints a table of accuracies and the integers that differ. Needs the extra `demo`.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import torch
import torch.nn.functional as F
from real_models.packages import need
from rich.console import Console
from torch import Tensor, nn

import linger
from linger.reporting.tables import table

TEST_IMAGES = 540
BATCH = 64


class Residual(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        return self.relu(out)


class DigitsNet(nn.Module):
    """8×8 grey pictures to ten digits."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.block1 = Residual(channels)
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.bn_wide = nn.BatchNorm2d(2 * channels)
        self.block2 = Residual(2 * channels)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block1(F.relu(self.bn(self.stem(x))))
        x = F.relu(self.bn_wide(self.widen(self.pool(x))))
        x = self.gap(self.block2(x)).flatten(1)
        return self.fc(self.drop(x))


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test set; the split is always the same."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    pictures = (data.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(pictures, data.target, test_size=TEST_IMAGES, random_state=0, stratify=data.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in split)
    return train_x, train_y.long(), test_x, test_y.long()


def batches(x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: shuffled, each picture moved by up to one pixel."""
    for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
        if len(chosen) < 2:
            continue
        dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
        moved = F.pad(x[chosen], (1, 1, 1, 1))[:, :, 1 + dy : 9 + dy, 1 + dx : 9 + dx]
        yield moved, y[chosen]


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rate: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    steps = epochs * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for pictures, labels in batches(x, y, generator):
            optimizer.zero_grad()
            F.cross_entropy(model(pictures), labels).backward()
            optimizer.step()
            schedule.step()


def accuracy(scores: Tensor | np.ndarray, labels: Tensor) -> float:
    return 100.0 * float((torch.as_tensor(scores).argmax(1) == labels).float().mean())


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return accuracy(model(x).detach(), y)


def run_seed(seed: int, folder: Path, *, epochs: int, console: Console) -> tuple[list[float], linger.Verification]:
    """One seed from float to proof: the four accuracies and the verification."""
    train_x, train_y, test_x, test_y = digits()
    torch.manual_seed(seed)
    model = DigitsNet()
    train(model, train_x, train_y, epochs=epochs, rate=4e-3, seed=seed)
    in_float = evaluate(model, test_x, test_y)

    quantised = linger.init(linger.trace_layers(copy.deepcopy(model), test_x[:1]))
    quantised.eval()
    with linger.calibration():
        for pictures in train_x.split(BATCH)[:8]:
            quantised(pictures)
    after_calibration = evaluate(quantised, test_x, test_y)

    train(quantised, train_x, train_y, epochs=max(1, epochs // 5), rate=4e-4, seed=seed)
    after_training = evaluate(quantised, test_x, test_y)
    if seed == 0:
        console.print(str(linger.coverage(quantised)))

    path = folder / f"digits_{seed}.onnx"
    axes = {"image": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["image"], "output_names": ["scores"]}
    linger.onnx.export(quantised, (test_x[:1],), path, dynamic_axes=axes, **names)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])  # stock: no linger in it
    in_runtime = accuracy(session.run(None, {"image": test_x.numpy()})[0], test_y)
    proof = linger.verify(quantised, path, list(test_x.split(90)))
    return [in_float, after_calibration, after_training, in_runtime], proof


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where the ONNX files go")
    options = parser.parse_args()
    need("sklearn")
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # layers this small run no faster on two, and much slower where others use the machine
    console = Console()
    results = [run_seed(s, options.folder, epochs=options.epochs, console=console) for s in range(options.seeds)]

    for seed, (_, proof) in enumerate(results):
        console.print(f"seed {seed}: {proof.summary()}")
        for row in proof.narrow:
            console.print(f"  proves little: {row.name} took only {row.distinct} distinct values")
    rows = [
        [str(seed), *(f"{a:.2f}" for a in accuracies), str(proof.differing)]
        for seed, (accuracies, proof) in enumerate(results)
    ]
    means = np.mean([accuracies for accuracies, _ in results], axis=0)
    rows.append(["mean", *(f"{a:.2f}" for a in means), ""])
    columns = ("seed", "float %", "PTQ int8 %", "QAT int8 %", "ONNX Runtime %", "integers that differ")
    console.print(table(f"digits, {TEST_IMAGES} test images", columns, rows))
    return 0 if all(proof.ok for _, proof in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
