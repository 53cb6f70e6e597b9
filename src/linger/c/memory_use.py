# SPDX-License-Identifier: Apache-2.0
"""What a network needs as C, step by step: where its tensors lie in the arena and when, scratch, weights, tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from linger.c.network import load_network
from linger.c.steps import Edge, PlacedBlock, StepMemory, make_plan
from linger.c.writer import ALIGNMENT, Source, WrittenStep, write_source
from linger.checks.memory_use import amount
from linger.checks.memory_use import use_of as memory_of
from linger.errors import GraphError, LingerError, UnsupportedError, counted, printable
from linger.graph.core.nodes import describe
from linger.graph.network import Lifetimes, Network, NetworkLike, multiplications_of
from linger.numeric.c.scope import PROOF
from linger.records.table import Column, Summed, blocks_html, picked, to_json
from linger.version import __version__

INPUT, TENSOR, OUTPUT, SCRATCH = "input", "tensor", "output", "scratch"
"""The kinds of blocks."""

FORMAT_VERSION = 1
"""Version of the JSON form. Keys may be added; one that is removed or changes its meaning raises it."""

_MOST_BYTES = 2**30
"""Networks whose tensors take more together are not planned: no machine that C is written for has so much, and the sizes are
measured by computing every tensor once."""

_WRONG_NODE = (LookupError, TypeError, ValueError)
"""What nodes raise whose inputs or attributes are not those of their op; `linger.check` says which they are."""

_PROOF_ONLY = re.compile(rf"#ifdef {PROOF}\n.*?#endif", re.DOTALL)
_TABLE = re.compile(r"^static const u?int(\d+)_t \w+\[(\d+)\] = ", re.MULTILINE)

_COLUMNS = (
    Column("title", "step"),
    Column("output_text", "output"),
    Column("live_bytes", "live bytes", "{:,d}"),
    Column("scratch_bytes", "scratch", "{:,d}"),
    Column("place", "memory"),
    Column("weight_kb", "weights KB", "{:,.1f}"),
    Column("macs", "MACs", "{:,d}"),
)


@dataclass(frozen=True, repr=False)
class ArenaUse(Summed):
    """What a network needs as C.

    Attributes:
        steps: The steps in order, with what comes in first and what goes out last.
        blocks: The pieces of the arena.
        arena_bytes: The arena's size, as the header of the program has it.
        least_bytes: What no plan can be below: the most bytes that one step needs.
        weight_bytes: All constant arrays, each once.
        table_bytes: The tables that the functions look numbers up in.
        path: The file; None for a model in memory.
    """

    steps: tuple[StepMemory, ...]
    blocks: tuple[PlacedBlock, ...]
    arena_bytes: int
    least_bytes: int
    weight_bytes: int
    table_bytes: int
    path: Path | None = None

    _rows_name = "steps"

    @property
    def ratio(self) -> float:
        """The arena as a multiple of the lower bound; 1 is the best there is."""
        return self.arena_bytes / self.least_bytes

    @property
    def scratch_bytes(self) -> int:
        """The most scratch that one step needs; it lies in the arena."""
        return max((step.scratch_bytes for step in self.steps), default=0)

    @property
    def macs(self) -> int:
        """All multiply-accumulates."""
        return sum(step.macs for step in self.steps)

    @property
    def peak_step(self) -> int:
        """The first step with the most bytes alive."""
        return max(range(len(self.steps)), key=lambda i: self.steps[i].live_bytes)

    def alive_at(self, step: int) -> tuple[PlacedBlock, ...]:
        """The pieces of the arena that a step needs, the lowest first."""
        found = [block for block in self.blocks if block.first <= step <= block.last]
        return tuple(sorted(found, key=lambda block: block.offset))

    def rows(self) -> list[tuple[str, str, int, int, str, int, int]]:
        """(step, its outputs, bytes alive, scratch, "in place" or nothing, bytes of weights, MACs), in order."""
        return [
            (s.title, s.output_text, s.live_bytes, s.scratch_bytes, s.place, s.weight_bytes, s.macs) for s in self.steps
        ]

    def summary(self) -> str:
        """The totals in one sentence."""
        bound = (
            f"the least that is possible (step {self.peak_step})"
            if self.arena_bytes == self.least_bytes
            else f"{self.ratio:.3f} times the least that is possible, {self.least_bytes:,} bytes (step {self.peak_step})"
        )
        scratch = f", {amount(self.scratch_bytes)} of it scratch" if self.scratch_bytes else ", no scratch"
        tables = f" and {amount(self.table_bytes)} of tables" if self.table_bytes else ""
        weights = f"{amount(self.weight_bytes)} of weights{tables}"
        return f"As C: an arena of {amount(self.arena_bytes)}, {bound}{scratch}; {weights}."

    def facts(self) -> dict[str, Any]:
        """The totals and the blocks as JSON has them."""
        return picked(self, "arena_bytes least_bytes scratch_bytes weight_bytes table_bytes macs peak_step blocks")

    def to_json(self, path: str | Path | None = None) -> str:
        """Everything as JSON text, also written to `path` if one is given; the page on `linger.memory` describes the keys."""
        facts = {
            "format": "linger-c-memory",
            "version": FORMAT_VERSION,
            "linger": __version__,
            "path": self.path,
            **self.facts(),
        }
        return to_json(facts, self.steps, path)

    def plot(self, path: str | Path) -> None:
        """Draw the arena over time into a .png or .svg file.

        Raises:
            UsageError: matplotlib is missing, or the file has another ending.
        """
        from linger.c.arena_image import draw_arena  # a library that draws is loaded when something is drawn

        draw_arena(self, Path(path))

    def __repr__(self) -> str:
        return (
            f"ArenaUse({counted(len(self.steps) - 2, 'step')}, an arena of {amount(self.arena_bytes)}, "
            f"{amount(self.weight_bytes)} of weights)"
        )

    def _title(self) -> str:
        return "as C"

    def _image(self) -> str:
        return blocks_html(self.blocks, len(self.steps), self.arena_bytes)

    def _shown_columns(self) -> tuple[Column, ...]:
        """Without columns that would be empty."""
        empty = set()
        if not self.scratch_bytes:
            empty.add("scratch_bytes")
        if not any(step.in_place for step in self.steps):
            empty.add("place")
        return tuple(column for column in _COLUMNS if column.name not in empty)


def memory(model: NetworkLike) -> ArenaUse:
    """Plan the program in C without writing it: where each tensor lies in the arena and when, weights, multiplications.

    Args:
        model: The file, a model in memory, or a `Network`. It is not changed.

    Raises:
        UsageError: There is no such file.
        UnsupportedError: What has no C, every node of it, or tensors larger than any machine that C is written for.
        GraphError: The file is no complete ONNX model, or contradicts itself.
    """
    return Network.of(model).once(_planned)


def _planned(network: Network) -> ArenaUse:
    _refuse_large(network)
    try:
        source = write_source(make_plan(load_network(network)), "network")
    except LingerError:
        raise
    except _WRONG_NODE as error:
        raise GraphError(
            f"a node does not fit its op ({type(error).__name__}: {error}). linger.check names the node."
        ) from error
    return use_of(source, network.path)


def use_of(source: Source, path: Path | None = None) -> ArenaUse:
    """What a program needs that was written."""
    program = _Program(source)
    return ArenaUse(
        steps=tuple(program.steps()),
        blocks=tuple(program.blocks()),
        arena_bytes=max(source.arena.size, ALIGNMENT),
        least_bytes=max(source.arena.least, ALIGNMENT),
        weight_bytes=sum(program.weights.values()),
        table_bytes=table_bytes(source.functions, source.conversions),
        path=path,
    )


def table_bytes(*texts: str) -> int:
    """The bytes of the constant tables that texts of C define, without those of proof builds.

    >>> table_bytes("static const int8_t linger_table_0[256] = {", "static const uint16_t linger_table_1[4] = {")
    264
    """
    built = [_PROOF_ONLY.sub("", text) for text in texts]
    return sum(int(bits) // 8 * int(count) for text in built for bits, count in _TABLE.findall(text))


def _refuse_large(network: Network) -> None:
    total = sum(lifetime.bytes or 0 for lifetime in network.once(memory_of).lifetimes)
    if total > _MOST_BYTES:
        raise UnsupportedError(
            f"the tensors take {amount(total)} together, more than the {amount(_MOST_BYTES)} that C is planned for. "
            "Use a smaller input, or cut the network."
        )


class _Program:
    """A written program, read for what it needs."""

    def __init__(self, source: Source) -> None:
        self._source, self._plan, self._network = source, source.plan, source.plan.network
        self._lifetimes = Lifetimes(source.arena.blocks, ALIGNMENT)
        self._blocks = {block.tensor: block for block in source.arena.blocks}
        self.weights = {weights.name: int(weights.content.nbytes) for weights in source.weights}

    # blocks
    def blocks(self) -> Iterator[PlacedBlock]:
        """The blocks with their kinds and the tensors in each."""
        block_of = self._homes()
        tensors: dict[str, list[str]] = {name: [] for name in self._blocks}
        for tensor, name in block_of.items():
            tensors[name].append(tensor)
        kinds = {name: TENSOR if found else SCRATCH for name, found in tensors.items()}
        for kind, edges in ((INPUT, self._plan.inputs), (OUTPUT, self._plan.outputs)):
            kinds |= {block_of[edge.tensor]: kind for edge in edges if edge.tensor in block_of}
        for name, block in self._blocks.items():
            offset, found = self._source.arena.offsets[name], tuple(tensors[name])
            yield PlacedBlock(name, kinds[name], offset, block.bytes or 0, block.first, block.last, found)

    def _homes(self) -> dict[str, str]:
        """The block of each tensor that has bytes, in the order in which tensors are made; then those that only view others."""
        made = {self._plan.root(edge.tensor): self._plan.root(edge.tensor) for edge in self._plan.inputs}
        for written in self._source.steps:
            for name in written.step.outputs:
                operand = self._replaced(written, name)
                made[name] = name if operand is None else made[self._plan.root(operand)]
        made |= {name: made[self._plan.root(name)] for name in self._plan.aliases}
        return {tensor: name for tensor, name in made.items() if name in self._blocks}

    def _replaced(self, written: WrittenStep, output: str) -> str | None:
        """The operand whose memory a result takes over: the one at the same place, if the result has no block of its own."""
        if output in self._blocks or not self._network.tensors[output].bytes:
            return None
        place = self._source.place
        return next((name for name in written.in_place if place(name) == place(output)), None)

    # steps
    def steps(self) -> Iterator[StepMemory]:
        """The steps between what comes in and what goes out."""
        yield self._edges(self._plan.inputs, 0)
        for number, written in enumerate(self._source.steps, 1):
            yield self._step(number, written)
        yield self._edges(self._plan.outputs, len(self._source.steps) + 1)

    def _step(self, number: int, written: WrittenStep) -> StepMemory:
        step = written.step
        replaced = (self._replaced(written, name) for name in step.outputs)
        return StepMemory(
            number=number,
            function=written.function,
            nodes=tuple(map(describe, step.nodes)),
            op_types=tuple(node.op_type for node in step.nodes),
            outputs=step.outputs,
            shapes=self._shapes(step.outputs),
            live_bytes=self._live(number),
            scratch_bytes=self._scratch(number),
            in_place=tuple(name for name in replaced if name is not None),
            weight_bytes=sum(self.weights.get(name or "", 0) for name in dict.fromkeys(written.arguments)),
            macs=sum(map(self._macs, step.nodes)),
        )

    def _edges(self, edges: Sequence[Edge], number: int) -> StepMemory:
        """What comes in, or goes out; the caller's memory is not counted."""
        inner = tuple(edge.tensor for edge in edges)
        return StepMemory(
            number=number,
            function="",
            nodes=tuple(printable(edge.name) if edge.node is None else describe(edge.node) for edge in edges),
            op_types=tuple(edge.node.op_type for edge in edges if edge.node is not None),
            outputs=inner,
            shapes=self._shapes(inner),
            live_bytes=self._live(number),
        )

    def _shapes(self, names: Iterable[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(self._network.tensors[name].shape for name in names)

    def _live(self, number: int) -> int:
        return sum(map(self._lifetimes.taken, self._lifetimes.alive_at(number)))

    def _scratch(self, number: int) -> int:
        """The blocks of a step that hold no tensor."""
        alive = self._lifetimes.alive_at(number)
        own = (b for b in alive if b.first == b.last and b.tensor not in self._network.tensors)
        return sum(map(self._lifetimes.taken, own))

    def _macs(self, node: ir.Node) -> int:
        tensors = self._network.tensors

        def shape(value: ir.Value | None) -> tuple[int, ...] | None:
            found = None if value is None else tensors.get(value.name or "")
            return None if found is None else found.shape

        return multiplications_of(node, shape) or 0
