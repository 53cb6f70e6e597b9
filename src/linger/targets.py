# SPDX-License-Identifier: Apache-2.0
"""Chips as data: what each can run. Without a target no limit applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Target:
    """Limits of one chip, for the checks at export."""

    name: str
    kernel: tuple[int, int]
    strides: tuple[int, ...]
    pads: tuple[int, int]
    output_bits: tuple[int, ...]
    weight_bits: tuple[int, ...]
    has_clip: bool


TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "venus": Target("venus", (1, 5), (1, 2, 4), (0, 4), (8, 16, 32), (8,), has_clip=False),
        "arcs": Target("arcs", (1, 12), (1, 2, 4), (0, 11), (8, 32), (4, 8), has_clip=False),
        "venusA": Target("venusA", (1, 12), (1, 2, 4), (0, 11), (8, 16, 32), (4, 8, 16, 32), has_clip=False),
    }
)
