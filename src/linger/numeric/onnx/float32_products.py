# SPDX-License-Identifier: Apache-2.0
"""Wide values in float32 where that is exact: one pass over memory behind a product instead of six in float64.

A wide value waits until it is stored. By then it is known what was done to it, and it is written either in float32, with
factors and halves inside the weights and the bias of a product, or in float64. A condition on scales and weights chooses:
when the expansion is written, or in an `If` on constants that runtimes fold.

**Why float32 is exact.** Every number here is a multiple of a power of two, its `step`, and below its `bound` in magnitude.
float32 holds every multiple of a step below 2^24 steps, so where bound < 2^24·step nothing is rounded: not the value, and
not the partial sums of a product in any order, fused or not, because the bound is one of the sum of magnitudes.

**Why QuantizeLinear rounds down.** It takes the nearest whole number, the even one of two. With z = y − ½ + step/2 no such
tie exists: y = n + j·step with 0 ≤ j·step ≤ 1 − step gives n − ½ + step/2 ≤ z ≤ n + ½ − step/2, and the nearest is n = ⌊y⌋.
z is a multiple of step/2, so it asks for one bit more; where that is not there, Floor and Cast are written.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.numeric.fixed import FLOAT32_EXACT, is_power_of_two, limits
from linger.numeric.onnx.writer import (
    BOOL,
    DOUBLE,
    FLOAT,
    INT32,
    INTEGER_TYPES,
    AttributeRef,
    OnnxValue,
    OnnxWriter,
    integer_type,
)

_DATA_BITS = 16
"""Width of integers that are carried in float32; narrower ones are taken for as wide, which costs nothing."""

_BYTE = 8

_FLOAT32_RANGE = 2.0**100
"""Factors beyond it are not written as float32 numbers; an open one does not pass the conditions."""


@dataclass(frozen=True)
class Narrow:
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

    write: Callable[[OnnxValue, OnnxValue], OnnxValue]
    factor: OnnxValue
    offset: OnnxValue
    bound: OnnxValue | None
    unit: OnnxValue
    step: OnnxValue
    conditions: tuple[OnnxValue, ...] = ()
    limits: tuple[OnnxValue, OnnxValue] | None = None
    is_floored: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Deferred(OnnxValue):
    """A wide value that no node computes yet: `make` writes it in float64, `narrow` tells how float32 would do.

    `data` are the integers of the op's input that it carries as they are.
    """

    make: Callable[[], OnnxValue]
    narrow: Callable[[], Narrow | None]
    data: OnnxValue | None = None


class OnnxNarrow(OnnxWriter):
    """The arithmetic of wide values, which waits for the end of the body.

    Attributes:
        is_deferring: Whether wide values wait; else each is written in float64 at once, which takes fewer nodes.
    """

    is_deferring = True

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._made: ChainMap[Deferred, OnnxValue] = ChainMap()

    # values that wait
    def deferred(self, make: Callable[[], OnnxValue], narrow: Callable[[], Narrow | None]) -> OnnxValue:
        """A wide value with two ways to compute it."""
        return Deferred(DOUBLE, make=make, narrow=narrow)

    def integers(
        self,
        make: Callable[[], OnnxValue],
        write: Callable[[OnnxValue, OnnxValue], OnnxValue],
        bound: Callable[[], OnnxValue],
    ) -> OnnxValue:
        """A wide value of whole numbers below `bound` in magnitude; `write` as in `Narrow`."""
        return self.deferred(make, lambda: self._whole(write, bound())) if self.is_deferring else make()

    def _whole(self, write: Callable[[OnnxValue, OnnxValue], OnnxValue], bound: OnnxValue | None) -> Narrow:
        one = self.scalar(1.0)
        return Narrow(write, factor=one, offset=self.scalar(0.0), bound=bound, unit=one, step=one)

    @contextmanager
    def _branch(self) -> Iterator[list[ir.Node]]:
        """What is made in a branch can be read in that branch only."""
        self._made = self._made.new_child()
        try:
            with super()._branch() as nodes:
                yield nodes
        finally:
            self._made = self._made.parents

    def materialize(self, v: OnnxValue) -> ir.Value:
        return super().materialize(self._settled(v))

    def _settled(self, v: OnnxValue) -> OnnxValue:
        """The value as a node has computed it, in float64."""
        if not isinstance(v, Deferred):
            return v
        if v not in self._made:
            self._made[v] = v.make()
        return self._settled(self._made[v])

    # the vocabulary
    def wide(self, x: OnnxValue) -> OnnxValue:
        if not self.is_deferring or _is_constant(x) or x.dtype not in (FLOAT, *INTEGER_TYPES.values()):
            return super().wide(x)

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            return self.scaled(self.cast(x, FLOAT), factor, offset)

        def narrow() -> Narrow | None:
            if self._has_32_bits(x):
                return None
            return self._whole(write, None if x.dtype == FLOAT else self.scalar(2.0**_DATA_BITS))

        return Deferred(DOUBLE, make=lambda: self.cast(x, DOUBLE), narrow=narrow, data=None if x.dtype == FLOAT else x)

    def _has_32_bits(self, x: OnnxValue) -> bool:
        """Whether x is wider than float32 holds. A body that asks for the width of wider data has a function for it."""
        return x.dtype == INT32 and self.element_bits > 0

    def scaled(self, x: OnnxValue, factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
        """x·factor + offset in float32, without what changes nothing."""
        if not is_number(factor, 1.0):
            x = self.emit("Mul", [x, self.cast(factor, FLOAT)], FLOAT)
        return x if is_number(offset, 0.0) else self.emit("Add", [x, self.cast(offset, FLOAT)], FLOAT)

    def mul(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        if isinstance(a, Deferred) and isinstance(b, Deferred) and a.data is not None and b.data is not None:
            return self._data_product(a, b, a.data, b.data)
        return self._scale(a, b, super().mul, lambda: b)

    def div(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._scale(a, b, super().div, lambda: super(OnnxNarrow, self).div(self.scalar(1.0), b))

    def _data_product(self, a: Deferred, b: Deferred, left: OnnxValue, right: OnnxValue) -> OnnxValue:
        """The product of two bytes is below 2^16; that of wider integers is computed in float64."""

        def write(factor: OnnxValue, offset: OnnxValue) -> OnnxValue:
            product = self.emit("Mul", [self.cast(left, FLOAT), self.cast(right, FLOAT)], FLOAT)
            return self.scaled(product, factor, offset)

        def narrow() -> Narrow | None:
            return self._whole(write, self.scalar(2.0 ** (2 * _BYTE))) if self.element_bits <= _BYTE else None

        return self.deferred(lambda: super(OnnxNarrow, self).mul(self._settled(a), self._settled(b)), narrow)

    def _scale(
        self,
        a: OnnxValue,
        b: OnnxValue,
        fold: Callable[[OnnxValue, OnnxValue], OnnxValue],
        factor_of: Callable[[], OnnxValue],
    ) -> OnnxValue:
        """Times or by a scalar, which must be a power of two."""
        if not (isinstance(a, Deferred) and b.is_scalar):
            return fold(a, b)

        def narrow() -> Narrow | None:
            base = self._base(a)
            if base is None or base.bound is None:
                return None
            factor = factor_of()
            size = self._magnitude(factor)
            if size.known is not None and not 1 / _FLOAT32_RANGE < size.known < _FLOAT32_RANGE:
                return None
            return replace(
                base,
                factor=self._times(base.factor, factor),
                offset=self._times(base.offset, factor),
                bound=self._times(base.bound, size),
                unit=self._times(base.unit, size),
                step=self._times(base.step, size),
                conditions=(*base.conditions, self._is_power_of_two(b)),
            )

        return self.deferred(lambda: fold(self._settled(a), b), narrow)

    def add(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._combine(a, b, super().add)

    def sub(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._combine(a, b, super().sub)

    def _combine(self, a: OnnxValue, b: OnnxValue, fold: Callable[[OnnxValue, OnnxValue], OnnxValue]) -> OnnxValue:
        """The sum or difference of two tensors, or of a tensor and a number."""
        if not isinstance(a, Deferred) or not (isinstance(b, Deferred) or (_is_constant(b) and b.is_scalar)):
            return fold(a, b)

        def narrow() -> Narrow | None:
            left, right = self._base(a), self._base(b) if isinstance(b, Deferred) else None
            if left is None or left.bound is None:
                return None
            if b.known is not None:
                return self._moved(left, fold(left.offset, b), b.known.item())
            return None if right is None or right.bound is None else self._joined(left, right, fold)

        return self.deferred(lambda: fold(self._settled(a), self._settled(b)), narrow)

    def _moved(self, base: Narrow, offset: OnnxValue, by: float) -> Narrow:
        """A number more or less."""
        assert base.bound is not None  # the caller has asked
        whole, parts = abs(by).as_integer_ratio()
        step = base.step if by == 0 else self._smaller(base.step, self.scalar((whole & -whole) / parts))
        return replace(base, offset=offset, bound=super().add(base.bound, self.scalar(abs(by))), step=step)

    def _joined(self, left: Narrow, right: Narrow, fold: Callable[[OnnxValue, OnnxValue], OnnxValue]) -> Narrow:
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
        if not isinstance(x, Deferred):
            return super().floor(x)

        def narrow() -> Narrow | None:
            base = self._base(x)
            if base is None or base.bound is None:
                return None
            # a half has made the step at most a half; `_stored` needs one of at most 1
            step = base.step if is_number(base.offset, 0.5) else self._smaller(base.step, self.scalar(1.0))
            return replace(base, step=step, is_floored=True)

        return self.deferred(lambda: super(OnnxNarrow, self).floor(self._settled(x)), narrow)

    def clip(self, x: OnnxValue, low: OnnxValue, high: OnnxValue) -> OnnxValue:
        """Of what was rounded down before, too: the ends are whole numbers then, and rounding keeps the order."""
        if not (isinstance(x, Deferred) and low.is_scalar and high.is_scalar):
            return super().clip(x, low, high)

        def narrow() -> Narrow | None:
            base = x.narrow()
            return None if base is None or base.limits is not None else replace(base, limits=(low, high))

        return self.deferred(lambda: super(OnnxNarrow, self).clip(self._settled(x), low, high), narrow)

    def store(self, x: OnnxValue, bits: int | AttributeRef) -> OnnxValue:
        def in_float64() -> OnnxValue:
            return super(OnnxNarrow, self).store(self._settled(x), bits)

        narrow = x.narrow() if isinstance(x, Deferred) else None
        if narrow is None:
            return in_float64()
        width = self.scalar(bits)
        fits = self._all(*self._conditions(narrow), self._less(width, self.scalar(_DATA_BITS + 1.0)))
        return self._choose(fits, lambda: self._stored(narrow, bits, width), in_float64)

    def real(self, x: OnnxValue) -> OnnxValue:
        def in_float64() -> OnnxValue:
            return super(OnnxNarrow, self).real(self._settled(x))

        narrow = x.narrow() if isinstance(x, Deferred) else None
        if narrow is None or narrow.bound is None or narrow.limits is not None:
            return in_float64()
        is_finite = self._less(narrow.bound, self.scalar(_FLOAT32_RANGE))
        return self._choose(self._all(*self._conditions(narrow), is_finite), lambda: self._plain(narrow), in_float64)

    # writing float32
    def _stored(self, narrow: Narrow, bits: int | AttributeRef, width: OnnxValue) -> OnnxValue:
        """Bytes by QuantizeLinear, which rounds and limits in one pass; else Floor and Cast.

        A real input may be NaN, of which a Cast makes 0, as the reference does, and a QuantizeLinear the lowest number.
        """

        def as_bytes() -> OnnxValue:
            offset = narrow.offset
            if narrow.is_floored:
                shift = super(OnnxNarrow, self).sub(self._half(narrow.step), self.scalar(0.5))
                offset = super(OnnxNarrow, self).add(offset, shift)
            x = narrow.write(narrow.factor, offset)
            x = x if _are_byte_ends(narrow.limits) else self._clipped(x, narrow.limits)
            parameters = [self.constant(1.0, FLOAT), self.constant(0, integer_type(_BYTE))]
            return super(OnnxNarrow, self).store(
                self.emit("QuantizeLinear", [x, *parameters], integer_type(_BYTE)), bits
            )

        def as_floats() -> OnnxValue:
            return super(OnnxNarrow, self).store(self._plain(narrow), bits)

        if narrow.bound is None:
            return as_floats()
        conditions = [self._less(width, self.scalar(_BYTE + 1.0))]
        if narrow.is_floored:
            reach = super().add(narrow.bound, self.scalar(0.5))
            conditions.append(self._holds(reach, self._half(narrow.step)))
        return self._choose(self._all(*conditions), as_bytes, as_floats)

    def _plain(self, narrow: Narrow) -> OnnxValue:
        """The float32 tensor. The clip comes first: runtimes join it with the product."""
        x = self._clipped(narrow.write(narrow.factor, narrow.offset), narrow.limits)
        return self.emit("Floor", [x], FLOAT) if narrow.is_floored else x

    def _clipped(self, x: OnnxValue, limits: tuple[OnnxValue, OnnxValue] | None) -> OnnxValue:
        if limits is None:
            return x
        return super().clip(x, *(self.cast(end, FLOAT) for end in limits))

    def _base(self, x: Deferred) -> Narrow | None:
        """What more arithmetic can start from: a result that was rounded or limited is a new u."""
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
    def _conditions(self, narrow: Narrow) -> tuple[OnnxValue, ...]:
        if narrow.bound is None:
            return narrow.conditions
        return (*narrow.conditions, self._holds(narrow.bound, narrow.step))

    def _holds(self, bound: OnnxValue, step: OnnxValue) -> OnnxValue:
        """Whether float32 holds every multiple of a power of two up to a bound."""
        return self._less(bound, super().mul(step, self.scalar(FLOAT32_EXACT)))

    def _less(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        if a.known is not None and b.known is not None:
            return self.constant(a.known < b.known, BOOL)
        return self.emit("Less", [a, b], BOOL)

    def _smaller(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return replace(self._binary("Min", np.minimum, a, b), is_scalar=True)

    def _times(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """a·b of scalars; a node that changes nothing would be removed by runtimes, with a warning."""
        return b if is_number(a, 1.0) else a if is_number(a, 0.0) or is_number(b, 1.0) else super().mul(a, b)

    def _half(self, step: OnnxValue) -> OnnxValue:
        return super().mul(step, self.scalar(0.5))

    def _magnitude(self, x: OnnxValue) -> OnnxValue:
        if x.known is not None:
            return self.constant(np.abs(x.known), DOUBLE)
        return replace(self.emit("Abs", [x], DOUBLE), is_scalar=True)

    def _is_power_of_two(self, x: OnnxValue) -> OnnxValue:
        """Whether x + x·2^-53 is x, for x = m·2^e in float64 with 1 ≤ m < 2; scales are positive.

        Half the distance to the next number is 2^(e−53). For m = 1 the sum is a tie between x, whose last bit is 0, and
        the next number: x. For m > 1 it lies above the tie and is rounded up.
        """
        if x.known is not None:
            return self.constant(is_power_of_two(x.known.item()), BOOL)
        above = super().add(x, super().mul(x, self.scalar(2.0**-53)))
        return self.emit("Not", [self.emit("Less", [x, above], BOOL)], BOOL)

    def _all(self, *conditions: OnnxValue) -> OnnxValue:
        known = [bool(c.known) for c in conditions if c.known is not None]
        open_ones = [c for c in conditions if c.known is None]
        if not all(known) or not open_ones:
            return self.constant(all(known), BOOL)
        total, *others = open_ones
        for each in others:
            total = self.emit("And", [total, each], BOOL)
        return total


def is_number(x: OnnxValue, number: float) -> bool:
    """Whether a scalar is known to be this number."""
    return x.known is not None and bool(x.known == number)


def _are_byte_ends(ends: tuple[OnnxValue, OnnxValue] | None) -> bool:
    """Whether a clip is known to be that of QuantizeLinear."""
    return ends is not None and all(is_number(end, limit) for end, limit in zip(ends, limits(_BYTE), strict=True))


def _is_constant(x: OnnxValue) -> bool:
    """Whether a value is in no graph yet."""
    return x.value is None and x.known is not None
