# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers of the C interpreter: the loop over time, gate curves, sequences of several lengths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from linger.numeric.c import rules
from linger.numeric.c.gates import Piecewise, straight_pieces
from linger.numeric.c.intervals import INT32, RANGES, Interval, hull, is_inside, size_of, storage_type
from linger.numeric.c.nodes import Bounds, Node, Place
from linger.numeric.c.products import CProducts
from linger.numeric.c.scope import Scope
from linger.numeric.c.text import Buffer, Index, Target
from linger.numeric.c.values import Entries, Fixed, Number, Real, Table, Value
from linger.numeric.c.views import Found, Joined, Move, Search, View, axes_of, sliced
from linger.numeric.kernel import Cell

_ROUNDS = 4
"""How often the interval of a state is widened before it must have stayed."""


class Inside:
    """Elements of the first argument where a step is before its sequence's end (the second one holds the lengths)."""

    is_elementwise = False
    weight = 2

    def __init__(self, time_axis: int) -> None:
        self._time = time_axis

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return hull([known.of(node.args[0]), (0, 0)])

    def write(self, place: Place, node: Node, index: Index) -> str:
        axes = axes_of(index)
        value, lengths = node.args
        end = _length(place, lengths, axes[1 - self._time], node.shape[self._time])
        return f"({axes[self._time]} < {end} ? {place.read(value, index)} : 0)"


def _length(place: Place, lengths: Node, batch: str, steps: int) -> str:
    """The length of a sequence, limited to the steps that there are."""
    text = place.read(lengths, (batch,))
    ctype = lengths.ctype(place)
    helper = place.helper(f"linger_clip{32 if ctype == INT32 else 64}")
    found = f"{helper}({text}, 0, {steps})"
    return place.local(INT32, found if ctype == INT32 else f"(int32_t){found}")


def _backwards(steps: int, lengths: Node | None) -> Callable[[Place, str, str], str]:
    """Time t of a pass from the end to the beginning; beyond the length it stays t."""

    def turned(place: Place, time: str, batch: str) -> str:
        if lengths is None:
            return f"({steps - 1} - {time})"
        end = _length(place, lengths, batch, steps)
        return place.local(INT32, f"{time} < {end} ? {end} - 1 - {time} : {time}")

    return turned


class CTime(CProducts):
    """Recurrent layers: states live in scratch, each step is written once, inside a loop over time."""

    _scope: Scope

    def table(self, values: Sequence[int]) -> Value:
        return Table(((tuple(int(v) for v in values), 0),))

    def entries(self, table: Value, row: Value) -> Callable[[Value], Value]:
        if not isinstance(table, Table):
            raise self.refuse("entries of what is no table")
        return lambda index: self._entries(table, self.whole(index))

    def _entries(self, table: Table, index: Number) -> Value:
        """Of one part of the table, where the interval says which; otherwise left open until it is split."""
        start, (low, high) = 0, index.node.interval
        for values, exponent in table.parts:
            if start <= low and high < start + len(values):
                where = self.whole(self.sub(index, Fixed(float(start))))
                return replace(self._on_table(values, where), exponent=exponent)
            start += len(values)
        return Entries(table, index)

    def _on_table(self, values: tuple[int, ...], where: Number) -> Number:
        """Numbers of a table: by its straight pieces where these are shorter."""
        pieces = straight_pieces(values)
        if not pieces:
            return self._looked_up(values, where)
        return Number(Node(Piecewise(values, pieces), (where.node,), where.node.shape), where.shape)

    def split(self, x: Value, parts: int, axis: int) -> tuple[Value, ...]:
        if isinstance(x, Entries):
            return tuple(self._entries(x.table, self.whole(part)) for part in self.split(x.index, parts, axis))
        if isinstance(x, Fixed):
            axis %= len(x.shape)
            size = x.shape[axis] // parts
            return (replace(x, shape=(*x.shape[:axis], size, *x.shape[axis + 1 :])),) * parts
        number = self.settled(x)
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
            return rounded

        return product

    # order
    def _moved(self, x: Number, shape: tuple[int, ...], move: Move) -> Number:
        node = Node(View(move), (self.shaped(x),), shape)
        return replace(x, node=node, shape=shape)

    def _searched(self, x: Number, shape: tuple[int, ...], search: Search, lengths: Node | None) -> Number:
        args = (self.shaped(x),) if lengths is None else (self.shaped(x), lengths)
        return replace(x, node=Node(Found(search), args, shape), shape=shape)

    def to_steps(self, x: Value, lengths: Value | None, *, batch_first: int, go_forward: int) -> Value:
        number = self.whole(x)
        first, second, *rest = number.shape
        steps, rows = (second, first) if batch_first else (first, second)
        ends = None if lengths is None else self.shaped(self.whole(lengths))
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
        return replace(ordered, node=Node(Inside(1 if batch_first else 0), (ordered.node, ends), shape))

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
        found = x if isinstance(x, Real) else self.number(x)
        return replace(found, shape=found.shape[1:])

    def unsqueeze_first(self, x: Value) -> Value:
        found = x if isinstance(x, Real) else self.number(x)
        return replace(found, shape=(1, *found.shape))

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
        items = self.shaped(self.whole(sequence))
        clock = self.draft.fresh("t")
        item = Node(View(lambda index: (clock, *index)), (items,), items.shape[1:])

        def run(intervals: Sequence[Interval]) -> tuple[list[Number], list[Number]]:
            before = [Number(_array_node(f.shape, i), f.shape) for f, i in zip(first, intervals, strict=True)]
            return before, [self.whole(s) for s in step(tuple(before), Number(item, item.shape))]

        before, after = run(self._lasting(first, run))
        return self._write_scan(first, before, after, clock=clock, steps=items.shape[0], stacked=stacked)

    def recurrence(
        self,
        cell: Cell[Value],
        prepare: Callable[[], Callable[[tuple[Value, ...], Value], tuple[Value, ...]]],
        states: tuple[Value, ...],
        sequence: Value,
        *,
        stacked: int,
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        return self.scan(prepare(), states, sequence, stacked=stacked)

    def _lasting(
        self, first: list[Number], run: Callable[[Sequence[Interval]], tuple[list[Number], list[Number]]]
    ) -> list[Interval]:
        """Intervals that states begin in and that a step does not leave.

        Those that a step leaves are widened to a whole type. What a step makes of intervals that last, joined with the
        beginning, lasts too, and is tighter.
        """
        starts = [f.node.interval for f in first]
        tried = starts
        for _ in range(_ROUNDS):
            made = [hull([s, a.node.interval]) for s, a in zip(starts, run(tried)[1], strict=True)]
            if all(is_inside(m, t) for m, t in zip(made, tried, strict=True)):
                return made
            tried = [RANGES.get(storage_type(hull([m, t])) or "", m) for m, t in zip(made, tried, strict=True)]
        raise self.refuse("the state of a recurrent layer grows from step to step")

    def _array(self, number: Number, shape: tuple[int, ...]) -> Buffer:
        ctype = storage_type(number.node.interval)
        if ctype is None:
            raise self.refuse("a state has more than 64 bits")
        return self.draft.new_array(ctype, shape)

    def _write_scan(
        self, first: list[Number], before: list[Number], after: list[Number], *, clock: str, steps: int, stacked: int
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The states in one array before each step and in another after it, so that a step reads none of its own results."""
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


def _carry_over(place: Scope, then: list[Buffer], now: list[Buffer], stacks: list[Buffer], clock: str) -> None:
    """What the step made becomes what the next one reads; some of it is kept."""
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
