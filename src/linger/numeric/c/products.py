# SPDX-License-Identifier: Apache-2.0
"""Reductions, matrix products and windows of the C interpreter: shapes, intervals of partial sums, and the accumulation loops.

One function for each reduction writes the loops for one output element. It gets the place inside the loops over the output, the
node with its arguments, and the index of the output element; it writes statements that compute the exact integer and returns
the name of the variable that holds it. Rounding and saturation come from the op's body. Where the memory layout allows,
`linger.numeric.c.tiled_windows` writes the same sums many at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Unpack

import numpy as np

from linger.numeric.c import rules
from linger.numeric.c.arithmetic import CArithmetic
from linger.numeric.c.nodes import (
    INT32,
    RANGES,
    WIDTHS,
    Array,
    Bounds,
    Index,
    Interval,
    Node,
    Place,
    Shape,
    arithmetic_type,
    at_exponent,
    broadcast,
    dyadic,
    hull,
    is_inside,
    literal,
    size_of,
    sums,
    times,
    walk,
)
from linger.numeric.c.views import Accumulate, Fixed, Gathered, Number, Rungs, Total, Value, View, Window, by_cases
from linger.numeric.fixed import ceil_pads
from linger.numeric.kernel import ConvGeometry, ConvTransposeGeometry, Ints

_CHEAP = 6
"""The cost of an element up to which a reduction recomputes its operand instead of reading it from scratch."""
_MATRIX = 2


def _rule(node: Node) -> Total:
    assert isinstance(node.rule, Total)
    return node.rule


def _window(node: Node) -> Window:
    window = _rule(node).window
    assert window is not None
    return window


def _begin(place: Place, node: Node, offset: Node | None, index: Index) -> tuple[str, str]:
    """Type and name of the accumulator, which starts at the bias."""
    ctype = _rule(node).type_in(place)
    start = "0" if offset is None else place.read_as(offset, index, ctype)
    return ctype, place.variable("sum", ctype, start)


def _product(place: Place, left: tuple[Node, Index], right: tuple[Node, Index], ctype: str) -> str:
    return f"{place.read_as(*left, ctype)} * {place.read_as(*right, ctype)}"


def sum_line(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum of the elements along an axis."""
    axis, (x,) = _rule(node).axis, node.args
    ctype, total = _begin(place, node, None, index)
    with place.loop(x.shape[axis]) as (inside, i):
        inside.line(f"{total} += {inside.read_as(x, (*index[:axis], i, *index[axis + 1 :]), ctype)};")
    return total


def largest_of_line(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The largest element along an axis."""
    axis, (x,) = _rule(node).axis, node.args
    ctype = _rule(node).type_in(place)
    largest = place.variable("largest", ctype, place.read_as(x, (*index[:axis], "0", *index[axis + 1 :]), ctype))
    with place.loop(x.shape[axis]) as (inside, i):
        _raise(inside, largest, inside.local(ctype, inside.read_as(x, (*index[:axis], i, *index[axis + 1 :]), ctype)))
    return largest


def _raise(place: Place, largest: str, text: str) -> None:
    place.line(f"{largest} = {text} > {largest} ? {text} : {largest};")


def multiply_rows(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """x·wᵀ + b over the last axis of both."""
    x, w, *offset = node.args
    ctype, total = _begin(place, node, offset[0] if offset else None, index[-1:])
    with place.loop(w.shape[1]) as (inside, i):
        inside.line(f"{total} += {_product(inside, (x, (*index[:-1], i)), (w, (index[-1], i)), ctype)};")
    return total


def multiply_matrices(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """x·y over the last axis of x and the last but one of y; leading axes broadcast."""
    x, y = node.args
    ctype, total = _begin(place, node, None, index)
    with place.loop(x.shape[-1]) as (inside, i):
        left, right = (*index[:-1], i), (*index[:-2], i, index[-1])
        inside.line(f"{total} += {_product(inside, (x, left), (y, right), ctype)};")
    return total


def convolve(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """A convolution: the sum over the input channels of a group and the taps of the window; padding counts as zero."""
    x, w, *offset = node.args
    window = _window(node)
    n, channel, *where = index
    row, column = where if len(where) > 1 else ("0", *where)  # a signal is an image of one row
    ctype, total = _begin(place, node, offset[0] if offset else None, (channel,))
    inside_group, outputs = w.shape[1], w.shape[0] // window.group
    with ExitStack() as stack:
        inside, c = stack.enter_context(place.loop(inside_group))
        source = c if window.group == 1 else _joined_place(channel, outputs, inside_group, c)
        inside, taps, places = _taps(stack, inside, window, (row, column), x.shape[2:])
        left, right = (n, source, *places), (channel, c, *taps)
        inside.line(f"{total} += {_product(inside, (x, left), (w, right), ctype)};")
    return total


def _joined_place(channel: str, outputs: int, inside_group: int, c: str) -> str:
    """The input channel c of the group that an output channel belongs to."""
    group = channel if outputs == 1 else f"{channel} / {outputs}"
    first = f"{group} * {inside_group}" if inside_group > 1 else group
    return f"({first})" if c == "0" else f"({first} + {c})"


def _taps(
    stack: ExitStack, place: Place, window: Window, at: tuple[str, str], size: Shape
) -> tuple[Place, tuple[str, ...], tuple[str, ...]]:
    """Loops over the taps that lie inside the image: the place inside, the tap, and the pixel."""
    taps, places = [], []
    for axis in (0, 1):
        place, tap = stack.enter_context(place.loop(window.kernel[axis]))
        pad, stride, dilation = window.pads[axis], window.strides[axis], window.dilations[axis]
        pixel = place.local("int32_t", _plus((at[axis], stride), (tap, dilation), -pad))
        if pad or window.pads[axis + 2]:
            place = stack.enter_context(place.when(f"{pixel} >= 0 && {pixel} < {size[axis]}"))
        taps.append(tap)
        places.append(pixel)
    return place, tuple(taps), tuple(places)


def _plus(first: tuple[str, int], second: tuple[str, int], offset: int) -> str:
    """name·factor + name·factor + offset, without what is zero."""
    parts = [name if factor == 1 else f"{name} * {factor}" for name, factor in (first, second) if name != "0"]
    text = " + ".join(parts) or "0"
    return text if offset == 0 else f"{text} {'+' if offset > 0 else '-'} {abs(offset)}"


def convolve_transposed(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """A transposed convolution: the sum over the input channels and the pixels whose window reaches this one."""
    x, w, *offset = node.args
    window = _window(node)
    n, channel, row, column = index
    ctype, total = _begin(place, node, offset[0] if offset else None, (channel,))
    inputs, outputs = w.shape[0] // window.group, w.shape[1]
    with ExitStack() as stack:
        inside, c = stack.enter_context(place.loop(inputs))
        source = c if window.group == 1 else _joined_place(channel, outputs, inputs, c)
        target = channel if window.group == 1 else f"({channel} % {outputs})"
        taps, places = [], []
        for axis, at in enumerate((row, column)):
            inside, tap = stack.enter_context(inside.loop(window.kernel[axis]))
            stride = window.strides[axis]
            moved = inside.local("int32_t", _plus((at, 1), (tap, -window.dilations[axis]), window.pads[axis]))
            reach = f"{moved} >= 0 && {moved} < {x.shape[2 + axis] * stride}"
            whole = "" if stride == 1 else f" && {moved} % {stride} == 0"
            inside = stack.enter_context(inside.when(reach + whole))
            taps.append(tap)
            places.append(moved if stride == 1 else f"({moved} / {stride})")
        left, right = (n, source, *places), (source, target, *taps)
        inside.line(f"{total} += {_product(inside, (x, left), (w, right), ctype)};")
    return total


def sum_window(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The sum over a window; padding counts as zero."""
    (x,) = node.args
    n, channel, row, column = index
    ctype, total = _begin(place, node, None, index)
    with ExitStack() as stack:
        inside, _, places = _taps(stack, place, _window(node), (row, column), x.shape[2:])
        inside.line(f"{total} += {inside.read_as(x, (n, channel, *places), ctype)};")
    return total


def largest_of_window(place: Place, node: Node, index: tuple[str, ...]) -> str:
    """The maximum of a window; padding does not take part."""
    (x,) = node.args
    n, channel, row, column = index
    ctype = _rule(node).type_in(place)
    largest = place.variable("largest", ctype, literal(_rule(node).result[0], ctype))
    with ExitStack() as stack:
        inside, _, places = _taps(stack, place, _window(node), (row, column), x.shape[2:])
        _raise(inside, largest, inside.local(ctype, inside.read_as(x, (n, channel, *places), ctype)))
    return largest


class CProducts(CArithmetic):
    """Interprets reductions: sums and maxima along an axis or a window, matrix products, convolutions."""

    def add(self, a: Value, b: Value) -> Value:
        if isinstance(a, Number) and a.power is not None and isinstance(b, Fixed) and b.value == 0.5:
            rounded = self._rounded_by_bias(a, a.power)
            if rounded is not None:
                return rounded
        return super().add(a, b)

    def _rounded_by_bias(self, x: Number, power: Node) -> Number | None:
        """A sum times 2^−s, each channel with an s of its own, whose bias holds 2^(s−1) more: its floor is that of x + ½.

        None where the bias may not change, or the sum would leave 32 bits. Where s < 1 the floor needs no rounding.
        """
        rule, shifts = x.node.rule, [-x.exponent - n for n in rules.listed(power)]
        offset = self._own_bias(x.node, len(shifts))
        if offset is None or offset.known is None or not isinstance(rule, Total) or max(shifts) >= WIDTHS[INT32]:
            return None
        held = offset.known.astype(np.int64) + [(1 << max(s, 0)) >> 1 for s in shifts]
        interval, more = (int(held.min()), int(held.max())), 1 << max(max(shifts) - 1, 0)
        reach, result = ((low, high + more) for low, high in (rule.reach, rule.result))
        if arithmetic_type(reach, result, interval) != INT32:
            return None
        bias = Node(offset.rule, (), offset.shape, interval=interval, known=held)
        bias.buffer = offset.buffer
        assert bias.buffer is not None  # a bias that may change is an input
        self.draft.changed[bias.buffer.name] = held.astype(np.int32)
        return replace(x, node=Node(replace(rule, reach=reach, result=result), (*x.node.args[:2], bias), x.node.shape))

    def _own_bias(self, total: Node, channels: int) -> Node | None:
        """The known bias of a sum, one number for each channel, where what is stored may change."""
        offset = next(iter(total.args[2:]), None)
        if offset is None or offset.known is None or offset.buffer is None:
            return None
        return offset if offset.buffer.name in self.draft.may_change and offset.shape == (channels,) else None

    # tables
    def lookup(self, table: Sequence[float], index: Value) -> Value:
        where = self.whole(index)
        valid = (0, len(table) - 1)
        if not is_inside(where.node.interval, valid):
            where.node.interval = by_cases(where.node, where.node)
        if not is_inside(where.node.interval, valid):
            low, high = where.node.interval
            raise self.refuse(f"a table of {len(table)} numbers is read at indices {low} … {high}")
        mantissas, exponents = zip(*(dyadic(float(v)) for v in table), strict=True)
        if len(table) > 1 and set(mantissas) == {1}:
            return self._powers(exponents, where)
        least = min(exponents)  # zero has the exponent 0, which at most makes the other mantissas larger
        values = tuple(m << (e - least) for m, e in zip(mantissas, exponents, strict=True))
        return replace(self._looked_up(values, where), exponent=least)

    def _looked_up(self, values: tuple[int, ...], where: Number) -> Number:
        return Number(Node(rules.Lookup(values), (where.node,), where.node.shape), where.shape)

    def _powers(self, exponents: Sequence[int], where: Number) -> Number:
        """2^exponents[index]: a variable shift, without a table where the exponents are evenly spaced."""
        step = exponents[1] - exponents[0]
        if all(b - a == step for a, b in pairwise(exponents)):
            scaled = self.mul(where, Fixed(float(step)))
            power = self.whole(self.add(scaled, Fixed(float(exponents[0]))))
        else:
            power = self._looked_up(tuple(exponents), where)
        return Number(rules.constant_node(1, where.shape), where.shape, power=self.shaped(power))

    # along one axis
    def sum_along(self, x: Value, axis: int) -> Value:
        if isinstance(x, Rungs):
            return self._reached(x, axis)
        if isinstance(x, Fixed):
            axis %= len(x.shape)
            return Fixed(x.value * x.shape[axis], _without(x.shape, axis))
        number, node, axis = self._line(x, axis)
        count = node.shape[axis]
        reach = sums(node.interval, count)
        result = (count * node.interval[0], count * node.interval[1])
        least = max(result[0], _sum_with_largest(node, axis))
        rule = Total(sum_line, (least, result[1]), hull([reach, result]), axis=axis)
        return self._reduced(number, Node(rule, (node,), _without(node.shape, axis)))

    def max_along(self, x: Value, axis: int) -> Value:
        number, node, axis = self._line(x, axis)
        if node.shape[axis] == 0:
            raise self.refuse("the largest of no numbers is asked for")
        rule = Total(largest_of_line, node.interval, node.interval, axis=axis, is_largest=True)
        return self._reduced(number, Node(rule, (node,), _without(node.shape, axis)))

    def _line(self, x: Value, axis: int) -> tuple[Number, Node, int]:
        number = self.with_one_exponent(x)
        node = self.shaped(number)
        node.needs_buffer |= node.cost > _CHEAP
        return number, node, axis % len(node.shape)

    def _reduced(self, number: Number, node: Node) -> Number:
        return Number(node, node.shape, number.exponent, ctype=number.ctype)

    def _reached(self, x: Rungs, axis: int) -> Number:
        """How many thresholds of a ladder a number reaches: the sum along the axis of the thresholds."""
        axis %= len(x.shape)
        if axis != len(x.shape) - 3 or x.shape[axis] != len(x.ladder.values):
            raise self.refuse("a ladder is added up along another axis than its own")
        steps = tuple(at_exponent(v, x.number.exponent, up=True) for v in x.ladder.values)
        node = Node(rules.Count(steps), (self.shaped(x.number),), _without(x.shape, axis))
        return Number(node, node.shape)

    # products
    def _operand(self, x: Value) -> Node:
        """An integer operand that is read repeatedly: it or the tensor that it is a view of must be in an array."""
        node = self.shaped(self.whole(x))
        source = node
        while isinstance(source.rule, (View, Gathered)):
            source = source.args[0]
        source.needs_buffer |= not isinstance(source.rule, (rules.Stored, rules.Constant))
        return node

    def _total(
        self, write: Accumulate, args: Sequence[Node], shape: Shape, reach: Interval, window: Window | None = None
    ) -> Number:
        return Number(Node(Total(write, reach, reach, window), args, shape), shape)

    def linear(self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int) -> Value:
        return self._rows_product(x, w, b)

    def _rows_product(self, x: Value, w: Value, b: Value | None) -> Number:
        left, right = self._operand(x), self._operand(w)
        offset = [] if b is None else [self._operand(b)]
        rows = _content(right)
        reach = _reach(left.interval, right, rows, right.shape[1], offset)
        return self._total(multiply_rows, [left, right, *offset], (*left.shape[:-1], right.shape[0]), reach)

    def matmul(self, x: Value, y: Value) -> Value:
        left, right = self._operand(x), self._operand(y)
        if min(len(left.shape), len(right.shape)) < _MATRIX:
            raise self.refuse("a product of matrices needs two axes on each side")
        known = _content(right)
        columns = None if known is None else np.swapaxes(known, -1, -2).reshape(-1, right.shape[-2])
        reach = _reach(left.interval, right, columns, right.shape[-2], [])
        leading = broadcast(left.shape[:-2], right.shape[:-2]) if len(left.shape) + len(right.shape) > 4 else ()
        return self._total(multiply_matrices, [left, right], (*leading, left.shape[-2], right.shape[-1]), reach)

    def conv1d(
        self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Value:
        left, right = geometry["pads"]
        strides, dilations = (1, *geometry["strides"]), (1, *geometry["dilations"])  # a signal is an image of one row
        window = Window((), strides, (0, left, 0, right), dilations, geometry["group"])
        signal, taps = self.whole(x), self.whole(w)
        image, kernel = (replace(v, shape=(*v.shape[:2], 1, v.shape[2])) for v in (signal, taps))
        return self._convolution(image, kernel, b, window, has_rows=False)

    def conv2d(
        self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Value:
        window = Window((), geometry["strides"], geometry["pads"], geometry["dilations"], geometry["group"])
        return self._convolution(x, w, b, window)

    def _convolution(self, x: Value, w: Value, b: Value | None, window: Window, *, has_rows: bool = True) -> Number:
        left, right = self._operand(x), self._operand(w)
        offset = [] if b is None else [self._operand(b)]
        window = replace(window, kernel=right.shape[2:])
        known = _content(right)
        rows = None if known is None else known.reshape(right.shape[0], -1)
        reach = _reach(left.interval, right, rows, size_of(right.shape[1:]), offset)
        shape = (left.shape[0], right.shape[0], *_windows(left.shape[2:], window)[0 if has_rows else 1 :])
        return self._total(convolve, [left, right, *offset], shape, reach, window)

    def conv_transpose2d(
        self,
        x: Value,
        w: Value,
        b: Value | None,
        *,
        x_bits: int,
        w_bits: int,
        **geometry: Unpack[ConvTransposeGeometry],
    ) -> Value:
        left, right = self._operand(x), self._operand(w)
        offset = [] if b is None else [self._operand(b)]
        group = geometry["group"]
        window = Window(right.shape[2:], geometry["strides"], geometry["pads"], geometry["dilations"], group)
        inside, outside = right.shape[0] // group, right.shape[1]
        rows, known = None, _content(right)
        if known is not None:
            split = known.reshape(group, inside, outside, -1).swapaxes(1, 2)
            rows = split.reshape(group * outside, -1)
        reach = _reach(left.interval, right, rows, inside * size_of(window.kernel), offset)
        sides = [
            (left.shape[2 + i] - 1) * window.strides[i]
            + window.dilations[i] * (window.kernel[i] - 1)
            + 1
            + geometry["output_padding"][i]
            - window.pads[i]
            - window.pads[i + 2]
            for i in (0, 1)
        ]
        shape = (left.shape[0], group * outside, *sides)
        return self._total(convolve_transposed, [left, right, *offset], shape, reach, window)

    # windows
    def window_sum(self, x: Value, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> Value:
        node = self._operand(x)
        window = Window(kernel_shape, strides, pads, (1, 1))
        shape = (*node.shape[:2], *_windows(node.shape[2:], window))
        return self._total(sum_window, [node], shape, sums(node.interval, size_of(kernel_shape)), window)

    def max_pool2d(
        self, x: Value, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int
    ) -> Value:
        number = self.whole(x)
        node = self._operand(number)
        if ceil_mode:
            pads = ceil_pads(node.shape[2:], kernel_shape, strides, pads, dilations)
        window = Window(kernel_shape, strides, pads, dilations)
        shape = (*node.shape[:2], *_windows(node.shape[2:], window))
        smallest = RANGES[number.ctype or "int32_t"][0]
        reach = hull([node.interval, (smallest, smallest)])
        return replace(self._total(largest_of_window, [node], shape, reach, window), ctype=number.ctype)


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def _windows(size: Shape, window: Window) -> list[int]:
    """How many windows there are on each axis."""
    return [
        (size[i] + window.pads[i] + window.pads[i + 2] - window.dilations[i] * (window.kernel[i] - 1) - 1)
        // window.strides[i]
        + 1
        for i in (0, 1)
    ]


def _content(w: Node) -> Array | None:
    """The values of constant weights; None where they are not known or empty."""
    return w.known if w.known is not None and w.known.size else None


def _reach(x: Interval, w: Node, rows: Array | None, terms: int, offset: Sequence[Node]) -> Interval:
    """The interval of all partial sums of products; `rows` are the weights of each output where they are known.

    With weights that are known, a sum lies between x_low·Σw⁺ + x_high·Σw⁻ and x_high·Σw⁺ + x_low·Σw⁻, x with 0 included.
    """
    begin = offset[0].interval if offset else (0, 0)
    if rows is None:
        low, high = sums(times(x, w.interval), terms)
        return hull([begin, (low, high), (begin[0] + low, begin[1] + high)])
    x_low, x_high = min(x[0], 0), max(x[1], 0)
    positive = np.where(rows > 0, rows, 0).sum(axis=1, dtype=np.int64).tolist()
    negative = np.where(rows < 0, rows, 0).sum(axis=1, dtype=np.int64).tolist()
    known = offset[0].known if offset else np.zeros(len(rows), np.int64)
    each = [begin] * len(rows) if known is None else [(v, v) for v in known.reshape(-1).tolist()]
    return hull(
        interval
        for p, n, (first, last) in zip(positive, negative, each, strict=True)
        for low, high in [(p * x_low + n * x_high, p * x_high + n * x_low)]
        for interval in ((first, last), (low, high), (first + low, last + high))
    )


def _sum_with_largest(node: Node, axis: int) -> int:
    """A lower bound of the sum along an axis of numbers computed from x − max x: it is 0 for at least one of them."""
    count = node.shape[axis]
    for difference in walk(node):
        rule = difference.rule
        is_difference = isinstance(rule, rules.Arithmetic) and rule.max_axis == axis
        if is_difference and difference.shape == node.shape and count:
            return (count - 1) * node.interval[0] + Bounds({id(difference): (0, 0)}).of(node)[0]
    return count * node.interval[0]
