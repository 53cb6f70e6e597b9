# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie in one piece of memory: those that are needed at the same time do not overlap."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

ALIGNMENT = 16
"""Every tensor begins at a multiple of so many bytes."""

_TRIES = 200
"""How many random orders are tried where the good ones leave gaps."""


@dataclass(frozen=True)
class Block:
    """A piece of memory: its size in bytes, and the first and the last step that need it."""

    name: str
    size: int
    first: int
    last: int

    @property
    def taken(self) -> int:
        """Its size with what alignment adds."""
        return -(-self.size // ALIGNMENT) * ALIGNMENT

    def meets(self, other: Block) -> bool:
        """Whether both are needed at one time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Arena:
    """Where each block begins, the size of all, and the size that no plan can be below."""

    blocks: tuple[Block, ...]
    offsets: Mapping[str, int]
    size: int
    least: int


def plan_arena(blocks: Sequence[Block]) -> Arena:
    """Find places for blocks: large ones first, each as low as it can lie.

    The most bytes that are needed at one step are a lower bound. Where the first order misses it, other orders are
    tried; the same blocks always give the same plan.
    """
    least = _least(blocks)
    best: tuple[int, dict[str, int]] | None = None
    for order in _orders(blocks):
        offsets = _place(order)
        size = max((offsets[b.name] + b.taken for b in blocks), default=0)
        if best is None or size < best[0]:
            best = (size, offsets)
        if size == least:
            break
    assert best is not None  # there is always an order
    return Arena(tuple(blocks), best[1], best[0], least)


def overlaps(arena: Arena) -> list[tuple[Block, Block]]:
    """Pairs of blocks that are needed at one time and share bytes, the lower one first; a sound plan has none."""
    placed = sorted(((arena.offsets[b.name], b) for b in arena.blocks if b.size), key=lambda pair: pair[0])
    found = []
    for number, (at, block) in enumerate(placed):
        for offset, other in placed[number + 1 :]:
            if offset >= at + block.size:
                break
            if other.meets(block):
                found.append((block, other))
    return found


def _least(blocks: Iterable[Block]) -> int:
    found = list(blocks)
    steps = [0] * (max((b.last for b in found), default=0) + 2)
    for block in found:
        steps[block.first] += block.taken
        steps[block.last + 1] -= block.taken
    return max(accumulate(steps), default=0)


def _orders(blocks: Sequence[Block]) -> Iterable[list[Block]]:
    yield sorted(blocks, key=lambda b: (-b.taken, b.first))
    yield sorted(blocks, key=lambda b: (b.first - b.last, -b.taken))
    yield sorted(blocks, key=lambda b: (b.first, -b.taken))
    generator = random.Random(len(blocks))  # the same plan every time
    for _ in range(_TRIES):
        order = sorted(blocks, key=lambda b: -b.taken * generator.uniform(0.5, 1.0))
        yield order


def _place(order: Iterable[Block]) -> dict[str, int]:
    placed: list[tuple[int, Block]] = []
    for block in order:
        at = 0
        for offset, other in _meeting(placed, block):
            if at + block.taken <= offset:
                break
            at = max(at, offset + other.taken)
        placed.append((at, block))
    return {block.name: at for at, block in placed}


def _meeting(placed: Iterable[tuple[int, Block]], block: Block) -> list[tuple[int, Block]]:
    """The blocks that are needed at the same time, the lowest first."""
    return sorted(((at, other) for at, other in placed if other.meets(block)), key=lambda pair: pair[0])
