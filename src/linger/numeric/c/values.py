# SPDX-License-Identifier: Apache-2.0
"""The values that op bodies pass around while C is written.

A wide number is an integer tensor times a power of two, so scaling by powers of two costs nothing. Numbers that bodies
make of attributes stay Python floats, computed as the reference computes them. What has no exact form in integers (a
quotient, a logarithm, a real number) is kept open until a `floor` or `clip` says which integer is wanted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from linger.numeric.c.intervals import Interval, meet
from linger.numeric.c.nodes import Bounds, Node, walk
from linger.numeric.c.rules import Constant, Count, Lookup, Select
from linger.numeric.c.text import Shape


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
    """Rising numbers of shape [numbers, 1, 1]."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class Rungs:
    """1 where a number is not below each of the ladder's, else 0."""

    number: Number
    ladder: Ladder
    shape: Shape


@dataclass(frozen=True)
class Table:
    """Whole numbers to look up, as parts one after the other; each part is its numbers times a power of two."""

    parts: tuple[tuple[tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Entries:
    """Entries of a table of several parts, at whole numbers that may mean any of them."""

    table: Table
    index: Number


_MOST_CASES = 512
"""Places of a table that are looked at one by one."""

Value = Fixed | Number | Halves | Quotient | Real | Curve | Ladder | Rungs | Table | Entries


def by_cases(node: Node, factor: Node) -> Interval:
    """The interval of a node, found case by case: tighter where its arguments depend on each other.

    `factor` is an argument that compares some number with constants, or looks numbers up. Between two constants, and at
    one place of a table, it is one number; the interval is that of all cases together.
    """
    result, done = node.interval, set()
    for found in walk(factor):
        variable, steps = _compared(found)
        if variable is not None and variable not in done and id(variable) in node.below:
            done.add(variable)
            result = meet(result, _joined(node, variable, steps | _steps_on(factor, variable)))
    return result


def _compared(node: Node) -> tuple[Node | None, set[int]]:
    """The number that a node compares or looks up, and from which numbers on the result is another one."""
    if isinstance(node.rule, Count):
        return node.args[0], set(node.rule.steps)
    if isinstance(node.rule, Lookup) and len(node.rule.values) <= _MOST_CASES:
        return node.args[0], set(range(len(node.rule.values)))
    if isinstance(node.rule, Select) and isinstance(node.args[1].rule, Constant):
        return node.args[0], {node.args[1].rule.value}
    return None, set()


def _steps_on(power: Node, variable: Node) -> set[int]:
    found: set[int] = set()
    for node in walk(power):
        compared, steps = _compared(node)
        found |= steps if compared is variable else set()
    return found


def _joined(node: Node, variable: Node, steps: set[int]) -> Interval:
    low, high = variable.interval
    starts = [low, *sorted(s for s in steps if low < s <= high)]
    ends = [*(s - 1 for s in starts[1:]), high]
    cases = [Bounds({id(variable): case}).of(node) for case in zip(starts, ends, strict=True)]
    return min(c[0] for c in cases), max(c[1] for c in cases)
