# SPDX-License-Identifier: Apache-2.0
"""Who says these vowels: an LSTM or a GRU, trained, tuned on the training set and judged on the test set."""

from __future__ import annotations

from pathlib import Path

from real_models import vowels

from networks import SMALL, Figures, Network, Outputs, Shifted
from networks.figures import label_accuracy
from networks.shifts import CEPSTRA
from networks.trained import trained_once


def load(name: str, cache: Path, seed: int, *, is_quick: bool) -> Network:
    """The network, trained from a seed."""
    model = trained_once(cache / f"{name}-{seed}.pt", vowels.Speaker(name), lambda: vowels.trained(name, seed=seed))
    (frames, lengths, _), (test, test_lengths, speakers) = vowels.read("TRAIN"), vowels.read("TEST")
    step = 3 if is_quick else 1
    test, test_lengths, speakers = test[::step], test_lengths[::step], speakers[::step]

    def judge(expected: Outputs, found: Outputs) -> Figures:
        return label_accuracy(expected[0], found[0], speakers)

    shifted = {name: Shifted([(shift(test), test_lengths)], judge) for name, shift in CEPSTRA.items()}
    batches = [(frames[i::6], lengths[i::6]) for i in range(6)]
    return Network(
        model,
        batches,
        [(test, test_lengths)],
        judge,
        ["frames", "lengths"],
        [(test[:30], test_lengths[:30])],
        {"frames": {0: "batch", 1: "time"}, "lengths": {0: "batch"}},
        shifted,
        can_fuse=False,
        budget=SMALL,
    )
