# SPDX-License-Identifier: Apache-2.0
"""Exact products of integers in standard ONNX: float32 where its sums are exact, integer kernels or float64 elsewhere.

Steps in time in standard ONNX: the order of the steps as rows of one Gather, the loop as a Scan.

Nothing else reorders: with an `If` that does, or a Transpose, ONNX Runtime 1.31.1 crashes when a session is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.numeric.fixed import FLOAT32_EXACT
from linger.numeric.kernel import Steps, TransposedSteps
from linger.numeric.onnx.float32_products import OnnxNarrow, is_number
from linger.numeric.onnx.writer import BOOL, DOUBLE, FLOAT, INT32, INT64, UINT8, AttributeRef, OnnxValue, integer_type


def by_output(weight: NDArray[Any], transposed_groups: int | None) -> NDArray[Any]:
    """Weights with one row for each output, of what is added for it: all inputs and taps of its group.

    Weights are [out, in/group, …]; those of a transposed convolution, which has `transposed_groups`, [in, out/group, …].
    """
    if transposed_groups is None:
        return weight.reshape(weight.shape[0], int(np.prod(weight.shape[1:])))  # there may be no outputs
    inside, outside = weight.shape[0] // transposed_groups, weight.shape[1]
    split = weight.reshape(transposed_groups, inside, outside, int(np.prod(weight.shape[2:]))).swapaxes(1, 2)
    return split.reshape(transposed_groups * outside, inside * split.shape[3])


class OnnxProducts(OnnxNarrow):
    """Linear layers, matrix products and convolutions."""

    def _largest_sum(
        self,
        w: OnnxValue,
        b: OnnxValue | None,
        x_bits: int | AttributeRef,
        transposed_group: int | AttributeRef | None = None,
    ) -> OnnxValue:
        """2^(bits−1)·max Σ|w| + max|b|: below 2^24 float32 sums are exact in any order."""
        offset = np.zeros(1) if b is None else b.known
        if w.known is not None and offset is not None and not isinstance(x_bits, AttributeRef):
            assert not isinstance(transposed_group, AttributeRef)  # attributes are all numbers, or none is
            sums = by_output(np.abs(w.known.astype(np.float64)), transposed_group).sum(axis=1)
            bound = sums.max(initial=0.0) * 2.0 ** (x_bits - 1) + np.abs(offset.astype(np.float64)).max(initial=0.0)
            return self.scalar(bound)
        if transposed_group is None:
            totals = self._reduce("ReduceSum", self._reshape(self.emit("Abs", [self.wide(w)], DOUBLE), [0, -1]), [1])
        else:
            totals = self._sums_of_transposed(w, transposed_group)
        total = self._reduce("ReduceMax", totals, None)
        reach = self.pow2(self.sub(self.scalar(x_bits), self.scalar(1.0)))
        largest = self.mul(total, reach)
        if b is not None:
            largest = self.add(largest, self._reduce("ReduceMax", self.emit("Abs", [self.wide(b)], DOUBLE), None))
        return replace(largest, is_scalar=True)

    def _product(
        self,
        largest: OnnxValue,
        in_float: Callable[[OnnxValue, OnnxValue], OnnxValue],
        otherwise: Callable[[], OnnxValue],
    ) -> OnnxValue:
        """A product, with its largest sum: in float32 from a factor and an offset, or otherwise.

        One is added to the sum, so that weights of zero do not allow every factor.
        """
        one, zero = self.scalar(1.0), self.scalar(0.0)

        def make() -> OnnxValue:
            holds = self._less(largest, self.scalar(FLOAT32_EXACT))
            return self._choose(holds, lambda: self.cast(in_float(one, zero), DOUBLE), otherwise)

        return self.integers(make, in_float, lambda: self.add(largest, one))

    def _scaled_bias(self, b: OnnxValue, factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
        """b·factor + offset in float32, which holds it where it holds the product's sums."""
        if is_number(factor, 1.0) and is_number(offset, 0.0):
            return self.cast(b, FLOAT)
        return self.cast(self.add(self.mul(self.cast(b, DOUBLE), factor), offset), FLOAT)

    def linear(self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int) -> OnnxValue:
        def product(weight: OnnxValue, bias: OnnxValue | None) -> OnnxValue:
            dtype = weight.dtype
            transposed = self.emit("Transpose", [weight], dtype, perm=(1, 0))
            result = self.emit("MatMul", [self._factor(x, dtype), transposed], dtype)
            return result if bias is None else self.emit("Add", [result, bias], dtype)

        def in_float(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            weight = self.scaled(self.cast(w, FLOAT), factor, self.scalar(0.0))
            if b is None:
                return self.scaled(product(weight, None), self.scalar(1.0), offset)
            return product(weight, self._scaled_bias(b, factor, offset))

        def in_double() -> OnnxValue:
            return product(self.cast(w, DOUBLE), None if b is None else self.cast(b, DOUBLE))

        return self._product(self._largest_sum(w, b, x_bits), in_float, in_double)

    def matmul(self, x: OnnxValue, y: OnnxValue) -> OnnxValue:
        return self.emit("MatMul", [self._factor(x, DOUBLE), self._factor(y, DOUBLE)], DOUBLE)

    def _factor(self, x: OnnxValue, dtype: ir.DataType) -> OnnxValue:
        """Integers for a matrix product, cast by way of int32.

        A Transpose that moves the first axis, a Cast and a MatMul in a row, with open sizes, crash ONNX Runtime 1.31.1
        when a session is made: it joins the three. With a second Cast between them it does not.
        """
        return self.cast(self.cast(x, INT32), dtype)

    def conv1d(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, steps, axes=1)

    def conv2d(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int, **steps: Unpack[Steps]
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, steps, axes=2)

    def _convolution(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, x_bits: int, steps: Steps, *, axes: int
    ) -> OnnxValue:
        """A convolution of any number of axes."""

        def in_integers() -> OnnxValue:
            total = self._byte_products(x, w, steps)
            return total if b is None else self.add(total, self._reshape(self.wide(b), [1, -1, *[1] * axes]))

        return self._product(self._largest_sum(w, b, x_bits), self._in_float("Conv", x, w, b, steps), in_integers)

    def _in_float(
        self, op_type: str, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, steps: Steps
    ) -> Callable[[OnnxValue, OnnxValue], OnnxValue]:
        """What writes a convolution in float32, its factor in the weights and its offset in the bias."""

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            inputs = [self.cast(x, FLOAT), self.scaled(self.cast(w, FLOAT), factor, self.scalar(0.0))]
            if b is None:
                return self.scaled(self.emit(op_type, inputs, FLOAT, **steps), self.scalar(1.0), offset)
            return self.emit(op_type, [*inputs, self._scaled_bias(b, factor, offset)], FLOAT, **steps)

        return write

    def _byte_products(self, x: OnnxValue, w: OnnxValue, steps: Steps) -> OnnxValue:
        """ConvInteger on unsigned bytes: the one integer product that is exact and fast in every ONNX Runtime.

        u8×s8 saturates on CPUs without VNNI, s8×s8 is slow or missing, so signed bytes are moved by 128 and the
        zero point takes it back. Wider integers are split into a signed high and an unsigned low byte.
        """
        total: OnnxValue | None = None
        for x_byte, x_zero, x_weight in self._bytes(x):
            for w_byte, w_zero, w_weight in self._bytes(w):
                zeros = [self.constant(x_zero, UINT8), self.constant(w_zero, UINT8)]
                part = self.wide(self.emit("ConvInteger", [x_byte, w_byte, *zeros], INT32, **steps))
                part = part if x_weight * w_weight == 1 else self.mul(part, self.scalar(x_weight * w_weight))
                total = part if total is None else self.add(total, part)
        assert total is not None  # there is at least one byte
        return total

    def _bytes(self, x: OnnxValue) -> list[tuple[OnnxValue, int, int]]:
        """(unsigned byte, zero point, weight) of each byte, highest first."""
        if self.element_bits <= 8:
            moved = self.add(self.cast(x, INT32), self.constant(128, INT32))
            return [(self.cast(moved, UINT8), 128, 1)]
        wide = self.wide(x)
        high = self.floor(self.div(wide, self.scalar(256.0)))
        low = self.sub(wide, self.mul(high, self.scalar(256.0)))
        high = self.add(high, self.scalar(128.0))
        return [(self.cast(high, UINT8), 128, 256), (self.cast(low, UINT8), 0, 1)]

    def _sums_of_transposed(self, w: OnnxValue, group: int | AttributeRef) -> OnnxValue:
        """Σ|w| of each output channel: a transposed convolution of |w| with one pixel of ones, its taps added.

        The sums of a group's input channels come from ConvTranspose itself, because the value of `group` is not known
        here. float32 may round them only above 2^24, and never below it.
        """
        magnitudes = self.emit("Abs", [self.cast(w, FLOAT)], FLOAT)
        zeros = self._reduce("ReduceSum", self.mul(magnitudes, self.constant(0.0, FLOAT)), [1, 2, 3])
        ones = self._reshape(self.add(zeros, self.constant(1.0, FLOAT)), [1, -1, 1, 1])
        taps = self.emit("ConvTranspose", [ones, magnitudes], FLOAT, group=group)
        return self._reduce("ReduceSum", self.wide(taps), [0, 2, 3])

    def conv_transpose2d(
        self,
        x: OnnxValue,
        w: OnnxValue,
        b: OnnxValue | None,
        *,
        x_bits: int,
        w_bits: int,
        **steps: Unpack[TransposedSteps],
    ) -> OnnxValue:
        """In float32 where the bound holds, else as products of 4-bit digits: exact for up to MOST_TRANSPOSED_TAPS.

        No runtime has a transposed convolution of integers or of float64.
        """

        def in_digits() -> OnnxValue:
            total: OnnxValue | None = None
            for signal, signal_weight in self._digits(x, 4):
                for taps, tap_weight in self._digits(w, 4):
                    factors = [self.cast(signal, FLOAT), self.cast(taps, FLOAT)]
                    part = self.wide(self.emit("ConvTranspose", factors, FLOAT, **steps))
                    weight = signal_weight * tap_weight
                    part = part if weight == 1 else self.mul(part, self.scalar(weight))
                    total = part if total is None else self.add(total, part)
            assert total is not None  # there is at least one digit
            return total if b is None else self.add(total, self._reshape(self.wide(b), [1, -1, 1, 1]))

        largest = self._largest_sum(w, b, x_bits, steps["group"])
        return self._product(largest, self._in_float("ConvTranspose", x, w, b, steps), in_digits)

    def _digits(self, x: OnnxValue, width: int) -> list[tuple[OnnxValue, int]]:
        """(digit, weight) in base 2^width, lowest first; all but the highest are unsigned."""
        digits: list[tuple[OnnxValue, int]] = []
        rest, weight = x, 1
        for _ in range(self.element_bits // width - 1):
            rest = self.wide(rest)
            high = self.floor(self.div(rest, self.scalar(2.0**width)))
            digits.append((self.sub(rest, self.mul(high, self.scalar(2.0**width))), weight))
            rest, weight = high, weight << width
        return [*digits, (rest, weight)]


Flag = int | AttributeRef
Values = tuple[OnnxValue, ...]
_MATRIX = 2
_AXES_ARE_AN_INPUT = 13


def _known_size(x: OnnxValue, axis: int) -> int | None:
    shape = None if x.value is None else x.value.shape
    size = None if shape is None else shape[axis]
    return size if isinstance(size, int) else None


@dataclass(frozen=True)
class _Grid:
    """Where each place of a [first, second] grid lies in time and batch, and how large both are."""

    time: OnnxValue
    batch: OnnxValue
    steps: OnnxValue
    rows: OnnxValue


class OnnxTime(OnnxProducts):
    """Recurrent layers. Narrow values are float32, or float64 where the op cannot say that float32 suffices."""

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
            found = self.emit("GatherElements", [table, flat], table.dtype, axis=0)
            return self.emit("Reshape", [found, shape], table.dtype)

        return find

    def rounded_product(
        self, w: OnnxValue, b: OnnxValue, factor: OnnxValue, *, axes: int
    ) -> Callable[[OnnxValue], OnnxValue]:
        dtype, factor = self.narrow_type, self.narrow(factor)
        matrix = self.mul(self.narrow(w), factor)  # exact: factor is a power of two
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

    def _step_grid(self, x: OnnxValue, batch_first: tuple[OnnxValue, OnnxValue]) -> _Grid:
        """[time, batch] for sequences x."""
        first, second = self._size(x, 0), self._size(x, 1)
        steps, rows = self._mix(batch_first, second, first), self._mix(batch_first, first, second)
        return _Grid(self._range(steps, [-1, 1]), self._range(rows, [1, -1]), steps, rows)

    def _sequence_grid(self, y: OnnxValue, batch_first: tuple[OnnxValue, OnnxValue]) -> _Grid:
        """[batch, time] or [time, batch] for steps y."""
        steps, rows = self._size(y, 0), self._size(y, 1)
        first = self._range(self._mix(batch_first, rows, steps), [-1, 1])
        second = self._range(self._mix(batch_first, steps, rows), [1, -1])
        return _Grid(self._mix(batch_first, second, first), self._mix(batch_first, first, second), steps, rows)

    def _turned(self, grid: _Grid, lengths: OnnxValue | None, go_forward: Flag) -> tuple[OnnxValue, OnnxValue | None]:
        """Time at each place in the order of the pass, and whether it is inside the sequence."""
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
        """Of three axes the first two joined, at whole-number indices."""
        width = self._reshape(self._size(x, 2), [1])
        shape = self.emit("Concat", [self.constant([-1], INT64), width], INT64, axis=0)
        return self.emit("Gather", [self.emit("Reshape", [x, shape], x.dtype), index], x.dtype, axis=0)

    def _is_in_order(self, lengths: OnnxValue | None, batch_first: Flag, go_forward: Flag) -> bool:
        """Whether it is known that sequences are steps as they are."""
        return lengths is None and batch_first == 0 and go_forward == 1

    def to_steps(self, x: OnnxValue, lengths: OnnxValue | None, *, batch_first: Flag, go_forward: Flag) -> OnnxValue:
        self.batch = _known_size(x, 0 if batch_first else 1) if isinstance(batch_first, int) else None
        if self._is_in_order(lengths, batch_first, go_forward):
            return x
        is_batch_first = self._flag(batch_first)
        grid = self._step_grid(x, is_batch_first)
        time, _ = self._turned(grid, lengths, go_forward)
        in_batches = self.add(self.mul(grid.batch, grid.steps), time)
        in_steps = self.add(self.mul(time, grid.rows), grid.batch)
        return self._rows_of(x, self._mix(is_batch_first, in_batches, in_steps))

    def from_steps(self, y: OnnxValue, lengths: OnnxValue | None, *, batch_first: Flag, go_forward: Flag) -> OnnxValue:
        if self._is_in_order(lengths, batch_first, go_forward):
            return y
        grid = self._sequence_grid(y, self._flag(batch_first))
        time, inside = self._turned(grid, lengths, go_forward)
        index = self.add(self.mul(time, grid.rows), grid.batch)
        ordered = self._rows_of(y, index)
        if inside is None:
            return ordered
        places = self._unsqueeze(inside)
        return self.emit("Where", [places, ordered, self.constant(0, y.dtype)], y.dtype)

    def _unsqueeze(self, x: OnnxValue) -> OnnxValue:
        """[first, second] → [first, second, 1], the same at every opset."""
        shape = self.emit("Concat", [self._shape(x), self.constant([1], INT64)], INT64, axis=0)
        return self.emit("Reshape", [x, shape], x.dtype)

    def at_end(self, y: OnnxValue, lengths: OnnxValue) -> OnnxValue:
        rows = self._size(y, 1)
        last = self.sub(self.cast(lengths, INT64), self.constant(1, INT64))
        index = self.add(self.mul(last, rows), self._range(rows, [-1]))
        return self._rows_of(y, index)

    def zero_state(self, sequence: OnnxValue, w: OnnxValue) -> OnnxValue:
        sizes = [self._reshape(n, [1]) for n in (self._size(sequence, 1), self._size(w, 1))]
        zero = ir.tensor(np.zeros(1, self.narrow_type.numpy()))
        made = self.fresh()
        shape = self.materialize(self.emit("Concat", sizes, INT64, axis=0))
        self.nodes.append(
            ir.Node("", "ConstantOfShape", [shape], attributes=[ir.AttrTensor("value", zero)], outputs=[made])
        )
        return OnnxValue(self.narrow_type, made)

    def squeeze_first(self, x: OnnxValue) -> OnnxValue:
        return self._with_axis("Squeeze", x)

    def unsqueeze_first(self, x: OnnxValue) -> OnnxValue:
        return self._with_axis("Unsqueeze", x)

    def _with_axis(self, op_type: str, x: OnnxValue) -> OnnxValue:
        if self.opset >= _AXES_ARE_AN_INPUT:
            return self.emit(op_type, [x, self.constant([0], INT64)], x.dtype)
        return self.emit(op_type, [x], x.dtype, axes=(0,))

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
        """(states, kept) = step(states, items) over the first axis: the last states, and all that was kept.

        States and kept values are narrow matrices; no value is both, or twice the same one.
        """
        before, items = [self.fresh() for _ in states], [self.fresh() for _ in sequences]
        with self._branch() as nodes:
            carried = tuple(OnnxValue(s.dtype, v) for s, v in zip(states, before, strict=True))
            given = tuple(OnnxValue(s.dtype, v) for s, v in zip(sequences, items, strict=True))
            after, kept = step(carried, given)
            made = [self.materialize(v) for v in (*after, *kept)]
        for value in made:
            # a runtime that does not fold constants cannot find out that a state has two axes
            value.type, value.shape = ir.TensorType(self.narrow_type), ir.Shape([None, None])
        body = ir.Graph([*before, *items], made, nodes=nodes, name=f"{self._prefix}step")
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(sequences))]
        inputs = [self.materialize(v) for v in (*states, *sequences)]
        outputs = [self.fresh() for _ in made]
        self.nodes.append(ir.Node("", "Scan", inputs, attributes=attributes, outputs=outputs))
        values = tuple(OnnxValue(self.narrow_type, v) for v in outputs)
        return values[: len(states)], values[len(states) :]
