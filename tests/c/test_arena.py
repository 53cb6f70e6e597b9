"""Places of blocks in the arena: none overlap, and the memory of whole programs is never overwritten before it is read."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import linger.c.writer
from linger.c.network import load_network
from linger.c.steps import make_plan
from linger.c.writer import ALIGNMENT, Source, _Arena, plan_arena, write_source
from linger.graph.network import Lifetime
from tests.support.chip import WIDTHS, WINDOW, model_of, node

NETS = sorted((Path(__file__).parent.parent / "golden" / "nets").glob("*.onnx"))
SUM = {"scale_x": 16.0, "scale_y": 16.0, "scale_o": 16.0}
FREE = -1

BLOCKS = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(0, 12), st.integers(0, 6)), max_size=14
).map(lambda rows: [Lifetime(f"b{i}", size, first, first + more) for i, (size, first, more) in enumerate(rows)])  # fmt: skip


def overlaps(arena):
    """Pairs of blocks that are needed at one time and share bytes, the lower one first; a sound plan has none."""
    placed = sorted(((arena.offsets[b.tensor], b) for b in arena.blocks if b.bytes), key=lambda pair: pair[0])
    found = []
    for number, (at, block) in enumerate(placed):
        for offset, other in placed[number + 1 :]:
            if offset >= at + block.bytes:
                break
            if other.meets(block):
                found.append((block, other))
    return found


def painted(arena):
    """Pairs of blocks that are painted over each other, step by step and byte by byte."""
    found = set()
    for step in range(max((b.last for b in arena.blocks), default=0) + 1):
        bytes_of = {
            b.tensor: set(range(arena.offsets[b.tensor], arena.offsets[b.tensor] + b.bytes))
            for b in arena.blocks
            if b.first <= step <= b.last
        }
        names = sorted(bytes_of)
        found |= {(a, b) for a in names for b in names if a < b and bytes_of[a] & bytes_of[b]}
    return found


def taken(block):
    return -(-block.bytes // ALIGNMENT) * ALIGNMENT


def pairs(arena):
    return {tuple(sorted((a.tensor, b.tensor))) for a, b in overlaps(arena)}


@given(BLOCKS)
@example([])
@example([Lifetime("b0", 0, 0, 0)])
@settings(max_examples=150)
def test_a_plan_has_no_overlaps_and_keeps_its_bounds(blocks):
    arena = plan_arena(blocks)
    assert overlaps(arena) == []
    assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
    assert arena.size == max((arena.offsets[b.tensor] + taken(b) for b in blocks), default=0)
    steps = range(max((b.last for b in blocks), default=0) + 1)
    assert arena.least == max(sum(taken(b) for b in blocks if b.first <= step <= b.last) for step in steps)
    assert arena.least <= arena.size <= sum(taken(b) for b in blocks)


@given(BLOCKS)
@settings(max_examples=20)
def test_the_same_blocks_give_the_same_plan(blocks):
    assert plan_arena(blocks) == plan_arena(blocks)


@given(
    BLOCKS.flatmap(lambda blocks: st.tuples(st.just(blocks), st.lists(st.integers(0, 6000), min_size=14, max_size=14)))
)
@settings(max_examples=60)
def test_overlaps_are_those_that_painting_finds(drawn):
    blocks, places = drawn
    arena = _Arena(tuple(blocks), {b.tensor: place for b, place in zip(blocks, places, strict=False)}, 9000, 0)
    assert pairs(arena) == painted(arena)


def test_a_chain_takes_the_two_largest_neighbors():
    # 100 and 300 are alive together, then 300 and 200, then 200 and 50: 16-byte steps give 112, 304, 208, 64
    arena = plan_arena([Lifetime(f"b{i}", size, i, i + 1) for i, size in enumerate((100, 300, 200, 50))])
    assert (arena.size, arena.least) == (304 + 208, 304 + 208)


def test_two_lifetimes_that_overlap_are_found():
    blocks = [Lifetime("a", 64, 0, 2), Lifetime("b", 32, 1, 1), Lifetime("c", 16, 2, 3)]
    arena = plan_arena(blocks)
    assert overlaps(arena) == []
    b = arena.offsets["a"] + 48
    assert overlaps(replace(arena, offsets={**arena.offsets, "b": b})) == [(blocks[0], blocks[1])]
    longer = (replace(blocks[1], last=2), blocks[0], blocks[2])
    shared = replace(arena, blocks=longer, offsets={"a": 0, "b": 64, "c": 64})
    assert [(x.tensor, y.tensor) for x, y in overlaps(shared)] == [("b", "c")]


# whole programs: an arena in which every byte knows whose it is


def overwritten(source: Source) -> list[str]:
    """What a program reads after somebody else has written there, and what one step writes over what it reads."""
    walk = _Walk(source)
    for edge in source.plan.inputs:
        walk.write(edge.tensor)
    for number, written in enumerate(source.steps, 1):
        walk.step(number, written)
    for edge in source.plan.outputs:
        walk.read(edge.tensor, "the output")
    return walk.problems


class _Walk:
    def __init__(self, source):
        self._source, self._plan, self._tensors = source, source.plan, source.plan.network.tensors
        self._owners = np.full(source.arena.size, FREE)
        self._numbers = {}
        self.problems = []

    def _span(self, tensor):
        at = self._source.place(tensor)
        return slice(at, at + self._tensors[tensor].bytes)

    def _number(self, name):
        return self._numbers.setdefault(name, len(self._numbers))

    def write(self, tensor):
        self._owners[self._span(tensor)] = self._number(self._plan.root(tensor))

    def read(self, tensor, where):
        root = self._plan.root(tensor)
        if not (self._owners[self._span(root)] == self._number(root)).all():
            self.problems.append(f"{where} reads {root}, which is overwritten")

    def step(self, number, written):
        reads = [n for n in written.step.reads if n not in self._plan.network.constants]
        for name in reads:
            self.read(name, written.function)
        blocks = {b.tensor: b for b in self._source.arena.blocks}
        scratch = {f"{number}/{b.name}" for b in written.scratch} & blocks.keys()
        offsets = self._source.arena.offsets
        spans = {name: slice(offsets[name], offsets[name] + blocks[name].bytes) for name in sorted(scratch)}
        spans |= {name: self._span(name) for name in written.step.outputs}
        self._compare(written, reads, list(spans.items()))
        for name, span in spans.items():
            self._owners[span] = self._number(name)

    def _compare(self, written, reads, spans):
        """Nothing that a step writes lies on something else that it writes or reads, but exactly in an operand's place."""
        for i, (name, span) in enumerate(spans):
            others = [other for other, where in spans[:i] if _meet(span, where)]
            for read in reads:
                where = self._span(self._plan.root(read))
                if _meet(span, where) and not (read in written.in_place and span == where):
                    others.append(read)
            self.problems += [f"{written.function} writes {name} over {other}" for other in others]


def _meet(a, b):
    return a.start < b.stop and b.start < a.stop


def source_of(model):
    return write_source(make_plan(load_network(model)), "net")


def random_network(seed, count=14):
    """Convolutions, sums and rectified tensors of one shape, each reading some of those before; the last ones go out."""
    dice = random.Random(seed)
    names, lines = ["x"], []
    for i in range(count):
        a, b = dice.choice(names[-4:]), dice.choice(names[-6:])
        made = dice.choice(
            [
                node("Conv2dInt", f"{a}, w", **WIDTHS | WINDOW),
                node("iqAdd", f"{a}, {b}", **SUM),
                node("iqMul", f"{a}, {b}", **SUM),
                f"y = Relu({a})",
                f"y = Transpose<perm=[0, 1, 3, 2]>({a})",
            ]
        )
        names.append(f"t{i}")
        lines.append(f"[n{i}] " + made.replace("y =", f"t{i} =", 1))
    lines.append(node("iqAdd", f"{names[-1]}, {names[-2]}", **SUM))
    return model_of(" ".join(lines), inputs="int8[1,4,5,5] x", w=(4, 4, 3, 3))


def residual():
    """y = conv(conv(p)) + p for p = conv(x): the sum lies where p lay."""
    lines = [
        f"[{name}] " + node("Conv2dInt", f"{x}, w", **WIDTHS | WINDOW).replace("y =", f"{name} =", 1)
        for name, x in (("p", "x"), ("q", "p"), ("r", "q"))
    ]
    return model_of(" ".join([*lines, node("iqAdd", "r, p", **SUM)]), inputs="int8[1,4,5,5] x", w=(4, 4, 3, 3))


@pytest.mark.parametrize("seed", range(25))
def test_random_networks_never_read_what_is_overwritten(seed):
    source = source_of(random_network(seed))
    assert overwritten(source) == []
    assert overlaps(source.arena) == []


def test_a_result_takes_the_place_of_an_operand_that_dies():
    source = source_of(residual())
    assert source.place("y") == source.place("p")
    assert [block.tensor for block in source.arena.blocks].count("y") == 0
    assert overwritten(source) == []


def _checked(path):
    source = source_of(path)
    assert overwritten(source) == []
    assert overlaps(source.arena) == []
    assert source.arena.size <= 1.05 * source.arena.least


@pytest.mark.parametrize("path", NETS[::5], ids=lambda path: path.stem)
def test_recorded_networks_lie_well(path):
    _checked(path)


@pytest.mark.slow
@pytest.mark.parametrize("path", NETS, ids=lambda path: path.stem)
def test_every_recorded_network_lies_well(path):
    _checked(path)


def test_a_planted_lifetime_that_ends_too_soon_is_found(monkeypatch):
    def careless(blocks):
        shorter = [replace(b, last=max(b.first, b.last - 1)) for b in blocks]
        return replace(plan_arena(shorter), blocks=tuple(blocks))

    monkeypatch.setattr(linger.c.writer, "plan_arena", careless)
    source = source_of(residual())
    assert overlaps(source.arena) != []
    assert overwritten(source) != []


def test_a_planted_lifetime_that_even_the_plan_believes_is_found(monkeypatch):
    def mistaken(blocks):
        return plan_arena([replace(b, last=max(b.first, b.last - 1)) for b in blocks])

    monkeypatch.setattr(linger.c.writer, "plan_arena", mistaken)
    source = source_of(residual())
    assert overlaps(source.arena) == []
    assert overwritten(source) != []


def test_scratch_that_lies_on_an_operand_is_found():
    source = source_of(NETS[0].parent.parent / "lstm_h24.onnx")
    (written,) = [written for written in source.steps if written.scratch]
    scratch = f"{source.steps.index(written) + 1}/{written.scratch[0].name}"
    read = next(name for name in written.step.reads if name not in source.plan.network.constants)
    offsets = {**source.arena.offsets, scratch: source.place(read)}
    assert overwritten(source) == []
    assert overwritten(replace(source, arena=replace(source.arena, offsets=offsets))) != []
