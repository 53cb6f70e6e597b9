# SPDX-License-Identifier: Apache-2.0
"""The network waifu2x upconv7, judged by what a photograph loses against the float network's enlargement of it."""

from __future__ import annotations

from pathlib import Path

import torch
from real_models.enlarger import MARGIN, crops, psnr
from real_models.enlarger import load as load_enlarger
from real_models.packages import photograph
from torch import Tensor
from torch.nn import functional

from networks import Figures, Judge, Network, Outputs, Shifted
from networks.shifts import LIGHT

TUNED_ON = ("coffee", "cat", "motorcycle", "rocket")
JUDGED_SIDE = 128
TUNED_SIDE = 64
"""Pixels of a crop that is tuned on: small ones show more of a photograph for the same work."""
JUDGED_ON = ("astronaut", "temple", "flower")
OTHER_SOURCES = ("hopper", "camera", "coins")


def random_crops(name: str, side: int, count: int) -> list[Tensor]:
    """Squares at random places of a photograph, at half their size and with margins: what the network enlarges."""
    pixels = photograph(name)
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        top, left = (int(torch.randint(size - side + 1, (1,), generator=generator)) for size in pixels.shape[1:])
        whole = pixels[None, :, top : top + side, left : left + side]
        small = functional.interpolate(whole, scale_factor=0.5, mode="bicubic", antialias=True).round().clamp(0, 255)
        made.append(functional.pad(small / 255, (MARGIN,) * 4, mode="replicate"))
    return made


def judge_of(wholes: Tensor) -> Judge:
    """What pictures lose against the float network's, where these are the pictures that were made smaller."""

    def figures(expected: Outputs, found: Outputs) -> Figures:
        in_float = [psnr(f, w) for f, w in zip(expected[0], wholes, strict=True)]
        own = [psnr(f, w) for f, w in zip(found[0], wholes, strict=True)]
        lost = [f - o for f, o in zip(in_float, own, strict=True)]
        return {
            "PSNR dB": sum(own) / len(own),
            "dB lost": sum(lost) / len(lost),
            "dB lost, worst picture": max(lost),
        }

    return figures


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network; 48 crops to tune on, or 8 where it must be quick."""
    del name, cache, seed
    pairs = [crops(photo, JUDGED_SIDE) for photo in JUDGED_ON]
    tuning = [random_crops(photo, TUNED_SIDE, count=2 if is_quick else 12) for photo in TUNED_ON]
    wanted = torch.cat([whole for _, whole in pairs])
    others = [crops(photo, JUDGED_SIDE) for photo in OTHER_SOURCES]
    shifted = {
        light: Shifted([(shift(small),) for small, _ in pairs], judge_of(shift(wanted)))
        for light, shift in LIGHT.items()
    } | {"other sources": Shifted([(s,) for s, _ in others], judge_of(torch.cat([whole for _, whole in others])))}
    return Network(
        load_enlarger(),
        [(torch.cat(group),) for group in zip(*tuning, strict=True)],
        [(small,) for small, _ in pairs],
        judge_of(wanted),
        ["picture"],
        [(crops(photo, 32)[0],) for photo in JUDGED_ON],
        {"picture": {0: "batch", 2: "height", 3: "width"}},
        shifted,
        budget="270 s",
    )
