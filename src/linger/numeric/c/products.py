# SPDX-License-Identifier: Apache-2.0
"""Sums along axes, products and windows of the C interpreter: shapes, and how far each sum can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from linger.numeric.c import rules
from linger.numeric.c.accumulation import Accumulate, Accumulators, Total, Window
from linger.numeric.c.arithmetic import CArithmetic
from linger.numeric.c.nodes import (
    RANGES,
    Array,
    Bounds,
    Interval,
    Node,
    Shape,
    at_exponent,
    broadcast,
    hull,
    size_of,
    sums,
    times,
    walk,
)
from linger.numeric.c.scope import Draft
from linger.numeric.c.views import Fixed, Found, Number, Rungs, Value, View
from linger.numeric.fixed import ceil_pads
from linger.numeric.kernel import Ints, Steps, TransposedSteps

_CHEAP = 6
"""Operations per element that a sum may repeat instead of reading them from scratch."""
_MATRIX = 2


class CProducts(CArithmetic):
    """Everything that adds up many elements, or looks for the largest of them.

    Args:
        draft: The function being written.
        accumulators: The functions that write the sums.
    """

    def __init__(self, draft: Draft, accumulators: Accumulators) -> None:
        super().__init__(draft)
        self._write = accumulators

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
        rule = Total(self._write.sum_line, (least, result[1]), hull([reach, result]), axis=axis)
        return self._reduced(number, Node(rule, (node,), _without(node.shape, axis)))

    def max_along(self, x: Value, axis: int) -> Value:
        number, node, axis = self._line(x, axis)
        if node.shape[axis] == 0:
            raise self.refuse("the largest of no numbers is asked for")
        rule = Total(self._write.largest_of_line, node.interval, node.interval, axis=axis, is_largest=True)
        return self._reduced(number, Node(rule, (node,), _without(node.shape, axis)))

    def _line(self, x: Value, axis: int) -> tuple[Number, Node, int]:
        number = self.settled(x)
        node = self.shaped(number)
        node.needs_buffer |= node.cost > _CHEAP
        return number, node, axis % len(node.shape)

    def _reduced(self, number: Number, node: Node) -> Number:
        return Number(node, node.shape, number.exponent, ctype=number.ctype)

    def _reached(self, x: Rungs, axis: int) -> Number:
        """How many numbers of a ladder are reached, along the axis that is the ladder's."""
        axis %= len(x.shape)
        if axis != len(x.shape) - 3 or x.shape[axis] != len(x.ladder.values):
            raise self.refuse("a ladder is added up along another axis than its own")
        steps = tuple(at_exponent(v, x.number.exponent, up=True) for v in x.ladder.values)
        node = Node(rules.Count(steps), (self.shaped(x.number),), _without(x.shape, axis))
        return Number(node, node.shape)

    # products
    def _operand(self, x: Value) -> Node:
        """Whole numbers that are read again and again: from an array, or moved elements of one."""
        node = self.shaped(self.whole(x))
        source = node
        while isinstance(source.rule, (View, Found)):
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
        return self._total(self._write.multiply_rows, [left, right, *offset], (*left.shape[:-1], right.shape[0]), reach)

    def matmul(self, x: Value, y: Value) -> Value:
        left, right = self._operand(x), self._operand(y)
        if min(len(left.shape), len(right.shape)) < _MATRIX:
            raise self.refuse("a product of matrices needs two axes on each side")
        known = _content(right)
        columns = None if known is None else np.swapaxes(known, -1, -2).reshape(-1, right.shape[-2])
        reach = _reach(left.interval, right, columns, right.shape[-2], [])
        leading = broadcast(left.shape[:-2], right.shape[:-2]) if len(left.shape) + len(right.shape) > 4 else ()
        return self._total(
            self._write.multiply_matrices, [left, right], (*leading, left.shape[-2], right.shape[-1]), reach
        )

    def conv1d(self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]) -> Value:
        left, right = steps["pads"]
        window = Window(
            (), (1, *steps["strides"]), (0, left, 0, right), (1, *steps["dilations"]), steps["group"]
        )  # a signal is a image of one row
        image, taps = (self._with_axis(v) for v in (x, w))
        return self._convolution(image, taps, b, window, has_rows=False)

    def _with_axis(self, x: Value) -> Number:
        found = self.whole(x)
        return replace(found, shape=(*found.shape[:2], 1, found.shape[2]))

    def conv2d(self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]) -> Value:
        window = Window((), steps["strides"], steps["pads"], steps["dilations"], steps["group"])
        return self._convolution(x, w, b, window)

    def _convolution(self, x: Value, w: Value, b: Value | None, window: Window, *, has_rows: bool = True) -> Number:
        left, right = self._operand(x), self._operand(w)
        offset = [] if b is None else [self._operand(b)]
        window = replace(window, kernel=right.shape[2:])
        known = _content(right)
        rows = None if known is None else known.reshape(right.shape[0], -1)
        reach = _reach(left.interval, right, rows, size_of(right.shape[1:]), offset)
        shape = (left.shape[0], right.shape[0], *_windows(left.shape[2:], window)[0 if has_rows else 1 :])
        return self._total(self._write.convolve, [left, right, *offset], shape, reach, window)

    def conv_transpose2d(
        self, x: Value, w: Value, b: Value | None, *, x_bits: int, w_bits: int, **steps: Unpack[TransposedSteps]
    ) -> Value:
        left, right = self._operand(x), self._operand(w)
        offset = [] if b is None else [self._operand(b)]
        group = steps["group"]
        window = Window(right.shape[2:], steps["strides"], steps["pads"], steps["dilations"], group)
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
            + steps["output_padding"][i]
            - window.pads[i]
            - window.pads[i + 2]
            for i in (0, 1)
        ]
        shape = (left.shape[0], group * outside, *sides)
        return self._total(self._write.convolve_transposed, [left, right, *offset], shape, reach, window)

    # windows
    def window_sum(self, x: Value, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> Value:
        node = self._operand(x)
        window = Window(kernel_shape, strides, pads, (1, 1))
        shape = (*node.shape[:2], *_windows(node.shape[2:], window))
        return self._total(self._write.sum_window, [node], shape, sums(node.interval, size_of(kernel_shape)), window)

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
        made = self._total(self._write.largest_of_window, [node], shape, reach, window)
        return replace(made, ctype=number.ctype)


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
    """Weights that are known; None where there are none at all."""
    return w.known if w.known is not None and w.known.size else None


def _reach(x: Interval, w: Node, rows: Array | None, terms: int, offset: Sequence[Node]) -> Interval:
    """How far products and their sums reach, partial ones included; `rows` are the weights of each output where they are known.

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
    for found in walk(node):
        rule = found.rule
        is_difference = isinstance(rule, rules.Arithmetic) and rule.is_below_max == axis
        if is_difference and found.shape == node.shape and count:
            return (count - 1) * node.interval[0] + Bounds({id(found): (0, 0)}).of(node)[0]
    return count * node.interval[0]
