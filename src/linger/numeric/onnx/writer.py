# SPDX-License-Identifier: Apache-2.0
"""The base of the ONNX interpreter: nodes, constants, references to attributes, exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.numeric.fixed import is_power_of_two, storage_bits
from linger.numeric.kernel import Ints

DOUBLE, FLOAT, INT64, INT32 = ir.DataType.DOUBLE, ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32
UINT8, BOOL = ir.DataType.UINT8, ir.DataType.BOOL
INTEGER_TYPES = {8: ir.DataType.INT8, 16: ir.DataType.INT16, 32: INT32}
UNSIGNED_TYPES = {8: UINT8, 16: ir.DataType.UINT16, 32: ir.DataType.UINT32}
ATTRIBUTE_TYPES = {
    "float": ir.AttributeType.FLOAT,
    "int": ir.AttributeType.INT,
    "ints": ir.AttributeType.INTS,
    "str": ir.AttributeType.STRING,
    "tensor": ir.AttributeType.TENSOR,
}
OUTPUT_TYPE = "o_dtype"
"""Extra attribute of a node in a file with functions: the ONNX type code of its output."""

_EYE_WIDTH = 64
BEYOND = 1 << 30
"""An end beyond that of any shape."""

_AXES_ARE_AN_INPUT = {"ReduceSum": 13, "ReduceMax": 18}
"""The opset from which a reduction takes its axes as an input, no longer as an attribute."""


@dataclass(frozen=True)
class AttributeRef:
    """An attribute whose value the node will supply."""

    name: str
    kind: str


@dataclass(frozen=True)
class Derived:
    """An attribute that is computed from others when functions are attached to a node."""

    compute: Callable[..., Any]
    sources: tuple[Any, ...]
    kind: str


@dataclass(frozen=True, eq=False)
class OnnxValue:
    """A tensor in the graph being written; `known` holds its content where that is fixed.

    `is_scalar` marks a scalar that is computed from attributes and constants, `axis` a vector of such with a number for each
    channel: the axis of a tensor along which it lies.
    """

    dtype: ir.DataType
    value: ir.Value | None = None
    known: np.ndarray[Any, Any] | None = None
    is_scalar: bool = False
    axis: int | None = None


def _scalar(x: OnnxValue) -> OnnxValue:
    return replace(x, is_scalar=True)


def integer_type(bits: int, *, is_unsigned: bool = False) -> ir.DataType:
    """The ONNX type that stores integers of this width."""
    return UNSIGNED_TYPES[storage_bits(bits)] if is_unsigned else INTEGER_TYPES[storage_bits(bits)]


def low_part(name: str) -> str:
    """Name of the attribute that holds the part of a derived number that float32 cannot hold."""
    return f"{name}_low"


class OnnxWriter:
    """Writes nodes, numbers and arithmetic; the other parts of the vocabulary build on it.

    Args:
        opset: Version of the standard opset to write for (11 or newer).
        element_bits: Storage width of the op's integer inputs; bodies of 8-bit tensors use faster kernels.
        prefix: Prepended to every value name, so that expansions into one graph do not collide.
    """

    def __init__(self, *, opset: int, element_bits: int = 8, prefix: str = "") -> None:
        self.opset = opset
        self.element_bits = element_bits
        self.nodes: list[ir.Node] = []
        self.derived: dict[str, Derived] = {}
        self._prefix = prefix
        self._count = 0

    # writing nodes
    def fresh(self) -> ir.Value:
        """A new, named value, left without a type: a half-known type (no shape) would not pass the checker."""
        self._count += 1
        return ir.Value(name=f"{self._prefix}v{self._count}")

    def emit(
        self, op_type: str, inputs: Sequence[OnnxValue | None], dtype: ir.DataType, /, **attributes: Any
    ) -> OnnxValue:
        """Add one node of the standard domain and return its output."""
        return self.emit_many(op_type, inputs, dtype, outputs=1, **attributes)[0]

    def emit_many(
        self,
        op_type: str,
        inputs: Sequence[OnnxValue | None],
        dtype: ir.DataType,
        /,
        *,
        outputs: int,
        **attributes: Any,
    ) -> tuple[OnnxValue, ...]:
        """Add one node and return all its outputs."""
        values = [None if v is None else self.materialize(v) for v in inputs]
        results = [self.fresh() for _ in range(outputs)]
        attrs = [make_attribute(name, value) for name, value in attributes.items() if value is not None]
        self.nodes.append(ir.Node("", op_type, values, attributes=attrs, outputs=results))
        return tuple(OnnxValue(dtype, v) for v in results)

    def materialize(self, v: OnnxValue) -> ir.Value:
        """The graph value; a constant becomes a Constant node."""
        if v.value is not None:
            return v.value
        assert v.known is not None  # a value is in the graph or known
        out = self.fresh()
        tensor = ir.Tensor(v.known.astype(v.dtype.numpy()), dtype=v.dtype)
        self.nodes.append(ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)], outputs=[out]))
        return out

    def constant(self, value: Any, dtype: ir.DataType) -> OnnxValue:
        """A constant tensor."""
        known = np.asarray(value, dtype=dtype.numpy())
        return OnnxValue(dtype, known=known, is_scalar=known.ndim == 0)

    def cast(self, x: OnnxValue, dtype: ir.DataType) -> OnnxValue:
        """x as another type."""
        if x.dtype == dtype:
            return x
        if x.value is None and x.known is not None:
            return replace(self.constant(x.known, dtype), axis=x.axis)
        return replace(self.emit("Cast", [x], dtype, to=int(dtype)), is_scalar=x.is_scalar, axis=x.axis)

    @contextmanager
    def _branch(self) -> Iterator[list[ir.Node]]:
        outer, self.nodes = self.nodes, []
        try:
            yield self.nodes
        finally:
            self.nodes = outer

    def _choose(
        self, condition: OnnxValue, then: Callable[[], OnnxValue], otherwise: Callable[[], OnnxValue]
    ) -> OnnxValue:
        if condition.known is not None:
            return then() if bool(condition.known) else otherwise()
        attributes = []
        dtype = DOUBLE
        for name, make in (("then_branch", then), ("else_branch", otherwise)):
            with self._branch() as nodes:
                result = make()
                out = self.materialize(result)
            dtype = result.dtype
            attributes.append(ir.AttrGraph(name, ir.Graph([], [out], nodes=nodes, name=f"{self._prefix}{name}")))
        output = self.fresh()
        self.nodes.append(ir.Node("", "If", [self.materialize(condition)], attributes=attributes, outputs=[output]))
        return OnnxValue(dtype, output)

    # numbers
    def scalar(self, value: float | AttributeRef) -> OnnxValue:
        if not isinstance(value, AttributeRef):
            return self.constant(float(value), DOUBLE)
        if value.kind == "float":
            return self.cast(self._float_attribute(value), DOUBLE)
        if self.opset >= 12:
            return self.cast(_scalar(self.emit("Constant", [], INT64, value_int=value)), DOUBLE)
        # opset 11: EyeLike puts a one in column `value`, the product with 0, 1, 2 … reads the column's number
        line = self.constant(np.zeros((1, _EYE_WIDTH)), FLOAT)
        row = self.emit("EyeLike", [line], DOUBLE, dtype=int(DOUBLE), k=value)
        numbers = self.constant(np.arange(_EYE_WIDTH).reshape(_EYE_WIDTH, 1), DOUBLE)
        return _scalar(self._reshape(self.emit("MatMul", [row, numbers], DOUBLE), []))

    def vector(self, values: tuple[int, ...] | AttributeRef) -> OnnxValue:
        if not isinstance(values, AttributeRef):
            return replace(self.constant(values, DOUBLE), axis=-1)
        if self.opset >= 12:
            return replace(self.cast(self.emit("Constant", [], INT64, value_ints=values), DOUBLE), axis=-1)
        # opset 11 makes a constant of a tensor alone, so the node gets its numbers as one, too
        tensor = AttributeRef(f"{values.name}_tensor", "tensor")
        self.derived[tensor.name] = Derived(lambda numbers: np.asarray(numbers, np.float64), (values,), "tensor")
        return replace(self.emit("Constant", [], DOUBLE, value=tensor), axis=-1)

    def single(self, value: float | AttributeRef) -> OnnxValue:
        if not isinstance(value, AttributeRef):
            return self.constant(float(value), FLOAT)
        return self._float_attribute(value)

    def _float_attribute(self, ref: AttributeRef) -> OnnxValue:
        if self.opset >= 12:
            return _scalar(self.emit("Constant", [], FLOAT, value_float=ref))
        # opset 11 cannot make a constant from an attribute: −LeakyRelu(−1) = alpha
        negative = self.emit("LeakyRelu", [self.constant(-1.0, FLOAT)], FLOAT, alpha=ref)
        return _scalar(self.emit("Neg", [negative], FLOAT))

    def like(self, value: float, reference: OnnxValue) -> OnnxValue:
        return self.constant(value, reference.dtype)

    def pow2(self, exponent: OnnxValue) -> OnnxValue:
        if exponent.known is not None:
            return replace(self.constant(np.exp2(exponent.known), DOUBLE), axis=exponent.axis)
        power = self.emit("Pow", [self.constant(2.0, DOUBLE), exponent], DOUBLE)
        return replace(power, is_scalar=exponent.axis is None, axis=exponent.axis)

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> OnnxValue:
        if not any(isinstance(a, AttributeRef) for a in attributes):
            return self.constant(compute(*attributes), DOUBLE)

        def high(*values: Any) -> float:
            return float(np.float32(compute(*values)))

        def low(*values: Any) -> float:
            return float(np.float32(compute(*values) - high(*values)))

        self.derived[name] = Derived(high, attributes, "float")
        self.derived[low_part(name)] = Derived(low, attributes, "float")
        return self.add(self.scalar(AttributeRef(name, "float")), self.scalar(AttributeRef(low_part(name), "float")))

    # carriers
    def wide(self, x: OnnxValue) -> OnnxValue:
        return self.cast(x, DOUBLE)

    def store(self, x: OnnxValue, bits: int | AttributeRef, *, is_unsigned: bool = False) -> OnnxValue:
        if not isinstance(bits, AttributeRef):
            return self.cast(x, integer_type(bits, is_unsigned=is_unsigned))
        type_of = partial(integer_type, is_unsigned=is_unsigned)
        self.derived[OUTPUT_TYPE] = Derived(lambda width: int(type_of(width)), (bits,), "int")
        return self.emit("Cast", [x], type_of(8), to=AttributeRef(OUTPUT_TYPE, "int"))

    def real(self, x: OnnxValue) -> OnnxValue:
        return self.cast(x, FLOAT)

    # arithmetic
    def _binary(self, op_type: str, fold: Callable[..., Any], a: OnnxValue, b: OnnxValue) -> OnnxValue:
        axis = (b if a.axis is None else a).axis
        has_numbers = all(x.is_scalar or x.axis is not None for x in (a, b))  # no tensor
        axis = axis if has_numbers else None
        if a.known is not None and b.known is not None and (axis is not None or a.known.ndim == b.known.ndim == 0):
            return replace(self.constant(fold(a.known, b.known), a.dtype), axis=axis)
        return replace(self.emit(op_type, [a, b], a.dtype), is_scalar=a.is_scalar and b.is_scalar, axis=axis)

    def add(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._binary("Add", np.add, a, b)

    def sub(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._binary("Sub", np.subtract, a, b)

    def mul(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._binary("Mul", np.multiply, a, b)

    def div(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        return self._binary("Div", np.divide, a, b)

    def floor(self, x: OnnxValue) -> OnnxValue:
        return self.emit("Floor", [x], x.dtype)

    def clip(self, x: OnnxValue, low: OnnxValue, high: OnnxValue) -> OnnxValue:
        if self.opset >= 12:
            return self.emit("Clip", [x, low, high], x.dtype)
        return self.emit("Min", [self.emit("Max", [x, low], x.dtype), high], x.dtype)

    def where_less(self, a: OnnxValue, b: OnnxValue, then: OnnxValue, other: OnnxValue) -> OnnxValue:
        return self.emit("Where", [self.emit("Less", [a, b], BOOL), then, other], then.dtype)

    def lookup(self, table: Sequence[float], index: OnnxValue) -> OnnxValue:
        return self.emit("Gather", [self.constant(table, DOUBLE), self.cast(index, INT64)], DOUBLE, axis=0)

    def ladder(self, values: Sequence[float]) -> OnnxValue:
        return self.constant(np.asarray(values).reshape(-1, 1, 1), DOUBLE)

    def log(self, x: OnnxValue) -> OnnxValue:
        return self.emit("Log", [x], x.dtype)

    def max_along(self, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        return self._along("ReduceMax", x, axis)

    def sum_along(self, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        return self._along("ReduceSum", x, axis)

    def _along(self, op_type: str, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        """A reduction takes a list of axes: an axis that is an attribute is also written as a list of one."""
        if isinstance(axis, int):
            return self._reduce(op_type, x, [axis], keepdims=1)
        axes = AttributeRef(f"{axis.name}_axes", "ints")
        self.derived[axes.name] = Derived(lambda value: (value,), (axis,), "ints")
        if self.opset < _AXES_ARE_AN_INPUT[op_type]:
            return self.emit(op_type, [x], x.dtype, axes=axes, keepdims=1)
        return self.emit(op_type, [x, self.emit("Constant", [], INT64, value_ints=axes)], x.dtype, keepdims=1)

    # conditions
    def _less(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """Whether a < b, of every channel."""
        if a.known is not None and b.known is not None:
            return self.constant(np.all(a.known < b.known), BOOL)
        less = self.emit("Less", [a, b], BOOL)
        if a.axis is None and b.axis is None:
            return less
        return self.cast(self._reduce("ReduceMin", self.cast(less, FLOAT), None), BOOL)

    def _smaller(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        smaller = self._binary("Min", np.minimum, a, b)
        return replace(smaller, is_scalar=smaller.axis is None)

    def _times(self, a: OnnxValue, b: OnnxValue) -> OnnxValue:
        """a·b of numbers; a node that changes nothing would be removed by runtimes, with a warning."""
        return b if is_number(a, 1.0) else a if is_number(a, 0.0) or is_number(b, 1.0) else self.mul(a, b)

    def _half(self, step: OnnxValue) -> OnnxValue:
        return self.mul(step, self.scalar(0.5))

    def _is_power_of_two(self, x: OnnxValue) -> OnnxValue:
        """Whether x + x·2^-53 is x, for x = m·2^e in float64 with 1 ≤ m < 2; scales are positive.

        Half the distance to the next number is 2^(e−53). For m = 1 the sum is a tie between x, whose last bit is 0, and
        the next number: x. For m > 1 it lies above the tie and is rounded up.
        """
        if x.known is not None:
            return self.constant(is_power_of_two(x.known.item()), BOOL)
        above = self.add(x, self.mul(x, self.scalar(2.0**-53)))
        return self.emit("Not", [self.emit("Less", [x, above], BOOL)], BOOL)

    def _all(self, *conditions: OnnxValue) -> OnnxValue:
        known = [bool(c.known) for c in conditions if c.known is not None]
        open_ones = [c for c in conditions if c.known is None]
        if not all(known) or not open_ones:
            return self.constant(all(known), BOOL)
        return reduce(lambda total, each: self.emit("And", [total, each], BOOL), open_ones)

    # shapes
    def _of_rows(self, factor: OnnxValue, axes: int) -> OnnxValue:
        """A factor, or one for each row of weights with so many axes."""
        return factor if factor.axis is None else self._reshape(factor, [-1, *[1] * (axes - 1)])

    def _reshape(self, x: OnnxValue, shape: list[int]) -> OnnxValue:
        return self.emit("Reshape", [x, self.constant(np.asarray(shape, dtype=np.int64), INT64)], x.dtype)

    def _reduce(self, op_type: str, x: OnnxValue, axes: list[int] | None, *, keepdims: int = 0) -> OnnxValue:
        if axes is None:
            return self.emit(op_type, [x], x.dtype, keepdims=keepdims)
        if self.opset >= _AXES_ARE_AN_INPUT[op_type]:
            return self.emit(op_type, [x, self.constant(axes, INT64)], x.dtype, keepdims=keepdims)
        return self.emit(op_type, [x], x.dtype, axes=tuple(axes), keepdims=keepdims)

    def split(self, x: OnnxValue, parts: int, axis: int) -> tuple[OnnxValue, ...]:
        count = parts if self.opset >= 18 else None
        return self.emit_many("Split", [x], x.dtype, outputs=parts, axis=axis, num_outputs=count)

    def concat(self, xs: Sequence[OnnxValue], axis: int) -> OnnxValue:
        return self.emit("Concat", xs, xs[0].dtype, axis=axis)

    def lines(self, x: OnnxValue, w: OnnxValue) -> OnnxValue:
        return self._lines(x, self.emit("Shape", [w], INT64))

    def group_lines(self, x: OnnxValue, groups: int | AttributeRef) -> OnnxValue:
        beyond = self.constant([BEYOND], INT64)
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
            window = {"kernel_shape": kernel_shape, "strides": strides, "pads": pads}
            mean = self.emit("AveragePool", [self.cast(part, FLOAT)], FLOAT, **window, count_include_pad=1)
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
        window = {"kernel_shape": kernel_shape, "strides": strides, "pads": pads, "dilations": dilations}
        return self._in_exact_type(x, lambda v: self.emit("MaxPool", [v], v.dtype, **window, ceil_mode=ceil_mode))

    # digits of integers
    def _weighted_sum(self, parts: Iterator[tuple[OnnxValue, int]]) -> OnnxValue:
        """The sum of products of digits, each times the weight of its digits; written in the order of the iterator."""
        wide = ((self.wide(product), weight) for product, weight in parts)
        return reduce(self.add, (part if weight == 1 else self.mul(part, self.scalar(weight)) for part, weight in wide))

    def _bytes(self, x: OnnxValue) -> list[tuple[OnnxValue, int, int]]:
        """(unsigned byte, zero point, weight) of each byte, highest first."""
        if x.dtype == UINT8:
            return [(x, 0, 1)]
        if self.element_bits <= 8:
            moved = self.add(self.cast(x, INT32), self.constant(128, INT32))
            return [(self.cast(moved, UINT8), 128, 1)]
        wide = self.wide(x)
        high = self.floor(self.div(wide, self.scalar(256.0)))
        low = self.sub(wide, self.mul(high, self.scalar(256.0)))
        high = self.add(high, self.scalar(128.0))
        return [(self.cast(high, UINT8), 128, 256), (self.cast(low, UINT8), 0, 1)]

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

    # integers that stay what they are
    def _in_exact_type(self, x: OnnxValue, operate: Callable[[OnnxValue], OnnxValue]) -> OnnxValue:
        """Run `operate` on int8 where runtimes can (opset 12), else on the narrowest float that holds x exactly."""
        if self.element_bits == 8 and self.opset >= 12:
            return operate(x)
        via = FLOAT if self.element_bits <= 16 else DOUBLE
        return self.cast(operate(self.cast(x, via)), x.dtype)

    def relu(self, x: OnnxValue) -> OnnxValue:
        return self._in_exact_type(x, lambda v: self.clip_below(v, self.constant(0, v.dtype)))

    def clip_below(self, x: OnnxValue, low: OnnxValue) -> OnnxValue:
        """max(x, low): Clip, because runtimes lack an int8 Max."""
        if self.opset >= 12:
            return self.emit("Clip", [x, low], x.dtype)
        return self.emit("Max", [x, low], x.dtype)

    def clamp(self, x: OnnxValue, low: OnnxValue, high: OnnxValue) -> OnnxValue:
        return self._in_exact_type(x, lambda v: self.clip(v, self.cast(low, v.dtype), self.cast(high, v.dtype)))

    def rows(self, table: OnnxValue, index: OnnxValue) -> OnnxValue:
        return self.emit("Gather", [table, index], table.dtype, axis=0)

    def pad(self, x: OnnxValue, pads: OnnxValue, value: OnnxValue) -> OnnxValue:
        """Runtimes pad int8 from opset 13 on and int16 never."""
        is_direct = self.element_bits == 8 and self.opset >= 13
        via = x.dtype if is_direct else FLOAT if self.element_bits <= 16 else DOUBLE
        padded = self.emit("Pad", [self.cast(x, via), self.cast(pads, INT64), self.cast(value, via)], via)
        return self.cast(padded, x.dtype)

    def shuffle(self, x: OnnxValue, groups: int | AttributeRef) -> OnnxValue:
        """Gather, which takes every type, every rank and no elements at all, along an index computed from the shape."""
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

    def swap_height_width(self, x: OnnxValue) -> OnnxValue:
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


def make_attribute(name: str, value: Any) -> ir.Attr:
    """An ONNX attribute from a Python value or a reference."""
    if isinstance(value, AttributeRef):
        return ir.RefAttr(name, value.name, ATTRIBUTE_TYPES[value.kind])
    if isinstance(value, (tuple, list)):
        return ir.AttrInt64s(name, [int(v) for v in value])
    if isinstance(value, np.ndarray):
        return ir.AttrTensor(name, ir.tensor(value))
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    return ir.AttrInt64(name, int(value))


def is_number(x: OnnxValue, number: float) -> bool:
    """Whether a scalar, or all of a vector, is known to be this number."""
    return x.known is not None and bool(np.all(x.known == number))


def is_constant(x: OnnxValue) -> bool:
    """Whether a value is in no graph yet."""
    return x.value is None and x.known is not None
