# SPDX-License-Identifier: Apache-2.0
"""How dialect ops of 8 bits are written with ONNX's own integer kernels, bit for bit and on every CPU.

The kernels round half to even, and those that multiply unsigned by signed bytes add two products in 16 bits on x64 CPUs
without VNNI, which saturates. Three measures make them exact:

*Unsigned carriers.* An activation is carried as t + 128, or as t itself where a ReLU has made it non-negative
(`linger.graph.core.carriers`). Signed weights are used where no pair of products can leave 16 bits: with data up to 127,
2·127·128 = 32512; with data up to 255, weights within ±64, 2·255·64 = 32640. Elsewhere weights are unsigned too, around 128:
the kernel for two unsigned factors widens them first.

*Sums that are not negative, a scale that is a little too large.* The bias has 128·2^s more, so every sum acc that does not
saturate is ≥ 0 and the kernel's result, with zero point 0, is the carrier t + 128. Behind a ReLU nothing is added: what is
negative becomes 0. The kernel multiplies by 2^-s·(1 + 2^-23), s ≤ 14. With acc = (n + ½)·2^s, a tie, the product
(n + ½)·(1 + 2^-23) is above the tie by at least one unit in the last place of float32, so the product stays above it and
rounds up. Any other acc below a tie is 2^-s away from it, and n ≤ 255 moves it by (n + ½)·2^-23 and rounds by 2^-17:
256·2^-23 + 2^-17 < 2^-14 ≤ 2^-s, so it does not reach the tie. Sums above 2^24 are rounded when they become float32;
as s ≤ 14, they all saturate. For s ≤ 0 nothing is rounded, and the zero point carries the 128.

*Sums of two tensors* are written as DequantizeLinear, Add and QuantizeLinear, which ONNX Runtime joins to one kernel. One operand
at most has a ratio r < 1 to the output, at least 2^-4, and the other's is 1; numbers are then multiples of r. The scales have a factor (1 + 2^-12),
either both in front of a ReLU, where sums below ½ become 0 whatever they are, or that of the operand with r, carried as a number
u ≥ 0. So a tie is raised by at least ½·2^-12. All numbers are below 2^9, so the at most four roundings of a kernel are off by
4·2^-16 = 2^-14 together: the tie stays raised. Nothing else is raised by more than 256·r·2^-12 + 2^-14 < r, or, in front of a
ReLU, 128·2^-12 + 2^-14 < 2^-4: it does not reach a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.graph.core.carriers import LARGEST, MIDDLE, OFFSET, PLAIN, POSITIVE, SAFE_WEIGHT
from linger.graph.core.dialect_node import attributes_of, is_dialect, op_of
from linger.graph.forms.form_writer import FormWriter
from linger.numeric.fixed import is_power_of_two
from linger.numeric.numpy_kernel import NumpyKernel
from linger.numeric.onnx.kernel import OnnxKernel
from linger.numeric.onnx.products import by_output
from linger.numeric.onnx.writer import FLOAT, INT32, OnnxValue

_LIFT, _SUM_LIFT = 2.0**-23, 2.0**-12
_LARGEST_SHIFT, _LARGEST_LEFT_SHIFT = 14, 32
_ZERO_OPSET = 14
"""From here on a size of 0 in the new shape of a Reshape is a size; before, it stands for the old one."""
_SMALLEST_RATIO, _LARGEST_RATIO = 2.0**-4, 2.0**8
_INT32_END = 2**31
_BYTE_BITS, _WORD_BITS = 8, 16


@dataclass(frozen=True)
class Carrier:
    """An unsigned tensor that stands for signed bytes.

    Attributes:
        value: The tensor.
        zero: What stands for 0.
        is_limited: Whether it is limited to 127; a ReLU behind it does that.
    """

    value: ir.Value
    zero: int
    is_limited: bool = True


@dataclass
class ByteWriter(FormWriter):
    """Writes one dialect node.

    Attributes:
        carrier_of: The carrier of a tensor; None where it has none.
        carry: The carrier of a tensor, made where it has none; None where its name is taken.
        is_free: Whether the names of carriers of a node's results are free.
        has_sure_shapes: Whether runtimes infer the shapes that they compute.
        opset: The model's opset.
        is_saturating: Whether the file must be exact where pairs of products saturate in 16 bits.
    """

    carrier_of: Callable[[ir.Value], Carrier | None]
    carry: Callable[[ir.Value], Carrier | None]
    is_free: Callable[[ir.Node], bool]
    has_sure_shapes: bool
    opset: int
    is_saturating: bool

    def one(self) -> ir.Value:
        """The number 1, for this node alone."""
        return self.initializer(1.0, np.float32, "scale")

    def zero_point(self, zero: int, dtype: type[np.generic] = np.uint8) -> ir.Value:
        """What stands for 0, for this node alone."""
        return self.initializer(zero, dtype, "zero_point")

    def finish(self, value: ir.Value, zero: int, *, is_limited: bool = True) -> Carrier:
        """Name the result after the tensor that it stands for."""
        end = POSITIVE if not is_limited else PLAIN if zero == 0 else OFFSET
        value.name = f"{self.node.outputs[0].name}{end}"
        value.type = ir.TensorType(ir.DataType.UINT8)
        value.shape = self.node.outputs[0].shape
        return Carrier(value, zero, is_limited)

    @property
    def meets_relu(self) -> bool:
        """Whether all that reads the result is a ReLU, or a Clip that begins at 0, and is written with carriers too."""
        output = self.node.outputs[0]
        readers = output.consumers()
        if len(readers) != 1 or output.is_graph_output() or readers[0].graph is not self.node.graph:
            return False
        reader = readers[0]
        if not is_dialect(reader) or reader.inputs[0] is not output or not self.is_free(reader):
            return False
        if byte_form(reader) is None:
            return False
        low, high = _limits(reader)
        return op_of(reader).float_op == "Relu" or (low == 0 and high is not None and high >= 0)


Form = Callable[[ByteWriter], "Carrier | ir.Value | None"]
"""Writes the nodes. The result is a carrier, or a tensor of the node's own type, or None where the op has no such form here."""


def _limits(node: ir.Node) -> tuple[int | None, int | None]:
    """The thresholds of a Clip, where they are known; (None, None) for any other node."""
    if op_of(node).float_op != "Clip":
        return None, None
    known = FormWriter(node, {})
    low, high = (None if end is None or end.size != 1 else int(end.item()) for end in (known.known(1), known.known(2)))
    return low, high


def _shift(attributes: Mapping[str, Any]) -> int:
    return math.frexp(attributes["scale_x"] * attributes["scale_w"] / attributes["scale_o"])[1] - 1


@dataclass(frozen=True)
class _Product:
    """How a sum of products becomes a carrier: what is added, by what it is multiplied, what stands for 0."""

    data: Carrier
    weight: NDArray[Any]
    weight_zero: int
    bias: NDArray[Any]
    scale: float
    zero_point: int
    is_relu: bool

    def finish(self, w: ByteWriter, value: ir.Value) -> Carrier:
        return w.finish(value, 0 if self.is_relu else MIDDLE, is_limited=not self.is_relu)


def _plan(w: ByteWriter) -> _Product | None:
    """How a product is written; None where its weights are not known, its shift is too long or its sum too large."""
    a, weight, bias, shift = w.attributes, w.known(1), w.known(2), _shift(w.attributes)
    if weight is None or bias is None or not -_LARGEST_LEFT_SHIFT <= shift <= _LARGEST_SHIFT:
        return None
    is_relu, data = w.meets_relu, w.carry(w.input(0))
    if data is None:
        return None
    has_offset = shift > 0 and not is_relu
    total = bias.astype(np.int64) + (MIDDLE << shift if has_offset else 0)
    reach = by_output(np.abs(weight.astype(np.int64)), None).sum(axis=1) * 2 ** (a["data_bits"] - 1)
    if (reach + np.abs(total)).max(initial=0) >= _INT32_END:
        return None
    is_signed = (
        not w.is_saturating or data.zero == 0 or int(np.abs(weight.astype(np.int16)).max(initial=0)) <= SAFE_WEIGHT
    )
    zero = 0 if is_signed else MIDDLE
    stored = weight if is_signed else (weight.astype(np.int16) + MIDDLE).astype(np.uint8)
    scale = 2.0**-shift * (1.0 + _LIFT if shift > 0 else 1.0)
    zero_point = 0 if is_relu or has_offset else MIDDLE
    return _Product(data, stored, zero, total.astype(np.int32), scale, zero_point, is_relu)


def convolution(w: ByteWriter) -> Carrier | None:
    """QLinearConv over one or two axes."""
    plan = _plan(w)
    if plan is None:
        return None
    dtype = plan.weight.dtype.type
    weight = [
        w.initializer(plan.weight, dtype, "weight"),
        w.initializer(plan.scale, np.float32, "scale"),
        w.zero_point(plan.weight_zero, dtype),
    ]
    data = [plan.data.value, w.one(), w.zero_point(plan.data.zero)]
    result = [w.one(), w.zero_point(plan.zero_point), w.initializer(plan.bias, np.int32, "bias")]
    geometry = {name: w.attributes[name] for name in ("dilations", "group", "kernel_shape", "pads", "strides")}
    return plan.finish(w, w.emit("QLinearConv", [*data, *weight, *result], **geometry))


def linear(w: ByteWriter) -> Carrier | None:
    """MatMulInteger, the bias, one multiplication, QuantizeLinear."""
    plan = _plan(w)
    if plan is None:
        return None
    dtype = plan.weight.dtype.type
    weight = w.initializer(np.ascontiguousarray(plan.weight.T), dtype, "weight")
    zeros = [w.zero_point(plan.data.zero), w.zero_point(plan.weight_zero, dtype)]
    total = w.emit("MatMulInteger", [plan.data.value, weight, *zeros])
    if plan.bias.any():
        total = w.emit("Add", [total, w.initializer(plan.bias, np.int32, "bias")])
    real = w.emit("Cast", [total], to=int(FLOAT))
    real = w.emit("Mul", [real, w.initializer(plan.scale, np.float32, "factor")])
    return plan.finish(w, w.emit("QuantizeLinear", [real, w.one(), w.zero_point(plan.zero_point)]))


def add(w: ByteWriter) -> Carrier | None:
    """DequantizeLinear of both, Add, QuantizeLinear."""
    a = w.attributes
    ratios = [a["scale_o"] / a["scale_x"], a["scale_o"] / a["scale_y"]]
    has_rounding, is_relu = min(ratios) < 1, w.meets_relu
    is_exact = max(ratios) == 1 and min(ratios) >= _SMALLEST_RATIO if has_rounding else max(ratios) <= _LARGEST_RATIO
    if not is_exact or not any(w.carrier_of(w.input(i)) is not None for i in range(2)):
        return None
    zero_point, parts = 0 if is_relu else MIDDLE, []
    for operand, ratio in zip([w.carry(w.input(i)) for i in range(2)], ratios, strict=True):
        if operand is None:
            return None
        zero, is_lifted = operand.zero, has_rounding and (is_relu or ratio < 1)
        if ratio < 1 and not is_relu:
            zero_point -= int(zero * ratio)
            zero = 0
        scale = w.initializer(ratio * (1.0 + _SUM_LIFT if is_lifted else 1.0), np.float32, "scale")
        parts.append(w.emit("DequantizeLinear", [operand.value, scale, w.zero_point(zero)]))
    total = w.emit("QuantizeLinear", [w.emit("Add", parts), w.one(), w.zero_point(zero_point)])
    return w.finish(total, 0 if is_relu else MIDDLE, is_limited=not is_relu)


def relu(w: ByteWriter) -> Carrier | None:
    """Clip of the carrier at what stands for 0; behind a product that has done so already, at 127."""
    return _clipped(w, 0, LARGEST)


def clip(w: ByteWriter) -> Carrier | None:
    """Clip of the carrier between what stands for the thresholds."""
    low, high = _limits(w.node)
    return None if low is None or high is None else _clipped(w, low, high)


def _clipped(w: ByteWriter, low: int, high: int) -> Carrier | None:
    x = w.carrier_of(w.input(0))
    if x is None or high < low or (x.zero == 0 and high < 0):
        return None
    smallest, largest = (0 if x.zero == 0 else -MIDDLE), (LARGEST if x.is_limited else None)
    ends: list[ir.Value | None] = [
        w.initializer(low + x.zero, np.uint8, "limit") if low > smallest else None,
        w.initializer(high + x.zero, np.uint8, "limit") if high != largest else None,
    ]
    while ends and ends[-1] is None:
        ends.pop()
    value = w.emit("Clip", [x.value, *ends]) if ends else w.emit("Identity", [x.value])
    return w.finish(value, x.zero)


def max_pool(w: ByteWriter) -> Carrier | None:
    """MaxPool of the carrier; not where a window may lie in the padding, whose result is the lowest number of the type."""
    x, a = w.carrier_of(w.input(0)), w.attributes
    has_empty_windows = any(a["pads"]) and (bool(a["ceil_mode"]) or max(a["dilations"]) > 1)
    if x is None or (x.zero == 0 and has_empty_windows):
        return None
    return w.finish(w.emit("MaxPool", [x.value], **a), x.zero)


def cat(w: ByteWriter) -> Carrier | None:
    """Concat of carriers, where nothing changes its scale."""
    a, carriers = w.attributes, [w.carrier_of(value) for value in w.node.inputs if value is not None]
    zeros = {None if x is None else x.zero for x in carriers}
    is_kept = all(a[f"scale_x_{i}"] == a["scale_o"] for i in range(len(carriers)))
    if not is_kept or len(zeros) > 1 or None in zeros:
        return None
    values = [x.value for x in carriers if x is not None]
    return w.finish(w.emit("Concat", values, axis=a["dim"]), next(z for z in zeros if z is not None))


def average_pool(w: ByteWriter) -> ir.Value | None:
    """The op's own body on real numbers that DequantizeLinear gives."""
    x = w.carrier_of(w.input(0))
    if x is None:
        return None
    real = w.emit("DequantizeLinear", [x.value, w.one(), w.zero_point(x.zero)])
    kernel = OnnxKernel(opset=w.opset, element_bits=_BYTE_BITS, prefix=f"{w.node.outputs[0].name}/")
    made = kernel.materialise(op_of(w.node).body(kernel, OnnxValue(FLOAT, real), **w.attributes))
    w.nodes += kernel.nodes
    return made


def dequant(w: ByteWriter) -> ir.Value | None:
    """DequantizeLinear of the carrier."""
    x = w.carrier_of(w.input(0))
    if x is None:
        return None
    step = w.initializer(1.0 / w.attributes["scale_o"], np.float32, "scale")
    return w.emit("DequantizeLinear", [x.value, step, w.zero_point(x.zero)])


def lookup(w: ByteWriter) -> Carrier | ir.Value | None:
    """A table of the op's results for every number of 8 or 16 bits, which the reference computes."""
    op, x = op_of(w.node), w.carrier_of(w.input(0))
    bits = _WORD_BITS if w.input(0).dtype == ir.DataType.INT16 else _BYTE_BITS
    low = 0 if x is not None and x.zero == 0 else -(1 << (bits - 1))
    numbers = np.arange(low, 1 << (bits - 1)).astype(f"int{bits}")
    table: NDArray[Any] = op.body(NumpyKernel(), numbers, **w.attributes)
    if x is None or table.dtype != np.int8:
        source = w.input(0) if x is None else x.value
        return _entries(w, source, table, 0 if x is not None else -low)
    zero = 0 if table.min() >= 0 else MIDDLE
    return w.finish(_entries(w, x.value, (table.astype(np.int16) + zero).astype(np.uint8), 0), zero)


def _entries(w: ByteWriter, x: ir.Value, table: NDArray[Any], offset: int) -> ir.Value:
    """The entries of a table at x + offset, by GatherElements on a vector: Gather copies every element on its own.

    It is Gather where a shape could not be brought back: in models with pools of `ceil_mode`, for which runtimes infer other
    sizes than they compute, and before opset 14, if a size other than the first may be 0.
    """
    entries = w.initializer(table, table.dtype.type, "table")
    can_reshape = w.has_sure_shapes and (w.opset >= _ZERO_OPSET or _is_never_empty(x.shape))
    flat = w.emit("Reshape", [x, w.initializer([-1], np.int64, "flat")]) if can_reshape else x
    index = w.emit("Cast", [flat], to=int(INT32))
    if offset:
        index = w.emit("Add", [index, w.initializer(offset, np.int32, "first")])
    if not can_reshape:
        return w.emit("Gather", [entries, index], axis=0)
    keeps_zeros = {"allowzero": 1} if w.opset >= _ZERO_OPSET else {}
    return w.emit("Reshape", [w.emit("GatherElements", [entries, index], axis=0), w.emit("Shape", [x])], **keeps_zeros)


def _is_never_empty(shape: ir.Shape | None) -> bool:
    """Whether every size but the first is known, and is not 0."""
    return shape is not None and all(isinstance(size, int) and size > 0 for size in list(shape)[1:])


FORMS: Mapping[str, Form] = {
    "Conv": convolution,
    "Gemm": linear,
    "Add": add,
    "Relu": relu,
    "Clip": clip,
    "MaxPool": max_pool,
    "Concat": cat,
    "AveragePool": average_pool,
    "DequantizeLinear": dequant,
}
"""By the standard op that computes a dialect op on real numbers (`float_op`)."""


def byte_form(node: ir.Node) -> tuple[Form, dict[str, Any]] | None:
    """The form of a dialect node and its attributes; None for an op without one, other widths and other scales."""
    op = op_of(node)
    attributes = attributes_of(node, op)
    if op.is_pointwise:
        is_narrow = attributes.get("o_bits", _BYTE_BITS) <= _WORD_BITS
        return (lookup, attributes) if is_narrow and _types(node.inputs[:1]) <= _NARROW else None
    form = FORMS.get(op.float_op or "")
    if form is None or op.platform is not None:
        return None
    scales = (value for name, value in attributes.items() if name.startswith("scale_"))
    widths = (attributes[name] for name in ("o_bits", "data_bits", "parameter_bits") if name in attributes)
    is_byte = attributes.get("o_bits", _BYTE_BITS) == _BYTE_BITS and all(bits <= _BYTE_BITS for bits in widths)
    has_bytes = _types(node.inputs if op.is_variadic else node.inputs[:2]) == {ir.DataType.INT8}
    return (form, attributes) if is_byte and has_bytes and all(map(is_power_of_two, scales)) else None


_NARROW = frozenset({ir.DataType.INT8, ir.DataType.INT16})


def _types(values: Iterable[ir.Value | None]) -> set[ir.DataType | None]:
    return {None if value is None else value.dtype for value in values}
