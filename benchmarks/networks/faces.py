# SPDX-License-Identifier: Apache-2.0
"""The three networks of MTCNN: portraits and photographs to tune on, other portraits and another photograph to judge by."""

from __future__ import annotations

from pathlib import Path

import torch
from real_models.faces import SIZES, THRESHOLDS, windows
from real_models.faces import load as load_faces
from real_models.packages import photograph
from torch import Tensor
from torch.nn import functional

from networks import SMALL, Figures, Network, Outputs, Shifted
from networks.figures import percent
from networks.shifts import LIGHT

TUNED_ON = ("cat", "coffee", "motorcycle")
PORTRAITS = 200
"""Pictures at the end of `windows`: a hundred faces, then a hundred that are none."""


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """One of the networks. The photograph of the astronaut is judged only; of the portraits, every other one."""
    del cache, seed
    size = SIZES[name]
    everything = windows(size)
    astronaut, portraits = everything[:-PORTRAITS], everything[-PORTRAITS:]
    tuning = torch.cat([portraits[::2], *(squares(photo, size) for photo in TUNED_ON)])
    tuning = tuning[torch.randperm(len(tuning), generator=torch.Generator().manual_seed(0))]
    judged = torch.cat([astronaut, portraits[1::2]])[:: 4 if is_quick else 1]

    def figures(expected: Outputs, found: Outputs) -> Figures:
        faces, found_faces = (part[0].flatten(1)[:, 1] >= THRESHOLDS[name] for part in (expected, found))
        both = faces & found_faces
        return {
            "windows": float(len(faces)),
            "faces": float(faces.sum()),
            "same decision %": percent(faces == found_faces),
            "frame off by, mean": float((expected[1] - found[1]).flatten(1)[both].abs().mean()),
        }

    pixels = (judged * 128 + 127.5) / 255
    shifted = {
        light: Shifted([(part,) for part in ((shift(pixels) * 255 - 127.5) / 128).split(64)], figures)
        for light, shift in LIGHT.items()
    }
    batches = [(part,) for part in tuning.split(64)]
    proof = [(judged[:4],), (judged[-4:],)]
    return Network(
        load_faces(name),
        batches,
        [(p,) for p in judged.split(64)],
        figures,
        ["picture"],
        proof,
        {"picture": {0: "batch"}},
        shifted,
        budget=SMALL,
    )


def squares(name: str, size: int) -> Tensor:
    """Squares of a photograph without a person, as the network takes them."""
    pixels = photograph(name)
    found = []
    for side in (64, 128, 256):
        for top in range(0, pixels.shape[1] - side + 1, side):
            for left in range(0, pixels.shape[2] - side + 1, side):
                square = pixels[None, :, top : top + side, left : left + side]
                found.append(functional.interpolate(square, (size, size), mode="area"))
    return (torch.cat(found) - 127.5) / 128
