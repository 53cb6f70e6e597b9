# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes C99: one function for each op, from the body that the other kernels interpret too.

A wide value is an integer tensor times a power of two, and every integer has an interval. Scaling by a power of two
changes the exponent, `floor` is an arithmetic right shift, sums align exponents by multiplying. Intervals choose 32 or
64 bits for each intermediate, or the op is refused: overflow is proven absent. Tensors are in the order of the file
(NCHW); choosing another layout, and where scratch lies, is left to the writer of whole networks.

This part writes recurrent layers: the loop over time, and gate curves as straight pieces that give exactly the numbers of a
table (25 pieces replace 20 425 bytes). The pieces are fitted to the table, which holds the device's sixteen pieces rounded
to 8 bits, and each piece is compared with all the numbers that it replaces.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from linger.numeric.c import rules
from linger.numeric.c.nodes import (
    INT32,
    RANGES,
    WIDTHS,
    Bounds,
    Buffer,
    Index,
    Interval,
    Node,
    Place,
    Rule,
    Target,
    bare,
    hull,
    is_inside,
    size_of,
    storage_type,
)
from linger.numeric.c.products import CProducts
from linger.numeric.c.rules import constant_node, converted
from linger.numeric.c.scope import Draft, Scope
from linger.numeric.c.views import (
    Entries,
    Fixed,
    Gathered,
    Joined,
    Move,
    Number,
    Padded,
    Real,
    Rows,
    Search,
    Table,
    Value,
    View,
    axes_of,
    sliced,
)
from linger.numeric.kernel import step_by_step

SLOPE_BITS = 18
"""Fraction of a slope. Fewer bits need more pieces; with more, the slope of tanh (1/16) does not fit in 16 bits."""
OFFSET_BITS = 8
"""Fraction of an offset, so that numbers of 8 bits and their fraction fill 16 bits."""

_TO_SLOPE = SLOPE_BITS - OFFSET_BITS
_STORED, _BYTES = "int16_t", 2
_LOWEST, _HIGHEST = RANGES[_STORED]
_NUMBERS_OF_PIECE = 3

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Piece:
    """From x = start on: ⌊(slope·(x − start) + offset·2^10)/2^18⌋. All three fit in 16 bits, and every step in 32."""

    start: int
    slope: int
    offset: int

    def at(self, x: Numbers) -> Numbers:
        """The numbers that it gives."""
        return (self.slope * (x - self.start) + (self.offset << _TO_SLOPE)) >> SLOPE_BITS


@dataclass(frozen=True)
class _Piecewise(Rule):
    """values[x] by pieces; the interval of x is inside the table."""

    values: tuple[int, ...]
    pieces: tuple[Piece, ...]
    weight = 40

    def bounds(self, node: Node, known: Bounds) -> Interval:
        low, high = known.of(node.args[0])
        part = self.values[max(low, 0) : high + 1]
        return min(part), max(part)

    def write(self, place: Place, node: Node, index: Index) -> str:
        name, _ = place.table(piece_array(self.pieces, len(self.values)))
        where = bare(place.read_as(node.args[0], index, INT32))
        # the linear search starts at the middle piece, because gates are more often small than saturated
        middle = len(self.pieces) // 2 * _NUMBERS_OF_PIECE
        return f"{place.helper('linger_pieces')}(&{name}[{middle}], {where})"


def piece_array(pieces: Sequence[Piece], end: int) -> tuple[int, ...]:
    """Pieces as the array that C reads: start, slope and offset of each, then where the last one ends."""
    return (*(number for p in pieces for number in (p.start, p.slope, p.offset)), end)


@cache
def straight_pieces(values: tuple[int, ...]) -> tuple[Piece, ...]:
    """Straight pieces that give these 8-bit numbers exactly, each as long as possible (greedy piecewise-linear fit).

    Empty where the pieces would need as much memory as the numbers, or do not fit in 16 bits.

    >>> straight_pieces(tuple(x // 20 for x in range(200)))
    (Piece(start=0, slope=13101, offset=2),)
    """
    numbers, pieces, start = np.asarray(values, np.int64), list[Piece](), 0
    if not values or not is_inside((min(values), max(values)), RANGES["int8_t"]):
        return ()
    while start < len(values):
        # what a line gives on some places it gives on fewer of them too, so bisection finds the farthest end
        lengths = range(1, len(numbers) - start + 1)
        end = start + bisect_left(lengths, 1, key=lambda length: int(_line(numbers, start, start + length) is None))
        piece = _line(numbers, start, end)
        assert piece is not None  # a single number is a line
        pieces.append(piece)
        assert np.array_equal(piece.at(np.arange(start, end)), numbers[start:end])
        start = end
        if len(pieces) * _NUMBERS_OF_PIECE * _BYTES >= len(values):
            return ()
    stored = piece_array(pieces, len(values))
    return tuple(pieces) if storage_type((min(stored), max(stored))) == _STORED else ()


def _line(numbers: Numbers, start: int, end: int) -> Piece | None:
    """A line with y ≤ line < y + 1 at every place from `start` to `end` − 1, in whole numbers; None if there is none."""
    part = numbers[start:end]
    last, rise = len(part) - 1, int(part[-1] - part[0])
    jumps = np.flatnonzero(np.diff(part))
    # between its jumps the table is constant and a line is monotone, so the ends of these runs decide
    x = np.concatenate([[0], jumps, jumps + 1, [last]])
    y = part[x] << SLOPE_BITS
    slopes = np.arange(((rise - 1) << SLOPE_BITS) // max(last, 1), ((rise + 1) << SLOPE_BITS) // max(last, 1) + 1)
    slopes = slopes[(slopes >= _LOWEST) & (slopes <= _HIGHEST)]
    products = slopes[:, None] * x
    lows = -((products - y) >> _TO_SLOPE).min(axis=1)
    highs = ((y + (1 << SLOPE_BITS) - 1 - products) >> _TO_SLOPE).min(axis=1)
    usable = np.flatnonzero((lows <= highs) & (lows <= _HIGHEST) & (highs >= _LOWEST))
    if not len(usable):
        return None
    chosen = usable[len(usable) // 2]
    return Piece(start, int(slopes[chosen]), max(int(lows[chosen]), _LOWEST))


_ROUNDS = 4
"""How many steps the intervals of states may take to reach a fixed point."""


@dataclass(frozen=True)
class _Inside(Rule):
    """Elements of the first argument before the end of their sequence, else 0; the second argument holds the lengths."""

    time_axis: int
    is_elementwise = False
    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return hull([known.of(node.args[0]), (0, 0)])

    def write(self, place: Place, node: Node, index: Index) -> str:
        axes = axes_of(index)
        value, lengths = node.args
        end = _length(place, lengths, axes[1 - self.time_axis], node.shape[self.time_axis])
        return f"({axes[self.time_axis]} < {end} ? {place.read(value, index)} : 0)"


def _length(place: Place, lengths: Node, batch: str, steps: int) -> str:
    """The length of a sequence, clipped to the number of steps."""
    text = place.read(lengths, (batch,))
    ctype = lengths.ctype(place)
    length = f"{place.helper(f'linger_clip{WIDTHS[ctype]}')}({text}, 0, {steps})"
    return place.local(INT32, converted(length, ctype, INT32))


def _backwards(steps: int, lengths: Node | None) -> Callable[[Place, str, str], str]:
    """Writes the time step that is read at step t of a backward pass; steps beyond a sequence's length stay t."""

    def turned(place: Place, time: str, batch: str) -> str:
        if lengths is None:
            return f"({steps - 1} - {time})"
        end = _length(place, lengths, batch, steps)
        return place.local(INT32, f"{time} < {end} ? {end} - 1 - {time} : {time}")

    return turned


class CKernel(CProducts):
    """Interprets a body by building nodes; loops are written when a tensor is stored, or a recurrent layer begins.

    The states of recurrent layers live in scratch; a step is written once, inside a loop over time.
    """

    def __init__(self, draft: Draft, scope: Scope) -> None:
        super().__init__(draft)
        self._scope = scope
        self._products: dict[Node, tuple[Value, Callable[[Value], Value]]] = {}
        """What a rounded product is computed from, and how: a step computes its own row, so that memory holds one."""

    def table(self, values: Sequence[int]) -> Value:
        return Table(((tuple(int(v) for v in values), 0),))

    def entries(self, table: Value, row: Value) -> Callable[[Value], Value]:
        if not isinstance(table, Table):
            raise self.refuse("entries of what is no table")
        return lambda index: self._entries(table, self.whole(index))

    def _entries(self, table: Table, index: Number) -> Value:
        """A look-up in the one part of the table that holds the index interval, by straight pieces where these are shorter.

        Where the interval spans several parts, the look-up is deferred until the index is split.
        """
        start, (low, high) = 0, index.node.interval
        for values, exponent in table.parts:
            if start <= low and high < start + len(values):
                where = self.whole(self.sub(index, Fixed(float(start))))
                pieces = straight_pieces(values)
                rule = _Piecewise(values, pieces) if pieces else rules.Lookup(values)
                return Number(Node(rule, (where.node,), where.node.shape), where.shape, exponent)
            start += len(values)
        return Entries(table, index)

    def split(self, x: Value, parts: int, axis: int) -> tuple[Value, ...]:
        if isinstance(x, Entries):
            return tuple(self._entries(x.table, self.whole(part)) for part in self.split(x.index, parts, axis))
        if isinstance(x, Fixed):
            axis %= len(x.shape)
            size = x.shape[axis] // parts
            return (replace(x, shape=(*x.shape[:axis], size, *x.shape[axis + 1 :])),) * parts
        number = self.with_one_exponent(x)
        node = self.shaped(number)
        axis %= len(node.shape)
        size = node.shape[axis] // parts
        slices = [sliced(node, axis, i * size, size) for i in range(parts)]
        return tuple(replace(number, node=s, shape=s.shape) for s in slices)

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        tables = [x for x in xs if isinstance(x, Table)]
        if tables:
            return Table(tuple(part for table in tables for part in table.parts))
        numbers, exponent = self.aligned(*xs)
        nodes = [self.shaped(x) for x in numbers]
        axis %= len(nodes[0].shape)
        shape = list(nodes[0].shape)
        shape[axis] = sum(node.shape[axis] for node in nodes)
        node = Node(Joined(axis), nodes, tuple(shape))
        node.needs_buffer = True
        return Number(node, node.shape, exponent, ctype=numbers[0].ctype)

    def rounded_product(self, w: Value, b: Value, factor: Value, *, axes: int) -> Callable[[Value], Value]:
        def product(x: Value) -> Value:
            sums = self._rows_product(x, w, b)
            rounded = self.floor(self.add(self.mul(sums, factor), Fixed(0.5)))
            if self.draft.tiles is not None:  # gates are parts of it, so it is computed once, as a whole
                self.number(rounded).node.needs_buffer = True
            self._products[self.number(rounded).node] = x, product
            return rounded

        return product

    # order
    def _moved(self, x: Number, shape: tuple[int, ...], move: Move) -> Number:
        node = Node(View(move), (self.shaped(x),), shape)
        return replace(x, node=node, shape=shape)

    def _searched(self, x: Number, shape: tuple[int, ...], search: Search, lengths: Node | None) -> Number:
        args = (self.shaped(x),) if lengths is None else (self.shaped(x), lengths)
        return replace(x, node=Node(Gathered(search), args, shape), shape=shape)

    def to_steps(self, x: Value, lengths: Value | None, *, batch_first: int, go_forward: int) -> Value:
        number = self.whole(x)
        first, second, *rest = number.shape
        steps, rows = (second, first) if batch_first else (first, second)
        ends = None if lengths is None or go_forward else self.shaped(self.whole(lengths))
        turned = _backwards(steps, ends)

        def move(place: Place, index: tuple[str, ...]) -> tuple[str, ...]:
            time, batch = index[:2]
            at = time if go_forward else turned(place, time, batch)
            return (batch, at, *index[2:]) if batch_first else (at, batch, *index[2:])

        return self._searched(number, (steps, rows, *rest), move, ends)

    def from_steps(self, y: Value, lengths: Value | None, *, batch_first: int, go_forward: int) -> Value:
        number = self.whole(y)
        steps, rows, *rest = number.shape
        ends = None if lengths is None else self.shaped(self.whole(lengths))
        turned = _backwards(steps, ends)

        def move(place: Place, index: tuple[str, ...]) -> tuple[str, ...]:
            batch, time = index[:2] if batch_first else (index[1], index[0])
            return (time if go_forward else turned(place, time, batch), batch, *index[2:])

        shape = (rows, steps, *rest) if batch_first else (steps, rows, *rest)
        ordered = self._searched(number, shape, move, ends)
        if ends is None:
            return ordered
        return replace(ordered, node=Node(_Inside(1 if batch_first else 0), (ordered.node, ends), shape))

    def at_end(self, y: Value, lengths: Value) -> Value:
        number = self.whole(y)
        steps, ends = number.shape[0], self.shaped(self.whole(lengths))

        def move(place: Place, index: tuple[str, ...]) -> tuple[str, ...]:
            if steps == 1:
                return ("0", *index)
            end = _length(place, ends, index[0], steps)
            return (place.local(INT32, f"{end} > 0 ? {end} - 1 : {steps - 1}"), *index)

        return self._searched(number, number.shape[1:], move, ends)

    def zero_state(self, sequence: Value, w: Value) -> Value:
        return Fixed(0.0, (self.number(sequence).shape[1], self.number(w).shape[1]))

    def squeeze_first(self, x: Value) -> Value:
        tensor = x if isinstance(x, Real) else self.number(x)
        return replace(tensor, shape=tensor.shape[1:])

    def unsqueeze_first(self, x: Value) -> Value:
        tensor = x if isinstance(x, Real) else self.number(x)
        return replace(tensor, shape=(1, *tensor.shape))

    # the loop
    def scan(
        self,
        step: Callable[[tuple[Value, ...], Value], tuple[Value, ...]],
        states: tuple[Value, ...],
        sequence: Value,
        *,
        stacked: int,
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        first = [self.whole(s) for s in states]
        x, product = self._products.get(self.number(sequence).node, (sequence, lambda row: row))
        items = self.shaped(self.whole(x))
        clock = self.draft.fresh("t")
        item = Node(View(lambda index: (clock, *index)), (items,), items.shape[1:])
        item.needs_buffer = len(items.args) > 1  # each row is at a place of its own, which is computed once
        of_step = product(Number(item, item.shape))
        self._scope.prepare(item)  # what no step changes is not computed in the loop

        def run(intervals: Sequence[Interval]) -> tuple[list[Number], list[Number]]:
            before = [Number(_array_node(f.shape, i), f.shape) for f, i in zip(first, intervals, strict=True)]
            return before, [self.whole(s) for s in step(tuple(before), of_step)]

        before, after = run(self._lasting(first, run))
        return self._write_scan(first, before, after, clock=clock, steps=items.shape[0], stacked=stacked)

    recurrence = step_by_step

    def _lasting(
        self, first: list[Number], run: Callable[[Sequence[Interval]], tuple[list[Number], list[Number]]]
    ) -> list[Interval]:
        """Loop invariants: intervals that hold the initial states and that no step leaves, by widening to a fixed point.

        An interval that a step leaves is widened to that of a C type. The image of an invariant under a step, joined with the
        initial interval, is an invariant too, and tighter.
        """
        starts = [f.node.interval for f in first]
        tried = starts
        for _ in range(_ROUNDS):
            after = [hull([s, a.node.interval]) for s, a in zip(starts, run(tried)[1], strict=True)]
            if all(is_inside(a, t) for a, t in zip(after, tried, strict=True)):
                return after
            tried = [RANGES.get(storage_type(hull([a, t])) or "", a) for a, t in zip(after, tried, strict=True)]
        raise self.refuse("the state of a recurrent layer grows from step to step")

    def _array(self, number: Number, shape: tuple[int, ...]) -> Buffer:
        ctype = storage_type(number.node.interval)
        if ctype is None:
            raise self.refuse("a state has more than 64 bits")
        return self.draft.new_array(ctype, shape)

    def _write_scan(
        self, first: list[Number], before: list[Number], after: list[Number], *, clock: str, steps: int, stacked: int
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Write the loop with two buffers for each state, before and after a step, so that a step reads none of its own results."""
        now = [self._array(b, b.shape) for b in before]
        then = [self._array(b, b.shape) for b in before]
        stacks = [self._array(b, (steps, *b.shape)) for b in before[:stacked]]
        for number, buffer in zip(first, now, strict=True):
            target = Target(buffer, buffer.shape)
            self._scope.fill_all([(self.shaped(number), [target])], f"{buffer.name}: the state before the first step")
        for number, buffer in zip(before, now, strict=True):
            number.node.buffer = buffer
        head = f"for (int32_t {clock} = 0; {clock} < {steps}; {clock}++)"
        if size_of(before[0].shape):
            with self._scope.braces(head) as inside:
                inside.fill_all([(self.shaped(a), [Target(b, b.shape)]) for a, b in zip(after, then, strict=True)])
                _carry_over(inside, then, now, stacks, clock)
        last = tuple(_stored(buffer, b) for buffer, b in zip(now, before, strict=True))
        return last, tuple(_stored(buffer, b) for buffer, b in zip(stacks, before, strict=False))

    # constants of whole networks
    def same_everywhere(self, value: int, shape: tuple[int, ...], ctype: str) -> Number:
        """A constant tensor that is written into the code as a literal."""
        return Number(constant_node(value, shape), shape, ctype=ctype)

    def looked_up(self, x: Value, first: int, values: Sequence[int], ctype: str) -> Number:
        """values[x − first]: a function of one integer as a look-up table."""
        where = self.whole(self.sub(self.whole(x), Fixed(float(first))))
        return replace(self._looked_up(tuple(values), where), ctype=ctype)

    # shapes
    def lines(self, x: Value, w: Value) -> Value:
        length = size_of(self.number(w).shape)
        return self._reshaped(x, (size_of(self._shape(x)) // length, length))

    def group_lines(self, x: Value, groups: int) -> Value:
        shape = self._shape(x)
        return self._reshaped(x, (shape[0] * groups, size_of(shape[1:]) // groups))

    def reshape_like(self, x: Value, other: Value) -> Value:
        return self._reshaped(x, self._shape(other))

    def _shape(self, x: Value) -> tuple[int, ...]:
        return x.shape if isinstance(x, Fixed) else self.number(x).shape

    def _reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        if isinstance(x, Fixed):
            return replace(x, shape=shape)
        if isinstance(x, Number) and x.power is not None and isinstance(x.node.rule, rules.Constant):
            power = self.shaped(Number(x.power, shape))  # powers of two alone, which differ
            return replace(x, node=constant_node(x.node.rule.value, shape), shape=shape, power=power)
        reshaped = replace(self.with_one_exponent(x), shape=shape)
        is_array = isinstance(reshaped.node.rule, rules.Stored)
        return replace(reshaped, node=self.shaped(reshaped)) if is_array else reshaped

    def line_length(self, x: Value) -> Value:
        return Fixed(float(self._shape(x)[-1]))

    # integers that stay what they are
    def relu(self, x: Value) -> Value:
        number = self.whole(x)
        zero = Number(constant_node(0), ())
        return self._combine(rules.Select(), [zero, number, number, zero], ctype=number.ctype)

    def clamp(self, x: Value, low: Value, high: Value) -> Value:
        number = self.whole(x)
        return self._combine(rules.Clip(), [number, self.whole(low), self.whole(high)], ctype=number.ctype)

    def rows(self, table: Value, index: Value) -> Value:
        source, where = self._operand(table), self.shaped(self.whole(index))
        node = Node(Rows(), (source, where), (*where.shape, *source.shape[1:]))
        return Number(node, node.shape, ctype=self.whole(table).ctype)

    def pad(self, x: Value, pads: Value, value: Value) -> Value:
        known = self.number(pads).node.known
        if known is None:
            raise self.refuse("the pads are not known, and with them the size of the result")
        begins, ends = np.asarray(known, np.int64).reshape(2, -1).tolist()
        number = self.whole(x)
        source = self._operand(number)
        shape = tuple(b + n + e for b, n, e in zip(begins, source.shape, ends, strict=True))
        node = Node(Padded(tuple(begins), tuple(ends)), (source, self.shaped(self.whole(value))), shape)
        node.needs_buffer = True
        return Number(node, shape, ctype=number.ctype)

    def shuffle(self, x: Value, groups: int) -> Value:
        number = self.whole(x)
        size = number.shape[1] // groups

        def move(index: tuple[str, ...]) -> tuple[str, ...]:
            c = index[1]
            return (index[0], f"({c} % {groups} * {size} + {c} / {groups})", *index[2:])

        return self._moved(number, number.shape, move)

    def swap_height_width(self, x: Value) -> Value:
        number = self.with_one_exponent(x)
        n, c, h, w = number.shape
        return self._moved(number, (n, c, w, h), lambda i: (i[0], i[1], i[3], i[2]))

    def per_channel(self, w: Value, x: Value) -> Value:
        ones = (1,) * max(len(self._shape(x)) - 2, 0)
        return self._reshaped(w, (size_of(self._shape(w)), *ones))


def _carry_over(place: Scope, then: list[Buffer], now: list[Buffer], stacks: list[Buffer], clock: str) -> None:
    """Copy the new states to where the next step reads them, and the stacked ones to the output of this step."""
    size = size_of(now[0].shape)
    place.comment("the state for the next step")
    with place.loop(size) as (inside, i):
        for number, (new, old) in enumerate(zip(then, now, strict=True)):
            inside.line(f"{old.name}[{i}] = {new.name}[{i}];")
            if number < len(stacks):
                inside.line(f"{stacks[number].name}[{clock} * {size} + {i}] = {new.name}[{i}];")


def _array_node(shape: tuple[int, ...], interval: Interval) -> Node:
    return Node(rules.Stored(), (), shape, interval=interval)


def _stored(buffer: Buffer, state: Number) -> Number:
    node = _array_node(buffer.shape, state.node.interval)
    node.buffer = buffer
    return Number(node, buffer.shape)
