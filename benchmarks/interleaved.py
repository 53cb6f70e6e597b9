# SPDX-License-Identifier: Apache-2.0
"""Process CPU time of several variants in one run, interleaved: what a shared machine allows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def samples(variants: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """CPU seconds of each variant in each round; the order rotates, so that no variant always runs after the same one."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(warm_up + rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            begin = time.process_time()
            variants[name]()
            if turn >= warm_up:
                times[name].append(time.process_time() - begin)
    return times


def medians(variants: Mapping[str, Callable[[], object]], *, rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Median CPU seconds of each variant."""
    times = samples(variants, rounds=rounds, warm_up=warm_up)
    return {name: statistics.median(values) for name, values in times.items()}
