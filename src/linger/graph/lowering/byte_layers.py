# SPDX-License-Identifier: Apache-2.0
"""Write the 8-bit layers of a model with ONNX's own integer kernels, exactly, and its curves as tables.

Tensors between such layers are unsigned bytes; where another node reads one, it is made signed again under its own name.
Tensors of 0 … 255 are what they are. Kernels round half to even, and those that multiply unsigned by signed bytes add two
products in 16 bits on x64 CPUs without VNNI, which saturates. Three measures make them exact:

*Unsigned carriers.* A signed tensor t is carried as t + 128, or as t itself where a ReLU has made it non-negative. Signed weights
are used where no pair of products can leave 16 bits: with data up to 127, 2·127·128 = 32512; with data up to 255, weights
within ±64, 2·255·64 = 32640. Elsewhere weights are unsigned too, around 128: the kernel for two unsigned factors widens them.

*Sums that are not negative, a scale that is a little too large.* The bias of channel c, whose sum is shifted by s = s_c, has
128·2^s more, so every sum that does not saturate is ≥ 0 and the kernel's result, with zero point 0, is the carrier t + 128.
(For −7 ≤ s ≤ 0 that is a whole number, too.) Behind a ReLU, and for a result of 0 … 255, nothing is added: what is negative
becomes 0. The kernel multiplies by 2^-s·(1 + 2^-23), 0 < s ≤ 14. Of a tie (n + ½)·2^s, the product (n + ½)·(1 + 2^-23) is above
the tie by at least one unit in the last place of float32, so it stays above and rounds up. Any other sum below a tie is 2^-s
away from it, n ≤ 255 moves it by (n + ½)·2^-23, and rounding by 2^-17: 256·2^-23 + 2^-17 < 2^-14 ≤ 2^-s, so it does not
reach the tie. Sums above 2^24 are rounded when they become float32; as s ≤ 14, they all saturate. For s ≤ 0 nothing is rounded.
No step looks at another channel, so each may have a shift of its own; only the zero point is that of all.

*Matrix products with one shift* need no positive sums: the float32 sum is divided by 2^s behind ¼, which lifts ties; for s ≥ 1 sums
are whole numbers, so nothing reaches a tie from below. float32 holds a sum below 2^24, a bias below 2^22 with its quarter, and their
sum where it is below 2^22. What is not, is at least 2^22 − ½ also if a sum beyond 2^24 was rounded; divided by at most 2^14 it saturates.

*Sums of two tensors* are written as DequantizeLinear, Add and QuantizeLinear, which ONNX Runtime joins to one kernel. One operand
at most has a ratio r < 1 to the output, at least 2^-4, and the other's is 1; numbers are then multiples of r. The scales have
a factor (1 + 2^-12), either both in front of a ReLU or for a result of 0 … 255, where sums below ½ become 0 whatever they are, or
that of the operand with r, carried as a number u ≥ 0. So a tie is raised by at least ½·2^-12. All numbers are below 2^9, so the
at most four roundings of a kernel are off by 4·2^-16 = 2^-14 together: the tie stays raised. Nothing else is raised by more
than 256·r·2^-12 + 2^-14 < r, or where both are, for r = 2^-4, (255½ − r)·2^-12 + 2^-14 < r: it does not reach a tie. Where both
have r < 1, or one r > 1, each with r < 1 but one is rounded alone: u·r·(1 + 2^-12), r ≥ 2^-7, one product and no other rounding.

*Means of windows* are QLinearConv too, of ones. A window has at most 2^20 different sums, so nothing is argued: `fixed.exact_mean` tries
each of them. A bias as above, or a zero point where no sum is a tie, makes results of both signs carriers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.dialect import Op
from linger.graph.core.dialects import LARGEST, MIDDLE, OFFSET, PLAIN, POSITIVE, SAFE_WEIGHT
from linger.graph.core.nodes import (
    all_nodes,
    attributes_of,
    describe,
    is_dialect,
    is_used,
    op_of,
    opset_of,
    tensor_names,
)
from linger.graph.lowering import row_forms
from linger.graph.lowering.bodies import FormWriter, bring_to_normal_form, constant_value, state_shapes
from linger.numeric.fixed import exact_mean, is_power_of_two
from linger.numeric.onnx.products import by_output
from linger.numeric.onnx.writer import FLOAT

_LIFT, _SUM_LIFT, _QUARTER = 2.0**-23, 2.0**-12, 0.25
_LARGEST_BIAS = 2**22
_LARGEST_SHIFT, _LARGEST_LEFT_SHIFT = 14, 32
_SMALLEST_RATIO, _SMALLEST_BESIDE, _LARGEST_RATIO = 2.0**-7, 2.0**-4, 2.0**8
_INT32_END = 2**31
_BYTE_BITS, _WORD_BITS, _BYTE_END = 8, 16, 255


@dataclass(frozen=True)
class _Carrier:
    """An unsigned tensor that stands for bytes.

    Attributes:
        zero: What stands for 0.
        is_limited: Whether what it stands for ends at 127. What does not is unsigned, or a ReLU behind it limits it.
    """

    value: ir.Value
    zero: int
    is_limited: bool = True

    @property
    def highest(self) -> int:
        """Its largest number."""
        return LARGEST if self.zero == 0 and self.is_limited else _BYTE_END


@dataclass
class _ByteWriter(FormWriter):
    """Writes one dialect node.

    Attributes:
        carrier_of: The carrier of a tensor; None where it has none.
        carry: The carrier of a tensor, made where it has none; None where its name is taken.
        is_free: Whether the names of carriers of a node's results are free.
        has_sure_shapes: Whether runtimes infer the shapes that they compute.
        opset: The model's opset.
        is_saturating: Whether the file must be exact where pairs of products saturate in 16 bits.
    """

    carrier_of: Callable[[ir.Value], _Carrier | None]
    carry: Callable[[ir.Value], _Carrier | None]
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

    def holds(self, x: _Carrier | None) -> TypeGuard[_Carrier]:
        """Whether the result has every number that a carrier stands for."""
        return x is not None and (x.zero == 0 if self.is_unsigned else x.is_limited)

    @property
    def is_unsigned(self) -> bool:
        """Whether the result has 0 … 255."""
        return self.node.outputs[0].dtype == ir.DataType.UINT8

    def rounded(self, total: ir.Value, bias: NDArray[Any], shift: int, zero: int) -> ir.Value:
        """⌊(total + bias)/2^shift + ½⌋ + zero of sums in 32 bits, limited to bytes: for a shift up to 14 and a bias below 2^22."""
        total, added = self.emit("Cast", [total], to=int(FLOAT)), bias + (_QUARTER if shift > 0 else 0.0)
        if added.any():
            total = self.emit("Add", [total, self.initializer(added, np.float32, "bias")])
        scale = self.initializer(2.0**shift, np.float32, "scale")
        return self.emit("QuantizeLinear", [total, scale, self.zero_point(zero)])

    def finish(self, value: ir.Value, zero: int, *, is_limited: bool = True) -> _Carrier | ir.Value:
        """The result itself where it is unsigned; else a carrier, named after the tensor that it stands for."""
        if self.is_unsigned:
            return value
        end = POSITIVE if not is_limited else PLAIN if zero == 0 else OFFSET
        value.name = f"{self.node.outputs[0].name}{end}"
        value.type = ir.TensorType(ir.DataType.UINT8)
        value.shape = self.node.outputs[0].shape
        return _Carrier(value, zero, is_limited)

    @property
    def meets_relu(self) -> bool:
        """Whether the result is unsigned, or all that reads it is a ReLU, or a Clip that begins at 0, and is written with carriers too."""
        output = self.node.outputs[0]
        reader = next(iter(output.consumers()), None)
        if self.is_unsigned or reader is None or len(output.consumers()) > 1 or output.is_graph_output():
            return self.is_unsigned
        if not is_dialect(reader) or reader.graph is not self.node.graph or reader.inputs[0] is not output:
            return False
        if not self.is_free(reader) or byte_form(reader) is None:
            return False
        low, high = _limits(reader)
        return low == 0 and high is not None and high >= 0


Form = Callable[[_ByteWriter], "_Carrier | ir.Value | None"]
"""Writes the nodes. The result is a carrier, or a tensor of the node's own type, or None where the op has no such form here."""


def _limits(node: ir.Node) -> tuple[int | None, int | None]:
    """The thresholds of a Clip, where they are known, or of a ReLU; (None, None) for any other node."""
    if op_of(node).float_op != "Clip":
        is_unsigned = node.outputs[0].dtype == ir.DataType.UINT8
        return (0, _BYTE_END if is_unsigned else LARGEST) if op_of(node).float_op == "Relu" else (None, None)
    known = FormWriter(node, {})
    low, high = (None if end is None or end.size != 1 else int(end.item()) for end in (known.known(1), known.known(2)))
    return low, high


def _shifts(attributes: Mapping[str, Any]) -> NDArray[np.int64]:
    shift = math.frexp(attributes["scale_x"] * attributes["scale_w"] / attributes["scale_o"])[1] - 1
    return shift + np.asarray(attributes.get("exponents_w", ()) or 0, np.int64)


@dataclass(frozen=True)
class _Product:
    """How a sum of products becomes a carrier: what is added, by what it is multiplied, what stands for 0."""

    data: _Carrier
    weight: NDArray[Any]
    weight_zero: int
    bias: NDArray[Any]
    scale: NDArray[Any]
    zero_point: int
    is_relu: bool

    def finish(self, w: _ByteWriter, value: ir.Value) -> _Carrier | ir.Value:
        return w.finish(value, 0 if self.is_relu else MIDDLE, is_limited=not self.is_relu)


def _plan(w: _ByteWriter) -> _Product | None:
    """How a product is written; None where its weights are not known, its shift is too long or its sum too large."""
    weight, bias, shifts = w.known(1), w.known(2), _shifts(w.attributes)
    if weight is None or bias is None or (shifts.clip(-_LARGEST_LEFT_SHIFT, _LARGEST_SHIFT) != shifts).any():
        return None
    is_relu, data = w.meets_relu, w.carry(w.input(0))
    offset, zero_point = (np.zeros(1), 0) if is_relu else _offset(shifts)
    if data is None or offset is None:
        return None
    total = bias.astype(np.int64) + offset.astype(np.int64)
    magnitudes = np.abs(weight.astype(np.int64))
    bits = w.attributes["data_bits"] - (w.input(0).dtype == ir.DataType.INT8)
    reach = by_output(magnitudes, None).sum(axis=1) * 2**bits
    if (reach + np.abs(total)).max(initial=0) >= _INT32_END:
        return None
    is_signed = not w.is_saturating or min(data.highest - LARGEST, magnitudes.max(initial=0) - SAFE_WEIGHT) <= 0
    weight_zero = 0 if is_signed else MIDDLE
    stored = (weight.astype(np.int16) + weight_zero).astype(np.int8 if is_signed else np.uint8)
    scale = 2.0**-shifts * np.where(shifts > 0, 1.0 + _LIFT, 1.0)
    return _Product(data, stored, weight_zero, total.astype(np.int32), scale, zero_point, is_relu)


def _offset(shifts: NDArray[np.int64]) -> tuple[NDArray[Any] | None, int]:
    """What is added to sums so that their carriers are not negative, and the zero point; None where it is no whole number."""
    if not (shifts > 0).any():
        return np.zeros(1), MIDDLE
    offset = MIDDLE * 2.0**shifts
    return None if (offset < 1).any() else offset, 0


def convolution(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """QLinearConv over one or two axes."""
    plan = _plan(w)
    if plan is None:
        return None
    dtype = plan.weight.dtype.type
    weight = [w.initializer(plan.weight, dtype, "weight"), w.initializer(plan.scale, np.float32, "scale")]
    weight.append(w.initializer(np.full(plan.scale.shape, plan.weight_zero), dtype, "zero_point"))
    data = [plan.data.value, w.one(), w.zero_point(plan.data.zero)]
    result = [w.one(), w.zero_point(plan.zero_point), w.initializer(plan.bias, np.int32, "bias")]
    geometry = {name: w.attributes[name] for name in ("dilations", "group", "kernel_shape", "pads", "strides")}
    return plan.finish(w, w.emit("QLinearConv", [*data, *weight, *result], **geometry))


def linear(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """MatMulInteger, the bias, a multiplication where channels have shifts of their own, QuantizeLinear."""
    plan = _plan(w)
    if plan is None:
        return None
    dtype = plan.weight.dtype.type
    weight = w.initializer(np.ascontiguousarray(plan.weight.T), dtype, "weight")
    zeros = [w.zero_point(plan.data.zero), w.zero_point(plan.weight_zero, dtype)]
    total = w.emit("MatMulInteger", [plan.data.value, weight, *zeros])
    whole = w.known(2)
    if whole is not None and np.abs(whole.astype(np.int64)).max(initial=0) < _LARGEST_BIAS and plan.scale.ndim == 0:
        zero = 0 if plan.is_relu else MIDDLE
        total = w.rounded(total, whole, int(_shifts(w.attributes)), zero)
        return w.finish(total, zero, is_limited=not plan.is_relu)
    if plan.bias.any():
        total = w.emit("Add", [total, w.initializer(plan.bias, np.int32, "bias")])
    factor = w.initializer(plan.scale, np.float32, "factor")
    real = w.emit("Mul", [w.emit("Cast", [total], to=int(FLOAT)), factor])
    return plan.finish(w, w.emit("QuantizeLinear", [real, w.one(), w.zero_point(plan.zero_point)]))


def add(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """DequantizeLinear of both, Add, QuantizeLinear; before it, operands that would be rounded beside another are rounded alone."""
    ratios = [w.attributes["scale_o"] / w.attributes[name] for name in ("scale_x", "scale_y")]
    is_exact = _SMALLEST_RATIO <= min(ratios) <= max(ratios) <= _LARGEST_RATIO
    if not is_exact or not any(map(w.carrier_of, (w.input(0), w.input(1)))):
        return None
    operands = [w.carry(w.input(0)), w.carry(w.input(1))]
    while min(ratios) < 1 and not (max(ratios) == 1 and min(ratios) >= _SMALLEST_BESIDE):
        place = ratios.index(min(ratios))
        operands[place], ratios[place] = _rounded(w, operands[place], ratios[place]), 1.0
    x, y = operands
    return None if x is None or y is None else _sum(w, (x, y), ratios, is_relu=w.meets_relu)


def _rounded(w: _ByteWriter, x: _Carrier | None, ratio: float) -> _Carrier | None:
    """The carrier of a coarser tensor, by a factor that is a little too large."""
    if x is None:
        return None
    factor = w.initializer(ratio * (1.0 + _SUM_LIFT), np.float32, "factor")
    real = w.emit("Mul", [w.emit("Cast", [x.value], to=int(FLOAT)), factor])
    made = w.emit("QuantizeLinear", [real, w.one(), w.zero_point(x.zero - int(x.zero * ratio))])
    made.name = f"{made.name}{OFFSET if x.zero else PLAIN if x.is_limited else ''}"
    return replace(x, value=made)


def _sum(
    w: _ByteWriter, operands: Sequence[_Carrier], ratios: Sequence[float], *, is_relu: bool
) -> _Carrier | ir.Value:
    """The sum of two carriers; each is multiplied by its ratio, and lifted where that rounds."""
    zero_point, parts = 0 if is_relu else MIDDLE, []
    for operand, ratio in zip(operands, ratios, strict=True):
        zero, is_lifted = operand.zero, min(ratios) < 1 and (is_relu or ratio < 1)
        if ratio < 1 and not is_relu:
            zero_point -= int(zero * ratio)
            zero = 0
        scale = w.initializer(ratio * (1.0 + _SUM_LIFT if is_lifted else 1.0), np.float32, "scale")
        parts.append(w.emit("DequantizeLinear", [operand.value, scale, w.zero_point(zero)]))
    total = w.emit("QuantizeLinear", [w.emit("Add", parts), w.one(), w.zero_point(zero_point)])
    return w.finish(total, 0 if is_relu else MIDDLE, is_limited=not is_relu)


def clip(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """Clip of the carrier between what stands for the thresholds; a ReLU's are 0 and the largest number."""
    (low, high), x = _limits(w.node), w.carrier_of(w.input(0))
    if low is None or high is None or x is None or high < max(low, -x.zero):
        return None
    has_low, has_high = low > -x.zero, high + x.zero < x.highest
    ends: list[ir.Value | None] = [w.initializer(low + x.zero, np.uint8, "limit") if has_low else None]
    if has_high:
        ends.append(w.initializer(high + x.zero, np.uint8, "limit"))
    is_idle = not has_low and not has_high
    return w.finish(w.emit("Identity", [x.value]) if is_idle else w.emit("Clip", [x.value, *ends]), x.zero)


def max_pool(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """MaxPool of the carrier; not where a window may lie in the padding, whose result is the lowest number of the type."""
    x, a = w.carrier_of(w.input(0)), w.attributes
    has_empty_windows = any(a["pads"]) and (bool(a["ceil_mode"]) or max(a["dilations"]) > 1)
    if x is None or (x.zero == 0 and has_empty_windows):
        return None
    return w.finish(w.emit("MaxPool", [x.value], **a), x.zero)


def cat(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """Concat of carriers, where nothing changes its scale, and nothing is too large or too small for the result."""
    a, count = w.attributes, len(w.node.inputs)
    carriers = [x for x in (w.carrier_of(w.input(i)) for i in range(count)) if w.holds(x)]
    zeros = {x.zero for x in carriers}
    if len(carriers) < count or len(zeros) > 1 or any(a[f"scale_x_{i}"] != a["scale_o"] for i in range(count)):
        return None
    return w.finish(w.emit("Concat", [x.value for x in carriers], axis=a["dim"]), zeros.pop())


def average_pool(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """QLinearConv of ones, each channel on its own; not where channels are not known."""
    x, a, sizes = w.carrier_of(w.input(0)), w.attributes, w.input(0).shape
    count, shape = 0 if sizes is None else sizes[1], a["kernel_shape"]
    if x is None or not isinstance(count, int) or count < 1:
        return None
    data, ends = (-x.zero, x.highest - x.zero), (0, _BYTE_END) if w.is_unsigned else (-MIDDLE, LARGEST)
    for zero, zero_point in ((0, 0), (MIDDLE, 0), (MIDDLE, MIDDLE))[: 1 if w.is_unsigned else None]:
        mean = exact_mean(shape, a["scale_o"] / a["scale_x"], data, ends, zero=zero, zero_point=zero_point)
        if mean is not None:
            ones = w.initializer(np.ones((count, 1, *shape)), np.int8, "weight")
            weight = [ones, w.initializer(mean[0], np.float32, "scale"), w.zero_point(0, np.int8)]
            result = [w.one(), w.zero_point(zero_point), w.initializer([mean[1]] * count, np.int32, "bias")]
            geometry = {name: a[name] for name in ("kernel_shape", "pads", "strides")}
            inputs = [x.value, w.one(), w.zero_point(x.zero), *weight, *result]
            return w.finish(w.emit("QLinearConv", inputs, dilations=[1] * len(shape), group=count, **geometry), zero)
    return None


def quant(w: _ByteWriter) -> _Carrier | ir.Value | None:
    """The product and the sum in float32, rounded; QuantizeLinear saturates it, and makes it a carrier for those that read one."""
    if not any(is_dialect(reader) and byte_form(reader) for reader in w.node.outputs[0].consumers()):
        return None
    real, zero = w.initializer(w.attributes["scale_x"], np.float32, "factor"), 0 if w.is_unsigned else MIDDLE
    total = w.emit("Add", [w.emit("Mul", [w.input(0), real]), w.initializer(0.5, np.float32, "half")])
    return w.finish(w.emit("QuantizeLinear", [w.emit("Floor", [total]), w.one(), w.zero_point(zero)]), zero)


def dequant(w: _ByteWriter) -> ir.Value | None:
    """DequantizeLinear of the carrier."""
    x = w.carrier_of(w.input(0))
    if x is None:
        return None
    step = w.initializer(1.0 / w.attributes["scale_o"], np.float32, "scale")
    return w.emit("DequantizeLinear", [x.value, step, w.zero_point(x.zero)])


FORMS: Mapping[str, Form] = {
    "Conv": convolution,
    "Gemm": linear,
    "Add": add,
    "Relu": clip,
    "Clip": clip,
    "MaxPool": max_pool,
    "Concat": cat,
    "AveragePool": average_pool,
    "QuantizeLinear": quant,
    "DequantizeLinear": dequant,
    "Mul": row_forms.scaled,
    **row_forms.ROW_FORMS,
}
"""By the standard op that computes a dialect op on real numbers (`float_op`); by its own name where there is none."""


def byte_form(node: ir.Node) -> tuple[Form, dict[str, Any]] | None:
    """The form of a dialect node and its attributes; None for an op without one, other widths and other scales."""
    op = op_of(node)
    attributes = attributes_of(node, op)
    if op.is_pointwise:
        types = {getattr(value, "dtype", None) for value in node.inputs[:1]}
        is_narrow = attributes.get("o_bits", _BYTE_BITS) <= _WORD_BITS and types <= _NARROW
        return (row_forms.lookup, attributes) if is_narrow else None
    form = FORMS.get(op.float_op or op.name)
    return (form, attributes) if form and op.platform is None and _is_of_bytes(node, op, attributes) else None


def _is_of_bytes(node: ir.Node, op: Op, attributes: Mapping[str, Any]) -> bool:
    """Whether a node has 8 bits, but in the weight of a normalization and in real numbers that it reads, and scales of powers of two."""
    scales = (value for name, value in attributes.items() if name.startswith("scale_"))
    names = ("o_bits", "data_bits", "parameter_bits")[: 3 - op.normalizes]
    widths = [attributes.get(name, _BYTE_BITS) for name in names]
    types = {getattr(value, "dtype", None) for value in node.inputs[: None if op.is_variadic else 2 - op.normalizes]}
    has_bytes = types == {FLOAT} if op.real_inputs else types <= {ir.DataType.UINT8, ir.DataType.INT8}
    return widths[0] == max(widths) == _BYTE_BITS and has_bytes and all(map(is_power_of_two, scales))


_NARROW = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16})

OLDEST_OPSET = 12
"""Clip and MaxPool take bytes from here on."""

_MOVES = frozenset(
    {"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather", "Identity", "Concat"}
)
"""Standard ops that move bytes as they are, and whose first input is their data; of Concat all are."""


def write_byte_layers(model: ir.Model, *, is_saturating: bool = True, is_normal: bool = False) -> list[str]:
    """Replace dialect nodes of 8 bits by integer kernels and name them; `expand_dialect` or `attach_functions` then do the rest.

    Leaves: the model in its normal form, and no more than that below opset 12.

    Args:
        model: Edited in place.
        is_saturating: Whether the file must be exact on CPUs whose kernels saturate when they multiply unsigned by signed bytes.
        is_normal: Whether the model is in normal form already.
    """
    if not is_normal:
        bring_to_normal_form(model)
    layers = _Layers(model, is_saturating)
    if opset_of(model) >= OLDEST_OPSET:
        layers.write()
    return layers.written


@dataclass
class _Layers:
    """The carriers of a model's tensors, and the nodes that have become others."""

    model: ir.Model
    is_saturating: bool
    written: list[str] = field(default_factory=list)
    carriers: dict[ir.Value, _Carrier] = field(default_factory=dict)
    replaced: list[ir.Node] = field(default_factory=list)
    read: set[ir.Value | None] = field(default_factory=set)
    """What nodes that have become others read."""

    def __post_init__(self) -> None:
        self.names = tensor_names(self.model)
        windows = (node.attributes.get("ceil_mode") for node in all_nodes(self.model))
        self.has_sure_shapes = not any(mode is not None and mode.value for mode in windows)

    def write(self) -> None:
        if self.has_sure_shapes:
            state_shapes(self.model, [node.inputs[0] for node in self.model.graph if self._needs_shape(node)])
        for node in list(self.model.graph):
            if not self._is_free(node):
                continue
            if is_dialect(node):
                self._write(node)
            elif node.domain == "" and node.op_type in _MOVES:
                self._move(node)
        self._restore()

    def _needs_shape(self, node: ir.Node) -> bool:
        """Whether a node has a form that depends on the shape of its first input."""
        form = byte_form(node) if is_dialect(node) else None
        tables = () if opset_of(self.model) >= row_forms.ZERO_OPSET else (row_forms.lookup, row_forms.scaled)
        return form is not None and form[0] in (*row_forms.ROW_FORMS.values(), *tables)

    def _is_free(self, node: ir.Node) -> bool:
        """Whether no other tensor has the name of a carrier of the node's results."""
        ends = (OFFSET, PLAIN, POSITIVE)
        return not any(f"{value.name}{end}" in self.names for value in node.outputs for end in ends)

    def _write(self, node: ir.Node) -> None:
        form = byte_form(node)
        if form is None:
            return
        writer = _ByteWriter(
            node,
            form[1],
            carrier_of=self._carrier_of,
            carry=self._carry,
            is_free=self._is_free,
            has_sure_shapes=self.has_sure_shapes,
            opset=opset_of(self.model),
            is_saturating=self.is_saturating,
            names=self.names,
        )
        result, output = form[0](writer), node.outputs[0]
        if result is None:
            return
        writer.put(self.model)
        self.written.append(describe(node))
        if isinstance(result, _Carrier):
            self.carriers[output] = result
            self.replaced.append(node)
        else:
            self.read.update(node.inputs)
            _stand_in(output, result)
            self.model.graph.remove(node, safe=True)

    def _carrier_of(self, value: ir.Value) -> _Carrier | None:
        """The carrier of a tensor, which of an unsigned one is itself; None where it has none."""
        if value.dtype == ir.DataType.UINT8:
            return _Carrier(value, 0, is_limited=False)
        return self.carriers.get(value)

    def _move(self, node: ir.Node) -> None:
        """Let a node that moves elements move the carriers instead."""
        count = len(node.inputs[: None if node.op_type == "Concat" else 1])
        carriers = [self.carriers[value] for value in filter(self.carriers.__contains__, node.inputs[:count]) if value]
        zeros = {carrier.zero for carrier in carriers}
        if (len(zeros), len(carriers)) != (1, count):
            return
        end, kind, zero = OFFSET if zeros != {0} else PLAIN, ir.TensorType(ir.DataType.UINT8), zeros.pop()
        moved = [ir.Value(name=f"{output.name}{end}", type=kind, shape=output.shape) for output in node.outputs]
        inputs = [*(carrier.value for carrier in carriers), *node.inputs[count:]]
        copy = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=moved, name=node.name)
        self.model.graph.insert_before(node, copy)
        self.carriers.update(zip(node.outputs, (_Carrier(value, zero) for value in moved), strict=True))
        self.replaced.append(node)

    def _carry(self, value: ir.Value) -> _Carrier | None:
        """The carrier of a tensor; one that has none is moved by 128, behind the node that makes it.

        Cast, not DequantizeLinear, stands before the QuantizeLinear: runtimes merge the other two.
        """
        known = self._carrier_of(value)
        if known is not None:
            return known
        name = f"{value.name}{OFFSET}"
        if name in self.names:
            return None
        self.names.claim(name)
        constant = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
        if constant is None:
            moved = self._moved(value, name)
        else:
            moved = constant_value(name, (constant.numpy().astype(np.int16) + MIDDLE).astype(np.uint8))
            self.model.graph.register_initializer(moved)
        self.carriers[value] = _Carrier(moved, MIDDLE)
        return self.carriers[value]

    def _moved(self, value: ir.Value, name: str) -> ir.Value:
        maker, graph = value.producer(), self.model.graph
        writer = FormWriter(ir.node("Identity", [value]), {}, names=self.names)
        writer.node.outputs[0].name = name
        real = writer.emit("Cast", [value], to=int(ir.DataType.FLOAT))
        offset = [writer.initializer(1.0, np.float32, "scale"), writer.initializer(MIDDLE, np.uint8, "zero_point")]
        result = writer.emit("QuantizeLinear", [real, *offset])
        result.name, result.type, result.shape = name, ir.TensorType(ir.DataType.UINT8), value.shape
        writer.node.replace_input_with(0, None)
        for initializer in writer.initializers:
            graph.register_initializer(initializer)
        if maker is None:
            graph.insert_before(graph[0], writer.nodes)
        else:
            graph.insert_after(maker, writer.nodes)
        return result

    def _restore(self) -> None:
        """Make signed bytes of what other nodes, sub-graphs and outputs read, and remove what was replaced."""
        replaced = set(self.replaced)
        for node in self.replaced:
            for output in node.outputs:
                if output.is_graph_output() or not replaced.issuperset(output.consumers()):
                    self._make_signed(node, output, self.carriers[output])
        read = self.read.union(*(node.inputs for node in self.replaced))
        for node in reversed(self.replaced):
            self.model.graph.remove(node, safe=True)
        for value in filter(None, read):
            if value.is_initializer() and not is_used(value):
                self.model.graph.initializers.pop(str(value.name), None)

    def _make_signed(self, node: ir.Node, output: ir.Value, carrier: _Carrier) -> None:
        assert carrier.is_limited  # else the one reader, a ReLU, was written too
        writer = FormWriter(node, {}, names=self.names)
        zero = [writer.initializer(1.0, np.float32, "scale"), writer.initializer(carrier.zero, np.uint8, "zero_point")]
        signed = writer.emit(
            "Cast", [writer.emit("DequantizeLinear", [carrier.value, *zero])], to=int(ir.DataType.INT8)
        )
        writer.put(self.model)
        _stand_in(output, signed)


def _stand_in(output: ir.Value, new: ir.Value) -> None:
    """Let another tensor stand for the result of a node, under its name."""
    new.type, new.shape = output.type, output.shape
    new.name, output.name = output.name, f"{output.name}/replaced"
    output.replace_all_uses_with(new, replace_graph_outputs=True)
