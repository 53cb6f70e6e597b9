# SPDX-License-Identifier: Apache-2.0
"""Efficientnet-lite0 on crops of photographs: some photographs to tune on, others to judge by."""

from __future__ import annotations

from pathlib import Path

import torch
from real_models import pictures
from real_models.packages import photograph
from torch import Tensor
from torch.nn import functional

from networks import Figures, Network, Outputs, Shifted
from networks.figures import class_agreement
from networks.shifts import LIGHT

TUNED_ON = ("coffee", "flower", "rocket")
JUDGED_ON = ("astronaut", "cat", "motorcycle", "temple")
OTHER_SOURCES = ("hopper", "camera", "coins")
SHIFTED_EVERY = 4
"""Of the judged crops, those that are judged under other lights, too."""
SMALLEST_PART = 0.4
"""Side of the smallest crop, as a part of the photograph's shorter side."""


def random_crops(name: str, count: int, seed: int) -> Tensor:
    """Squares of random size and place, half of them mirrored, as the network takes them."""
    pixels = photograph(name)
    shorter = min(pixels.shape[1:])
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        size, top, left, flip = torch.rand(4, generator=generator).tolist()
        side = int(shorter * (SMALLEST_PART + (1 - SMALLEST_PART) * size))
        y, x = int(top * (pixels.shape[1] - side)), int(left * (pixels.shape[2] - side))
        crop = pixels[None, :, y : y + side, x : x + side]
        crop = functional.interpolate(crop, (pictures.SIDE, pictures.SIDE), mode="area")
        made.append(crop.flip(3) if flip >= 0.5 else crop)
    return (torch.cat(made) - 127) / 128


def judge(expected: Outputs, found: Outputs) -> Figures:
    """How often the class is the float network's."""
    return class_agreement(expected[0], found[0])


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network; 36 crops to tune on and 520 to judge by, 24 and 48 where it must be quick."""
    del name, cache
    tuned, judged = (8, 12) if is_quick else (12, 130)
    tuning = torch.cat([random_crops(photo, tuned, 100 + seed) for photo in TUNED_ON])
    tuning = tuning[torch.randperm(len(tuning), generator=torch.Generator().manual_seed(seed))]
    test = torch.cat([random_crops(photo, judged, 200) for photo in JUDGED_ON])
    other = torch.cat([random_crops(photo, max(2, judged // 4), 300) for photo in OTHER_SOURCES])
    pixels = (test[::SHIFTED_EVERY] * 128 + 127) / 255
    shifted = {light: (shift(pixels) * 255 - 127) / 128 for light, shift in LIGHT.items()} | {"other sources": other}
    return Network(
        pictures.load(),
        [(part,) for part in tuning.split(6)],
        [(part,) for part in test.split(12)],
        judge,
        ["picture"],
        [(test[:1],), (test[-1:],)],
        {"picture": {0: "batch"}},
        {light: Shifted([(part,) for part in data.split(12)], judge) for light, data in shifted.items()},
        budget="270 s",
    )
