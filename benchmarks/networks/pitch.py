# SPDX-License-Identifier: Apache-2.0
"""Crepe tiny: the pitch of a voice, tuned on one part of a conversation and judged on a later one."""

from __future__ import annotations

from pathlib import Path

from real_models.crepe import BEGINNING, HOP, VOICED, frames
from real_models.crepe import load as load_crepe
from real_models.packages import conversation

from networks import Figures, Network, Outputs, Shifted
from networks.figures import percent
from networks.shifts import SOUND, higher_voice, overdriven

BORDER = 1800
"""Window at 18 s: what comes before is for tuning."""

GAP = 10
"""Windows overlap up to six others; those around the border belong to neither part."""


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network."""
    del name, cache, seed
    windows = frames(conversation())
    tuning = windows[BEGINNING : BORDER - GAP : 8]
    judged = windows[BORDER + GAP :: 12 if is_quick else 2]

    def figures(expected: Outputs, found: Outputs) -> Figures:
        is_voiced = expected[0].amax(1) >= VOICED
        apart = (expected[0].argmax(1) - found[0].argmax(1)).abs()[is_voiced]
        return {
            "voiced frames": float(is_voiced.sum()),
            "same bin %": percent(apart == 0),
            "within 2 bins %": percent(apart <= 2),
        }

    # the judged part as sound, and what becomes of it before the windows are cut and normalized
    later = conversation()[(BORDER + GAP) * HOP :]
    changes = {"overdriven": overdriven, "noisy": SOUND["noisy"], "telephone": SOUND["telephone"]}
    changes["higher voice"] = higher_voice
    others = {change: frames(shift(later))[:: 12 if is_quick else 4] for change, shift in changes.items()}
    shifted = {change: Shifted([(p,) for p in data.split(64)], figures) for change, data in others.items()}
    batches = [(part,) for part in tuning.split(32)]
    proof = [(part,) for part in judged[:32].split(16)]
    axes = {"sound": {0: "batch"}}
    return Network(load_crepe(), batches, [(p,) for p in judged.split(64)], figures, ["sound"], proof, axes, shifted)
