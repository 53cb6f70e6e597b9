# SPDX-License-Identifier: Apache-2.0
"""The interpreter that writes standard ONNX: the function body behind an op, or its expansion in place.

*Symbolic*: attributes are `AttributeRef`s, so one body serves every node of its type; choices that depend on
weights become an `If` that runtimes fold. *Concrete*: attributes are numbers and initializers are known, so
choices are made here and no `If` remains.

Wide values are float64. Opset 11 has no `Constant` from an attribute, no integer `Clip`, no axes inputs: the
few places that differ say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from linger.numeric.kernel import Ints
from linger.numeric.onnx_time import OnnxTime
from linger.numeric.onnx_writer import DOUBLE, FLOAT, OnnxValue, integer_type


class OnnxKernel(OnnxTime):
    """Interprets a body by writing ONNX nodes.

    Args:
        opset: Version of the standard opset to write for (11 or newer).
        element_bits: Storage width of the op's integer inputs; bodies of 8-bit tensors use faster kernels.
        prefix: Prepended to every value name, so that expansions into one graph do not collide.
    """

    # -- windows -------------------------------------------------------------------------------------------
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

    # -- integers that stay what they are --------------------------------------------------------------------
    def _in_kept_type(self, x: OnnxValue, operate: Callable[[OnnxValue], OnnxValue]) -> OnnxValue:
        """Run `operate` on int8 where runtimes can (opset 12), else on the narrowest float that holds x exactly."""
        if self.element_bits == 8 and self.opset >= 12:
            return operate(x)
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

    def concat(self, xs: Sequence[OnnxValue], axis: int) -> OnnxValue:
        return self.emit("Concat", xs, xs[0].dtype, axis=axis)

    def split(self, x: OnnxValue, parts: int, axis: int) -> tuple[OnnxValue, ...]:
        count = parts if self.opset >= 18 else None
        return self.emit_many("Split", [x], x.dtype, outputs=parts, axis=axis, num_outputs=count)
