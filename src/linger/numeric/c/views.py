# SPDX-License-Identifier: Apache-2.0
"""Rules that only move elements (views, slices, concatenation, padding, rows of tables), and the values of op bodies.

Op bodies pass these values around while C is written. A wide number is an integer tensor times a power of two, so scaling by
powers of two costs nothing. Numbers computed from attributes stay Python floats, as in the reference. What has no exact form in
integers (a quotient, a logarithm, a real number) is deferred until a `floor` or `clip` determines the integer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate

from linger.numeric.c import rules
from linger.numeric.c.nodes import (
    INT32,
    Bounds,
    Flat,
    Index,
    Interval,
    Node,
    Place,
    Rule,
    Shape,
    Target,
    arithmetic_type,
    hull,
    meet,
    shifted_index,
    walk,
)
from linger.numeric.c.rules import Constant, Count, Lookup, Select, converted

Move = Callable[[tuple[str, ...]], tuple[str, ...]]
"""Maps the index of an element to its index in the source tensor."""
Search = Callable[[Place, tuple[str, ...]], tuple[str, ...]]
"""The same where the index in the source is computed by statements, from values that the function reads."""


def axes_of(index: Index) -> tuple[str, ...]:
    """An index with one expression for each axis."""
    assert not isinstance(index, Flat)  # moved elements are never written in the order of the array
    return index


@dataclass(frozen=True)
class View(Rule):
    """Elements of the argument at other indices."""

    move: Move
    is_elementwise = False
    weight = 0

    def write(self, place: Place, node: Node, index: Index) -> str:
        return place.read(node.args[0], self.move(axes_of(index)))


@dataclass(frozen=True)
class Gathered(Rule):
    """Elements of the first argument at indices that are computed from the other ones."""

    search: Search
    is_elementwise = False
    weight = 4

    def write(self, place: Place, node: Node, index: Index) -> str:
        return place.read(node.args[0], self.search(place, axes_of(index)))


class _InParts(Rule):
    """A tensor that is written part by part, and read from its array."""

    is_elementwise = False

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return hull([known.of(a) for a in node.args])

    def write(self, place: Place, node: Node, index: Index) -> str:
        raise AssertionError("joined and padded tensors are read from an array")


@dataclass(frozen=True)
class Joined(_InParts):
    """Tensors one after the other along an axis."""

    axis: int

    def fill(self, writer: Place, node: Node, target: Target) -> None:
        """Each part into its own place."""
        done = 0
        for part in node.args:
            offsets = list(target.offsets or (0,) * len(node.shape))
            offsets[self.axis] += done
            writer.fill(part, Target(target.buffer, target.shape, tuple(offsets)))
            done += part.shape[self.axis]


@dataclass(frozen=True)
class Padded(_InParts):
    """The first argument between borders of the second; begins and ends may be negative, which cuts."""

    begins: Shape
    ends: Shape

    def fill(self, writer: Place, node: Node, target: Target) -> None:
        """The border everywhere, then what lies inside it."""
        x, value = node.args
        first = target.offsets or (0,) * len(node.shape)
        border = Node(rules.Same(), (value,), node.shape)
        writer.fill(border, target)
        cut = tuple(max(-n, 0) for n in self.begins)
        size = tuple(n - c - max(-e, 0) for n, c, e in zip(x.shape, cut, self.ends, strict=True))
        inside = Node(View(lambda index: shifted_index(index, cut)), (x,), size)
        offsets = tuple(f + max(b, 0) for f, b in zip(first, self.begins, strict=True))
        writer.fill(inside, Target(target.buffer, target.shape, offsets))


@dataclass(frozen=True)
class Rows(Rule):
    """Rows of a table (the first argument) at integer indices; negative ones count from the end, all are clipped."""

    is_elementwise = False
    weight = 4

    def write(self, place: Place, node: Node, index: Index) -> str:
        table, where = node.args
        axes = axes_of(index)
        split = len(where.shape)
        row = in_range(place, place.read(where, axes[:split]), where, table.shape[0])
        return place.read(table, (row, *axes[split:]))


def in_range(place: Place, text: str, where: Node, size: int) -> str:
    """An integer as an index into an axis: negative ones count from the end, all are clipped to the axis."""
    if size == 1:
        return "0"
    if where.interval[0] >= 0 and where.interval[1] < size:
        return rules.converted(text, where.ctype(place), INT32)
    ctype = where.ctype(place)
    raw = place.local(ctype, text)
    turned = f"{raw} < 0 ? {raw} + {size} : {raw}"
    helper = place.helper(f"linger_clip{32 if ctype == INT32 else 64}")
    return place.local(INT32, rules.converted(f"{helper}({turned}, 0, {size - 1})", ctype, INT32))


def sliced(node: Node, axis: int, start: int, size: int) -> Node:
    """A part of a tensor along an axis; element-wise nodes are sliced by slicing their arguments."""
    if node.shape[axis] == 1:
        return node
    shape = (*node.shape[:axis], size, *node.shape[axis + 1 :])
    if isinstance(node.rule, Joined) and node.rule.axis == axis:
        ends = accumulate(part.shape[axis] for part in node.args)
        for part, end in zip(node.args, ends, strict=True):
            if end - part.shape[axis] == start and part.shape[axis] == size:  # the slice is what was joined
                return part
    if node.rule.is_elementwise and node.buffer is None and not node.needs_buffer:
        last = len(node.shape) - axis
        args = [sliced(a, len(a.shape) - last, start, size) if len(a.shape) >= last else a for a in node.args]
        if isinstance(node.rule, rules.Scale) and isinstance(args[0].rule, rules.Constant):
            return Node(rules.Constant(args[0].rule.value << node.rule.bits), (), shape)
        return Node(node.rule, args, shape, is_real=node.is_real)
    values = rules.listed(node)
    if values:
        return rules.listed_node(values[start : start + size], shape)
    by = tuple(start if i == axis else 0 for i in range(len(shape)))
    return Node(View(lambda index: shifted_index(index, by)), (node,), shape, is_real=node.is_real)


Accumulate = Callable[[Place, Node, tuple[str, ...]], str]
"""Writes the statements that compute one element of a sum exactly, and names the variable that holds it."""
_HEAVY = 100


@dataclass(frozen=True)
class Window:
    """How a window of two axes goes over an image."""

    kernel: Shape
    strides: Shape
    pads: Shape
    dilations: Shape
    group: int = 1


@dataclass(frozen=True)
class Total(Rule):
    """A sum or a largest element: `accumulate` writes it, `reach` holds every partial result on the way."""

    accumulate: Accumulate
    result: Interval
    reach: Interval
    window: Window | None = None
    axis: int = 0
    is_largest: bool = False
    is_elementwise = False
    weight = _HEAVY

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return self.result

    def write(self, place: Place, node: Node, index: Index) -> str:
        return converted(self.accumulate(place, node, axes_of(index)), self.type_in(place), node.ctype(place))

    def type_in(self, place: Place) -> str:
        """The type of the accumulator."""
        ctype = arithmetic_type(self.reach, self.result)
        if ctype is None:
            raise place.refuse(f"a sum may reach {self.reach[0]} … {self.reach[1]}, more than 64 bits hold")
        return ctype


@dataclass(frozen=True)
class Fixed:
    """The same number everywhere, known while C is written; `is_real`: of float32."""

    value: float
    shape: Shape = ()
    is_real: bool = False


@dataclass(frozen=True)
class Number:
    """node·2^exponent, or node·2^(exponent + power) with a power that differs from element to element.

    `shape` has as many elements as the node's, in the same order; a body may reshape without moving anything.
    """

    node: Node
    shape: Shape
    exponent: int = 0
    power: Node | None = None
    ctype: str | None = None
    """The type of the array that it is, or is to be stored in."""

    def scaled(self, exponent: int) -> Number:
        """The same times 2^exponent."""
        return replace(self, exponent=self.exponent + exponent)


@dataclass(frozen=True)
class Halves:
    """v + ½ as ⌊2·v⌋ + 1 halves: its floor is that of v + ½, nothing else of it is exact."""

    number: Number


@dataclass(frozen=True)
class Quotient:
    """top/bottom, whose floor alone is an integer."""

    top: Number
    bottom: Number


@dataclass(frozen=True)
class Real:
    """A float32 tensor; `is_whole`: its floor."""

    node: Node
    shape: Shape
    is_whole: bool = False


@dataclass(frozen=True)
class Curve:
    """A rising real function of a whole number; `is_whole`: its floor."""

    base: Node
    shape: Shape
    function: Callable[[int], float]
    is_whole: bool = False


@dataclass(frozen=True)
class Ladder:
    """Rising thresholds, a tensor of shape [thresholds, 1, 1]."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Rungs:
    """1 where a number reaches a threshold of the ladder, else 0, for each threshold."""

    number: Number
    ladder: Ladder
    shape: Shape


@dataclass(frozen=True)
class Table:
    """A look-up table: parts one after the other, each of integers times a power of two."""

    parts: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Entries:
    """A deferred look-up in a table of several parts, at indices that may be in any of them."""

    table: Table
    index: Number


_MOST_CASES = 512
"""The most entries of a table that are distinguished as cases."""

Value = Fixed | Number | Halves | Quotient | Real | Curve | Ladder | Rungs | Table | Entries


def by_cases(node: Node, factor: Node) -> Interval:
    """The interval of a node by case distinction: tighter where its arguments depend on each other.

    `factor` is an argument that compares some number with constants, or looks numbers up. Between two constants, and at
    one place of a table, it is one number; the interval is that of all cases together.
    """
    steps_of: dict[Node, set[int]] = {}
    for each in walk(factor):
        variable, steps = _compared(each)
        if variable is not None and id(variable) in node.below:
            steps_of.setdefault(variable, set()).update(steps)
    return reduce(meet, (_joined(node, variable, steps) for variable, steps in steps_of.items()), node.interval)


def _compared(node: Node) -> tuple[Node | None, set[int]]:
    """The node that a comparison or look-up reads, and the values at which the result changes."""
    if isinstance(node.rule, Count):
        return node.args[0], set(node.rule.steps)
    if isinstance(node.rule, Lookup) and len(node.rule.values) <= _MOST_CASES:
        return node.args[0], set(range(len(node.rule.values)))
    if isinstance(node.rule, Select) and isinstance(node.args[1].rule, Constant):
        return node.args[0], {node.args[1].rule.value}
    return None, set()


def _joined(node: Node, variable: Node, steps: set[int]) -> Interval:
    low, high = variable.interval
    starts = [low, *sorted(s for s in steps if low < s <= high)]
    ends = [*(s - 1 for s in starts[1:]), high]
    cases = [Bounds({id(variable): case}).of(node) for case in zip(starts, ends, strict=True)]
    return min(c[0] for c in cases), max(c[1] for c in cases)
