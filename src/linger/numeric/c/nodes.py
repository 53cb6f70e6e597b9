# SPDX-License-Identifier: Apache-2.0
"""Tensors of whole numbers as a graph of rules: what each element is computed from, and between which ends it lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import NDArray

from linger.numeric.c.text import Buffer, Index, Interval, Shape, arithmetic_type, meet, size_of

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
    """Where a rule writes its statements: inside the loops whose variables are in the index it is given."""

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

    def refuse(self, reason: str) -> Exception:
        """The error to raise where there is no C for this."""


class Rule(Protocol):
    """How the elements of a node follow from those of its arguments."""

    is_elementwise: bool
    """Whether element i needs nothing but elements i of the arguments (which may broadcast)."""
    weight: int
    """About how many operations one element costs, arguments not counted."""

    def bounds(self, node: Node, known: Bounds) -> Interval:
        """The interval of an element, from those of the arguments."""

    def write(self, place: Place, node: Node, index: Index) -> str:
        """The element as a C expression in the node's type, after the statements that it needs."""


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
        found = arithmetic_type(self.interval)
        if found is None:
            bits = max(self.interval[1], -self.interval[0]).bit_length() + 1
            raise place.refuse(
                f"{_WORDS.get(type(self.rule).__name__, 'a step')} gives numbers from {self.interval[0]} to {self.interval[1]}, which need "
                f"{bits} bits; C has 64"
            )
        return found


class Bounds:
    """Intervals of nodes where some are known to lie in tighter ones, at one element.

    What is known of one element says nothing about its neighbours, so it does not go through rules that move elements or
    add them up.
    """

    def __init__(self, given: Mapping[int, Interval]) -> None:
        self._given = dict(given)
        self._found: dict[int, Interval] = {}

    def of(self, node: Node) -> Interval:
        """The interval of a node."""
        key = id(node)
        if key in self._given:
            return self._given[key]
        if not node.rule.is_elementwise or node.below.isdisjoint(self._given):
            return node.interval
        if key not in self._found:
            self._found[key] = meet(node.interval, node.rule.bounds(node, self))
        return self._found[key]

    def under(self, node: Node, interval: Interval) -> Bounds:
        """The same where a node lies in an interval."""
        return Bounds({**self._given, id(node): interval})


def walk(node: Node) -> Iterator[Node]:
    """A node and everything that it is computed from, each once."""
    seen: set[int] = set()
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting.extend(found.args)


def broadcast(*shapes: Shape) -> Shape:
    """The shape of a result whose operands broadcast."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
