# SPDX-License-Identifier: Apache-2.0
"""Write the 8-bit layers of a model with ONNX's own integer kernels, exactly, and its curves as tables.

`byte_forms` says how each op is written and why that is exact. Tensors between such layers are unsigned bytes; where another
node reads one, it is made signed again under its own name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

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
from linger.graph.lowering.bodies import FormWriter, bring_to_normal_form, constant_value
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
class _Carrier:
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

    def finish(self, value: ir.Value, zero: int, *, is_limited: bool = True) -> _Carrier:
        """Name the result after the tensor that it stands for."""
        end = POSITIVE if not is_limited else PLAIN if zero == 0 else OFFSET
        value.name = f"{self.node.outputs[0].name}{end}"
        value.type = ir.TensorType(ir.DataType.UINT8)
        value.shape = self.node.outputs[0].shape
        return _Carrier(value, zero, is_limited)

    @property
    def meets_relu(self) -> bool:
        """Whether all that reads the result is a ReLU, or a Clip that begins at 0, and is written with carriers too."""
        output = self.node.outputs[0]
        reader = next(iter(output.consumers()), None)
        if reader is None or len(output.consumers()) > 1 or output.is_graph_output():
            return False
        if not is_dialect(reader) or reader.graph is not self.node.graph or reader.inputs[0] is not output:
            return False
        low, high = _limits(reader)
        is_relu = low == 0 and high is not None and high >= 0
        return is_relu and self.is_free(reader) and byte_form(reader) is not None


Form = Callable[[_ByteWriter], "_Carrier | ir.Value | None"]
"""Writes the nodes. The result is a carrier, or a tensor of the node's own type, or None where the op has no such form here."""


def _limits(node: ir.Node) -> tuple[int | None, int | None]:
    """The thresholds of a Clip, where they are known, or of a ReLU; (None, None) for any other node."""
    if op_of(node).float_op != "Clip":
        return (0, LARGEST) if op_of(node).float_op == "Relu" else (None, None)
    known = FormWriter(node, {})
    low, high = (None if end is None or end.size != 1 else int(end.item()) for end in (known.known(1), known.known(2)))
    return low, high


def _shift(attributes: Mapping[str, Any]) -> int:
    return math.frexp(attributes["scale_x"] * attributes["scale_w"] / attributes["scale_o"])[1] - 1


@dataclass(frozen=True)
class _Product:
    """How a sum of products becomes a carrier: what is added, by what it is multiplied, what stands for 0."""

    data: _Carrier
    weight: NDArray[Any]
    weight_zero: int
    bias: NDArray[Any]
    scale: float
    zero_point: int
    is_relu: bool

    def finish(self, w: _ByteWriter, value: ir.Value) -> _Carrier:
        return w.finish(value, 0 if self.is_relu else MIDDLE, is_limited=not self.is_relu)


def _plan(w: _ByteWriter) -> _Product | None:
    """How a product is written; None where its weights are not known, its shift is too long or its sum too large."""
    weight, bias, shift = w.known(1), w.known(2), _shift(w.attributes)
    if weight is None or bias is None or not -_LARGEST_LEFT_SHIFT <= shift <= _LARGEST_SHIFT:
        return None
    is_relu, data = w.meets_relu, w.carry(w.input(0))
    if data is None:
        return None
    has_offset = shift > 0 and not is_relu
    total = bias.astype(np.int64) + has_offset * (MIDDLE << max(shift, 0))
    magnitudes = np.abs(weight.astype(np.int64))
    reach = by_output(magnitudes, None).sum(axis=1) * 2 ** (w.attributes["data_bits"] - 1)
    if (reach + np.abs(total)).max(initial=0) >= _INT32_END:
        return None
    is_signed = not w.is_saturating or data.zero == 0 or magnitudes.max(initial=0) <= SAFE_WEIGHT
    weight_zero = 0 if is_signed else MIDDLE
    stored = (weight.astype(np.int16) + weight_zero).astype(np.int8 if is_signed else np.uint8)
    zero_point, scale = {True: 0, False: MIDDLE}[is_relu or shift > 0], 2.0**-shift * (1.0 + (shift > 0) * _LIFT)
    return _Product(data, stored, weight_zero, total.astype(np.int32), scale, zero_point, is_relu)


def convolution(w: _ByteWriter) -> _Carrier | None:
    """QLinearConv over one or two axes."""
    plan = _plan(w)
    if plan is None:
        return None
    dtype = plan.weight.dtype.type
    weight = [w.initializer(plan.weight, dtype, "weight"), w.initializer(plan.scale, np.float32, "scale")]
    weight.append(w.zero_point(plan.weight_zero, dtype))
    data = [plan.data.value, w.one(), w.zero_point(plan.data.zero)]
    result = [w.one(), w.zero_point(plan.zero_point), w.initializer(plan.bias, np.int32, "bias")]
    geometry = {name: w.attributes[name] for name in ("dilations", "group", "kernel_shape", "pads", "strides")}
    return plan.finish(w, w.emit("QLinearConv", [*data, *weight, *result], **geometry))


def linear(w: _ByteWriter) -> _Carrier | None:
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


def add(w: _ByteWriter) -> _Carrier | None:
    """DequantizeLinear of both, Add, QuantizeLinear."""
    ratios = [w.attributes["scale_o"] / w.attributes[name] for name in ("scale_x", "scale_y")]
    has_rounding, is_relu = min(ratios) < 1, w.meets_relu
    is_exact = max(ratios) == 1 and min(ratios) >= _SMALLEST_RATIO if has_rounding else max(ratios) <= _LARGEST_RATIO
    if not is_exact or (w.carrier_of(w.input(0)) is None and w.carrier_of(w.input(1)) is None):
        return None
    operands = [operand for operand in (w.carry(w.input(0)), w.carry(w.input(1))) if operand is not None]
    return _sum(w, operands, ratios, is_relu=is_relu) if len(operands) == 2 else None


def _sum(w: _ByteWriter, operands: Sequence[_Carrier], ratios: Sequence[float], *, is_relu: bool) -> _Carrier:
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


def relu(w: _ByteWriter) -> _Carrier | None:
    """Clip of the carrier at what stands for 0; behind a product that has done so already, at 127."""
    return _clipped(w, 0, LARGEST)


def clip(w: _ByteWriter) -> _Carrier | None:
    """Clip of the carrier between what stands for the thresholds."""
    low, high = _limits(w.node)
    return None if low is None or high is None else _clipped(w, low, high)


def _clipped(w: _ByteWriter, low: int, high: int) -> _Carrier | None:
    x = w.carrier_of(w.input(0))
    if x is None or high < low or (x.zero == 0 and high < 0):
        return None
    has_low, has_high = low > -x.zero, high != LARGEST or not x.is_limited
    ends: list[ir.Value | None] = [w.initializer(low + x.zero, np.uint8, "limit") if has_low else None]
    if has_high:
        ends.append(w.initializer(high + x.zero, np.uint8, "limit"))
    is_idle = not has_low and not has_high
    return w.finish(w.emit("Identity", [x.value]) if is_idle else w.emit("Clip", [x.value, *ends]), x.zero)


def max_pool(w: _ByteWriter) -> _Carrier | None:
    """MaxPool of the carrier; not where a window may lie in the padding, whose result is the lowest number of the type."""
    x, a = w.carrier_of(w.input(0)), w.attributes
    has_empty_windows = any(a["pads"]) and (bool(a["ceil_mode"]) or max(a["dilations"]) > 1)
    if x is None or (x.zero == 0 and has_empty_windows):
        return None
    return w.finish(w.emit("MaxPool", [x.value], **a), x.zero)


def cat(w: _ByteWriter) -> _Carrier | None:
    """Concat of carriers, where nothing changes its scale."""
    a, count = w.attributes, len(w.node.inputs)
    carriers = [x for x in (w.carrier_of(w.input(i)) for i in range(count)) if x is not None]
    zeros = {x.zero for x in carriers}
    if len(carriers) < count or len(zeros) > 1 or any(a[f"scale_x_{i}"] != a["scale_o"] for i in range(count)):
        return None
    return w.finish(w.emit("Concat", [x.value for x in carriers], axis=a["dim"]), zeros.pop())


def average_pool(w: _ByteWriter) -> ir.Value | None:
    """The op's own body on real numbers that DequantizeLinear gives."""
    x = w.carrier_of(w.input(0))
    if x is None:
        return None
    real = w.emit("DequantizeLinear", [x.value, w.one(), w.zero_point(x.zero)])
    kernel = OnnxKernel(opset=w.opset, element_bits=_BYTE_BITS, prefix=f"{w.node.outputs[0].name}/")
    made = kernel.materialize(op_of(w.node).body(kernel, OnnxValue(FLOAT, real), **w.attributes))
    w.nodes += kernel.nodes
    return made


def dequant(w: _ByteWriter) -> ir.Value | None:
    """DequantizeLinear of the carrier."""
    x = w.carrier_of(w.input(0))
    if x is None:
        return None
    step = w.initializer(1.0 / w.attributes["scale_o"], np.float32, "scale")
    return w.emit("DequantizeLinear", [x.value, step, w.zero_point(x.zero)])


def lookup(w: _ByteWriter) -> _Carrier | ir.Value | None:
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


def _entries(w: _ByteWriter, x: ir.Value, table: NDArray[Any], offset: int) -> ir.Value:
    """The entries of a table at x + offset, by GatherElements on a vector: Gather copies every element on its own.

    It is Gather where a shape could not be brought back: in models with pools of `ceil_mode`, for which runtimes infer other
    sizes than they compute, and before opset 14, if a size other than the first may be 0.
    """
    entries = w.initializer(table, table.dtype.type, "table")
    sizes = [0, 0] if x.shape is None else [size if isinstance(size, int) else 0 for size in x.shape]
    can_reshape = w.has_sure_shapes and (w.opset >= _ZERO_OPSET or all(sizes[1:]))
    flat = w.emit("Reshape", [x, w.initializer([-1], np.int64, "flat")]) if can_reshape else x
    index = w.emit("Cast", [flat], to=int(INT32))
    if offset:
        index = w.emit("Add", [index, w.initializer(offset, np.int32, "first")])
    if not can_reshape:
        return w.emit("Gather", [entries, index], axis=0)
    keeps_zeros = {"allowzero": 1} if w.opset >= _ZERO_OPSET else {}
    return w.emit("Reshape", [w.emit("GatherElements", [entries, index], axis=0), w.emit("Shape", [x])], **keeps_zeros)


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
        types = {getattr(value, "dtype", None) for value in node.inputs[:1]}
        is_narrow = attributes.get("o_bits", _BYTE_BITS) <= _WORD_BITS and types <= _NARROW
        return (lookup, attributes) if is_narrow else None
    form = FORMS.get(op.float_op or "")
    is_written = form is not None and op.platform is None and _is_of_bytes(node, attributes, is_variadic=op.is_variadic)
    return (form, attributes) if is_written and form is not None else None


def _is_of_bytes(node: ir.Node, attributes: Mapping[str, Any], *, is_variadic: bool) -> bool:
    """Whether a node has 8 bits everywhere, and scales that are powers of two."""
    scales = (value for name, value in attributes.items() if name.startswith("scale_"))
    widths = [attributes.get(name, _BYTE_BITS) for name in ("o_bits", "data_bits", "parameter_bits")]
    data = node.inputs if is_variadic else node.inputs[:2]
    has_bytes = all(value is not None and value.dtype == ir.DataType.INT8 for value in data)
    return widths[0] == max(widths) == _BYTE_BITS and has_bytes and all(map(is_power_of_two, scales))


_NARROW = frozenset({ir.DataType.INT8, ir.DataType.INT16})


OLDEST_OPSET = 12
"""Clip and MaxPool take bytes from here on."""

_MOVES = frozenset({"Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Gather", "Identity", "Concat"})
"""Standard ops that move bytes as they are, and whose first input is their data; of Concat all are."""


def write_byte_layers(model: ir.Model, *, is_saturating: bool = True, is_normal: bool = False) -> list[str]:
    """Replace dialect nodes of 8 bits by integer kernels; run `expand_dialect` or `attach_functions` afterwards for the rest.

    Leaves: the model in its normal form, and no more than that below opset 12.

    Args:
        model: Edited in place.
        is_saturating: Whether the file must be exact on CPUs whose kernels saturate when they multiply unsigned by signed bytes.
        is_normal: Whether the model is in normal form already.

    Returns:
        The dialect nodes that were replaced.
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

    def __post_init__(self) -> None:
        self.names = tensor_names(self.model)
        windows = (node.attributes.get("ceil_mode") for node in all_nodes(self.model))
        self.has_sure_shapes = not any(mode is not None and mode.value for mode in windows)

    def write(self) -> None:
        for node in list(self.model.graph):
            if not self._is_free(node):
                continue
            if is_dialect(node):
                self._write(node)
            elif node.domain == "" and node.op_type in _MOVES:
                self._move(node)
        self._restore()

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
            carrier_of=self.carriers.get,
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
            _stand_in(output, result)
            self.model.graph.remove(node, safe=True)

    def _move(self, node: ir.Node) -> None:
        """Let a node that moves elements move the carriers instead."""
        count, output = len(node.inputs) if node.op_type == "Concat" else 1, node.outputs[0]
        carriers = [
            self.carriers[value] for value in node.inputs[:count] if value is not None and value in self.carriers
        ]
        zeros = {carrier.zero for carrier in carriers}
        if len(carriers) < min(count, len(node.inputs)) or len(zeros) != 1:
            return
        name, kind = f"{output.name}{OFFSET if zeros != {0} else PLAIN}", ir.TensorType(ir.DataType.UINT8)
        moved = ir.Value(name=name, type=kind, shape=output.shape)
        inputs = [*(carrier.value for carrier in carriers), *node.inputs[count:]]
        copy = ir.Node("", node.op_type, inputs, node.attributes.values(), outputs=[moved], name=node.name)
        self.model.graph.insert_before(node, copy)
        self.carriers[output] = _Carrier(moved, zeros.pop())
        self.replaced.append(node)

    def _carry(self, value: ir.Value) -> _Carrier | None:
        """The carrier of a tensor; one that has none is moved by 128, behind the node that makes it.

        Cast, not DequantizeLinear, stands before the QuantizeLinear: runtimes merge the other two.
        """
        if value in self.carriers:
            return self.carriers[value]
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
        real = ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}, name=self.names.choose(f"{value.name}/real"))
        real.outputs[0].name = real.name
        writer = FormWriter(real, {}, names=self.names)
        scale = writer.initializer(1.0, np.float32, "scale")
        zero = writer.initializer(MIDDLE, np.uint8, "zero_point")
        moved = ir.node("QuantizeLinear", [real.outputs[0], scale, zero], name=name)
        result = moved.outputs[0]
        result.name, result.type, result.shape = name, ir.TensorType(ir.DataType.UINT8), value.shape
        for initializer in writer.initializers:
            graph.register_initializer(initializer)
        if maker is None:
            graph.insert_before(graph[0], [real, moved])
        else:
            graph.insert_after(maker, [real, moved])
        return result

    def _restore(self) -> None:
        """Make signed bytes of what other nodes, sub-graphs and outputs read, and remove what was replaced."""
        replaced = set(self.replaced)
        for node in self.replaced:
            for output in node.outputs:
                if output.is_graph_output() or not replaced.issuperset(output.consumers()):
                    self._make_signed(node, output, self.carriers[output])
        read = set(chain.from_iterable(node.inputs for node in self.replaced))
        for node in reversed(self.replaced):
            self.model.graph.remove(node, safe=True)
        for value in filter(None, read):
            if value.is_initializer() and not is_used(value):
                self.model.graph.initializers.pop(str(value.name), None)

    def _make_signed(self, node: ir.Node, output: ir.Value, carrier: _Carrier) -> None:
        assert carrier.is_limited  # else the one reader, a ReLU, was written too
        writer = FormWriter(node, {}, names=self.names)
        scale = writer.initializer(1.0, np.float32, "signed_scale")
        zero = writer.initializer(carrier.zero, np.uint8, "signed_zero_point")
        real = writer.emit("DequantizeLinear", [carrier.value, scale, zero])
        signed = writer.emit("Cast", [real], to=int(ir.DataType.INT8))
        writer.put(self.model)
        _stand_in(output, signed)


def _stand_in(output: ir.Value, new: ir.Value) -> None:
    """Let another tensor stand for the result of a node, under its name."""
    new.type, new.shape = output.type, output.shape
    new.name, output.name = output.name, f"{output.name}/replaced"
    output.replace_all_uses_with(new, replace_graph_outputs=True)
