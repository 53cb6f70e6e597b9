# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes standard ONNX: the function body behind an op, or its expansion in place.

*Symbolic*: attributes are `AttributeRef`s, so one body serves every node of its type; choices that depend on
weights become an `If` that runtimes fold. *Concrete*: attributes are numbers and initializers are known, so
choices are made here and no `If` remains.

Wide values are float64, and float32 from the product to the bytes where that is exact (`narrow`). Opset 11 has no `Constant` from an attribute, no integer `Clip`, no axes inputs: the
few places that differ say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from linger.numeric.kernel import Ints
from linger.numeric.onnx.cells import OnnxCells
from linger.numeric.onnx.writer import DOUBLE, FLOAT, INT64, AttributeRef, OnnxValue, integer_type

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
