# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes standard ONNX: the function body behind an op, or its expansion in place.

*Symbolic*: attributes are `AttributeRef`s, so one body serves every node of its type; choices that depend on
weights become an `If` that runtimes fold. *Concrete*: attributes are numbers and initializers are known, so
choices are decided here and no `If` remains.

Wide values are float64, and float32 from the product to the bytes where that is exact (`narrow`). Opset 11 has no
`Constant` from an attribute, no integer `Clip`, no axes inputs: the few places that differ say so.

This part writes recurrent layers. The order of the time steps is one Gather of rows, the loop a Scan. Nothing else reorders: with
an `If` or a Transpose that does, ONNX Runtime 1.31.1 crashes when it creates a session.

The loops of LSTMInt and GRUInt are float32, in as few nodes per step as standard ONNX allows.

In a runtime every node of a step costs about as much as its arithmetic, so the work leaves the loop where it can:

- The steps of the input carry the table's places, and where that is exact also bias and ½, so that one Gemm gives places.
- The tables are as wide as gates can reach: no gate is limited inside the loop.
- A Cast to integers drops what is behind the point: it is the floor of numbers that are not negative.
- A loop hands out numbers before their rounding, and all steps are rounded at once behind it.

Where attributes and weights are known, nodes that change nothing are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from linger.numeric.fixed import FLOAT32_EXACT
from linger.numeric.kernel import Cell
from linger.numeric.onnx.products import OnnxProducts
from linger.numeric.onnx.writer import BOOL, DOUBLE, FLOAT, INT32, INT64, AttributeRef, OnnxValue, integer_type

Flag = int | AttributeRef
Values = tuple[OnnxValue, ...]
_MATRIX = 2
_AXES_ARE_AN_INPUT = 13


@dataclass(frozen=True)
class _Grid:
    """Time and batch index of each position of a [first, second] grid, and the sizes of both axes."""

    time: OnnxValue
    batch: OnnxValue
    steps: OnnxValue
    rows: OnnxValue


_Q7 = 128.0
_PLACES = 2.0**15
"""A power of two above the number of places on the curve of the inner tanh."""

_LARGEST_FACTOR = 127.0 / 128.0
"""The largest value of a sigmoid."""

_TIE = 2.0**-8
"""What a tanh is raised by: o·(tanh + 2^-8) is above a tie and below the next number, and float32 holds it."""


@dataclass(frozen=True)
class _Tables:
    """A padded table for each gate, where gate 0 lies in each of them (wide), and how long all are together."""

    joint: OnnxValue
    starts: Sequence[OnnxValue]
    length: OnnxValue


class OnnxKernel(OnnxProducts):
    """Interprets a body by writing ONNX nodes; this part has recurrent ops.

    Narrow values are float32, or float64 where the op cannot say that float32 suffices. Loops are written in few nodes where float32
    holds every number, else as the op's own step in float64.

    Args:
        opset: Version of the standard opset to write for (11 or newer).
        element_bits: Storage width of the op's integer inputs; bodies of 8-bit tensors use faster kernels.
        prefix: Prepended to every value name, so that expansions into one graph do not collide.
    """

    is_narrow_exact = True
    """Whether float32 holds every number of the recurrent op being written."""

    batch: int | None = None
    """How many sequences the recurrent op being written has, where that is known."""

    @property
    def narrow_type(self) -> ir.DataType:
        """The type of narrow values."""
        return FLOAT if self.is_narrow_exact else DOUBLE

    def narrow(self, x: OnnxValue) -> OnnxValue:
        return self.cast(x, self.narrow_type)

    def table(self, values: Sequence[int]) -> OnnxValue:
        """Kept as bytes: the file is smaller, and a runtime casts it once."""
        return self.emit("Cast", [self.constant(values, integer_type(8))], self.narrow_type, to=int(self.narrow_type))

    def entries(self, table: OnnxValue, row: OnnxValue) -> Callable[[OnnxValue], OnnxValue]:
        """GatherElements on flat indices: Gather copies one element at a time and is five times slower.

        Indices need not be whole: the Cast drops what is behind the point. A single sequence is flat as it is.
        """
        if self.batch == 1:
            line = self._reshape(table, [1, -1])
            return lambda index: self.emit("GatherElements", [line, self.cast(index, INT32)], table.dtype, axis=1)
        shape = self.emit("Concat", [self.constant([-1], INT64), self._shape(row)], INT64, axis=0)

        def find(index: OnnxValue) -> OnnxValue:
            flat = self._reshape(self.cast(index, INT32), [-1])
            elements = self.emit("GatherElements", [table, flat], table.dtype, axis=0)
            return self.emit("Reshape", [elements, shape], table.dtype)

        return find

    def rounded_product(
        self, w: OnnxValue, b: OnnxValue, factor: OnnxValue, *, axes: int
    ) -> Callable[[OnnxValue], OnnxValue]:
        dtype, factor = self.narrow_type, self.narrow(factor)
        matrix = self.mul(self.narrow(w), self._of_rows(factor, _MATRIX))  # exact: factors are powers of two
        matrix = self.emit("Transpose", [matrix], dtype, perm=(1, 0))
        offset = self.add(self.mul(self.narrow(b), factor), self.constant(0.5, dtype))

        def product(x: OnnxValue) -> OnnxValue:
            if axes == _MATRIX:
                return self.floor(self.emit("Gemm", [x, matrix, offset], dtype))
            return self.floor(self.add(self.emit("MatMul", [x, matrix], dtype), offset))

        return product

    # order
    def _shape(self, x: OnnxValue) -> OnnxValue:
        return self.emit("Shape", [x], INT64)

    def _size(self, x: OnnxValue, axis: int) -> OnnxValue:
        return self.emit("Gather", [self._shape(x), self.constant(axis, INT64)], INT64, axis=0)

    def _flag(self, value: Flag) -> tuple[OnnxValue, OnnxValue]:
        """An attribute that is 0 or 1, and its opposite, as whole numbers to multiply with."""
        flag = self.cast(self.scalar(value), INT64)
        return flag, self.sub(self.constant(1, INT64), flag)

    def _mix(self, flag: tuple[OnnxValue, OnnxValue], then: OnnxValue, other: OnnxValue) -> OnnxValue:
        return self.add(self.mul(flag[0], then), self.mul(flag[1], other))

    def _range(self, size: OnnxValue, shape: list[int]) -> OnnxValue:
        zero, one = self.constant(0, INT64), self.constant(1, INT64)
        return self._reshape(self.emit("Range", [zero, size, one], INT64), shape)

    def _turned(self, grid: _Grid, lengths: OnnxValue | None, go_forward: Flag) -> tuple[OnnxValue, OnnxValue | None]:
        """The time step that each position of the pass reads, forward or backward, and whether it lies inside its sequence."""
        if lengths is None:
            last, inside = self.sub(grid.steps, self.constant(1, INT64)), None
            back = self.sub(last, grid.time)
        else:
            ends = self.emit("Gather", [self.cast(lengths, INT64), grid.batch], INT64, axis=0)
            inside = self.emit("Less", [grid.time, ends], BOOL)
            back = self.sub(self.sub(ends, self.constant(1, INT64)), grid.time)
            back = self.emit("Where", [inside, back, grid.time], INT64)
        return self._mix(self._flag(go_forward), grid.time, back), inside

    def _rows_of(self, x: OnnxValue, index: OnnxValue) -> OnnxValue:
        """Rows of x [first, second, width] at flat indices over its first two axes."""
        width = self._reshape(self._size(x, 2), [1])
        shape = self.emit("Concat", [self.constant([-1], INT64), width], INT64, axis=0)
        return self.emit("Gather", [self.emit("Reshape", [x, shape], x.dtype), index], x.dtype, axis=0)

    def _is_in_order(self, lengths: OnnxValue | None, batch_first: Flag, go_forward: Flag) -> bool:
        """Whether the steps are known to be in order already: time first, forward, without lengths."""
        return lengths is None and batch_first == 0 and go_forward == 1

    def to_steps(self, x: OnnxValue, lengths: OnnxValue | None, *, batch_first: Flag, go_forward: Flag) -> OnnxValue:
        shape = None if x.value is None else x.value.shape
        size = shape[0 if batch_first else 1] if shape is not None and isinstance(batch_first, int) else None
        self.batch = size if isinstance(size, int) else None
        if self._is_in_order(lengths, batch_first, go_forward):
            return x
        is_batch_first = self._flag(batch_first)
        first, second = self._size(x, 0), self._size(x, 1)
        steps, rows = self._mix(is_batch_first, second, first), self._mix(is_batch_first, first, second)
        grid = _Grid(self._range(steps, [-1, 1]), self._range(rows, [1, -1]), steps, rows)  # [time, batch]
        time, _ = self._turned(grid, lengths, go_forward)
        in_batches = self.add(self.mul(grid.batch, grid.steps), time)
        in_steps = self.add(self.mul(time, grid.rows), grid.batch)
        return self._rows_of(x, self._mix(is_batch_first, in_batches, in_steps))

    def from_steps(self, y: OnnxValue, lengths: OnnxValue | None, *, batch_first: Flag, go_forward: Flag) -> OnnxValue:
        if self._is_in_order(lengths, batch_first, go_forward):
            return y
        flag = self._flag(batch_first)
        steps, rows = self._size(y, 0), self._size(y, 1)
        first = self._range(self._mix(flag, rows, steps), [-1, 1])
        second = self._range(self._mix(flag, steps, rows), [1, -1])
        # places by batch and time, or by time and batch
        grid = _Grid(self._mix(flag, second, first), self._mix(flag, first, second), steps, rows)
        time, inside = self._turned(grid, lengths, go_forward)
        index = self.add(self.mul(time, grid.rows), grid.batch)
        ordered = self._rows_of(y, index)
        if inside is None:
            return ordered
        # [first, second] → [first, second, 1], the same at every opset
        shape = self.emit("Concat", [self._shape(inside), self.constant([1], INT64)], INT64, axis=0)
        places = self.emit("Reshape", [inside, shape], inside.dtype)
        return self.emit("Where", [places, ordered, self.constant(0, y.dtype)], y.dtype)

    def at_end(self, y: OnnxValue, lengths: OnnxValue) -> OnnxValue:
        rows = self._size(y, 1)
        last = self.sub(self.cast(lengths, INT64), self.constant(1, INT64))
        index = self.add(self.mul(last, rows), self._range(rows, [-1]))
        return self._rows_of(y, index)

    def zero_state(self, sequence: OnnxValue, w: OnnxValue) -> OnnxValue:
        sizes = [self._reshape(n, [1]) for n in (self._size(sequence, 1), self._size(w, 1))]
        zero = ir.tensor(np.zeros(1, self.narrow_type.numpy()))
        zeros = self.fresh()
        shape = self.materialize(self.emit("Concat", sizes, INT64, axis=0))
        self.nodes.append(
            ir.Node("", "ConstantOfShape", [shape], attributes=[ir.AttrTensor("value", zero)], outputs=[zeros])
        )
        return OnnxValue(self.narrow_type, zeros)

    def squeeze_first(self, x: OnnxValue, *, op_type: str = "Squeeze") -> OnnxValue:
        if self.opset >= _AXES_ARE_AN_INPUT:
            return self.emit(op_type, [x, self.constant([0], INT64)], x.dtype)
        return self.emit(op_type, [x], x.dtype, axes=(0,))

    def unsqueeze_first(self, x: OnnxValue) -> OnnxValue:
        return self.squeeze_first(x, op_type="Unsqueeze")

    # the loop
    def scan(
        self, step: Callable[[Values, OnnxValue], Values], states: Values, sequence: OnnxValue, *, stacked: int
    ) -> tuple[Values, Values]:
        def copying(carried: Values, items: Values) -> tuple[Values, Values]:
            after = step(carried, items[0])
            return after, tuple(self.emit("Identity", [v], v.dtype) for v in after[:stacked])

        return self.loop(copying, states, (sequence,))

    def loop(
        self, step: Callable[[Values, Values], tuple[Values, Values]], states: Values, sequences: Values
    ) -> tuple[Values, Values]:
        """A Scan of (states, outputs) = step(states, items) over the first axis: the last states, and the stacked outputs.

        States and outputs are narrow matrices; no value is both a state and an output, or returned twice.
        """
        before, items = [self.fresh() for _ in states], [self.fresh() for _ in sequences]
        with self._branch() as nodes:
            carried = tuple(OnnxValue(s.dtype, v) for s, v in zip(states, before, strict=True))
            current = tuple(OnnxValue(s.dtype, v) for s, v in zip(sequences, items, strict=True))
            results = [self.materialize(v) for part in step(carried, current) for v in part]
        for value in results:
            # a runtime that does not fold constants cannot find out that a state has two axes
            value.type, value.shape = ir.TensorType(self.narrow_type), ir.Shape([None, None])
        body = ir.Graph([*before, *items], results, nodes=nodes, name=f"{self._prefix}step")
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(sequences))]
        inputs = [self.materialize(v) for v in (*states, *sequences)]
        outputs = [self.fresh() for _ in results]
        self.nodes.append(ir.Node("", "Scan", inputs, attributes=attributes, outputs=outputs))
        values = tuple(OnnxValue(self.narrow_type, v) for v in outputs)
        return values[: len(states)], values[len(states) :]

    # cells
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
        sigmoid, tanh = self._sigmoid(cell), self.table(cell.tanh)
        reach = self._reach(cell)
        tables = self._tables(cell, (sigmoid, sigmoid, tanh, sigmoid), reach)
        of_steps, gates_at = self._gates(cell, tables, reach, self._limited(cell, sequence, reach))
        raised = self.add(self._edges(tanh, (0, int(_PLACES) + 1 - len(cell.tanh))), self.narrow(self._tie(cell)))
        outer = self.entries(self.mul(raised, self._to_output(cell)), self._first_gate(cell))
        finish = self._finish(cell, lambda x: self.emit("Round", [x], x.dtype), has_bounds=self._is_within(cell))

        def step(carried: Values, items: Values) -> tuple[Values, Values]:
            i, f, g, o = gates_at(carried[0], items[0])
            s = self.add(self.mul(f, carried[1]), self.mul(i, g))
            part = self.emit("HardSigmoid", [s], s.dtype, alpha=16 / _PLACES, beta=(0.5 - cell.low) / _PLACES)
            h = self.mul(o, outer(self.mul(part, self.constant(_PLACES, FLOAT))))
            c = self.add(s, self.constant(0.5, FLOAT))
            return (finish(h), self.floor(c)), (h, c)[:stacked]

        last, outputs = self.loop(step, states, (of_steps,))
        return last, (finish(outputs[0]), *map(self.floor, outputs[1:]))

    def _gru(self, cell: Cell[OnnxValue], states: Values, sequence: OnnxValue) -> tuple[Values, Values]:
        """The third gate is the product of the state alone: its table holds the numbers themselves.

        Its sum with the input is one sum of float32: exact within the ends of the curve, and beyond them on the right side.
        """
        sigmoid, tanh = self._sigmoid(cell), self.table(cell.tanh)
        reach = self._reach(cell)
        limited = self._limited(cell, sequence, reach)
        tables = self._tables(cell, (sigmoid, sigmoid), reach, has_product=True)
        is_summed = self._by_gate(cell, [self.constant(v, FLOAT) for v in (1.0, 1.0, 0.0)])
        of_steps, gates_at = self._gates(cell, tables, reach, self.mul(limited, is_summed))
        of_n = self.add(self.split(limited, 3, -1)[2], self.constant(0.5 - cell.low, FLOAT))
        inner, last_place = self.entries(tanh, self._first_gate(cell)), float(len(cell.tanh) - 1)
        to_q7, to_output = self._to_q7(cell), self._to_output(cell)
        is_bounded = self._is_within(cell) and self._known(cell.scale_h) <= _Q7
        finish = self._finish(cell, self.floor, has_bounds=is_bounded)

        def step(carried: Values, items: Values) -> tuple[Values, Values]:
            r, z, h_n = gates_at(carried[0], items[0])
            place = self.clip(
                self.add(self.mul(r, h_n), items[1]), self.constant(0.0, FLOAT), self.constant(last_place, FLOAT)
            )
            n = inner(place)
            after = self.add(n, self.mul(z, self.sub(self._rounded(carried[0], to_q7), n)))
            h = self.add(self._scaled(after, to_output), self.constant(0.5, FLOAT))
            return (finish(h),), (h,)

        last, (outputs,) = self.loop(step, states, (of_steps, of_n))
        return last, (finish(outputs),)

    # numbers
    def _known(self, x: OnnxValue) -> float:
        """A number, the smallest of a vector, or NaN where it is not known: no comparison with it holds."""
        return float("nan") if x.known is None else float(x.known.min())

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
        """A function that rounds a number to the state, and saturates it unless its bounds are proven."""
        return rounded if has_bounds else lambda x: self.clip(rounded(x), *cell.ends)

    def _reach(self, cell: Cell[OnnxValue]) -> OnnxValue:
        """A bound on the magnitude of the state's rounded product, as a wide integer."""
        if cell.w.known is not None and cell.b.known is not None and cell.factor.known is not None:
            sums = np.abs(cell.w.known.astype(np.float64)).sum(axis=1) * -self._known(cell.ends[0])
            largest = ((sums + np.abs(cell.b.known.astype(np.float64))) * cell.factor.known).max(initial=0.0)
            return self.scalar(float(np.floor(largest)) + 2.0)
        w, b = (self.wide(self.emit("Abs", [self.narrow(v)], FLOAT)) for v in (cell.w, cell.b))
        sums = self.mul(self._reduce("ReduceSum", w, [1]), self.sub(self.scalar(0.0), self.wide(cell.ends[0])))
        totals = self.add(sums, b)
        if cell.factor.axis is None:
            largest = self.mul(self._reduce("ReduceMax", totals, None), cell.factor)
        else:
            largest = self._reduce("ReduceMax", self.mul(totals, cell.factor), None)
        return self.add(self.floor(largest), self.scalar(2.0))

    # tables
    def _sigmoid(self, cell: Cell[OnnxValue]) -> OnnxValue:
        return self.mul(self.table(cell.sigmoid), self.constant(1.0 / _Q7, FLOAT))

    def _edges(self, table: OnnxValue, counts: tuple[int | OnnxValue, int | OnnxValue]) -> OnnxValue:
        """A table with its first and last number repeated so many times."""
        vectors = [
            self.constant([n], INT64) if isinstance(n, int) else self._reshape(self.cast(n, INT64), [1]) for n in counts
        ]
        return self.emit("Pad", [table, self.emit("Concat", vectors, INT64, axis=0)], table.dtype, mode="edge")

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
        """The input's part of the gates, clipped so far beyond the ends of the curves that the state's part cannot bring it back."""
        lowest = self.sub(self.scalar(float(cell.low)), reach)
        highest = self.add(self.scalar(float(cell.low + len(cell.tanh) - 1)), reach)
        return self.clip(sequence, self.narrow(lowest), self.narrow(highest))

    def _gates(
        self, cell: Cell[OnnxValue], tables: _Tables, reach: OnnxValue, of_input: OnnxValue
    ) -> tuple[OnnxValue, Callable[[OnnxValue, OnnxValue], Values]]:
        """Steps of the input that hold places in a table, and the gates at (state, step).

        Places are below 2^24, so floor and sum are exact. One Gemm gives them where every partial sum is.

        A partial sum is at most all tables and the reach, and a multiple of the factor and of ½.
        """
        count, factor = len(tables.starts), self.narrow(cell.factor)
        rows = self.mul(self.narrow(cell.w), self._of_rows(factor, _MATRIX))
        matrix = self.emit("Transpose", [rows], FLOAT, perm=(1, 0))
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
        return steps, lambda h, step: self.split(find(place(h, step)), count, -1)
