# SPDX-License-Identifier: Apache-2.0
"""The steps of a program in C and the pieces of its arena, as they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from linger.errors import printable

INPUT, TENSOR, OUTPUT, SCRATCH = "input", "tensor", "output", "scratch"
"""The kinds of blocks."""

_KB = 1024


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
