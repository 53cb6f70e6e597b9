# SPDX-License-Identifier: Apache-2.0
"""The networks of the accuracy benchmark: each one's float model, data to tune on, and other data to judge it by."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Outputs = tuple[Tensor, ...]
Figures = dict[str, float]

Judge = Callable[[Outputs, Outputs], Figures]
"""What outputs are worth: of the float model first, then of the one judged."""

SEEDS = (0, 1, 2)
SMALL = "40 s"
"""Budget of small networks."""
SHORT = "82 s"
"""Budget of every other network where all tensors have 8 bits: with calibration before it, within 90 s."""


class Unobtainable(Exception):  # noqa: N818  # the name states what is wrong with the network, as the page prints it
    """A network or its data cannot be had on this machine; the text says why."""


@dataclass(frozen=True)
class Bar:
    """A limit that the benchmark holds a network to.

    Attributes:
        column: The column that it is about.
        figure: Which of the column's figures.
        limit: The value that is allowed; None where being measured is all that is asked.
        is_least: Whether the figure must be at least the limit; else at most.
        why: What the limit stands for.
    """

    column: str
    figure: str
    limit: float | None = None
    is_least: bool = True
    why: str = ""

    def is_met(self, found: float) -> bool:
        """Whether a measured figure keeps the limit."""
        if self.limit is None:
            return True
        return found >= self.limit if self.is_least else found <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f" {'≥' if self.is_least else '≤'} {self.limit:g}"
        return f"{self.column}: {self.figure}{limit}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Shifted:
    """Judged data of other circumstances than those of the tuning data.

    Attributes:
        batches: The inputs.
        figures: What the outputs on them are worth.
    """

    batches: Sequence[Batch]
    figures: Judge


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
        shifted: Judged data of other circumstances, by their name.
        budget: CPU time of `linger.tune` with mixed widths; at 8 bits at most `SHORT`.
        goal: What is enough for mixed widths; None leaves it to `linger.tune`.
        target: The chip that it is tuned for; None for none.
    """

    model: nn.Module
    tuning: Sequence[Batch]
    judged: Sequence[Batch]
    figures: Judge
    inputs: Sequence[str]
    proof: Sequence[Batch]
    axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    shifted: Mapping[str, Shifted] = field(default_factory=dict)
    is_stepwise: bool = False
    can_fuse: bool = True
    opset: int | None = None
    budget: str = "2 min"
    goal: float | str | None = None
    target: str | None = None


def shared_samples(network: Network) -> int:
    """How many of the judged samples are also among those for tuning; anything but 0 makes the figures worthless."""

    def samples(batches: Iterable[Batch]) -> set[bytes]:
        return {sample.numpy().tobytes() for batch in batches for sample in batch[0]}

    judged = chain(network.judged, *(shift.batches for shift in network.shifted.values()))
    return len(samples(network.tuning) & samples(judged))


@dataclass(frozen=True)
class Entry:
    """How a network is found.

    Attributes:
        title: Its name on the page.
        module: The module of this package that loads it.
        note: What is tuned on and what is judged, for the page.
        shifts: What the shifted sets are, for the page.
        metric: The figure that counts; the larger the better.
        count: The figure that says of how many samples the metric is the share; None where it is in dB.
        sources: The pattern of the figures of single sources, where samples of one source depend on each other; None: they do not.
        is_trained: Whether it is trained here, from each seed anew; else a seed is of the remedies alone.
        bars: What it is held to.
    """

    title: str
    module: str
    note: str
    shifts: str = ""
    metric: str = "accuracy %"
    count: str | None = "samples"
    sources: str | None = None
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

BEST = "tune per channel unsigned"
"""The column of the finest numbers that 8 bits of linger have."""

TODAY = "per tensor no worse than before"
"""The figures of docs/accuracy.md of the version before: the mean over seeds less half of their spread."""

OTHER_LIGHT = "the same under four other lights (dark, bright and burnt out, hazy, with a steeper curve)"
OTHER_INK = "the same ink pale, thick, thin, and on grey paper"
OTHER_SOUND = "quiet (−20 dB), loud (+12 dB and clipped), in white noise 15 dB below, and in the band of a telephone"

ENTRIES = {
    "efficientnet": Entry(
        "efficientnet-lite0",
        "pictures",
        "As its package has it, with convolutions that have a forward of their own. Tuned on 36 crops of three photographs (coffee, "
        "flower, rocket), judged on 520 crops of four others.",
        f"every fourth crop: {OTHER_LIGHT}; crops of three photographs of other sources (a portrait, a grey photograph, coins)",
        "same class %",
        "pictures",
        bars=(
            Bar("tune", "same class where float is sure %", 98),
            Bar("tune", "output SQNR dB", 9.5),
            Bar("tune", "same class %", 82.3, why=TODAY),
            Bar("tune mixed", "same class where float is sure %", 99),
            Bar("tune mixed", "output SQNR dB", 14),
            Bar("tune mixed", "layers with 16-bit weights", 6, is_least=False),
            Bar(BEST, "same class %", 87),
            Bar(BEST, "same class where float is sure %", 100),
        ),
    ),
    "silero": Entry(
        "silero-vad",
        "voices",
        "Tuned on a recorded conversation, judged on announcements by other speakers in five languages.",
        f"the announcements {OTHER_SOUND}",
        "same decision %",
        "chunks",
        r"same decision, .. %",
        bars=(
            Bar("tune", "same decision %", 98),
            Bar("tune", "same decision %", 98.9, why=TODAY),
            Bar(BEST, "same decision %", 99.3),
        ),
    ),
    "upconv7": Entry(
        "waifu2x upconv7",
        "enlarger",
        "Tuned on 48 small crops of four photographs (cat, coffee, motorcycle, rocket), judged on three others at 128 pixels.",
        f"the photographs taken apart again: {OTHER_LIGHT}; three photographs of other sources",
        "PSNR dB",
        None,
        bars=(
            Bar("tune", "dB lost", 1.7, is_least=False),
            Bar("tune", "dB lost, worst picture", 1.7, is_least=False),
            Bar("tune", "dB lost", 0.95, is_least=False, why=TODAY),
            Bar("tune mixed", "dB lost", 0.4, is_least=False),
            Bar("tune mixed", "dB lost, worst picture", 0.4, is_least=False),
            Bar(BEST, "dB lost", 0.35, is_least=False),
            Bar(BEST, "dB lost, worst picture", 0.6, is_least=False),
        ),
    ),
    "pnet": Entry(
        "MTCNN P-net",
        "faces",
        "Tuned on portraits and on three photographs, judged on other portraits and a photograph.",
        OTHER_LIGHT,
        "same decision %",
        "windows",
        bars=(Bar("tune", "same decision %", 100, why=TODAY), Bar(BEST, "same decision %")),
    ),
    "rnet": Entry(
        "MTCNN R-net",
        "faces",
        "The same pictures at 24 × 24.",
        OTHER_LIGHT,
        "same decision %",
        "windows",
        bars=(Bar("tune", "same decision %", 100, why=TODAY), Bar(BEST, "same decision %")),
    ),
    "onet": Entry(
        "MTCNN O-net",
        "faces",
        "The same pictures at 48 × 48.",
        OTHER_LIGHT,
        "same decision %",
        "windows",
        bars=(Bar(BEST, "same decision %"),),
    ),
    "crepe": Entry(
        "crepe tiny",
        "pitch",
        "Tuned on one part of a conversation, judged on a later part.",
        "the later part overdriven, in noise, in the band of a telephone, and of a voice that is a quarter higher; loudness is normalized",
        "same bin %",
        "voiced frames",
        bars=(Bar(BEST, "same bin %"),),
    ),
    "lstm": Entry(
        "JapaneseVowels LSTM",
        "vowels",
        f"{TRAINING_SET}.",
        "the same takes through another microphone, and in noise",
        is_trained=True,
        bars=(Bar("tune", LOST, 0.05, is_least=False, why=TODAY),),
    ),
    "gru": Entry(
        "JapaneseVowels GRU",
        "vowels",
        "The same takes.",
        "the same takes through another microphone, and in noise",
        is_trained=True,
        bars=(Bar("tune", LOST, 0.05, is_least=False, why=TODAY),),
    ),
    "digits": Entry(
        "digits CNN", "digits", f"{TRAINING_SET}; tuned for venus.", OTHER_INK, is_trained=True, bars=WITHIN
    ),
    "transformer": Entry(
        "digits transformer",
        "digits",
        "The same pictures, each as a sequence of eight rows.",
        OTHER_INK,
        is_trained=True,
    ),
    "mnist-residual": Entry("MNIST residual CNN", "mnist", f"{TRAINING_SET}.", OTHER_INK, is_trained=True, bars=WITHIN),
    "mnist-depthwise": Entry(
        "MNIST depthwise CNN", "mnist", "The same pictures.", OTHER_INK, is_trained=True, bars=WITHIN
    ),
}
"""Every network of the page, by the name that `--only` takes."""
