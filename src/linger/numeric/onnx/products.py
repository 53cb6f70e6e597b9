# SPDX-License-Identifier: Apache-2.0
"""Exact products of integers in standard ONNX: float32 where its sums are exact, integer kernels or float64 elsewhere.

Wide values in float32 where that is exact: one pass over memory behind a product instead of six in float64.

A wide value waits until it is stored. By then it is known what was done to it, and it is written either in float32, with
factors and halves inside the weights and the bias of a product, or in float64. A condition on scales and weights chooses:
when the expansion is written, or in an `If` on constants that runtimes fold.

**Why float32 is exact.** Every number here is a multiple of a power of two, its `step`, and below its `bound` in magnitude.
float32 holds every multiple of a step below 2^24 steps, so where bound < 2^24·step nothing is rounded: not the value, and
not the partial sums of a product in any order, fused or not, because the bound is one of the sum of magnitudes.

**A power of two for each channel.** Factors 2^-e of output channels go into the rows of the weights. Then factor, bound and step are
vectors: what channel c has are multiples of step·2^-e below bound·2^-e, as many as before, and an offset of ½ makes its step
at most ½. The condition is asked of each channel on its own, and all must hold it.

**Why QuantizeLinear rounds down.** It takes the nearest whole number, the even one of two. With z = y − ½ + step/2 no such
tie exists: y = n + j·step with 0 ≤ j·step ≤ 1 − step gives n − ½ + step/2 ≤ z ≤ n + ½ − step/2, and the nearest is n = ⌊y⌋.
z is a multiple of step/2, so it asks for one bit more; where that is not there, Floor and Cast are written.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.kernel import ConvGeometry, ConvTransposeGeometry
from linger.numeric.onnx.writer import (
    BEYOND,
    BOOL,
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    INTEGER_TYPES,
    UINT8,
    AttributeRef,
    OnnxValue,
    OnnxWriter,
    integer_type,
    is_constant,
    is_number,
)

_DATA_BITS = 16
"""Width of integers that are carried in float32; narrower ones are taken for as wide, which costs nothing."""

_BYTE = 8

_FLOAT32_RANGE = 2.0**100
"""Factors beyond it are not written as float32 numbers; an open one does not pass the conditions."""


_Bias = OnnxValue | None
_Make = Callable[[], OnnxValue]
_Combine = Callable[[OnnxValue, OnnxValue], OnnxValue]


@dataclass(frozen=True)
class _Narrow:
    """⌊clip(u·factor + offset)⌋ in float32, with or without the clip and the floor.

    Args:
        write: Writes u·factor + offset, a float32 tensor, from both scalars.
        bound: What u·factor + offset does not exceed in magnitude; None if u is any float32 number.
        unit: The power of two of which u·factor is a multiple.
        step: The same of u·factor + offset.
        conditions: What must hold besides bound < 2^24·step.
        limits: The ends of the clip.
        is_floored: Whether the result is rounded down.
    """

    write: _Combine
    factor: OnnxValue
    offset: OnnxValue
    bound: OnnxValue | None
    unit: OnnxValue
    step: OnnxValue
    conditions: tuple[OnnxValue, ...] = ()
    limits: tuple[OnnxValue, OnnxValue] | None = None
    is_floored: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class _Deferred(OnnxValue):
    """A wide value that no node computes yet: `make` writes it in float64, `narrow` tells how float32 would do.

    `data` are the integers of the op's input that it carries as they are.
    """

    make: _Make
    narrow: Callable[[], _Narrow | None]
    data: OnnxValue | None = None
    channels: int | None = None
    """Of a product: the axis of its output channels, whose factors go into the weights."""
    rank: int = 0
    """Of a convolution: its axes, so that shapes can be inferred behind it."""


class OnnxProducts(OnnxWriter):
    """The arithmetic of wide values, which waits for the end of the body; linear layers, matrix products and convolutions.

    Attributes:
        is_deferring: Whether wide values wait; else each is written in float64 at once, which takes fewer nodes.
    """

    is_deferring = True

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._computed: ChainMap[_Deferred, OnnxValue] = ChainMap()

    # values that wait
    def integers(
        self, make: _Make, write: _Combine, bound: _Make, channels: int | None = None, rank: int = 0
    ) -> OnnxValue:
        """A wide value of whole numbers below `bound` in magnitude; `write` as in `_Narrow`."""
        if not self.is_deferring:
            return make()
        return _Deferred(DOUBLE, make=make, narrow=lambda: self._whole(write, bound()), channels=channels, rank=rank)

    def _whole(self, write: _Combine, bound: OnnxValue | None) -> _Narrow:
        one = self.scalar(1.0)
        return _Narrow(write, factor=one, offset=self.scalar(0.0), bound=bound, unit=one, step=one)

    @contextmanager
    def _branch(self) -> Iterator[list[ir.Node]]:
        """The values that a branch computes can be read in that branch only."""
        self._computed = self._computed.new_child()
        try:
            with super()._branch() as nodes:
                yield nodes
        finally:
            self._computed = self._computed.parents

    def materialize(self, v: OnnxValue) -> ir.Value:
        return super().materialize(self._settled(v))

    def _settled(self, v: OnnxValue) -> OnnxValue:
        """The value as a node has computed it, in float64."""
        if not isinstance(v, _Deferred):
            return v
        if v not in self._computed:
            self._computed[v] = v.make()
        return self._settled(self._computed[v])

    # the vocabulary
    def wide(self, x: OnnxValue) -> OnnxValue:
        if not self.is_deferring or is_constant(x) or x.dtype not in (FLOAT, UINT8, *INTEGER_TYPES.values()):
            return super().wide(x)

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            return self.scaled(self.cast(x, FLOAT), factor, offset)

        def narrow() -> _Narrow | None:
            # wider than float32 holds; a body that asks for the width of wider data has a function for it
            if x.dtype == INT32 and self.element_bits > 0:
                return None
            return self._whole(write, None if x.dtype == FLOAT else self.scalar(2.0**_DATA_BITS))

        return _Deferred(DOUBLE, make=lambda: self.cast(x, DOUBLE), narrow=narrow, data=None if x.dtype == FLOAT else x)

    def scaled(self, x: OnnxValue, factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
        """x·factor + offset in float32, without what changes nothing."""
        if not is_number(factor, 1.0):
            x = self.emit("Mul", [x, self.cast(factor, FLOAT)], FLOAT)
        return x if is_number(offset, 0.0) else self.emit("Add", [x, self.cast(offset, FLOAT)], FLOAT)

    def mul(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        left, right = (v.data if isinstance(v, _Deferred) else None for v in (a, b))
        if left is None or right is None:
            return self._scale(a, b, super().mul, lambda: b)

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            product = self.emit("Mul", [self.cast(left, FLOAT), self.cast(right, FLOAT)], FLOAT)
            return self.scaled(product, factor, offset)

        def narrow() -> _Narrow | None:
            # the product of two bytes is below 2^16; that of wider integers is computed in float64
            return self._whole(write, self.scalar(2.0 ** (2 * _BYTE))) if self.element_bits <= _BYTE else None

        return _Deferred(
            DOUBLE, make=lambda: super(OnnxProducts, self).mul(self._settled(a), self._settled(b)), narrow=narrow
        )

    def div(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._scale(a, b, super().div, lambda: super(OnnxProducts, self).div(self.scalar(1.0), b))

    def per_channel(self, w: OnnxValue, x: OnnxValue) -> OnnxValue:
        is_factor = w.axis is not None and isinstance(x, _Deferred) and x.channels == 1
        return replace(w, axis=1) if is_factor else super().per_channel(w, x)

    def _scale(self, a: OnnxValue, b: OnnxValue, fold: _Combine, factor_of: _Make) -> OnnxValue:
        """Times or by a scalar, which must be a power of two; of a product, times one power of two for each channel."""
        if not isinstance(a, _Deferred) or not (b.is_scalar or (b.axis is not None and b.axis == a.channels)):
            return fold(a, b)

        def make() -> OnnxValue:
            x = self._settled(a)
            return fold(x, self._reshape(replace(b, axis=None), [-1, *[1] * (a.rank - 2)]) if b.axis == 1 else b)

        def narrow() -> _Narrow | None:
            base = self._base(a)
            if base is None or base.bound is None:
                return None
            factor = factor_of()
            known = factor.known
            absolute = self.emit("Abs", [factor], DOUBLE) if known is None else self.constant(np.abs(known), DOUBLE)
            size = replace(absolute, is_scalar=b.axis is None, axis=b.axis)
            if size.known is not None and not np.all((size.known > 1 / _FLOAT32_RANGE) & (size.known < _FLOAT32_RANGE)):
                return None
            return replace(
                base,
                factor=self._times(base.factor, factor),
                offset=self._times(base.offset, factor),
                bound=self._times(base.bound, size),
                unit=self._times(base.unit, size),
                step=self._times(base.step, size),
                conditions=(*base.conditions, *([] if b.axis is not None else [self._is_power_of_two(b)])),
            )

        return _Deferred(DOUBLE, make=make, narrow=narrow)

    def add(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._combine(a, b, super().add)

    def sub(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._combine(a, b, super().sub)

    def _combine(self, a: OnnxValue, b: OnnxValue, fold: _Combine) -> OnnxValue:
        """The sum or difference of two tensors, or of a tensor and a number."""
        if not isinstance(a, _Deferred) or not (isinstance(b, _Deferred) or (is_constant(b) and b.is_scalar)):
            return fold(a, b)

        def narrow() -> _Narrow | None:
            left, right = self._base(a), self._base(b) if isinstance(b, _Deferred) else None
            if left is None or left.bound is None:
                return None
            if b.known is not None:
                return self._moved(left, fold(left.offset, b), b.known.item())
            return None if right is None or right.bound is None else self._joined(left, right, fold)

        return _Deferred(DOUBLE, make=lambda: fold(self._settled(a), self._settled(b)), narrow=narrow)

    def _moved(self, base: _Narrow, offset: OnnxValue, by: float) -> _Narrow:
        """A number more or less."""
        assert base.bound is not None  # the caller has asked
        whole, parts = abs(by).as_integer_ratio()
        step = base.step if by == 0 else self._smaller(base.step, self.scalar((whole & -whole) / parts))
        return replace(base, offset=offset, bound=super().add(base.bound, self.scalar(abs(by))), step=step)

    def _joined(self, left: _Narrow, right: _Narrow, fold: _Combine) -> _Narrow:
        """The sum or difference of two tensors."""
        assert left.bound is not None  # the caller has asked
        assert right.bound is not None

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            return self.scaled(fold(self._plain(left), self._plain(right)), factor, offset)

        step = self._smaller(left.step, right.step)
        whole = self._whole(write, super().add(left.bound, right.bound))
        conditions = (*self._conditions(left), *self._conditions(right))
        return replace(whole, unit=step, step=step, conditions=conditions)

    def floor(self, x: OnnxValue) -> OnnxValue:
        if not isinstance(x, _Deferred):
            return super().floor(x)

        def narrow() -> _Narrow | None:
            base = self._base(x)
            if base is None or base.bound is None:
                return None
            # adding a half makes the step at most a half; `_stored` needs a step of at most 1
            step = base.step if is_number(base.offset, 0.5) else self._smaller(base.step, self.scalar(1.0))
            return replace(base, step=step, is_floored=True)

        return _Deferred(DOUBLE, make=lambda: super(OnnxProducts, self).floor(self._settled(x)), narrow=narrow)

    def clip(self, x: OnnxValue, low: OnnxValue, high: OnnxValue) -> OnnxValue:
        """Of what was rounded down before, too: the ends are whole numbers then, and rounding keeps the order."""
        if not (isinstance(x, _Deferred) and low.is_scalar and high.is_scalar):
            return super().clip(x, low, high)

        def narrow() -> _Narrow | None:
            base = x.narrow()
            return None if base is None or base.limits is not None else replace(base, limits=(low, high))

        return _Deferred(
            DOUBLE, make=lambda: super(OnnxProducts, self).clip(self._settled(x), low, high), narrow=narrow
        )

    def store(self, x: OnnxValue, bits: int | AttributeRef, *, is_unsigned: bool = False) -> OnnxValue:
        def in_float64() -> OnnxValue:
            return super(OnnxProducts, self).store(self._settled(x), bits, is_unsigned=is_unsigned)

        narrow = x.narrow() if isinstance(x, _Deferred) else None
        if narrow is None:
            return in_float64()
        width = self.scalar(bits)
        fits = self._all(*self._conditions(narrow), self._less(width, self.scalar(_DATA_BITS + 1.0)))
        return self._choose(fits, lambda: self._stored(narrow, bits, width, is_unsigned=is_unsigned), in_float64)

    def real(self, x: OnnxValue) -> OnnxValue:
        def in_float64() -> OnnxValue:
            return super(OnnxProducts, self).real(self._settled(x))

        narrow = x.narrow() if isinstance(x, _Deferred) else None
        if narrow is None or narrow.bound is None or narrow.limits is not None:
            return in_float64()
        is_finite = self._less(narrow.bound, self.scalar(_FLOAT32_RANGE))
        return self._choose(self._all(*self._conditions(narrow), is_finite), lambda: self._plain(narrow), in_float64)

    # writing float32
    def _stored(self, narrow: _Narrow, bits: int | AttributeRef, width: OnnxValue, *, is_unsigned: bool) -> OnnxValue:
        """Bytes by QuantizeLinear, which rounds and limits in one pass; else Floor and Cast.

        A real input may be NaN, of which a Cast makes 0, as the reference does, and a QuantizeLinear the lowest number.
        """

        def as_bytes() -> OnnxValue:
            offset = narrow.offset
            if narrow.is_floored:
                shift = super(OnnxProducts, self).sub(self._half(narrow.step), self.scalar(0.5))
                offset = super(OnnxProducts, self).add(offset, shift)
            x = narrow.write(narrow.factor, offset)
            ends = zip(narrow.limits or (), (0, 2**_BYTE - 1) if is_unsigned else limits(_BYTE), strict=False)
            is_byte_clip = narrow.limits is not None and all(is_number(end, limit) for end, limit in ends)
            x = x if is_byte_clip else self._clipped(x, narrow.limits)
            kind = integer_type(_BYTE, is_unsigned=is_unsigned)
            rounded = self.emit("QuantizeLinear", [x, self.constant(1.0, FLOAT), self.constant(0, kind)], kind)
            return super(OnnxProducts, self).store(rounded, bits, is_unsigned=is_unsigned)

        def as_floats() -> OnnxValue:
            return super(OnnxProducts, self).store(self._plain(narrow), bits, is_unsigned=is_unsigned)

        if narrow.bound is None:
            return as_floats()
        conditions = [self._less(width, self.scalar(_BYTE + 1.0))]
        if narrow.is_floored:
            reach = super().add(narrow.bound, self.scalar(0.5))
            conditions.append(self._holds(reach, self._half(narrow.step)))
        return self._choose(self._all(*conditions), as_bytes, as_floats)

    def _plain(self, narrow: _Narrow) -> OnnxValue:
        """The float32 tensor. The clip comes first: runtimes join it with the product."""
        x = self._clipped(narrow.write(narrow.factor, narrow.offset), narrow.limits)
        return self.emit("Floor", [x], FLOAT) if narrow.is_floored else x

    def _clipped(self, x: OnnxValue, limits: tuple[OnnxValue, OnnxValue] | None) -> OnnxValue:
        if limits is None:
            return x
        return super().clip(x, *(self.cast(end, FLOAT) for end in limits))

    def _base(self, x: _Deferred) -> _Narrow | None:
        """The form that further arithmetic extends: a result that was rounded is a new u, one that was clipped has no such form."""
        narrow = x.narrow()
        if narrow is None or not (narrow.is_floored or narrow.limits):
            return narrow
        if narrow.bound is None or narrow.limits:
            return None

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            # of whole numbers and a half there is nothing to round
            has_half = is_number(narrow.offset, 0.5)
            is_whole = self._less(self.scalar(0.75), narrow.unit) if has_half else self.constant(0, BOOL)
            exact = replace(narrow, offset=self.scalar(0.0), is_floored=False)
            rounded = self._choose(is_whole, lambda: self._plain(exact), lambda: self._plain(narrow))
            return self.scaled(rounded, factor, offset)

        bound = super().add(narrow.bound, self.scalar(1.0))
        return replace(self._whole(write, bound), conditions=self._conditions(narrow))

    # conditions
    def _conditions(self, narrow: _Narrow) -> tuple[OnnxValue, ...]:
        if narrow.bound is None:
            return narrow.conditions
        return (*narrow.conditions, self._holds(narrow.bound, narrow.step))

    def _holds(self, bound: OnnxValue, step: OnnxValue) -> OnnxValue:
        """Whether float32 holds every multiple of a power of two up to a bound."""
        return self._less(bound, super().mul(step, self.scalar(FLOAT32_EXACT)))

    # products
    def _largest_sum(
        self,
        x: OnnxValue,
        w: OnnxValue,
        b: _Bias,
        x_bits: int | AttributeRef,
        transposed_group: int | AttributeRef | None = None,
    ) -> OnnxValue:
        """2^(bits−1)·max Σ|w| + max|b|, 2^bits of unsigned data: below 2^24 float32 sums are exact in any order."""
        sign_bits = float(x.dtype != UINT8)
        offset = np.zeros(1) if b is None else b.known
        if w.known is not None and offset is not None and not isinstance(x_bits, AttributeRef):
            assert not isinstance(transposed_group, AttributeRef)  # attributes are all numbers, or none is
            sums = by_output(np.abs(w.known.astype(np.float64)), transposed_group).sum(axis=1)
            largest = np.abs(offset.astype(np.float64)).max(initial=0.0)
            return self.scalar(sums.max(initial=0.0) * 2.0 ** (x_bits - sign_bits) + largest)
        if transposed_group is None:
            totals = self._reduce("ReduceSum", self._reshape(self.emit("Abs", [self.wide(w)], DOUBLE), [0, -1]), [1])
        else:
            # Σ|w| of each output channel: a transposed convolution of |w| with one pixel of ones, its taps added. ConvTranspose itself
            # adds the input channels of a group, because the value of `group` is not known here. float32 rounds them only above 2^24.
            magnitudes = self.emit("Abs", [self.cast(w, FLOAT)], FLOAT)
            zeros = self._reduce("ReduceSum", self.mul(magnitudes, self.constant(0.0, FLOAT)), [1, 2, 3])
            ones = self._reshape(self.add(zeros, self.constant(1.0, FLOAT)), [1, -1, 1, 1])
            taps = self.emit("ConvTranspose", [ones, magnitudes], FLOAT, group=transposed_group)
            totals = self._reduce("ReduceSum", self.wide(taps), [0, 2, 3])
        total = self._reduce("ReduceMax", totals, None)
        reach = self.pow2(self.sub(self.scalar(x_bits), self.scalar(sign_bits)))
        largest = self.mul(total, reach)
        if b is not None:
            largest = self.add(largest, self._reduce("ReduceMax", self.emit("Abs", [self.wide(b)], DOUBLE), None))
        return replace(largest, is_scalar=True)

    def _product(
        self, largest: OnnxValue, in_float: _Combine, otherwise: _Make, channels: int = 1, rank: int = 4
    ) -> OnnxValue:
        """A product, with its largest sum: in float32 from a factor and an offset, or otherwise.

        One is added to the sum, so that weights of zero do not allow every factor.
        """
        one, zero = self.scalar(1.0), self.scalar(0.0)

        def make() -> OnnxValue:
            holds = self._less(largest, self.scalar(FLOAT32_EXACT))
            return self._choose(holds, lambda: self.cast(in_float(one, zero), DOUBLE), otherwise)

        return self.integers(make, in_float, lambda: self.add(largest, one), channels, rank)

    def _scaled_bias(self, b: _Bias, factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
        """b·factor + offset in float32, which holds it where it holds the product's sums."""
        if b is None:
            return self.cast(offset, FLOAT)
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
            weight = self.scaled(self.cast(w, FLOAT), self._of_rows(factor, 2), self.scalar(0.0))
            if b is None:
                return self.scaled(product(weight, None), self.scalar(1.0), offset)
            return product(weight, self._scaled_bias(b, factor, offset))

        def in_double() -> OnnxValue:
            return product(self.cast(w, DOUBLE), None if b is None else self.cast(b, DOUBLE))

        return self._product(self._largest_sum(x, w, b, x_bits), in_float, in_double, channels=-1)

    def matmul(self, x: OnnxValue, y: OnnxValue) -> OnnxValue:
        return self.emit("MatMul", [self._factor(x, DOUBLE), self._factor(y, DOUBLE)], DOUBLE)

    def _factor(self, x: OnnxValue, dtype: ir.DataType) -> OnnxValue:
        """Integers for a matrix product, cast by way of int32.

        A Transpose that moves the first axis, a Cast and a MatMul in a row, with open sizes, crash ONNX Runtime 1.31.1
        when it creates a session: it joins the three. With a second Cast between them it does not.
        """
        return self.cast(self.cast(x, INT32), dtype)

    def conv1d(
        self, x: OnnxValue, w: OnnxValue, b: _Bias, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, geometry, [1, -1, 1])

    def conv2d(
        self, x: OnnxValue, w: OnnxValue, b: _Bias, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, geometry, [1, -1, 1, 1])

    def _convolution(
        self,
        x: OnnxValue,
        w: OnnxValue,
        b: OnnxValue | None,
        x_bits: int,
        geometry: ConvGeometry,
        per_channel: list[int],
    ) -> OnnxValue:
        """In float32 where the bound holds; `per_channel` is the shape in which the bias is added.

        Else ConvInteger on unsigned bytes: the one integer product that is exact and fast in every ONNX Runtime. u8×s8 saturates on
        CPUs without VNNI, s8×s8 is slow or missing, so signed bytes are moved by 128 and the zero point takes it back. Wider integers
        are split into a signed high and an unsigned low byte.
        """

        def parts() -> Iterator[tuple[OnnxValue, int]]:
            for x_byte, x_zero, x_weight in self._bytes(x):
                for w_byte, w_zero, w_weight in self._bytes(w):
                    zeros = [self.constant(x_zero, UINT8), self.constant(w_zero, UINT8)]
                    yield self.emit("ConvInteger", [x_byte, w_byte, *zeros], INT32, **geometry), x_weight * w_weight

        def scaled(factor: OnnxValue) -> OnnxValue:
            return self.scaled(self.cast(w, FLOAT), self._of_rows(factor, len(per_channel)), self.scalar(0.0))

        in_float = self._in_float("Conv", x, scaled, b, geometry)
        largest, rank = self._largest_sum(x, w, b, x_bits), len(per_channel)
        return self._product(largest, in_float, lambda: self._summed(parts(), b, per_channel), rank=rank)

    def _summed(self, parts: Iterator[tuple[OnnxValue, int]], b: _Bias, per_channel: list[int]) -> OnnxValue:
        """Parts times their weights, added up, and a bias in this shape."""
        total = self._weighted_sum(parts)
        return total if b is None else self.add(total, self._reshape(self.wide(b), per_channel))

    def _in_float(
        self,
        op_type: str,
        x: OnnxValue,
        scaled: Callable[[OnnxValue], OnnxValue],
        b: OnnxValue | None,
        geometry: ConvGeometry,
    ) -> _Combine:
        """What writes a convolution in float32, its factor in the weights, which `scaled` gives, and its offset in the bias."""

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            inputs = [self.cast(x, FLOAT), scaled(factor)]
            if b is None and offset.axis is None:
                return self.scaled(self.emit(op_type, inputs, FLOAT, **geometry), self.scalar(1.0), offset)
            return self.emit(op_type, [*inputs, self._scaled_bias(b, factor, offset)], FLOAT, **geometry)

        return write

    def conv_transpose2d(
        self,
        x: OnnxValue,
        w: OnnxValue,
        b: _Bias,
        *,
        x_bits: int,
        w_bits: int,
        **geometry: Unpack[ConvTransposeGeometry],
    ) -> OnnxValue:
        """In float32 where the bound holds, else as products of 4-bit digits: exact for up to MOST_TRANSPOSED_TAPS.

        No runtime has a transposed convolution of integers or of float64.
        """

        def parts() -> Iterator[tuple[OnnxValue, int]]:
            for signal, signal_weight in self._digits(x, 4):
                for taps, tap_weight in self._digits(w, 4):
                    factors = [self.cast(signal, FLOAT), self.cast(taps, FLOAT)]
                    yield self.emit("ConvTranspose", factors, FLOAT, **geometry), signal_weight * tap_weight

        def scaled(factor: OnnxValue) -> OnnxValue:
            """Weights are [in, out/group, …]: for factors, the groups of input channels become an axis of their own."""
            weight = self.cast(w, FLOAT)
            if factor.axis is None:
                return self.scaled(weight, factor, self.scalar(0.0))
            group = self._reshape(self.cast(self.derive("group_count", float, geometry["group"]), INT64), [1])
            shape = self.emit("Shape", [weight], INT64)
            inner = self.emit("Slice", [shape, self.constant([1], INT64), self.constant([BEYOND], INT64)], INT64)
            sizes = self.emit("Concat", [group, self.constant([-1], INT64), inner], INT64, axis=0)
            of_channels = self.emit("Concat", [group, self.constant([1, -1, 1, 1], INT64)], INT64, axis=0)
            rows = self.emit("Reshape", [self.cast(factor, FLOAT), of_channels], FLOAT)
            split = self.scaled(self.emit("Reshape", [weight, sizes], FLOAT), rows, self.scalar(0.0))
            return self.emit("Reshape", [split, shape], FLOAT)

        largest = self._largest_sum(x, w, b, x_bits, geometry["group"])
        in_float = self._in_float("ConvTranspose", x, scaled, b, geometry)
        return self._product(largest, in_float, lambda: self._summed(parts(), b, [1, -1, 1, 1]))


def by_output(weight: NDArray[Any], transposed_groups: int | None) -> NDArray[Any]:
    """Weights with one row for each output, of what is added for it: all inputs and taps of its group.

    Weights are [out, in/group, …]; those of a transposed convolution, which has `transposed_groups`, [in, out/group, …].
    """
    if transposed_groups is None:
        return weight.reshape(weight.shape[0], int(np.prod(weight.shape[1:])))  # there may be no outputs
    inside, outside = weight.shape[0] // transposed_groups, weight.shape[1]
    split = weight.reshape(transposed_groups, inside, outside, int(np.prod(weight.shape[2:]))).swapaxes(1, 2)
    return split.reshape(transposed_groups * outside, inside * split.shape[3])
