# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes standard ONNX: the function body behind an op, or its expansion in place.

*Symbolic*: attributes are `AttributeRef`s, so one body serves every node of its type; choices that depend on
weights become an `If` that runtimes fold. *Concrete*: attributes are numbers and initializers are known, so
choices are made here and no `If` remains.

Wide values are float64, and float32 from the product to the bytes where that is exact (`narrow`). Opset 11 has no `Constant` from an attribute, no integer `Clip`, no axes inputs: the
few places that differ say so.

The loops of LSTMInt and GRUInt in float32, in as few nodes per step as standard ONNX allows.

In a runtime every node of a step costs about as much as its arithmetic, so the work leaves the loop where it can:

- The steps of the input carry the table's places, and where that is exact also bias and ½, so that one Gemm gives places.
- The tables are as wide as gates can reach: no gate is limited inside the loop.
- A Cast to integers drops what is behind the point: it is the floor of numbers that are not negative.
- A loop hands out numbers before their rounding, and all steps are rounded at once behind it.

Where attributes and weights are known, nodes that change nothing are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from linger.numeric.fixed import FLOAT32_EXACT
from linger.numeric.kernel import Cell, Ints
from linger.numeric.onnx.products import OnnxTime, Values
from linger.numeric.onnx.writer import DOUBLE, FLOAT, INT64, AttributeRef, OnnxValue, integer_type

_Q7 = 128.0
_PLACES = 2.0**15
"""A power of two above the number of places on the curve of the inner tanh."""

_LARGEST_FACTOR = 127.0 / 128.0
"""The largest value of a sigmoid."""

_TIE = 2.0**-8
"""What a tanh is raised by: o·(tanh + 2^-8) is above a tie and below the next number, and float32 holds it."""


@dataclass(frozen=True)
class _Gates:
    """Steps of the input that hold places in a table, and the gates at (state, step)."""

    steps: OnnxValue
    at: Callable[[OnnxValue, OnnxValue], Values]


@dataclass(frozen=True)
class _Tables:
    """A padded table for each gate, where gate 0 lies in each of them (wide), and how long all are together."""

    joint: OnnxValue
    starts: Sequence[OnnxValue]
    length: OnnxValue


class OnnxCells(OnnxTime):
    """Recurrent loops: these where float32 holds every number, else the op's own step in float64."""

    def recurrence(
        self,
        cell: Cell[OnnxValue],
        prepare: Callable[[], Callable[[Values, OnnxValue], Values]],
        states: Values,
        sequence: OnnxValue,
        *,
        stacked: int,
    ) -> tuple[Values, Values]:
        if not self.is_narrow_exact:
            return self.scan(prepare(), states, sequence, stacked=stacked)
        if cell.kind == "LSTM":
            return self._lstm(cell, states, sequence, stacked)
        return self._gru(cell, states, sequence)

    def _lstm(self, cell: Cell[OnnxValue], states: Values, sequence: OnnxValue, stacked: int) -> tuple[Values, Values]:
        """c needs no limits: |f·c + i·g| ≤ 127/128·2^15 + 127 for every c of 16 bits.

        HardSigmoid finds the place of tanh, (16·s + ½ − low)/2^15 limited to 0 … 1: s is a multiple of 2^-7 below 2^15, so
        float32 holds it. The output is rounded by Round, to even; at a tie o·(tanh + 2^-8) is already above it, unless
        o = 0, where there is none.
        """
        sigmoid, tanh = self._curve(cell.sigmoid, 1.0 / _Q7), self.table(cell.tanh)
        reach = self._reach(cell)
        tables = self._tables(cell, (sigmoid, sigmoid, tanh, sigmoid), reach)
        gates = self._gates(cell, tables, reach, self._limited(cell, sequence, reach))
        raised = self.add(self._edges(tanh, (0, int(_PLACES) + 1 - len(cell.tanh))), self.narrow(self._tie(cell)))
        outer = self.entries(self.mul(raised, self._to_output(cell)), self._first_gate(cell))
        finish = self._finish(cell, lambda x: self.emit("Round", [x], x.dtype), has_bounds=self._is_within(cell))

        def step(carried: Values, items: Values) -> tuple[Values, Values]:
            i, f, g, o = gates.at(carried[0], items[0])
            s = self.add(self.mul(f, carried[1]), self.mul(i, g))
            part = self.emit("HardSigmoid", [s], s.dtype, alpha=16 / _PLACES, beta=(0.5 - cell.low) / _PLACES)
            h = self.mul(o, outer(self.mul(part, self.constant(_PLACES, FLOAT))))
            c = self.add(s, self.constant(0.5, FLOAT))
            return (finish(h), self.floor(c)), (h, c)[:stacked]

        last, kept = self.loop(step, states, (gates.steps,))
        return last, (finish(kept[0]), *map(self.floor, kept[1:]))

    def _gru(self, cell: Cell[OnnxValue], states: Values, sequence: OnnxValue) -> tuple[Values, Values]:
        """The third gate is the product of the state alone: its table holds the numbers themselves.

        Its sum with the input is one sum of float32: exact within the ends of the curve, and beyond them on the right side.
        """
        sigmoid, tanh = self._curve(cell.sigmoid, 1.0 / _Q7), self.table(cell.tanh)
        reach = self._reach(cell)
        limited = self._limited(cell, sequence, reach)
        tables = self._tables(cell, (sigmoid, sigmoid), reach, has_product=True)
        is_summed = self._by_gate(cell, [self.constant(v, FLOAT) for v in (1.0, 1.0, 0.0)])
        gates = self._gates(cell, tables, reach, self.mul(limited, is_summed))
        of_n = self.add(self.split(limited, 3, -1)[2], self.constant(0.5 - cell.low, FLOAT))
        inner, last_place = self.entries(tanh, self._first_gate(cell)), float(len(cell.tanh) - 1)
        to_q7, to_output = self._to_q7(cell), self._to_output(cell)
        is_bounded = self._is_within(cell) and self._known(cell.scale_h) <= _Q7
        finish = self._finish(cell, self.floor, has_bounds=is_bounded)

        def step(carried: Values, items: Values) -> tuple[Values, Values]:
            r, z, h_n = gates.at(carried[0], items[0])
            place = self.clip(
                self.add(self.mul(r, h_n), items[1]), self.constant(0.0, FLOAT), self.constant(last_place, FLOAT)
            )
            n = inner(place)
            after = self.add(n, self.mul(z, self.sub(self._rounded(carried[0], to_q7), n)))
            h = self.add(self._scaled(after, to_output), self.constant(0.5, FLOAT))
            return (finish(h),), (h,)

        last, (kept,) = self.loop(step, states, (gates.steps, of_n))
        return last, (finish(kept),)

    # numbers
    def _known(self, x: OnnxValue) -> float:
        """A number, or NaN where it is not known: no comparison with it holds."""
        return float("nan") if x.known is None else float(x.known)

    def _to_output(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """From Q7 to the output, narrow."""
        return self.narrow(self.mul(cell.scale_h, self.scalar(1.0 / _Q7)))

    def _to_q7(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """From the state to Q7, narrow."""
        known = cell.scale_h.known
        factor = self.div(self.scalar(_Q7), cell.scale_h) if known is None else self.scalar(_Q7 / float(known))
        return self.narrow(factor)

    def _scaled(self, x: OnnxValue, factor: OnnxValue) -> OnnxValue:
        return x if self._known(factor) == 1.0 else self.mul(x, factor)

    def _rounded(self, x: OnnxValue, factor: OnnxValue) -> OnnxValue:
        """⌊x·factor⌉ of whole x: there is nothing to round where the factor is whole."""
        scaled = self._scaled(x, factor)
        return scaled if self._known(factor) >= 1.0 else self.floor(self.add(scaled, self.constant(0.5, FLOAT)))

    def _is_within(self, cell: Cell[OnnxValue]) -> bool:
        """Whether it is known that no product of a sigmoid and a tanh leaves the ends of the state."""
        return _LARGEST_FACTOR * self._known(cell.scale_h) <= self._known(cell.ends[1])

    def _tie(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """2^-8, or 0 where the output is as fine as o·tanh (scale_h ≥ 2^14): there are no ties, and 2^-8 might be one."""
        finer = self.sub(self.div(self.scalar(2.0**14), cell.scale_h), self.scalar(1.0))
        return self.clip(finer, self.scalar(0.0), self.scalar(_TIE))

    def _finish(
        self, cell: Cell[OnnxValue], rounded: Callable[[OnnxValue], OnnxValue], *, has_bounds: bool
    ) -> Callable[[OnnxValue], OnnxValue]:
        """From a number before its rounding to the state."""
        return rounded if has_bounds else lambda x: self.clip(rounded(x), *cell.ends)

    def _reach(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """A wide whole number that no rounded product of a state exceeds."""
        if cell.w.known is not None and cell.b.known is not None and cell.factor.known is not None:
            sums = np.abs(cell.w.known.astype(np.float64)).sum(axis=1) * -self._known(cell.ends[0])
            largest = (sums + np.abs(cell.b.known.astype(np.float64))).max(initial=0.0)
            return self.scalar(float(np.floor(largest * cell.factor.known)) + 2.0)
        w, b = (self.wide(self.emit("Abs", [self.narrow(v)], FLOAT)) for v in (cell.w, cell.b))
        sums = self.mul(self._reduce("ReduceSum", w, [1]), self.sub(self.scalar(0.0), self.wide(cell.ends[0])))
        largest = self._reduce("ReduceMax", self.add(sums, b), None)
        return self.add(self.floor(self.mul(largest, cell.factor)), self.scalar(2.0))

    # tables
    def _curve(self, values: Sequence[int], factor: float) -> OnnxValue:
        return self.mul(self.table(values), self.constant(factor, FLOAT))

    def _edges(self, table: OnnxValue, counts: tuple[int | OnnxValue, int | OnnxValue]) -> OnnxValue:
        """A table with its first and last number repeated so many times."""
        vectors = [self.constant([n], INT64) if isinstance(n, int) else self._vector(n) for n in counts]
        return self.emit("Pad", [table, self.emit("Concat", vectors, INT64, axis=0)], table.dtype, mode="edge")

    def _vector(self, x: OnnxValue) -> OnnxValue:
        return self._reshape(self.cast(x, INT64), [1])

    def _tables(
        self, cell: Cell[OnnxValue], curves: Sequence[OnnxValue], reach: OnnxValue, *, has_product: bool = False
    ) -> _Tables:
        """The curves of the gates, wide enough for the sum of a limited input and a state: 2·reach beyond both ends."""
        margin = self.add(self.mul(reach, self.scalar(2.0)), self.scalar(1.0))
        length = self.add(self.mul(margin, self.scalar(2.0)), self.scalar(float(len(cell.tanh))))
        distinct = list({id(curve): curve for curve in curves}.values())
        parts = [self._edges(curve, (margin, margin)) for curve in distinct]
        origin = self.sub(margin, self.scalar(float(cell.low)))
        ends = [self.mul(length, self.scalar(float(i))) for i in range(len(distinct) + 1)]
        starts = [self.add(ends[[id(d) for d in distinct].index(id(curve))], origin) for curve in curves]
        if has_product:
            beyond = self.add(reach, self.scalar(1.0))
            limits = (self.sub(self.scalar(0.0), reach), beyond, self.scalar(1.0))
            parts.append(self.emit("Range", [self.narrow(v) for v in limits], FLOAT))
            starts.append(self.add(ends[-1], reach))
            ends.append(self.add(ends[-1], self.add(reach, beyond)))
        return _Tables(self.emit("Concat", parts, FLOAT, axis=0), starts, ends[-1])

    def _by_gate(self, cell: Cell[OnnxValue], numbers: Sequence[OnnxValue]) -> OnnxValue:
        """A vector with one narrow number for all elements of a gate."""
        parts = self.split(self.narrow(cell.b), len(numbers), 0)
        zeros = [self.mul(part, self.constant(0.0, FLOAT)) for part in parts]
        return self.concat([self.add(zero, self.narrow(n)) for zero, n in zip(zeros, numbers, strict=True)], 0)

    def _first_gate(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """A vector as long as the state."""
        return self.split(self.narrow(cell.b), 4 if cell.kind == "LSTM" else 3, 0)[0]

    def _limited(self, cell: Cell[OnnxValue], sequence: OnnxValue, reach: OnnxValue) -> OnnxValue:
        """The input's part of the gates; what lies farther beyond a curve's end than a state can reach is as good as the end."""
        lowest = self.sub(self.scalar(float(cell.low)), reach)
        highest = self.add(self.scalar(float(cell.low + len(cell.tanh) - 1)), reach)
        return self.clip(sequence, self.narrow(lowest), self.narrow(highest))

    def _gates(self, cell: Cell[OnnxValue], tables: _Tables, reach: OnnxValue, of_input: OnnxValue) -> _Gates:
        """Places are below 2^24, so floor and sum are exact. One Gemm gives them where every partial sum is.

        A partial sum is at most all tables and the reach, and a multiple of the factor and of ½.
        """
        count, factor = len(tables.starts), self.narrow(cell.factor)
        matrix = self.emit("Transpose", [self.mul(self.narrow(cell.w), factor)], FLOAT, perm=(1, 0))
        offset = self.add(self.mul(self.narrow(cell.b), factor), self.constant(0.5, FLOAT))
        starts = self._by_gate(cell, tables.starts)
        find = self.entries(tables.joint, starts)
        largest = self._known(tables.length) + self._known(reach) + 1.0
        is_one_sum = largest / min(self._known(cell.factor), 0.5) < FLOAT32_EXACT

        def place(h: OnnxValue, step: OnnxValue) -> OnnxValue:
            if is_one_sum:
                return self.emit("Gemm", [h, matrix, step], FLOAT)
            return self.add(self.floor(self.emit("Gemm", [h, matrix, offset], FLOAT)), step)

        steps = self.add(of_input, self.add(starts, offset) if is_one_sum else starts)
        return _Gates(steps, lambda h, step: self.split(find(place(h, step)), count, -1))

    def split(self, x: OnnxValue, parts: int, axis: int) -> Values:
        count = parts if self.opset >= 18 else None
        return self.emit_many("Split", [x], x.dtype, outputs=parts, axis=axis, num_outputs=count)

    def concat(self, xs: Sequence[OnnxValue], axis: int) -> OnnxValue:
        return self.emit("Concat", xs, xs[0].dtype, axis=axis)


_ALL = 1 << 30
"""An end beyond that of any shape."""


class OnnxKernel(OnnxCells):
    """Interprets a body by writing ONNX nodes.

    Args:
        opset: Version of the standard opset to write for (11 or newer).
        element_bits: Storage width of the op's integer inputs; bodies of 8-bit tensors use faster kernels.
        prefix: Prepended to every value name, so that expansions into one graph do not collide.
    """

    # shapes
    def lines(self, x: OnnxValue, w: OnnxValue) -> OnnxValue:
        return self._lines(x, self.emit("Shape", [w], INT64))

    def group_lines(self, x: OnnxValue, groups: int | AttributeRef) -> OnnxValue:
        beyond = self.constant([_ALL], INT64)
        item = self.emit("Slice", [self.emit("Shape", [x], INT64), self.constant([1], INT64), beyond], INT64)
        size = self.emit("ReduceProd", [item], INT64, keepdims=1)
        return self._lines(x, self.emit("Div", [size, self.cast(self.scalar(groups), INT64)], INT64))

    def _lines(self, x: OnnxValue, length: OnnxValue) -> OnnxValue:
        shape = self.emit("Concat", [self.constant([-1], INT64), length], INT64, axis=0)
        return self.emit("Reshape", [x, shape], x.dtype)

    def reshape_like(self, x: OnnxValue, other: OnnxValue) -> OnnxValue:
        shape = self.emit("Shape", [other], INT64)
        if self.opset >= 14:
            return self.emit("Reshape", [x, shape], x.dtype, allowzero=1)
        # a zero in the shape stands for the size at the same place: on a vector that is right for an empty batch
        return self.emit("Reshape", [self._reshape(x, [-1]), shape], x.dtype)

    def line_length(self, x: OnnxValue) -> OnnxValue:
        last = self.emit("Gather", [self.emit("Shape", [x], INT64), self.constant(-1, INT64)], INT64, axis=0)
        return self.wide(last)

    # windows
    def window_sum(self, x: OnnxValue, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> OnnxValue:
        """AveragePool · area, rounded: the float32 quotient is within 2^-22 of the sum, so below 2^21 it is exact.

        Wider integers are summed byte by byte to stay below that.
        """
        area = self.derive("window_area", lambda shape: float(math.prod(shape)), kernel_shape)

        def pooled(part: OnnxValue) -> OnnxValue:
            mean = self.emit(
                "AveragePool",
                [self.cast(part, FLOAT)],
                FLOAT,
                kernel_shape=kernel_shape,
                strides=strides,
                pads=pads,
                count_include_pad=1,
            )
            return self.floor(self.add(self.mul(self.wide(mean), area), self.scalar(0.5)))

        if self.element_bits <= 8:
            return pooled(x)
        wide = self.wide(x)
        high = self.floor(self.div(wide, self.scalar(256.0)))
        low = self.sub(wide, self.mul(high, self.scalar(256.0)))
        return self.add(self.mul(pooled(high), self.scalar(256.0)), pooled(low))

    def max_pool2d(
        self, x: OnnxValue, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int
    ) -> OnnxValue:
        def pooled(v: OnnxValue) -> OnnxValue:
            return self.emit(
                "MaxPool",
                [v],
                v.dtype,
                kernel_shape=kernel_shape,
                strides=strides,
                pads=pads,
                dilations=dilations,
                ceil_mode=ceil_mode,
            )

        return self._in_kept_type(x, pooled)

    # integers that stay what they are
    def _in_kept_type(self, x: OnnxValue, operate: Callable[[OnnxValue], OnnxValue]) -> OnnxValue:
        """Run `operate` on int8 where runtimes can (opset 12), else on the narrowest float that holds x exactly."""
        if self.element_bits == 8 and self.opset >= 12:
            return operate(x)
        return self._in_wider_float(x, operate)

    def _in_wider_float(self, x: OnnxValue, operate: Callable[[OnnxValue], OnnxValue]) -> OnnxValue:
        via = FLOAT if self.element_bits <= 16 else DOUBLE
        return self.cast(operate(self.cast(x, via)), integer_type(self.element_bits))

    def relu(self, x: OnnxValue) -> OnnxValue:
        return self._in_kept_type(x, lambda v: self.clip_below(v, self.constant(0, v.dtype)))

    def clip_below(self, x: OnnxValue, low: OnnxValue) -> OnnxValue:
        """max(x, low): Clip, because runtimes lack an int8 Max."""
        if self.opset >= 12:
            return self.emit("Clip", [x, low], x.dtype)
        return self.emit("Max", [x, low], x.dtype)

    def clamp(self, x: OnnxValue, low: OnnxValue, high: OnnxValue) -> OnnxValue:
        return self._in_kept_type(x, lambda v: self.clip(v, self.cast(low, v.dtype), self.cast(high, v.dtype)))

    def rows(self, table: OnnxValue, index: OnnxValue) -> OnnxValue:
        return self.emit("Gather", [table, index], table.dtype, axis=0)

    def pad(self, x: OnnxValue, pads: OnnxValue, value: OnnxValue) -> OnnxValue:
        """Runtimes pad int8 from opset 13 on and int16 never."""
        is_direct = self.element_bits == 8 and self.opset >= 13
        via = integer_type(8) if is_direct else FLOAT if self.element_bits <= 16 else DOUBLE
        padded = self.emit("Pad", [self.cast(x, via), self.cast(pads, INT64), self.cast(value, via)], via)
        return self.cast(padded, integer_type(self.element_bits))

    def shuffle(self, x: OnnxValue, groups: int | AttributeRef) -> OnnxValue:
        """Gather, which takes every type, every rank and no elements at all, along an index made from the shape."""
        one = self.constant([1], INT64)
        count = self.emit("Slice", [self.emit("Shape", [x], INT64), one, self.constant([2], INT64)], INT64)
        several = self.cast(self.derive("group_count", float, groups), INT64)
        channels = self._reshape(count, [])
        places = self.emit("Range", [self.constant(0, INT64), channels, self.constant(1, INT64)], INT64)
        within = self.emit("Div", [places, several], INT64)
        group = self.emit("Sub", [places, self.emit("Mul", [within, several], INT64)], INT64)
        size = self.emit("Div", [channels, several], INT64)
        index = self.emit("Add", [self.emit("Mul", [group, size], INT64), within], INT64)
        return self.emit("Gather", [x, index], x.dtype, axis=1)

    def turn(self, x: OnnxValue) -> OnnxValue:
        """The Floor changes nothing: it keeps runtimes from fusing Transpose and MatMul, which fails on empty batches."""
        return self.floor(self.emit("Transpose", [x], x.dtype, perm=(0, 1, 3, 2)))

    def per_channel(self, w: OnnxValue, x: OnnxValue) -> OnnxValue:
        """The rank of x is open in a function: its shape says how many ones follow the channels."""
        rank = self.emit("Shape", [self.emit("Shape", [x], INT64)], INT64)
        ones = self.emit("Sub", [rank, self.constant([2], INT64)], INT64)
        # a vector has no channels, and Max takes no int64 at opset 11
        ones = self.cast(self.clip_below(self.cast(ones, FLOAT), self.constant(0.0, FLOAT)), INT64)
        tail = self.emit("ConstantOfShape", [ones], INT64, value=np.ones(1, np.int64))
        shape = self.emit("Concat", [self.constant([-1], INT64), tail], INT64, axis=0)
        return self.emit("Reshape", [w, shape], w.dtype)
