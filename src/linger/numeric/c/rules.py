# SPDX-License-Identifier: Apache-2.0
"""Rules of element-wise integer arithmetic: interval and C text of each.

Also strength reduction of ⌊(a·x + b)/2^n⌋ from a 64-bit product to a 32-bit one where x has few values: small cores have no
wide product.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from linger.numeric.c import nodes
from linger.numeric.c.nodes import (
    INT32,
    INT64,
    WIDTHS,
    Bounds,
    Index,
    Interval,
    Node,
    Place,
    Rule,
    Shape,
    arithmetic_type,
    bare,
    is_inside,
    literal,
)

_LARGEST = (1 << 31) - 1


@dataclass(frozen=True)
class Constant(Rule):
    """One integer constant for all elements."""

    value: int
    weight = 0

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return self.value, self.value

    def write(self, place: Place, node: Node, index: Index) -> str:
        return literal(self.value, node.ctype(place))


@dataclass(frozen=True)
class _Listed(Rule):
    """One constant for each place along the only axis that is longer than 1."""

    values: tuple[int, ...]
    is_elementwise = False

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return min(self.values), max(self.values)

    def write(self, place: Place, node: Node, index: Index) -> str:
        assert not isinstance(index, nodes.Flat)  # it broadcasts, so no flat index walks it
        (at,) = (i for i, n in zip(index, node.shape, strict=True) if n != 1)
        name, ctype = place.table(self.values)
        return converted(f"{name}[{bare(at)}]", ctype, node.ctype(place))


@dataclass(frozen=True)
class Stored(Rule):
    """Elements of an array: `node.buffer`."""

    def bounds(self, node: Node, known: Bounds) -> Interval:
        raise AssertionError("elements of an array have the interval of their node")

    def write(self, place: Place, node: Node, index: Index) -> str:
        raise AssertionError("elements of an array are read, not computed")


@dataclass(frozen=True)
class Arithmetic(Rule):
    """a + b, a − b or a · b. `max_axis` is the axis along which b is the maximum of a, so that a − b ≤ 0."""

    symbol: str
    max_axis: int | None = None

    def bounds(self, node: Node, known: Bounds) -> Interval:
        left, right = node.args
        a, b = known.of(left), known.of(right)
        if self.symbol == "+":
            return a[0] + b[0], a[1] + b[1]
        if self.symbol == "*":
            return nodes.square(a) if left is right else nodes.times(a, b)
        low, high = a[0] - b[1], a[1] - b[0]
        return (low, high) if self.max_axis is None else (min(low, 0), min(high, 0))

    def write(self, place: Place, node: Node, index: Index) -> str:
        ctype = common_type(place, node, *node.args)
        left, right = node.args
        first, symbol, last = place.read_as(left, index, ctype), self.symbol, right.rule
        if isinstance(last, Constant) and last.value == -1 and symbol == "*":
            return converted(f"(-{first})", ctype, node.ctype(place))
        if isinstance(last, Constant) and last.value < 0 and -last.value <= _LARGEST and symbol != "*":
            text = f"({first} {'-' if symbol == '+' else '+'} {literal(-last.value, ctype)})"
            return converted(text, ctype, node.ctype(place))
        return converted(f"({first} {symbol} {place.read_as(right, index, ctype)})", ctype, node.ctype(place))


@dataclass(frozen=True)
class Scale(Rule):
    """x·2^bits: a product, because C does not define left shifts of negative numbers."""

    bits: int

    def bounds(self, node: Node, known: Bounds) -> Interval:
        low, high = known.of(node.args[0])
        return low << self.bits, high << self.bits

    def write(self, place: Place, node: Node, index: Index) -> str:
        ctype = node.ctype(place)
        if self.bits > WIDTHS[ctype] - 2:
            raise place.refuse(f"a factor of 2^{self.bits} does not fit in {WIDTHS[ctype]} bits")
        return f"({place.read_as(node.args[0], index, ctype)} * {literal(1 << self.bits, ctype)})"


@dataclass(frozen=True)
class Shift(Rule):
    """⌊x/2^bits⌋."""

    bits: int

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return nodes.shifted(known.of(node.args[0]), (self.bits, self.bits))

    def write(self, place: Place, node: Node, index: Index) -> str:
        (x,) = node.args
        ctype = x.ctype(place)
        bits = min(self.bits, WIDTHS[ctype] - 1)
        return converted(f"({place.read(x, index)} >> {bits})", ctype, node.ctype(place))


@dataclass(frozen=True)
class Mask(Rule):
    """The remainder x mod 2^bits."""

    bits: int

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return nodes.masked(known.of(node.args[0]), self.bits)

    def write(self, place: Place, node: Node, index: Index) -> str:
        ctype = common_type(place, node, node.args[0])
        if self.bits >= WIDTHS[ctype]:
            raise place.refuse(f"the lowest {self.bits} bits of a number of {WIDTHS[ctype]} are asked for")
        text = f"({place.read_as(node.args[0], index, ctype)} & {literal((1 << self.bits) - 1, ctype)})"
        return converted(text, ctype, node.ctype(place))


@dataclass(frozen=True)
class ShiftBy(Rule):
    """⌊x/2^(offset − n)⌋ of x and n; offset − n is never negative. Without an offset ⌊x/2^n⌋ of listed n."""

    offset: int | None
    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        x, n = (known.of(a) for a in node.args)
        if self.offset is None:
            return nodes.shifted(x, n)
        return nodes.shifted(x, (max(self.offset - n[1], 0), max(self.offset - n[0], 0)))

    def write(self, place: Place, node: Node, index: Index) -> str:
        x, n = node.args
        ctype, last = x.ctype(place), WIDTHS[x.ctype(place)] - 1
        if self.offset is None:
            return converted(f"({place.read(x, index)} >> {place.read(n, index)})", ctype, node.ctype(place))
        amount = f"({self.offset or ''}{' ' if self.offset else ''}-{' ' if self.offset else ''}{place.read_as(n, index, INT32)})"
        if self.offset - n.interval[0] > last:
            amount = f"{place.helper('linger_clip32')}({bare(amount)}, 0, {last})"
        return converted(f"({place.read(x, index)} >> {amount})", ctype, node.ctype(place))


@dataclass(frozen=True)
class ScaleBy(Rule):
    """x·2^(n − least), least being the smallest n."""

    least: int
    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        x, n = (known.of(a) for a in node.args)
        low, high = max(n[0] - self.least, 0), max(n[1] - self.least, 0)
        return nodes.hull([(x[0] << b, x[1] << b) for b in (low, high)])

    def write(self, place: Place, node: Node, index: Index) -> str:
        x, n = node.args
        power = arithmetic_type((0, 1 << (n.interval[1] - self.least)))
        if power is None:
            raise place.refuse("a power of two has more than 64 bits")
        ctype = INT64 if INT64 in (power, node.ctype(place)) else INT32
        amount = place.read_as(n, index, INT32)
        if self.least:
            amount = f"({amount} {'-' if self.least > 0 else '+'} {abs(self.least)})"
        text = f"({place.read_as(x, index, ctype)} * (({ctype})1 << {amount}))"
        return converted(text, ctype, node.ctype(place))


@dataclass(frozen=True)
class Clip(Rule):
    """min(max(x, low), high)."""

    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        x, low, high = (known.of(a) for a in node.args)
        return min(max(x[0], low[0]), high[0]), min(max(x[1], low[1]), high[1])

    def write(self, place: Place, node: Node, index: Index) -> str:
        return _helper_call(place, "linger_clip", node, index)


@dataclass(frozen=True)
class Select(Rule):
    """`then` where a < b, else `other`; the interval of each alternative assumes its condition."""

    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        a, b, then, other = node.args
        (a_low, a_high), (b_low, b_high) = known.of(a), known.of(b)
        intervals = []
        if a_low < b_high:
            less = known.under(a, (a_low, min(a_high, b_high - 1)))
            intervals.append(less.under(b, (max(b_low, a_low + 1), b_high)).of(then))
        if a_high >= b_low:
            rest = known.under(a, (max(a_low, b_low), a_high))
            intervals.append(rest.under(b, (b_low, min(b_high, a_high))).of(other))
        return nodes.hull(intervals)

    def write(self, place: Place, node: Node, index: Index) -> str:
        a, b, then, other = node.args
        compared, ctype = common_type(place, a, b), node.ctype(place)
        left, right = place.read_as(a, index, compared), place.read_as(b, index, compared)
        chosen = common_type(place, node, then, other)
        first, second = place.read_as(then, index, chosen), place.read_as(other, index, chosen)
        return converted(f"({left} < {right} ? {first} : {second})", chosen, ctype)


@dataclass(frozen=True)
class Lookup(Rule):
    """values[x]; the interval of x is inside the table."""

    values: tuple[int, ...]
    weight = 2

    def bounds(self, node: Node, known: Bounds) -> Interval:
        low, high = known.of(node.args[0])
        part = self.values[max(low, 0) : high + 1]
        return min(part), max(part)

    def write(self, place: Place, node: Node, index: Index) -> str:
        name, _ = place.table(self.values)
        text = f"{name}[{bare(place.read(node.args[0], index))}]"
        return text if node.ctype(place) == INT64 else f"(int32_t){text}"


@dataclass(frozen=True)
class Count(Rule):
    """How many of the rising `steps` are not above x."""

    steps: tuple[int, ...]
    weight = 8

    def bounds(self, node: Node, known: Bounds) -> Interval:
        low, high = known.of(node.args[0])
        return bisect_right(self.steps, low), bisect_right(self.steps, high)

    def write(self, place: Place, node: Node, index: Index) -> str:
        (x,) = node.args
        low, high = x.interval
        always, within = bisect_right(self.steps, low), [s for s in self.steps if low < s <= high]
        if not within:
            return str(always)
        name, stored = place.table(within)
        ctype = x.ctype(place)
        helper = place.helper(f"linger_count{WIDTHS[ctype]}_{stored}")
        call = f"{helper}({name}, {len(within)}, {bare(place.read(x, index))})"
        return f"({call} + {always})" if always else call


@dataclass(frozen=True)
class FloorQuotient(Rule):
    """⌊a/b⌋ of b > 0."""

    weight = 8

    def bounds(self, node: Node, known: Bounds) -> Interval:
        a, b = (known.of(x) for x in node.args)
        return nodes.floor_divided(a, (max(b[0], 1), max(b[1], 1)))

    def write(self, place: Place, node: Node, index: Index) -> str:
        smallest = node.args[1].interval[0]
        if smallest < 1:
            raise place.refuse(f"a divisor may be {smallest}; it must be positive")
        return _helper_call(place, "linger_floor_div", node, index)


@dataclass(frozen=True)
class Same(Rule):
    """The argument itself, in a shape that it broadcasts to."""

    weight = 0


def _helper_call(place: Place, helper: str, node: Node, index: Index) -> str:
    """A call of the helper's 32- or 64-bit variant with all arguments of a node."""
    ctype = common_type(place, node, *node.args)
    arguments = ", ".join(bare(place.read_as(a, index, ctype)) for a in node.args)
    return converted(f"{place.helper(f'{helper}{WIDTHS[ctype]}')}({arguments})", ctype, node.ctype(place))


def common_type(place: Place, *nodes: Node) -> str:
    """The narrowest C type in which all nodes can be computed."""
    return INT64 if INT64 in [node.ctype(place) for node in nodes] else INT32


def converted(text: str, source: str, target: str) -> str:
    """An expression cast from one type to another, which must hold its interval."""
    return text if source == target else f"({target}){text}"


def listed_node(values: Sequence[int], shape: Shape) -> Node:
    """A tensor of known numbers along one axis; of one number where they are equal."""
    return constant_node(values[0], shape) if len(set(values)) == 1 else Node(_Listed(tuple(values)), (), shape)


def listed(node: Node) -> tuple[int, ...]:
    """The numbers of a node that `listed_node` has made; none of others."""
    return node.rule.values if isinstance(node.rule, _Listed) else ()


def constant_node(value: int, shape: Shape = ()) -> Node:
    """A tensor of one number."""
    return Node(Constant(value), (), shape)


def limited(node: Node, ends: Interval) -> Node:
    """A node clipped to low … high; the clip moves toward the inputs where that keeps intermediates in 32 bits.

    x·2^k needs no x beyond ⌊low/2^k⌋ … ⌈high/2^k⌉, and a selection is clipped by clipping both alternatives.
    """
    if is_inside(node.interval, ends):
        return node
    is_wide, rule, (low, high) = arithmetic_type(node.interval) != INT32, node.rule, ends
    if is_wide and isinstance(rule, Select):
        a, b, then, other = node.args
        return Node(rule, (a, b, limited(then, ends), limited(other, ends)), node.shape)
    if is_wide and isinstance(rule, Scale):
        inner = limited(node.args[0], (low >> rule.bits, -(-high >> rule.bits)))
        node = Node(rule, (inner,), node.shape)
    return Node(Clip(), (node, constant_node(low), constant_node(high)), node.shape)


_MOST_VALUES = 1 << 17
"""The most values of x for which a candidate is compared, value by value, with the exact result."""
_MOST_BITS = 30


def in_32_bits(shift: Node) -> Node:
    """A node that gives the same integers with 32-bit products; the node itself where there is none, or where it is 32-bit already."""
    (operand,) = shift.args
    assert isinstance(shift.rule, Shift)
    is_wide = arithmetic_type(operand.interval) == INT64 and arithmetic_type(shift.interval) == INT32
    source = _source(operand) if is_wide else None
    if source is None or arithmetic_type(source.interval) != INT32:
        return shift
    low, high = source.interval
    if high - low >= _MOST_VALUES or high == low or source.shape != shift.shape:
        return shift
    first, second = (Bounds({id(source): (v, v)}).of(operand)[0] for v in (low, low + 1))
    x = np.arange(low, high + 1, dtype=np.int64)
    factor = second - first
    results = (first + factor * (x - low)) >> shift.rule.bits
    return next(_candidates(source, x, results, factor / 2**shift.rule.bits), shift)


def _source(operand: Node) -> Node | None:
    """The 32-bit node x that an affine expression a·x + b is computed from; None where it is not affine in one node."""
    while True:
        others = [arg for arg in operand.args if not isinstance(arg.rule, Constant)]
        is_affine = isinstance(operand.rule, (Scale, Arithmetic))
        if arithmetic_type(operand.interval) == INT32:
            return operand
        if operand.buffer is not None or not is_affine or len(others) != 1:
            return None
        operand = others[0]


def _candidates(source: Node, x: np.ndarray, results: np.ndarray, slope: float) -> Iterator[Node]:
    """Nodes ⌊(factor·x + offset)/2^bits⌋ with 32-bit products that give `results` for every x, the most precise first."""
    for bits in range(_MOST_BITS, 0, -1):
        nearest = round(slope * 2**bits)
        for factor in (nearest, nearest - 1, nearest + 1):
            rest = results * 2**bits - factor * x
            least, most = int(rest.max()), int(rest.min()) + 2**bits - 1
            if not factor or least > most:
                continue
            product = Node(Arithmetic("*"), (source, constant_node(factor)), source.shape)
            total = Node(Arithmetic("+"), (product, constant_node((least + most) // 2)), source.shape)
            if arithmetic_type(product.interval) == arithmetic_type(total.interval) == INT32:
                yield Node(Shift(bits), (total,), source.shape)
