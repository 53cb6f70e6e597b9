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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from linger.numeric.fixed import FLOAT32_EXACT, storage_bits
from linger.numeric.kernel import Ints

DOUBLE, FLOAT, INT64, INT32, UINT8, BOOL = (
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT,
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.UINT8,
    ir.DataType.BOOL,
)
INTEGER_TYPES = {8: ir.DataType.INT8, 16: ir.DataType.INT16, 32: ir.DataType.INT32}
ATTRIBUTE_TYPES = {
    "float": ir.AttributeType.FLOAT,
    "int": ir.AttributeType.INT,
    "ints": ir.AttributeType.INTS,
    "str": ir.AttributeType.STRING,
}
OUTPUT_TYPE = "o_dtype"
"""Extra attribute of a node in a file with functions: the ONNX type code of its output."""

MOST_TRANSPOSED_TAPS = int(FLOAT32_EXACT) // (15 * 15)
"""Products of two 4-bit digits that float32 adds exactly: input channels of a group times taps of the kernel."""

_EYE_WIDTH = 64

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


@dataclass(frozen=True)
class OnnxValue:
    """A tensor in the graph being written; `known` holds its content where that is fixed."""

    dtype: ir.DataType
    value: ir.Value | None = None
    known: np.ndarray[Any, Any] | None = None


def integer_type(bits: int) -> ir.DataType:
    """The ONNX type that stores integers of this width."""
    return INTEGER_TYPES[storage_bits(bits)]


def low_part(name: str) -> str:
    """Name of the attribute that holds what float32 could not of a derived number."""
    return f"{name}_low"


class OnnxKernel:
    """Interprets a body by writing ONNX nodes.

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

    # -- writing nodes --------------------------------------------------------------------------
    def fresh(self) -> ir.Value:
        """A new, named value, left without a type: a half-known type (no shape) would not pass the checker."""
        self._count += 1
        return ir.Value(name=f"{self._prefix}v{self._count}")

    def emit(
        self,
        op_type: str,
        inputs: Sequence[OnnxValue | None],
        dtype: ir.DataType,
        /,
        *,
        outputs: int = 1,
        **attributes: Any,
    ) -> OnnxValue:
        """Add one node of the standard domain and return its first output."""
        return self.emit_many(op_type, inputs, dtype, outputs=outputs, **attributes)[0]

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
        values = [None if v is None else self.materialise(v) for v in inputs]
        made = [self.fresh() for _ in range(outputs)]
        attrs = [make_attribute(name, value) for name, value in attributes.items() if value is not None]
        self.nodes.append(ir.Node("", op_type, values, attributes=attrs, outputs=made))
        return tuple(OnnxValue(dtype, v) for v in made)

    def materialise(self, v: OnnxValue) -> ir.Value:
        """The graph value; a constant becomes a Constant node."""
        if v.value is not None:
            return v.value
        assert v.known is not None  # a value is in the graph or known
        out = self.fresh()
        tensor = ir.tensor(v.known.astype(v.dtype.numpy()), dtype=v.dtype)
        self.nodes.append(ir.Node("", "Constant", [], attributes=[ir.AttrTensor("value", tensor)], outputs=[out]))
        return out

    def constant(self, value: Any, dtype: ir.DataType) -> OnnxValue:
        """A constant tensor."""
        return OnnxValue(dtype, known=np.asarray(value, dtype=dtype.numpy()))

    def cast(self, x: OnnxValue, dtype: ir.DataType) -> OnnxValue:
        """X as another type."""
        if x.dtype == dtype:
            return x
        if x.value is None and x.known is not None:
            return self.constant(x.known, dtype)
        return self.emit("Cast", [x], dtype, to=int(dtype))

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
        graphs = []
        dtype = DOUBLE
        for name, make in (("then_branch", then), ("else_branch", otherwise)):
            with self._branch() as nodes:
                result = make()
                out = self.materialise(result)
            dtype = result.dtype
            graphs.append((name, ir.Graph([], [out], nodes=nodes, name=f"{self._prefix}{name}")))
        attributes = [ir.AttrGraph(name, graph) for name, graph in graphs]
        made = self.fresh()
        self.nodes.append(ir.Node("", "If", [self.materialise(condition)], attributes=attributes, outputs=[made]))
        return OnnxValue(dtype, made)

    # -- numbers ------------------------------------------------------------------------------------
    def scalar(self, value: float | AttributeRef) -> OnnxValue:
        if not isinstance(value, AttributeRef):
            return self.constant(float(value), DOUBLE)
        if value.kind == "float":
            return self.cast(self._float_attribute(value), DOUBLE)
        return self._int_attribute(value)

    def single(self, value: float | AttributeRef) -> OnnxValue:
        if not isinstance(value, AttributeRef):
            return self.constant(float(value), FLOAT)
        return self._float_attribute(value)

    def _float_attribute(self, ref: AttributeRef) -> OnnxValue:
        if self.opset >= 12:
            return self.emit("Constant", [], FLOAT, value_float=ref)
        # opset 11 cannot make a constant from an attribute: −LeakyRelu(−1) = alpha
        return self.emit("Neg", [self.emit("LeakyRelu", [self.constant(-1.0, FLOAT)], FLOAT, alpha=ref)], FLOAT)

    def _int_attribute(self, ref: AttributeRef) -> OnnxValue:
        if self.opset >= 12:
            return self.cast(self.emit("Constant", [], INT64, value_int=ref), DOUBLE)
        # opset 11: EyeLike puts a one in column `ref`, the product with 0, 1, 2 … reads the column's number
        row = self.emit("EyeLike", [self.constant(np.zeros((1, _EYE_WIDTH)), FLOAT)], DOUBLE, dtype=int(DOUBLE), k=ref)
        numbers = self.constant(np.arange(_EYE_WIDTH).reshape(_EYE_WIDTH, 1), DOUBLE)
        return self._reshape(self.emit("MatMul", [row, numbers], DOUBLE), [])

    def like(self, value: float, reference: OnnxValue) -> OnnxValue:
        return self.constant(value, reference.dtype)

    def pow2(self, exponent: OnnxValue) -> OnnxValue:
        if exponent.known is not None:
            return self.constant(np.exp2(exponent.known), DOUBLE)
        return self.emit("Pow", [self.constant(2.0, DOUBLE), exponent], DOUBLE)

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

    # -- carriers -----------------------------------------------------------------------------------
    def wide(self, x: OnnxValue) -> OnnxValue:
        return self.cast(x, DOUBLE)

    def store(self, x: OnnxValue, bits: int | AttributeRef) -> OnnxValue:
        if not isinstance(bits, AttributeRef):
            return self.cast(x, integer_type(bits))
        self.derived[OUTPUT_TYPE] = Derived(lambda width: int(integer_type(width)), (bits,), "int")
        return self.emit("Cast", [x], integer_type(8), to=AttributeRef(OUTPUT_TYPE, "int"))

    def real(self, x: OnnxValue) -> OnnxValue:
        return self.cast(x, FLOAT)

    # -- arithmetic -----------------------------------------------------------------------------------
    def _binary(self, op_type: str, fold: Callable[..., Any], a: OnnxValue, b: OnnxValue) -> OnnxValue:
        if a.known is not None and b.known is not None and a.known.ndim == 0 and b.known.ndim == 0:
            return self.constant(fold(a.known, b.known), a.dtype)
        return self.emit(op_type, [a, b], a.dtype)

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

    def log(self, x: OnnxValue) -> OnnxValue:
        return self.emit("Log", [x], x.dtype)

    def max_along(self, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        return self._along("ReduceMax", x, axis)

    def sum_along(self, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        return self._along("ReduceSum", x, axis)

    def _along(self, op_type: str, x: OnnxValue, axis: int | AttributeRef) -> OnnxValue:
        """A reduction wants a list of axes: an axis that is an attribute travels a second time as a list of one."""
        axes: tuple[int] | AttributeRef = (
            (axis,) if isinstance(axis, int) else AttributeRef(f"{axis.name}_axes", "ints")
        )
        if isinstance(axes, AttributeRef):
            self.derived[axes.name] = Derived(lambda value: (value,), (axis,), "ints")
        if self.opset < _AXES_ARE_AN_INPUT[op_type]:
            return self.emit(op_type, [x], x.dtype, axes=axes, keepdims=1)
        known = self.constant(axes, INT64) if isinstance(axes, tuple) else None
        listed = known or self.emit("Constant", [], INT64, value_ints=axes)
        return self.emit(op_type, [x, listed], x.dtype, keepdims=1)

    # -- products ---------------------------------------------------------------------------------------
    def _float32_holds(
        self,
        w: OnnxValue,
        b: OnnxValue | None,
        x_bits: int | AttributeRef,
        transposed_group: int | AttributeRef | None = None,
    ) -> OnnxValue:
        """Whether 2^(bits−1)·max Σ|w| + max|b| < 2^24, so that float32 sums are exact in any order."""
        if w.known is not None and (b is None or b.known is not None) and not isinstance(x_bits, AttributeRef):
            assert not isinstance(transposed_group, AttributeRef)  # attributes are all numbers, or none is
            magnitudes = np.abs(w.known.astype(np.float64))
            if transposed_group is not None:  # [in, out/group, …]: the sum runs over the group's inputs and the taps
                inside, outside = w.known.shape[0] // transposed_group, w.known.shape[1]
                magnitudes = magnitudes.reshape(transposed_group, inside, outside, -1).swapaxes(1, 2)
                magnitudes = magnitudes.reshape(transposed_group * outside, -1)
            rows = magnitudes.reshape(magnitudes.shape[0], -1).sum(axis=1)
            offset = 0.0 if b is None or b.known is None else np.abs(b.known.astype(np.float64)).max(initial=0.0)
            return self.constant(rows.max(initial=0.0) * 2.0 ** (x_bits - 1) + offset < FLOAT32_EXACT, BOOL)
        if transposed_group is None:
            sums = self._reduce("ReduceSum", self._reshape(self.emit("Abs", [self.wide(w)], DOUBLE), [0, -1]), [1])
        else:
            sums = self._sums_of_transposed(w, transposed_group)
        total = self._reduce("ReduceMax", sums, None)
        reach = self.pow2(self.sub(self.scalar(x_bits), self.scalar(1.0)))
        bound = self.mul(total, reach)
        if b is not None:
            bound = self.add(bound, self._reduce("ReduceMax", self.emit("Abs", [self.wide(b)], DOUBLE), None))
        return self.emit("Less", [bound, self.scalar(FLOAT32_EXACT)], BOOL)

    def linear(self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int) -> OnnxValue:
        def product(dtype: ir.DataType) -> OnnxValue:
            transposed = self.emit("Transpose", [self.cast(w, dtype)], dtype, perm=(1, 0))
            result = self.emit("MatMul", [self.cast(x, dtype), transposed], dtype)
            return self.wide(result if b is None else self.emit("Add", [result, self.cast(b, dtype)], dtype))

        return self._choose(self._float32_holds(w, b, x_bits), lambda: product(FLOAT), lambda: product(DOUBLE))

    def matmul(self, x: OnnxValue, y: OnnxValue) -> OnnxValue:
        return self.emit("MatMul", [self.cast(x, DOUBLE), self.cast(y, DOUBLE)], DOUBLE)

    def conv1d(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int, **geometry: Any
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, geometry, axes=1)

    def conv2d(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int, **geometry: Any
    ) -> OnnxValue:
        return self._convolution(x, w, b, x_bits, geometry, axes=2)

    def _convolution(
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, x_bits: int, geometry: dict[str, Any], *, axes: int
    ) -> OnnxValue:
        """A convolution of any number of axes; `geometry` is strides, pads, dilations and group."""

        def in_float() -> OnnxValue:
            inputs = [self.cast(x, FLOAT), self.cast(w, FLOAT)] + ([] if b is None else [self.cast(b, FLOAT)])
            return self.wide(self.emit("Conv", inputs, FLOAT, **geometry))

        def in_integers() -> OnnxValue:
            total = self._byte_products(x, w, geometry)
            return total if b is None else self.add(total, self._reshape(self.wide(b), [1, -1, *[1] * axes]))

        return self._choose(self._float32_holds(w, b, x_bits), in_float, in_integers)

    def _byte_products(self, x: OnnxValue, w: OnnxValue, geometry: dict[str, Any]) -> OnnxValue:
        """ConvInteger on unsigned bytes: the one integer product that is exact and fast in every ONNX Runtime.

        u8×s8 saturates on CPUs without VNNI, s8×s8 is slow or missing, so signed bytes are moved by 128 and the
        zero point takes it back. Wider integers are split into a signed high and an unsigned low byte.
        """
        total: OnnxValue | None = None
        for x_byte, x_zero, x_weight in self._bytes(x):
            for w_byte, w_zero, w_weight in self._bytes(w):
                zeros = [self.constant(x_zero, UINT8), self.constant(w_zero, UINT8)]
                part = self.wide(self.emit("ConvInteger", [x_byte, w_byte, *zeros], INT32, **geometry))
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
        self, x: OnnxValue, w: OnnxValue, b: OnnxValue | None, *, x_bits: int, w_bits: int, **geometry: Any
    ) -> OnnxValue:
        """In float32 where the bound holds, else as products of 4-bit digits: exact for up to MOST_TRANSPOSED_TAPS.

        No runtime has a transposed convolution of integers or of float64.
        """

        def in_float() -> OnnxValue:
            inputs = [self.cast(x, FLOAT), self.cast(w, FLOAT)] + ([] if b is None else [self.cast(b, FLOAT)])
            return self.wide(self.emit("ConvTranspose", inputs, FLOAT, **geometry))

        def in_digits() -> OnnxValue:
            total: OnnxValue | None = None
            for signal, signal_weight in self._digits(x, 4):
                for taps, tap_weight in self._digits(w, 4):
                    factors = [self.cast(signal, FLOAT), self.cast(taps, FLOAT)]
                    part = self.wide(self.emit("ConvTranspose", factors, FLOAT, **geometry))
                    weight = signal_weight * tap_weight
                    part = part if weight == 1 else self.mul(part, self.scalar(weight))
                    total = part if total is None else self.add(total, part)
            assert total is not None  # there is at least one digit
            return total if b is None else self.add(total, self._reshape(self.wide(b), [1, -1, 1, 1]))

        return self._choose(self._float32_holds(w, b, x_bits, geometry["group"]), in_float, in_digits)

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

    # -- time ------------------------------------------------------------------------------------------------
    def scan(
        self, step: Callable[[OnnxValue, OnnxValue], OnnxValue], state: OnnxValue, sequence: OnnxValue
    ) -> OnnxValue:
        state_in, item = self.fresh(), self.fresh()
        with self._branch() as nodes:
            result = self.materialise(step(OnnxValue(state.dtype, state_in), OnnxValue(sequence.dtype, item)))
            stacked = self.fresh()
            nodes.append(ir.Node("", "Identity", [result], outputs=[stacked]))
        body = ir.Graph([state_in, item], [result, stacked], nodes=nodes, name=f"{self._prefix}step")
        outputs = [self.fresh(), self.fresh()]
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 1)]
        inputs = [self.materialise(state), self.materialise(sequence)]
        self.nodes.append(ir.Node("", "Scan", inputs, attributes=attributes, outputs=outputs))
        return OnnxValue(state.dtype, outputs[1])

    # -- shapes ------------------------------------------------------------------------------------------------
    def _reshape(self, x: OnnxValue, shape: list[int]) -> OnnxValue:
        return self.emit("Reshape", [x, self.constant(np.asarray(shape, dtype=np.int64), INT64)], x.dtype)

    def _reduce(self, op_type: str, x: OnnxValue, axes: list[int] | None) -> OnnxValue:
        if axes is None:
            return self.emit(op_type, [x], x.dtype, keepdims=0)
        if self.opset >= _AXES_ARE_AN_INPUT[op_type]:
            return self.emit(op_type, [x, self.constant(axes, INT64)], x.dtype, keepdims=0)
        return self.emit(op_type, [x], x.dtype, axes=tuple(axes), keepdims=0)


def make_attribute(name: str, value: Any) -> ir.Attr:
    """An ONNX attribute from a Python value or a reference."""
    if isinstance(value, AttributeRef):
        return ir.RefAttr(name, value.name, ATTRIBUTE_TYPES[value.kind])
    if isinstance(value, (tuple, list)):
        return ir.AttrInt64s(name, [int(v) for v in value])
    if isinstance(value, str):
        return ir.AttrString(name, value)
    if isinstance(value, float):
        return ir.AttrFloat32(name, value)
    return ir.AttrInt64(name, int(value))
