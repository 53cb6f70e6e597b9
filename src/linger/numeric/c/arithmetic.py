# SPDX-License-Identifier: Apache-2.0
"""Scalars and element-wise arithmetic of the kernel that writes C (`CKernel`)."""

from __future__ import annotations

import ctypes
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from linger.errors import UnsupportedError
from linger.numeric.c import rules
from linger.numeric.c.nodes import (
    FLOAT,
    INT32,
    RANGES,
    Bounds,
    Index,
    Interval,
    Node,
    Place,
    Rule,
    arithmetic_type,
    at_exponent,
    broadcast,
    dyadic,
    is_inside,
    literal,
    longer_axes,
    size_of,
)
from linger.numeric.c.scope import Draft
from linger.numeric.c.views import (
    Curve,
    Fixed,
    Halves,
    Ladder,
    Number,
    Quotient,
    Real,
    Rungs,
    Table,
    Total,
    Value,
    View,
    by_cases,
)
from linger.numeric.fixed import storage_bits
from linger.numeric.kernel import Ints

_LARGEST_EXPONENT = 100
"""A power of two with a larger exponent could overflow or underflow float32."""
_FLOAT32_INTEGERS = 1 << 24
_POWER_OF_TWO = 0.5
"""The mantissa that `math.frexp` returns for a power of two."""


@dataclass(frozen=True)
class _Reshaped(Rule):
    """The argument, which is stored in an array, in another shape."""

    is_elementwise = False

    def write(self, place: Place, node: Node, index: Index) -> str:
        (source,) = node.args
        assert source.buffer is not None
        text = source.buffer.element(node.shape, index)
        return text if source.buffer.ctype == node.ctype(place) else f"({node.ctype(place)}){text}"


@dataclass(frozen=True)
class _RealArithmetic(Rule):
    """X + number or x · number in float32, rounded after each operation.

    A compiler may contract a product and the sum after it to a fused multiply-add, which rounds only once (gcc does so without
    -std=c99 if the processor has the instruction). That makes no difference if the factor is a power of two; other products are
    volatile, which prevents it.
    """

    symbol: str
    number: float

    def write(self, place: Place, node: Node, index: Index) -> str:
        text = f"{place.read(node.args[0], index)} {self.symbol} {_real_literal(self.number)}"
        is_rounded = self.symbol == "*" and abs(math.frexp(self.number)[0]) != _POWER_OF_TWO
        return place.local(f"volatile {FLOAT}" if is_rounded else FLOAT, text)


@dataclass(frozen=True)
class _FloorClip(Rule):
    """A real number rounded down and clipped to low … high."""

    low: int
    high: int
    weight = 6

    def bounds(self, node: Node, known: Bounds) -> Interval:
        return self.low, self.high

    def write(self, place: Place, node: Node, index: Index) -> str:
        ends = ", ".join(literal(end, INT32) for end in (self.low, self.high))
        is_narrow = max(-self.low, self.high) <= _FLOAT32_INTEGERS
        name = place.helper(f"linger_floor_clip{'_narrow' if is_narrow else ''}")
        return f"{name}({place.read(node.args[0], index)}, {ends})"


@dataclass(frozen=True)
class _ToReal(Rule):
    """x·2^exponent as float32: the conversion rounds once, the product with a power of two does not."""

    exponent: int
    weight = 2

    def write(self, place: Place, node: Node, index: Index) -> str:
        text = f"(float){place.read(node.args[0], index)}"
        return text if self.exponent == 0 else f"({text} * {_real_literal(2.0**self.exponent)})"


def _real_literal(value: float) -> str:
    """A float32 as a C literal; nine digits represent every float32 exactly."""
    text = f"{value:.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


class CArithmetic:
    """Interprets scalars and element-wise arithmetic by building nodes; C is written only when a tensor is stored."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def refuse(self, reason: str) -> UnsupportedError:
        """The error for an op that cannot be written in C."""
        return self.draft.refuse(reason)

    # numbers
    def scalar(self, value: float) -> Value:
        return Fixed(float(value))

    def vector(self, values: Ints) -> Value:
        shape = (len(values),)
        if len(set(values)) == 1:
            return Fixed(float(values[0]), shape)
        return Number(rules.listed_node(values, shape), shape)

    def single(self, value: float) -> Value:
        return Fixed(ctypes.c_float(value).value, is_real=True)

    def like(self, value: float, reference: Value) -> Value:
        return self.single(value) if isinstance(reference, Real) else self.scalar(value)

    def pow2(self, exponent: Value) -> Value:
        if isinstance(exponent, Fixed):
            return Fixed(2.0**exponent.value, exponent.shape)
        power = self.whole(exponent)
        return Number(rules.constant_node(1, power.shape), power.shape, power=self.shaped(power))

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> Value:
        return self.scalar(compute(*attributes))

    # forms of values
    def number(self, x: Value) -> Number:
        """A value as an integer tensor times a power of two."""
        if isinstance(x, Number):
            return x
        if isinstance(x, Fixed) and not x.is_real and math.isfinite(x.value):
            mantissa, exponent = dyadic(x.value)
            return Number(rules.constant_node(mantissa, x.shape), x.shape, exponent)
        if isinstance(x, Quotient):
            raise self.refuse(
                "it divides by a number that is not a power of two and does not round the quotient; use scales that are powers of two"
            )
        raise self.refuse(f"{type(x).__name__.lower()} values must be rounded before they are used in arithmetic")

    def with_one_exponent(self, x: Value) -> Number:
        """The same with one exponent for all elements: a power that differs between elements is multiplied in."""
        number = self.number(x)
        if number.power is None:
            return number
        least = number.power.interval[0]
        operands = [replace(number, power=None), Number(number.power, number.power.shape)]
        scaled = self._combine(rules.ScaleBy(least), operands, number.exponent + least)
        scaled.node.interval = by_cases(scaled.node, number.power)
        return scaled

    def whole(self, x: Value) -> Number:
        """A number as integers, with exponent 0."""
        number = self.with_one_exponent(x)
        if number.exponent < 0:
            raise self.refuse("an integer is needed, but the number has a fraction")
        return replace(number, node=self._times_power(number.node, number.exponent), exponent=0)

    def shaped(self, x: Number) -> Node:
        """The node of a number in the number's own shape: a pending reshape is done."""
        node = x.node
        if node.shape == x.shape:
            return node
        if isinstance(node.rule, rules.Constant):
            return rules.constant_node(node.rule.value, x.shape)
        values = rules.listed(node)
        if values:
            return rules.listed_node(values, x.shape)
        if size_of(node.shape) != size_of(x.shape):
            return Node(rules.Same(), (node,), x.shape)
        if isinstance(node.rule, rules.Stored):
            known = None if node.known is None else node.known.reshape(x.shape)
            view = Node(node.rule, (), x.shape, interval=node.interval, known=known, is_real=node.is_real)
            view.buffer = node.buffer
            return view
        if longer_axes(x.shape) == longer_axes(node.shape):

            def without_ones(index: tuple[str, ...]) -> tuple[str, ...]:
                longer = iter([i for i, n in zip(index, x.shape, strict=True) if n != 1])
                return tuple("0" if n == 1 else next(longer) for n in node.shape)

            return Node(View(without_ones), (node,), x.shape)
        node.needs_buffer = True
        return Node(_Reshaped(), (node,), x.shape)

    def _combine(
        self,
        rule: Rule,
        operands: Sequence[Number],
        exponent: int = 0,
        power: Node | None = None,
        ctype: str | None = None,
    ) -> Number:
        """A node of operands that broadcast; where Python numbers are the only other operands, a pending reshape stays pending."""
        shape = broadcast(*(o.shape for o in operands))
        tensors = [o for o in operands if o.shape != ()]
        if len({o.shape for o in tensors}) == 1 and len({o.node.shape for o in tensors}) == 1:
            nodes, inner = [o.node for o in operands], tensors[0].node.shape
        else:
            nodes, inner = [self.shaped(o) for o in operands], shape
        return Number(Node(rule, nodes, inner), shape, exponent, power, ctype)

    def _times_power(self, node: Node, bits: int) -> Node:
        """node·2^bits."""
        if bits == 0:
            return node
        if isinstance(node.rule, rules.Constant):
            return rules.constant_node(node.rule.value << bits, node.shape)
        if isinstance(node.rule, rules.Scale):
            return Node(rules.Scale(node.rule.bits + bits), node.args, node.shape)
        return Node(rules.Scale(bits), (node,), node.shape)

    def aligned(self, *xs: Value) -> tuple[list[Number], int]:
        """Numbers brought to one exponent, the smallest of all; zero has any exponent."""
        numbers = [self.with_one_exponent(x) for x in xs]
        exponents = [x.exponent for x in numbers if not _is_zero(x)]
        least = min(exponents, default=0)
        moved = [
            x if _is_zero(x) else replace(x, node=self._times_power(x.node, x.exponent - least), exponent=least)
            for x in numbers
        ]
        return [replace(x, exponent=least) for x in moved], least

    # arithmetic
    def add(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(a.value + b.value, broadcast(a.shape, b.shape))
        if isinstance(a, Fixed):
            a, b = b, a
        if isinstance(b, Fixed):
            number = b.value
            if isinstance(a, Real):
                return self._real(_RealArithmetic("+", number), a)
            if isinstance(a, Curve):
                before = a.function
                return replace(a, function=lambda v: before(v) + number)
            if isinstance(a, Number) and a.power is not None and number == 0.5:
                doubled = self.number(self.floor(a.scaled(1)))
                return Halves(self.number(self.add(doubled, Fixed(1.0))))
        return self._sum(a, b, "+")

    def sub(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return Fixed(a.value - b.value, broadcast(a.shape, b.shape))
        if isinstance(a, Number) and isinstance(b, Number):
            bits = _remainder_bits(a, b)
            if bits is not None:
                return replace(a, node=Node(rules.Mask(bits), (a.node,), a.node.shape))
        return self._sum(a, b, "-")

    def _sum(self, a: Value, b: Value, symbol: str) -> Number:
        (left, right), exponent = self.aligned(a, b)
        if _is_zero(right) and broadcast(left.shape, right.shape) == left.shape:
            return left
        if symbol == "+" and _is_zero(left) and broadcast(left.shape, right.shape) == right.shape:
            return right
        folded = self._folded(left, right, symbol)
        if folded is not None:
            return folded
        axis = _max_axis(left, right) if symbol == "-" else None
        return self._combine(rules.Arithmetic(symbol, axis), [left, right], exponent)

    def _folded(self, left: Number, right: Number, symbol: str) -> Number | None:
        """Constant folding: (x + c) + d as x + (c + d) for Python numbers c and d, and c − (d for each place)."""
        listed, sign = rules.listed(right.node), 1 if symbol == "+" else -1
        if listed and isinstance(left.node.rule, rules.Constant):
            values = [left.node.rule.value + sign * v for v in listed]
            return replace(right, node=rules.listed_node(values, right.node.shape))
        before, number = _added_constant(left.node), _scalar_of(right.node)
        if before is None or number is None:
            return None
        total = before + (number if symbol == "+" else -number)
        rest = replace(left, node=left.node.args[0], ctype=None)
        if total == 0:
            return rest
        return self._combine(rules.Arithmetic("+"), [rest, Number(rules.constant_node(total), ())], left.exponent)

    def mul(self, a: Value, b: Value) -> Value:
        if isinstance(a, Fixed) and not isinstance(b, Fixed):
            a, b = b, a
        if isinstance(b, Fixed):
            return self._times_fixed(a, b)
        left, right = self.number(a), self.number(b)
        if left.power is not None and right.power is not None:
            left = self.with_one_exponent(left)
        power = left.power if left.power is not None else right.power
        return self._product(left, right, power)

    def _product(self, left: Number, right: Number, power: Node | None) -> Number:
        exponent = left.exponent + right.exponent
        shape = broadcast(left.shape, right.shape)
        for one, other in ((left, right), (right, left)):
            if isinstance(one.node.rule, rules.Constant) and one.node.rule.value == 1:
                node = other.node if other.shape == shape else Node(rules.Same(), (self.shaped(other),), shape)
                return Number(node, shape, exponent, power)
        return self._combine(rules.Arithmetic("*"), [replace(x, power=None) for x in (left, right)], exponent, power)

    def _times_fixed(self, a: Value, b: Fixed) -> Value:
        if isinstance(a, Fixed):
            return Fixed(a.value * b.value, broadcast(a.shape, b.shape))
        if isinstance(a, Real):
            return self._real(_RealArithmetic("*", b.value), a)
        if isinstance(a, Curve):
            before = a.function
            if b.value <= 0:
                raise self.refuse("a rising function is multiplied by a factor that is not positive")
            return replace(a, function=lambda v: before(v) * b.value)
        if isinstance(a, Table):
            return Table(tuple((values, exponent + self._exponent(b)) for values, exponent in a.parts))
        number = self.number(a)
        shape = broadcast(number.shape, b.shape)
        mantissa, exponent = dyadic(b.value)
        if mantissa == 0:
            return Fixed(0.0, shape)
        if mantissa == 1 and shape == number.shape:
            return number.scaled(exponent)
        factor = Number(rules.constant_node(mantissa, b.shape), b.shape)
        operands = [replace(number, power=None), factor]
        return self._combine(rules.Arithmetic("*"), operands, number.exponent + exponent, number.power)

    def _exponent(self, factor: Fixed) -> int:
        mantissa, exponent = dyadic(factor.value)
        if mantissa != 1:
            raise self.refuse(f"{factor.value!r} is no power of two")
        return exponent

    def div(self, a: Value, b: Value) -> Value:
        if isinstance(b, Fixed):
            if isinstance(a, Fixed):
                return Fixed(a.value / b.value, broadcast(a.shape, b.shape))
            if dyadic(b.value)[0] == 1:
                return self.mul(a, Fixed(1.0 / b.value, b.shape))
        return Quotient(self.with_one_exponent(a), self.with_one_exponent(b))

    def floor(self, x: Value) -> Value:
        if isinstance(x, Fixed):
            return replace(x, value=float(math.floor(x.value)))
        if isinstance(x, (Real, Curve)):
            return replace(x, is_whole=True)
        if isinstance(x, Halves):
            return self._shifted(x.number, 1)
        if isinstance(x, Quotient):
            difference = x.top.exponent - x.bottom.exponent
            top = replace(x.top, node=self._times_power(x.top.node, max(difference, 0)), exponent=0)
            bottom = replace(x.bottom, node=self._times_power(x.bottom.node, max(-difference, 0)), exponent=0)
            return self._combine(rules.FloorQuotient(), [top, bottom])
        number = self.number(x)
        if number.power is not None:
            return self._floor_power(number, number.power)
        return number if number.exponent >= 0 else self._shifted(number, -number.exponent)

    def _shifted(self, x: Number, bits: int) -> Number:
        """⌊integers/2^bits⌋, exponent 0; ⌊(n·2^k + c)/2^bits⌋ is n·2^(k−bits) + ⌊c/2^bits⌋ where k is at least `bits`."""
        node = x.node
        if isinstance(node.rule, rules.Arithmetic) and node.rule.symbol == "+":
            first, second = node.args
            scale, rest = first.rule, second.rule
            if isinstance(scale, rules.Scale) and isinstance(rest, rules.Constant) and scale.bits >= bits:
                whole = Number(self._times_power(first.args[0], scale.bits - bits), x.shape)
                if first.shape == node.shape:
                    return self.number(self.add(whole, Fixed(float(rest.value >> bits))))
        return Number(rules.in_32_bits(Node(rules.Shift(bits), (node,), node.shape)), x.shape)

    def _floor_power(self, x: Number, power: Node) -> Number:
        """⌊node·2^(exponent + power)⌋ by a variable shift to the right."""
        if isinstance(power.rule, rules.Constant):
            return self.number(self.floor(replace(x, power=None).scaled(power.rule.value)))
        up = max(x.exponent + power.interval[1], 0)
        top = replace(x, node=self._times_power(x.node, up), power=None, exponent=0)
        values = rules.listed(power)
        if values:
            last = 31 if arithmetic_type(top.node.interval) == INT32 else 63  # of more nothing but the sign is left
            amounts = [min(up - x.exponent - n, last) for n in values]
            by = Number(rules.listed_node(amounts, power.shape), power.shape)
            self.draft.is_crowded = True
            return self._combine(rules.ShiftBy(None), [top, by])
        shifted = self._combine(rules.ShiftBy(up - x.exponent), [top, Number(power, power.shape)])
        shifted.node.interval = by_cases(shifted.node, power)
        return shifted

    def clip(self, x: Value, low: Value, high: Value) -> Value:
        if isinstance(x, Fixed) and isinstance(low, Fixed) and isinstance(high, Fixed):
            return replace(x, value=min(max(x.value, low.value), high.value))
        if isinstance(x, (Real, Curve)):
            ends = self._clip_bounds(low, high)
            return self._clip_real(x, *ends) if isinstance(x, Real) else self._clip_curve(x, *ends)
        (number, bottom, top), exponent = self.aligned(x, low, high)
        first, last = _scalar_of(bottom.node), _scalar_of(top.node)
        if first is None or last is None:
            raise self.refuse("the bounds of a clip are not constant")
        return Number(rules.limited(number.node, (first, last)), number.shape, exponent)

    def _clip_bounds(self, low: Value, high: Value) -> tuple[int, int]:
        if not (isinstance(low, Fixed) and isinstance(high, Fixed)):
            raise self.refuse("the bounds of a clip of a real number are not constant")
        return math.ceil(low.value), math.floor(high.value)

    def _clip_real(self, x: Real, low: int, high: int) -> Number:
        """Both ends must be integers that float32 holds exactly; `high` may also be one below such an integer."""
        is_exact = all(abs(e) <= _FLOAT32_INTEGERS or ctypes.c_float(e).value in (e, e + 1) for e in (low, high))
        if not (x.is_whole and is_exact and ctypes.c_float(low).value == low):
            raise self.refuse(f"a real number cannot be rounded down and clipped to {low} … {high}")
        return Number(Node(_FloorClip(low, high), (x.node,), x.node.shape), x.shape)

    def _clip_curve(self, x: Curve, low: int, high: int) -> Number:
        """A rising function as a count of thresholds: the smallest input at which it reaches each next integer."""
        if not x.is_whole:
            raise self.refuse("a real function must be rounded before it is clipped")

        def value(v: int) -> int:
            return min(max(math.floor(x.function(v)), low), high)

        first, last = x.base.interval
        steps, start = [], first
        for integer in range(value(first) + 1, value(last) + 1):
            stride = 1  # an exponential search: the function rises, so doubled strides reach the place, then bisection
            while start + stride < last and value(start + stride) < integer:
                start, stride = start + stride, 2 * stride
            start += bisect_left(range(start, min(start + stride, last)), integer, key=value)
            steps.append(start)
        count = Number(Node(rules.Count(tuple(steps)), (x.base,), x.base.shape), x.shape)
        return self.number(self.add(count, Fixed(float(value(first)))))

    def where_less(self, a: Value, b: Value, then: Value, other: Value) -> Value:
        if isinstance(a, Fixed) and isinstance(b, Fixed):
            return then if a.value < b.value else other
        if isinstance(b, Ladder):
            return self._compare_with_ladder(a, b, then, other)
        if isinstance(other, Curve):
            return self._constant_below(a, b, then, other)
        compared = self._comparable(a, b)
        then, other, power = self._same_power(then, other)
        (first, second), exponent = self.aligned(then, other)
        if first.node is second.node and broadcast(*(x.shape for x in (*compared, first))) == first.shape:
            return replace(first, exponent=exponent, power=power)
        return self._combine(rules.Select(), [*compared, first, second], exponent, power)

    def _same_power(self, then: Value, other: Value) -> tuple[Value, Value, Node | None]:
        """Two values without the power that both share, and that power."""
        if isinstance(then, Number) and isinstance(other, Number) and then.power is other.power is not None:
            return replace(then, power=None), replace(other, power=None), then.power
        return then, other, None

    def _comparable(self, a: Value, b: Value) -> list[Number]:
        """Two numbers with one exponent; a Python number is rounded to the other's exponent, which keeps the comparison."""
        if isinstance(b, Fixed):
            left = self.with_one_exponent(a)
            return [left, Number(rules.constant_node(at_exponent(b.value, left.exponent, up=True)), ())]
        if isinstance(a, Fixed):
            right = self.with_one_exponent(b)
            return [Number(rules.constant_node(at_exponent(a.value, right.exponent, up=False)), ()), right]
        return self.aligned(a, b)[0]

    def _compare_with_ladder(self, a: Value, ladder: Ladder, then: Value, other: Value) -> Rungs:
        number = self.with_one_exponent(a)
        is_count = isinstance(then, Fixed) and isinstance(other, Fixed) and (then.value, other.value) == (0.0, 1.0)
        if not is_count:
            raise self.refuse("a ladder can only select 0 below and 1 at or above each of its thresholds")
        return Rungs(number, ladder, broadcast(number.shape, (len(ladder.values), 1, 1)))

    def _constant_below(self, a: Value, b: Value, then: Value, other: Curve) -> Curve:
        """A curve that is replaced by a constant where its input is below a number."""
        number = self.whole(a)
        if not (isinstance(b, Fixed) and isinstance(then, Fixed)):
            raise self.refuse("a function can only be replaced by a constant below a constant threshold")
        base, edge, below = number.node, b.value, then.value
        if base is not other.base and id(base) not in other.base.below:
            raise self.refuse("the threshold below which a function is replaced compares another number than its input")

        @cache
        def value(v: int) -> float:
            if v < edge:
                return below
            low, high = Bounds({id(base): (v, v)}).of(other.base)
            assert low == high  # the input of the curve is a function of the compared number
            return other.function(low)

        if value(math.ceil(edge)) < below:
            raise self.refuse("the function falls below the constant that replaces it, so the result does not rise")
        return Curve(base, number.shape, value)

    def ladder(self, values: Sequence[float]) -> Value:
        return Ladder(tuple(float(v) for v in values))

    def log(self, x: Value) -> Value:
        number = self.with_one_exponent(x)
        if number.node.interval[0] < 1:
            raise self.refuse("it takes the logarithm of a number that may be zero or negative")
        return Curve(number.node, number.shape, lambda v: math.log(math.ldexp(v, number.exponent)))

    # carriers
    def wide(self, x: Value) -> Value:
        return replace(x, is_real=False) if isinstance(x, Fixed) else x

    narrow = wide

    def store(self, x: Value, bits: int, *, is_unsigned: bool = False) -> Value:
        number = self.whole(x)
        ctype = f"{'u' if is_unsigned else ''}int{storage_bits(bits)}_t"
        low, high = number.node.interval
        if ctype not in RANGES or not is_inside((low, high), RANGES[ctype]):
            raise self.refuse(f"numbers from {low} to {high} do not fit in {ctype}")
        return replace(number, ctype=ctype)

    def real(self, x: Value) -> Value:
        if isinstance(x, Fixed):
            return self.single(x.value)
        number = self.with_one_exponent(x)
        if abs(number.exponent) > _LARGEST_EXPONENT:
            raise self.refuse(f"a factor of 2^{number.exponent} exceeds the range of float32")
        node = Node(_ToReal(number.exponent), (number.node,), number.node.shape, is_real=True)
        return Real(node, number.shape)

    def _real(self, rule: Rule, x: Real) -> Real:
        return Real(Node(rule, (x.node,), x.node.shape, is_real=True), x.shape)


def _scalar_of(node: Node) -> int | None:
    """The Python number that a node stands for; None for tensors."""
    return node.rule.value if isinstance(node.rule, rules.Constant) and node.shape == () else None


def _added_constant(node: Node) -> int | None:
    """The Python number that a node adds to an argument of its own shape."""
    if not (isinstance(node.rule, rules.Arithmetic) and node.rule.symbol in ("+", "-")):
        return None
    number = _scalar_of(node.args[1])
    if number is None or node.args[0].shape != node.shape:
        return None
    return number if node.rule.symbol == "+" else -number


def _is_zero(x: Number) -> bool:
    return isinstance(x.node.rule, rules.Constant) and x.node.rule.value == 0


def _remainder_bits(a: Number, b: Number) -> int | None:
    """The n for which b is ⌊a/2^n⌋·2^n, counted in the integers of a; then a − b is a mod 2^n."""
    rule = b.node.rule
    if a.power is not None or b.power is not None or a.shape != b.shape or not isinstance(rule, rules.Shift):
        return None
    return rule.bits if b.node.args[0] is a.node and rule.bits == b.exponent - a.exponent else None


def _max_axis(a: Number, b: Number) -> int | None:
    """The axis along which b is the maximum of a."""
    rule = b.node.rule
    return rule.axis if isinstance(rule, Total) and rule.is_largest and b.node.args[0] is a.node else None
