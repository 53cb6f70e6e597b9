# SPDX-License-Identifier: Apache-2.0
"""The graph that C is written from: interval arithmetic, C arrays and indices into them, and nodes.

A node is an integer tensor: the rule that computes its elements, its arguments, and the interval that holds every element.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import product as pairs
from typing import Any, Protocol

from numpy.typing import NDArray

Interval = tuple[int, int]
"""The smallest and the largest number that a value can be, both included."""

INT32, INT64 = "int32_t", "int64_t"
WIDTHS = {INT32: 32, INT64: 64}
RANGES: dict[str, Interval] = {
    "uint8_t": (0, 255),
    **{f"int{bits}_t": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
}
"""The elements that an array of each type can hold."""


def is_inside(inner: Interval, outer: Interval) -> bool:
    """Whether every number of `inner` is one of `outer`."""
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def hull(intervals: Iterable[Interval]) -> Interval:
    """The smallest interval that holds all of these.

    >>> hull([(0, 3), (-2, 1)])
    (-2, 3)
    """
    lows, highs = zip(*intervals, strict=True)
    return min(lows), max(highs)


def meet(a: Interval, b: Interval) -> Interval:
    """The intersection of two intervals; the first one where it is empty."""
    low, high = max(a[0], b[0]), min(a[1], b[1])
    return (low, high) if low <= high else a


def times(a: Interval, b: Interval) -> Interval:
    """The interval of x·y.

    >>> times((-2, 3), (-5, 1))
    (-15, 10)
    """
    corners = [x * y for x, y in pairs(a, b)]
    return min(corners), max(corners)


def square(a: Interval) -> Interval:
    """The interval of x·x.

    >>> square((-3, 2))
    (0, 9)
    """
    low, high = sorted((a[0] ** 2, a[1] ** 2))
    return (0 if a[0] <= 0 <= a[1] else low), high


def shifted(a: Interval, amounts: Interval) -> Interval:
    """The interval of ⌊x/2^n⌋, n ≥ 0."""
    corners = [x >> n for x, n in pairs(a, amounts)]
    return min(corners), max(corners)


def masked(a: Interval, bits: int) -> Interval:
    """X mod 2^bits: exact where the interval does not leave one block of 2^bits numbers.

    >>> masked((-1, -1), 4), masked((3, 18), 4)
    ((15, 15), (0, 15))
    """
    size = 1 << bits
    return (a[0] % size, a[1] % size) if a[0] >> bits == a[1] >> bits else (0, size - 1)


def floor_divided(a: Interval, b: Interval) -> Interval:
    """The interval of ⌊x/y⌋, y > 0."""
    corners = [x // y for x, y in pairs(a, b)]
    return min(corners), max(corners)


def sums(term: Interval, count: int) -> Interval:
    """The interval of sums of up to `count` such terms, so also of every partial sum."""
    return count * min(term[0], 0), count * max(term[1], 0)


def arithmetic_type(*intervals: Interval) -> str | None:
    """The C type to compute in: 32 bits where all intervals fit, else 64; None where 64 bits do not suffice."""
    whole = hull(intervals)
    return next((ctype for ctype in (INT32, INT64) if is_inside(whole, RANGES[ctype])), None)


def storage_type(interval: Interval) -> str | None:
    """The smallest C type for an array of such numbers."""
    types = ("int8_t", "int16_t", INT32, INT64)
    return next((ctype for ctype in types if is_inside(interval, RANGES[ctype])), None)


def literal(value: int, ctype: str) -> str:
    """A number as C text; the smallest ones have names, because C has no negative literals.

    >>> literal(-7, INT32), literal(1 << 40, INT64), literal(-(1 << 31), INT32)
    ('-7', 'INT64_C(1099511627776)', 'INT32_MIN')
    """
    if value == RANGES[ctype][0] and ctype in WIDTHS:
        return f"INT{WIDTHS[ctype]}_MIN"
    if ctype == INT64:
        return f"INT64_C({value})" if value >= 0 else f"(-INT64_C({-value}))"
    return str(value)


def dyadic(value: float) -> tuple[int, int]:
    """A finite float as m·2^e with m odd (or 0·2^0), exactly.

    >>> dyadic(0.75), dyadic(-8.0), dyadic(0.0)
    ((3, -2), (-1, 3), (0, 0))
    """
    if value == 0:
        return 0, 0
    top, bottom = float(value).as_integer_ratio()
    twos = (top & -top).bit_length() - 1
    return top >> twos, twos - (bottom.bit_length() - 1)


def at_exponent(value: float, exponent: int, *, up: bool) -> int:
    """value/2^exponent, rounded up or down where it is no whole number."""
    m, e = dyadic(value)
    if e >= exponent:
        return m << (e - exponent)
    shift = exponent - e
    return -(-m >> shift) if up else m >> shift


def size_of(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    return math.prod(shape)


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Flat:
    """A flat index into an array, for loops over its elements in memory order."""

    name: str


Index = tuple[str, ...] | Flat
"""One C expression for each axis, or one for all of them."""


@dataclass(frozen=True)
class Buffer:
    """An array of the C function: an input, an output, or scratch that its caller provides.

    `order` lists the axes from the outermost to the innermost one in memory; None is row-major.
    """

    name: str
    ctype: str
    shape: Shape
    order: Shape | None = None

    def strides_for(self, shape: Shape) -> Shape | None:
        """The strides in elements for reading in a shape that may differ in axes of size 1; None for other shapes."""
        if self.order is None:
            return tuple(step if n != 1 else 0 for step, n in zip(natural_strides(shape), shape, strict=True))
        if longer_axes(shape) != longer_axes(self.shape):
            return None
        steps = iter(
            [step for step, n in zip(ordered_strides(self.shape, self.order), self.shape, strict=True) if n != 1]
        )
        return tuple(next(steps) if n != 1 else 0 for n in shape)

    def element(self, shape: Shape, index: Index) -> str:
        """The C expression of the element at an index of a shape that the array is read in."""
        return f"{self.name}[{self.place(shape, index)}]"

    def place(self, shape: Shape, index: Index) -> str:
        """The flat index, as C, of an index of a shape that the array is read in."""
        if isinstance(index, Flat):
            return index.name
        strides = self.strides_for(shape)
        if strides is not None:
            return _position(index, strides)
        flat = _position(index, natural_strides(shape))
        steps = zip(self.shape, natural_strides(self.shape), strict=True)
        apart = tuple(f"(({flat}) / {step} % {n})" for n, step in steps)  # reshaped out of another order
        return _position(apart, ordered_strides(self.shape, self.order or ()))


@dataclass(frozen=True)
class Target:
    """Where a tensor is written: a whole array, or a part of it that begins at `offsets`; perhaps in proof builds only."""

    buffer: Buffer
    shape: Shape
    offsets: Shape | None = None
    is_proof: bool = False

    def place(self, index: Index) -> str:
        """The element of the array for an element of the tensor."""
        if isinstance(index, Flat) or self.offsets is None:
            return self.buffer.element(self.shape, index)
        return self.buffer.element(self.shape, shifted_index(index, self.offsets))


def natural_strides(shape: Shape) -> Shape:
    """Row-major strides in elements.

    >>> natural_strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(size_of(shape[axis + 1 :]) for axis in range(len(shape)))


def ordered_strides(shape: Shape, order: Shape) -> Shape:
    """Strides in elements where the axes lie in another order, outermost first.

    >>> ordered_strides((1, 3, 4, 5), (0, 2, 3, 1))
    (60, 1, 15, 3)
    """
    steps = natural_strides(tuple(shape[axis] for axis in order))
    return tuple(steps[order.index(axis)] for axis in range(len(shape)))


def _position(index: tuple[str, ...], strides: Shape) -> str:
    """The flat index of an element as C.

    >>> _position(("i", "0", "j"), (12, 4, 1))
    'i * 12 + j'
    """
    pairs = sorted(zip(index, strides, strict=True), key=lambda pair: -pair[1])
    parts = [i if step == 1 else f"{i} * {step}" for i, step in pairs if i != "0" and step]
    return bare(" + ".join(parts)) if len(parts) == 1 else " + ".join(parts) or "0"


def longer_axes(shape: Shape) -> Shape:
    """The sizes of a shape that are not 1."""
    return tuple(n for n in shape if n != 1)


def shifted_index(index: tuple[str, ...], by: Shape) -> tuple[str, ...]:
    """An index plus an offset on each axis."""
    return tuple(i if n == 0 else str(n) if i == "0" else f"({i} + {n})" for i, n in zip(index, by, strict=True))


def aligned(index: Index, shape: Shape) -> Index:
    """The index of an operand that broadcasts: its axes are the last ones, those of size 1 are always at 0."""
    if isinstance(index, Flat):
        return index if size_of(shape) != 1 else ("0",) * len(shape)
    tail = index[len(index) - len(shape) :]
    return tuple("0" if n == 1 else i for i, n in zip(tail, shape, strict=True))


def bare(text: str) -> str:
    """An expression without the parentheses around all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


@dataclass
class Tables:
    """Constant arrays of a translation unit; equal ones share one definition."""

    _names: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)

    def name(self, values: Sequence[int]) -> str:
        """The array that holds these numbers, in the smallest type."""
        ctype = storage_type(hull((v, v) for v in values))
        assert ctype is not None  # the writer refuses numbers beyond 64 bits before
        key = (ctype, tuple(values))
        return self._names.setdefault(key, f"linger_table_{len(self._names)}")

    def lines(self, used: frozenset[str]) -> list[str]:
        """The definitions of those that are used."""
        lines = []
        for (ctype, values), name in self._names.items():
            if name in used:
                rows = [""]
                for text in (literal(v, INT64 if ctype == INT64 else INT32) for v in values):
                    if len(rows[-1]) + len(text) > 110:
                        rows.append("")
                    rows[-1] += f" {text},"
                lines += [f"static const {ctype} {name}[{len(values)}] = {{", *(f"   {row}" for row in rows), "};"]
        return lines


Array = NDArray[Any]
FLOAT = "float"
_WORDS = {
    "Arithmetic": "a sum or product",
    "Scale": "a product with a power of two",
    "ScaleBy": "a product with a power of two",
    "Select": "a choice of two numbers",
    "Total": "a sum over many elements",
    "FloorQuotient": "a quotient",
}
"""What messages call rules."""


class Place(Protocol):
    """Where a rule writes its statements: inside the loops over the variables of its index."""

    def read(self, node: Node, index: Index) -> str:
        """An element as an expression in the node's own type; what broadcasts is aligned."""

    def read_as(self, node: Node, index: Index, ctype: str) -> str:
        """The same in a type that holds it."""

    def local(self, ctype: str, text: str) -> str:
        """The name of a new constant with this value."""

    def variable(self, stem: str, ctype: str, text: str) -> str:
        """The name of a new variable that begins with this value; the stem begins the name."""

    def line(self, text: str) -> None:
        """Write a statement."""

    def loop(self, count: int) -> AbstractContextManager[tuple[Place, str]]:
        """A loop from 0 to count − 1: the place inside and the name of its variable."""

    def when(self, condition: str) -> AbstractContextManager[Place]:
        """The place inside an `if`."""

    def table(self, values: Sequence[int]) -> tuple[str, str]:
        """Name and type of a constant array."""

    def helper(self, name: str) -> str:
        """The name of a helper function, which will be written too."""

    def fill(self, node: Node, target: Target) -> None:
        """Write every element of a node into an array."""

    def refuse(self, reason: str) -> Exception:
        """The error to raise where there is no C for this."""


class Rule:
    """How the elements of a node follow from those of its arguments."""

    is_elementwise = True
    """Whether element i needs nothing but elements i of the arguments (which may broadcast)."""
    weight = 1
    """About how many operations one element costs, arguments not counted."""

    def bounds(self, node: Node, known: Bounds) -> Interval:
        """The interval of an element, from those of the arguments: where nothing else is said, that of the first one."""
        assert not node.is_real  # real numbers have no interval
        return known.of(node.args[0])

    def write(self, place: Place, node: Node, index: Index) -> str:
        """The element as a C expression in the node's type, after the statements that it needs; if not said, the argument's."""
        return place.read(node.args[0], index)


class Node:
    """A tensor: its rule and arguments, the interval of its elements, and the array that holds it if there is one."""

    def __init__(
        self,
        rule: Rule,
        args: Sequence[Node],
        shape: Shape,
        *,
        interval: Interval | None = None,
        is_real: bool = False,
        known: Array | None = None,
    ) -> None:
        self.rule, self.args, self.shape, self.is_real, self.known = rule, tuple(args), shape, is_real, known
        self.buffer: Buffer | None = None
        self.needs_buffer = False
        """Whether it must be in an array before it is read."""
        self.readers = 0
        """How many nodes have it as an argument."""
        for arg in self.args:
            arg.readers += 1
        self.below: frozenset[int] = frozenset().union(*(a.below | {id(a)} for a in args)) if args else frozenset()
        self.cost: int = rule.weight + sum(a.cost for a in args)
        self.interval = interval if interval is not None else (0, 0) if is_real else rule.bounds(self, Bounds({}))

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    def ctype(self, place: Place) -> str:
        """The type in which elements are computed; refused where 64 bits do not suffice."""
        if self.is_real:
            return FLOAT
        ctype = arithmetic_type(self.interval)
        if ctype is None:
            bits = max(self.interval[1], -self.interval[0]).bit_length() + 1
            raise place.refuse(
                f"{_WORDS.get(type(self.rule).__name__, 'a step')} gives numbers from {self.interval[0]} to {self.interval[1]}, which need "
                f"{bits} bits; C has 64"
            )
        return ctype


class Bounds:
    """Intervals of one element of each node, under the assumption that some nodes lie in tighter intervals.

    An assumption about one element says nothing about its neighbors, so rules that move or add up elements ignore it.
    """

    def __init__(self, assumed: Mapping[int, Interval]) -> None:
        self._assumed = dict(assumed)
        self._computed: dict[int, Interval] = {}

    def of(self, node: Node) -> Interval:
        """The interval of a node."""
        key = id(node)
        if key in self._assumed:
            return self._assumed[key]
        if not node.rule.is_elementwise or node.below.isdisjoint(self._assumed):
            return node.interval
        if key not in self._computed:
            self._computed[key] = meet(node.interval, node.rule.bounds(node, self))
        return self._computed[key]

    def under(self, node: Node, interval: Interval) -> Bounds:
        """The same with one more assumption: a node lies in an interval."""
        return Bounds({**self._assumed, id(node): interval})


def walk(root: Node) -> Iterator[Node]:
    """A node and everything that it is computed from, each once."""
    visited: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in visited:
            visited.add(id(node))
            yield node
            waiting.extend(node.args)


def broadcast(*shapes: Shape) -> Shape:
    """The shape of a result whose operands broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
