# SPDX-License-Identifier: Apache-2.0
"""The networks of the accuracy benchmark: each one's float model, data to tune on, and other data to judge it by."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]
Figures = dict[str, float]

SEEDS = (0, 1, 2)
SMALL = "40 s"
"""Budget of small networks."""


class Unobtainable(Exception):  # noqa: N818  # the name states what is wrong with the network, as the page prints it
    """A network or its data cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Bar:
    """A limit that the benchmark holds a network to.

    Attributes:
        column: The column that it is about.
        figure: Which of the column's figures.
        limit: The value that is allowed.
        is_least: Whether the figure must be at least the limit; else at most.
    """

    column: str
    figure: str
    limit: float
    is_least: bool = True

    def is_met(self, found: float) -> bool:
        """Whether a measured figure keeps the limit."""
        return found >= self.limit if self.is_least else found <= self.limit

    def __str__(self) -> str:
        return f"{self.column}: {self.figure} {'≥' if self.is_least else '≤'} {self.limit:g}"


@dataclass(frozen=True)
class Network:
    """One network, ready to be quantized and judged.

    Attributes:
        model: The float model, in evaluation mode.
        tuning: Batches for calibration and tuning.
        judged: Other batches. No remedy sees them.
        figures: What the outputs on the judged batches are worth: of the float model first, then of the one judged.
        inputs: Names of the inputs in an exported file.
        axes: Axes of an exported file that stay open.
        proof: Batches for the exported file; the first shows its shapes.
        is_stepwise: Whether the file holds one step of a stream (`model(x, h, c)` on one step), and the batches many.
        can_fuse: Whether `linger.trace_layers` can read the model.
        opset: Of the exported file.
        budget: CPU time of `linger.tune`.
        goal: What is enough for mixed widths; None leaves it to `linger.tune`.
        target: The chip that it is tuned for; None for none.
    """

    model: nn.Module
    tuning: Sequence[Batch]
    judged: Sequence[Batch]
    figures: Callable[[Outputs, Outputs], Figures]
    inputs: Sequence[str]
    proof: Sequence[Batch]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    is_stepwise: bool = False
    can_fuse: bool = True
    opset: int | None = None
    budget: str = "2 min"
    goal: float | str | None = None
    target: str | None = None


def shared_samples(network: Network) -> int:
    """How many of the judged samples are also among those for tuning; anything but 0 makes the figures worthless."""
    tuning, judged = (
        {sample.numpy().tobytes() for batch in batches for sample in batch[0]}
        for batches in (network.tuning, network.judged)
    )
    return len(tuning & judged)


@dataclass(frozen=True)
class Entry:
    """How a network is found.

    Attributes:
        title: Its name on the page.
        module: The module of this package that loads it.
        note: What is tuned on and what is judged, for the page.
        is_trained: Whether it is trained here, from each seed anew; else a seed is of the remedies alone.
        bars: What it is held to.
    """

    title: str
    module: str
    note: str
    is_trained: bool = False
    bars: tuple[Bar, ...] = ()

    def load(self, name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
        """The network.

        Raises:
            Unobtainable: Its weights or data cannot be had here.
        """
        module = importlib.import_module(f"networks.{self.module}")
        try:
            found: Network = module.load(name, cache, seed, is_quick=is_quick)
        except FileNotFoundError as error:
            raise Unobtainable(str(error)) from error
        if shared_samples(found):
            raise ValueError(f"{self.title}: {shared_samples(found)} judged samples are also tuned on")
        return found


LOST = "accuracy lost, points"
WITHIN = tuple(Bar(column, LOST, 0.3, is_least=False) for column in ("tune", "tune mixed"))

TRAINING_SET = "Trained from three seeds; tuned on samples of the training set, judged on the test set"

ENTRIES = {
    "efficientnet": Entry(
        "efficientnet-lite0",
        "pictures",
        "Tuned on 36 crops of three photographs (coffee, flower, rocket), judged on 520 crops of four others.",
        bars=(
            Bar("tune", "same class where float is sure %", 98),
            Bar("tune", "output SQNR dB", 9.5),
            Bar("tune mixed", "same class where float is sure %", 99),
            Bar("tune mixed", "output SQNR dB", 14),
            Bar("tune mixed", "layers with 16-bit weights", 6, is_least=False),
        ),
    ),
    "silero": Entry(
        "silero-vad",
        "voices",
        "Tuned on a recorded conversation, judged on announcements by other speakers in five languages.",
        bars=(Bar("tune", "same decision %", 98),),
    ),
    "upconv7": Entry(
        "waifu2x upconv7",
        "enlarger",
        "Tuned on 48 small crops of four photographs (cat, coffee, motorcycle, rocket), judged on three others at 128 pixels.",
        bars=(
            Bar("tune", "dB lost", 1.7, is_least=False),
            Bar("tune", "dB lost, worst picture", 1.7, is_least=False),
            Bar("tune mixed", "dB lost", 0.4, is_least=False),
            Bar("tune mixed", "dB lost, worst picture", 0.4, is_least=False),
        ),
    ),
    "pnet": Entry(
        "MTCNN P-net",
        "faces",
        "Tuned on portraits and on three photographs, judged on other portraits and a photograph.",
    ),
    "rnet": Entry("MTCNN R-net", "faces", "The same pictures at 24 × 24."),
    "onet": Entry("MTCNN O-net", "faces", "The same pictures at 48 × 48."),
    "crepe": Entry("crepe tiny", "pitch", "Tuned on one part of a conversation, judged on a later part."),
    "lstm": Entry("JapaneseVowels LSTM", "vowels", f"{TRAINING_SET}.", is_trained=True),
    "gru": Entry("JapaneseVowels GRU", "vowels", "The same takes.", is_trained=True),
    "digits": Entry("digits CNN", "digits", f"{TRAINING_SET}; tuned for venus.", is_trained=True, bars=WITHIN),
    "transformer": Entry(
        "digits transformer", "digits", "The same pictures, each as a sequence of eight rows.", is_trained=True
    ),
    "mnist-residual": Entry("MNIST residual CNN", "mnist", f"{TRAINING_SET}.", is_trained=True, bars=WITHIN),
    "mnist-depthwise": Entry("MNIST depthwise CNN", "mnist", "The same pictures.", is_trained=True, bars=WITHIN),
}
"""Every network of the page, by the name that `--only` takes."""
