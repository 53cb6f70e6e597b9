# SPDX-License-Identifier: Apache-2.0
"""Memory over time as a report shows it: the arena of the program in C, or the tensors alive where a chip is asked."""

from __future__ import annotations

from pathlib import Path

from linger.c.memory_use import ArenaUse
from linger.c.memory_use import memory as arena_of
from linger.checks.memory_use import Lifetime, MemoryUse
from linger.errors import LingerError, printable
from linger.reporting.facts import Block, MemoryFacts


def memory_facts(path: Path, use: MemoryUse) -> MemoryFacts:
    """The arena over the steps of the program in C; for a chip, and where there is no C, the tensors alive over the layers."""
    arena, note = _arena(path)
    if arena is not None and use.target is None:
        return MemoryFacts(
            is_arena=True,
            steps=tuple(step.title for step in arena.steps),
            blocks=tuple(
                Block(block.name, block.bytes, block.first, block.last, block.offset, block.kind)
                for block in arena.blocks
            ),
            peak_bytes=arena.least_bytes,
            arena_bytes=arena.arena_bytes,
            note=note,
        )
    totals = _by_name(use.summary(), path) if use.is_lower_bound or use.batch_axes else ""
    return MemoryFacts(
        steps=tuple(layer.node for layer in use.layers),
        blocks=tuple(_block(lifetime) for lifetime in use.lifetimes),
        peak_bytes=use.peak_bytes,
        arena_bytes=None if arena is None else arena.arena_bytes,
        limit_bytes=use.tensor_bytes,
        note=f"{note} {totals}".strip(),
    )


def _arena(path: Path) -> tuple[ArenaUse | None, str]:
    """What the program in C needs, or the sentence that says why there is none."""
    try:
        return arena_of(path), ""
    except LingerError as error:
        return None, _by_name(printable(f"There is no program in C: {error}"), path)


def _by_name(text: str, path: Path) -> str:
    """A text with the file's name alone: a page is read elsewhere, and the folder may be a temporary one."""
    return text.replace(printable(str(path)), printable(path.name))


def _block(lifetime: Lifetime) -> Block:
    kind = "input" if lifetime.is_input else "output" if lifetime.is_output else "tensor"
    return Block(lifetime.tensor, lifetime.bytes or 0, lifetime.first, lifetime.last, kind=kind)
