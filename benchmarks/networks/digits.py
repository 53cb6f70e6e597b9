# SPDX-License-Identifier: Apache-2.0
"""Handwritten digits of 8 × 8 pixels: the residual CNN and the Transformer of the examples."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch
from torch import nn

from networks import SMALL, Figures, Network, Outputs, Shifted
from networks.figures import label_accuracy
from networks.shifts import INK
from networks.trained import trained_once

EXAMPLES = {"digits": ("01_digits", "DigitsNet", "image"), "transformer": ("15_transformer", "RowTransformer", "rows")}
OPSETS = {"transformer": 17}
"""ONNX Runtime cannot run a float layer norm of an older one beside the integers."""

EPOCHS = 40
RATE = 4e-3
TUNED_ON = 512


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network, trained from a seed as its example trains it."""
    del is_quick
    file, kind, input_name = EXAMPLES[name]
    example = importlib.import_module(file)
    train_x, train_y, test_x, test_y = example.digits()

    def train() -> nn.Module:
        torch.manual_seed(seed)
        model: nn.Module = getattr(example, kind)()
        example.train(model, train_x, train_y, epochs=EPOCHS, rate=RATE, seed=seed)
        return model

    def judge(expected: Outputs, found: Outputs) -> Figures:
        return label_accuracy(expected[0], found[0], test_y)

    images = test_x.reshape(-1, 1, 8, 8)
    shifted = {
        ink: Shifted([(part,) for part in shift(images).reshape(test_x.shape).split(90)], judge)
        for ink, shift in INK.items()
    }
    model = trained_once(cache / f"{name}-{seed}.pt", getattr(example, kind)(), train)
    return Network(
        model,
        [(part,) for part in train_x[:TUNED_ON].split(64)],
        [(part,) for part in test_x.split(90)],
        judge,
        [input_name],
        [(part,) for part in test_x[:90].split(30)],
        {input_name: {0: "batch"}},
        shifted,
        can_fuse=name == "digits",
        target="venus" if name == "digits" else None,  # the chip lacks layers of the Transformer
        opset=OPSETS.get(name),
        budget=SMALL,
    )
