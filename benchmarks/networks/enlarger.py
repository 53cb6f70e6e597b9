# SPDX-License-Identifier: Apache-2.0
"""The network waifu2x upconv7, judged by what a photograph loses against the float network's enlargement of it."""

from __future__ import annotations

from pathlib import Path

import torch
from real_models.enlarger import crops, psnr
from real_models.enlarger import load as load_enlarger

from networks import Figures, Network, Outputs

TUNED_ON = ("coffee", "cat", "motorcycle")
JUDGED_ON = ("astronaut", "temple", "flower")


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network at 128 pixels, or 64 where it must be quick."""
    del name, cache, seed
    side = 64 if is_quick else 128
    pairs = [crops(photo, side) for photo in JUDGED_ON]
    wanted = torch.cat([whole for _, whole in pairs])

    def figures(expected: Outputs, found: Outputs) -> Figures:
        in_float = [psnr(f, w) for f, w in zip(expected[0], wanted, strict=True)]
        own = [psnr(f, w) for f, w in zip(found[0], wanted, strict=True)]
        lost = [f - o for f, o in zip(in_float, own, strict=True)]
        return {
            "PSNR dB": sum(own) / len(own),
            "dB lost": sum(lost) / len(lost),
            "dB lost, worst picture": max(lost),
        }

    return Network(
        load_enlarger(),
        [(crops(photo, side)[0],) for photo in TUNED_ON],
        [(small,) for small, _ in pairs],
        figures,
        ["picture"],
        [(crops(photo, 32)[0],) for photo in JUDGED_ON],
        {"picture": {0: "batch", 2: "height", 3: "width"}},
    )
