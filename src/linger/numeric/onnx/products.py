# SPDX-License-Identifier: Apache-2.0
"""Exact products of integers in standard ONNX: float32 where its sums are exact, integer kernels or float64 elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.numeric.fixed import FLOAT32_EXACT
from linger.numeric.kernel import Steps, TransposedSteps
from linger.numeric.onnx.float32_products import OnnxNarrow, is_number
from linger.numeric.onnx.writer import DOUBLE, FLOAT, INT32, UINT8, AttributeRef, OnnxValue


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
