# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a residual CNN on handwritten digits, from training to a proven integer file."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from linger.progress import progress

if TYPE_CHECKING:
    from linger.checks.check import CheckResult
    from linger.verification.proof.result import Verification

TEST_IMAGES = 540
BATCH = 64
FILE, CERTIFICATE, PAGE = "digits.onnx", "digits.certificate.json", "report.html"
INPUT, OUTPUT = "image", "scores"


class _Residual(nn.Module):
    """relu(x + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += x
        result: Tensor = self.relu(out)
        return result


class DigitsNet(nn.Module):
    """8×8 grey images to ten digits."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.block1 = _Residual(channels)
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.bn_wide = nn.BatchNorm2d(2 * channels)
        self.block2 = _Residual(2 * channels)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Ten scores for each image."""
        x = self.block1(functional.relu(self.bn(self.stem(x))))
        x = functional.relu(self.bn_wide(self.widen(self.pool(x))))
        x = self.gap(self.block2(x)).flatten(1)
        scores: Tensor = self.fc(self.drop(x))
        return scores


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels for training, then for testing, of scikit-learn's handwritten digits; always the same split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(images, data.target, test_size=TEST_IMAGES, random_state=0, stratify=data.target)
    train_x, test_x, train_y, test_y = (torch.from_numpy(np.ascontiguousarray(part)) for part in split)
    return train_x, train_y.long(), test_x, test_y.long()


def _batches(x: Tensor, y: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch: shuffled, each image moved by up to one pixel."""
    for chosen in torch.randperm(len(x), generator=generator).split(BATCH):
        if len(chosen) < 2:
            continue
        dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
        moved = functional.pad(x[chosen], (1, 1, 1, 1))[:, :, 1 + dy : 9 + dy, 1 + dx : 9 + dx]
        yield moved, y[chosen]


def train(model: nn.Module, x: Tensor, y: Tensor, *, epochs: int, rate: float, seed: int) -> None:
    """Train a model on the digits, in float or as integers."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    steps = epochs * -(-len(x) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    model.train()
    for _ in progress(range(epochs), "train"):
        for images, labels in _batches(x, y, generator):
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            schedule.step()


def accuracy(scores: Tensor | np.ndarray, labels: Tensor) -> float:
    """The accuracy on the images, in percent."""
    return 100.0 * float((torch.as_tensor(scores).argmax(1) == labels).float().mean())


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The accuracy of a model, in percent."""
    model.eval()
    with torch.no_grad():
        return accuracy(model(x).detach(), y)


def calibrated(model: nn.Module, images: Tensor) -> nn.Module:
    """A copy of a float network as integers, with ranges from these images."""
    from linger.constraint.tracing import trace_layers
    from linger.pipeline import init
    from linger.quantization.core.calibrate import calibration

    made = init(trace_layers(copy.deepcopy(model), images[:1]))
    made.eval()
    with calibration():
        for batch in images.split(BATCH):
            made(batch)
    return made


def export_digits(model: nn.Module, image: Tensor, path: Path) -> None:
    """Write a quantized network as a file that takes any number of images."""
    from linger.onnx.exporter.export import export

    axes = {INPUT: {0: "batch"}, OUTPUT: {0: "batch"}}
    export(model, (image,), path, dynamic_axes=axes, input_names=[INPUT], output_names=[OUTPUT])


def accuracy_of_file(path: Path, x: Tensor, y: Tensor) -> float:
    """The accuracy of a file in stock ONNX Runtime, with nothing of linger in it, in percent."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return accuracy(session.run(None, {INPUT: x.numpy()})[0], y)


@dataclass(frozen=True)
class Demonstration:
    """What the demonstration showed."""

    float_accuracy: float  # the accuracy of the float network on test images, in percent
    integer_accuracy: float  # the same of the file in ONNX Runtime
    proof: Verification  # the comparison of every integer
    findings: CheckResult  # what `linger check` says of the file

    @property
    def ok(self) -> bool:
        """Whether every integer is equal, and the file has no error."""
        return self.proof.ok and self.findings.ok


def demonstrate(folder: Path, *, epochs: int, seed: int) -> Demonstration:
    """Train, quantize, export, verify and check the digits network; file, certificate and report go into a folder."""
    from linger.checks.check import check
    from linger.proof import verify
    from linger.workflow.report import report

    train_x, train_y, test_x, test_y = digits()
    torch.manual_seed(seed)
    model = DigitsNet()
    train(model, train_x, train_y, epochs=epochs, rate=4e-3, seed=seed)
    integers = calibrated(model, train_x[: 8 * BATCH])
    path = folder / FILE
    export_digits(integers, test_x[:1], path)
    proof = verify(integers, path, list(test_x.split(90)), certificate=folder / CERTIFICATE)
    report(
        path,
        folder / PAGE,
        model=integers,
        reference=model,
        data=list(test_x.split(BATCH)),
        labels=test_y,
        verification=proof,
    )
    in_float, in_integers = evaluate(model, test_x, test_y), accuracy_of_file(path, test_x, test_y)
    return Demonstration(in_float, in_integers, proof, check(path))
