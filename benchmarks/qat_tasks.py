# SPDX-License-Identifier: Apache-2.0
"""Five small networks with the data that each is trained on and the other data that it is judged by.

Settings are chosen with `is_choice`: then a part of the training data is left out of training and judged instead, and the test
data are not looked at.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from networks import mnist
from networks.trained import trained_once
from real_models import vowels
from real_models.packages import photograph
from torch import Tensor, nn
from torch.nn import functional

from linger.workflow.demo import DigitsNet, accuracy, digits

LEFT_OUT = 5
"""Every fifth sample of the training data is left out for choices."""

Batch = tuple[tuple[Tensor, ...], Tensor]
"""Arguments of the model, and what it should say."""


@dataclass(frozen=True)
class Task:
    """A network and its data.

    Attributes:
        name: For files and options.
        title: For people.
        unit: What `judge` returns; more is better.
        make: The float network with fresh weights.
        batches: One epoch of training data, by a generator.
        judge: The figure of a model in evaluation mode.
        loss: Of the model's output and the batch's target.
        calibration: Arguments of the model that show its ranges.
        epochs: Of float training, and of training as integers.
        rate: Learning rate of the same two.
        is_fused: Whether `linger.trace_layers` fuses batch norms.
    """

    name: str
    title: str
    unit: str
    make: Callable[[], nn.Module]
    batches: Callable[[torch.Generator], Iterator[Batch]]
    judge: Callable[[nn.Module], float]
    loss: Callable[[Tensor, Tensor], Tensor]
    calibration: list[tuple[Tensor, ...]]
    epochs: tuple[int, int]
    rate: tuple[float, float]
    is_fused: bool = True

    def float_model(self, seed: int, cache: Path) -> nn.Module:
        """The float network, trained from a seed; kept in a file."""

        def train_float() -> nn.Module:
            torch.manual_seed(seed)
            model = self.make()
            train(model, self, seed, self.epochs[0], [{"params": list(model.parameters()), "lr": self.rate[0]}])
            return model

        return trained_once(cache / f"{self.name}-{seed}.pt", self.make(), train_float)


def train(
    model: nn.Module,
    task: Task,
    seed: int,
    epochs: int,
    groups: list[dict[str, Any]],
    after_step: Callable[[], None] | None = None,
) -> None:
    """Adam with one cycle of learning rates, gradients clipped; the model is in evaluation mode afterwards."""
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * sum(1 for _ in task.batches(torch.Generator().manual_seed(seed)))
    optimizer = torch.optim.Adam(groups)
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for arguments, target in task.batches(generator):
            optimizer.zero_grad()
            task.loss(model(*arguments), target).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if after_step is not None:
                after_step()
    model.eval()


def split(x: Tensor, y: Tensor, test: tuple[Tensor, Tensor], *, is_choice: bool) -> tuple[Tensor, ...]:
    """Training data, then data to judge by: the test data, or for choices a part of the training data."""
    if not is_choice:
        return x, y, *test
    is_left_out = torch.arange(len(x)) % LEFT_OUT == 0
    return x[~is_left_out], y[~is_left_out], x[is_left_out], y[is_left_out]


def _classified(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return accuracy(torch.cat([model(part).detach().as_subclass(Tensor) for part in x.split(250)]), y)


def _pictures(
    name: str,
    title: str,
    make: Callable[[], nn.Module],
    data: tuple[Tensor, ...],
    moved: int,
    epochs: tuple[int, int],
    rate: tuple[float, float],
) -> Task:
    x, y, test, labels = data

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        for chosen in torch.randperm(len(x), generator=generator).split(64):
            if len(chosen) > 1:
                shift = torch.randint(-moved, moved + 1, (2,), generator=generator).tolist()
                yield (x[chosen].roll(shift, (2, 3)),), y[chosen]

    calibration = [(part,) for part in x[:512].split(64)]
    judge = partial(_classified, x=test, y=labels)
    return Task(name, title, "accuracy %", make, batches, judge, functional.cross_entropy, calibration, epochs, rate)


def _digits(cache: Path, *, is_choice: bool) -> Task:
    del cache
    x, y, test, labels = digits()
    data = split(x, y, (test, labels), is_choice=is_choice)
    return _pictures("digits", "digits CNN", DigitsNet, data, 1, (40, 10), (4e-3, 1e-3))


def _depthwise(cache: Path, *, is_choice: bool) -> Task:
    x, y = (part[:12_000] for part in mnist.pictures("train", cache))
    data = split(x, y, mnist.pictures("t10k", cache), is_choice=is_choice)
    return _pictures("mnist", "MNIST depthwise CNN", mnist.DepthwiseNet, data, 2, (6, 3), (4e-3, 1e-3))


def _vowels(kind: str, cache: Path, *, is_choice: bool) -> Task:
    del cache
    frames, lengths, speakers = vowels.read("TRAIN")
    test = vowels.read("TEST")
    if is_choice:
        is_left_out = torch.arange(len(frames)) % LEFT_OUT == 0
        test = frames[is_left_out], lengths[is_left_out], speakers[is_left_out]
        frames, lengths, speakers = frames[~is_left_out], lengths[~is_left_out], speakers[~is_left_out]

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        for some in torch.randperm(len(frames), generator=generator).split(vowels.BATCH):
            chosen = some.sort().values  # the longest first
            noisy = frames[chosen] + 0.05 * torch.randn(frames[chosen].shape, generator=generator)
            yield (noisy, lengths[chosen]), speakers[chosen]

    return Task(
        kind,
        f"JapaneseVowels {kind.upper()}",
        "accuracy %",
        lambda: vowels.Speaker(kind),
        batches,
        lambda model: vowels.accuracy(model, test),
        functional.cross_entropy,
        [(frames[i::3], lengths[i::3]) for i in range(3)],
        (30, 15),
        (1e-2, 2e-3),
        is_fused=False,
    )


def _super_resolution(cache: Path, *, is_choice: bool) -> Task:
    """What bicubic enlargement by three leaves soft, plane by plane; the network sees the enlarged plane."""
    del cache
    example = importlib.import_module("11_super_resolution")
    seen = example.photograph("china.jpg")
    judged = ["coffee"] if is_choice else ["flower", "astronaut"]

    def pair(planes: Tensor) -> tuple[Tensor, Tensor]:
        small, scales = example.reduced(planes, 3)
        return example.Enlarge.apply(small, scales), planes

    def batches(generator: torch.Generator) -> Iterator[Batch]:
        for step in range(50):
            corners = torch.stack([torch.randint(s, (4,), generator=generator) for s in (331, 541)], 1).tolist()
            cut = [seen[(step + i) % 3, :, y : y + 90, x : x + 90] for i, (y, x) in enumerate(corners)]
            large, whole = pair(torch.stack(cut))
            yield (large,), whole - large

    def judge(model: nn.Module) -> float:
        found = []
        for name in judged:
            planes = (photograph(name)[:, :300, :300] / 255)[:, None]
            large, whole = pair(planes)
            with torch.no_grad():
                found.append(example.psnr(large + model(large).detach().as_subclass(Tensor), whole))
        return sum(found) / len(found)

    def loss(found: Tensor, wanted: Tensor) -> Tensor:
        return (found - wanted)[..., 10:-10, 10:-10].square().mean()

    calibration = [(pair(seen[:, :, i : i + 90, :300])[0],) for i in (0, 90, 180)]
    title = "super-resolution"
    return Task(
        "enlarge",
        title,
        "PSNR dB",
        lambda: example.SuperResolution().missing,
        batches,
        judge,
        loss,
        calibration,
        (14, 4),
        (2e-3, 5e-4),
    )


TASKS: dict[str, Callable[..., Task]] = {
    "digits": _digits,
    "mnist": _depthwise,
    "lstm": lambda cache, *, is_choice: _vowels("lstm", cache, is_choice=is_choice),
    "gru": lambda cache, *, is_choice: _vowels("gru", cache, is_choice=is_choice),
    "enlarge": _super_resolution,
}
