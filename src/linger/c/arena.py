# SPDX-License-Identifier: Apache-2.0
"""Where tensors lie in one piece of memory: those that are needed at the same time do not overlap. Steps and blocks as shown."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from linger.errors import printable
from linger.graph.costs import Lifetime, Lifetimes

ALIGNMENT = 16
"""Every tensor begins at a multiple of so many bytes."""

INPUT, TENSOR, OUTPUT, SCRATCH = "input", "tensor", "output", "scratch"
"""The kinds of blocks."""

_KB = 1024

_TRIES = 200
"""How many random orders are tried where the good ones leave gaps."""


@dataclass(frozen=True)
class Arena:
    """Where each block begins, the size of all, and the size that no plan can be below."""

    blocks: tuple[Lifetime, ...]
    offsets: Mapping[str, int]
    size: int
    least: int


def plan_arena(blocks: Sequence[Lifetime]) -> Arena:
    """Find places for blocks: large ones first, each as low as it can lie.

    The most bytes that are needed at one step are a lower bound. Where the first order misses it, other orders are
    tried; the same blocks always give the same plan.
    """
    lifetimes = Lifetimes(blocks, ALIGNMENT)
    least = max(lifetimes.totals(), default=0)
    best: tuple[int, dict[str, int]] | None = None
    for order in _orders(lifetimes):
        offsets = _place(lifetimes, order)
        size = max((offsets[b.tensor] + lifetimes.taken(b) for b in blocks), default=0)
        if best is None or size < best[0]:
            best = (size, offsets)
        if size == least:
            break
    assert best is not None  # there is always an order
    return Arena(tuple(blocks), best[1], best[0], least)


def _orders(lifetimes: Lifetimes) -> Iterator[list[Lifetime]]:
    blocks, taken = lifetimes.pieces, lifetimes.taken
    yield sorted(blocks, key=lambda b: (-taken(b), b.first))
    yield sorted(blocks, key=lambda b: (b.first - b.last, -taken(b)))
    yield sorted(blocks, key=lambda b: (b.first, -taken(b)))
    generator = random.Random(len(blocks))  # the same plan every time
    for _ in range(_TRIES):
        yield sorted(blocks, key=lambda b: -taken(b) * generator.uniform(0.5, 1.0))


def _place(lifetimes: Lifetimes, order: Iterable[Lifetime]) -> dict[str, int]:
    placed: list[tuple[int, Lifetime]] = []
    for block in order:
        at = 0
        for offset, other in sorted(((o, b) for o, b in placed if b.meets(block)), key=lambda pair: pair[0]):
            if at + lifetimes.taken(block) <= offset:
                break
            at = max(at, offset + lifetimes.taken(other))
        placed.append((at, block))
    return {block.tensor: at for at, block in placed}


@dataclass(frozen=True)
class PlacedBlock:
    """A piece of the arena.

    Attributes:
        name: The tensor that begins it; for scratch the step's number and the name in C.
        kind: "input", "tensor", "output" or "scratch". What comes in and goes out in one place is an output.
        offset: Its first byte.
        bytes: Its size, without what alignment adds.
        first: The step that fills it; 0 is what comes in.
        last: The last step that reads it; the one after all others is what goes out.
        tensors: The tensors that lie in it one after the other, results that replace an operand included.
    """

    name: str
    kind: str
    offset: int
    bytes: int
    first: int
    last: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class StepMemory:
    """One step of the program.

    Attributes:
        number: Its place in time; 0 is what comes in, the last one what goes out.
        function: Its function in C; empty for what comes in and goes out.
        nodes: Names and types of the nodes that it computes; of what comes in or goes out as it is, its name.
        op_types: The types of these nodes alone.
        outputs: The tensors that it makes.
        shapes: Their shapes.
        live_bytes: What the arena must hold while it runs: tensors and scratch, with what alignment adds.
        scratch_bytes: Memory that only this step needs.
        in_place: The operands whose memory its results take over.
        weight_bytes: The constant arrays that it reads; one that several steps read is counted for each of them.
        macs: Its multiply-accumulates.
    """

    number: int
    function: str
    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    live_bytes: int
    scratch_bytes: int = 0
    in_place: tuple[str, ...] = ()
    weight_bytes: int = 0
    macs: int = 0

    @property
    def title(self) -> str:
        """Its number and what it computes, as text; of nodes that are joined with the first one only the type."""
        if self.function:
            return f"{self.number}: {' + '.join([*self.nodes[:1], *self.op_types[1:]])}"
        return f"{self.number}: {'output' if self.number else 'input'} {', '.join(self.nodes)}"

    @property
    def made(self) -> str:
        """The tensors that it makes with their shapes, as text."""
        sizes = ("×".join(map(str, shape)) or "1" for shape in self.shapes)
        return ", ".join(f"{printable(name)} {size}" for name, size in zip(self.outputs, sizes, strict=True))

    @property
    def place(self) -> str:
        """Whether its results lie in the memory of an operand, as text."""
        return "in place" if self.in_place else ""

    @property
    def weight_kb(self) -> float:
        """The weights, in KB."""
        return self.weight_bytes / _KB
