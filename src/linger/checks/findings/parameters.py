# SPDX-License-Identifier: Apache-2.0
"""Weights and biases: their types and ranges, and the sums that they can make; the scales that each node states."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.structure import CheckedModel, NodePlace
from linger.dialect import Op, find_op, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.dialects import NEWER_OPS, is_newer, is_quantizing, makes_unsigned, stated_formats
from linger.graph.core.nodes import NOTE, Finding, is_dialect, op_of
from linger.graph.core.tensor_types import INTEGERS, constant_tensor, integer_bits
from linger.numeric.fixed import is_power_of_two, limits
from linger.numeric.onnx.writer import integer_type

_LARGEST = limits(32)[1]
_EXACT_IN_FLOAT = 1 << 24
_NARROW = 8
_BYTES = (0, 255)
"""Up to this width the scale of a tensor is that of its range; a wider one may be coarser, and need not use its range."""


@dataclass(frozen=True)
class _Accumulator:
    """Weights, bias and widths of a layer that adds products.

    Attributes:
        bias: One number per channel.
        bias_name: The bias's tensor; empty where there is none.
        data_bits: Width of what the weights are multiplied with.
        ratio: scale_o/(scale_x·scale_w), what an accumulator is multiplied with at the end, or one for each channel; None where
            not known.
        is_gate: The sum is not the layer's output, but goes through a gate first.
        is_unsigned: Whether the data, and whether the outputs, are unsigned bytes.
    """

    sums: _WeightSums
    bias: NDArray[np.int64]
    bias_name: str
    data_bits: int
    output_bits: int
    ratio: NDArray[np.float64] | float | None
    is_gate: bool = False
    is_unsigned: tuple[bool, bool] = (False, False)

    @property
    def reach(self) -> int:
        """The largest magnitude of the data."""
        return _BYTES[1] if self.is_unsigned[0] else 1 << (self.data_bits - 1)

    def bounds(self) -> list[int]:
        """For each channel max Σ|w|·reach + |b|, in integers of any size."""
        largest = (self.sums.positive + self.sums.negative).max(axis=1, initial=0)
        return [int(total) * self.reach + abs(int(b)) for total, b in zip(largest, self.bias, strict=True)]

    def ends(self) -> tuple[list[int], list[int]]:
        """The smallest and the largest accumulator of each channel that some input gives."""
        low, high = _BYTES if self.is_unsigned[0] else limits(self.data_bits)
        positive, negative, bias = (
            each.astype(object) for each in (self.sums.positive, self.sums.negative, self.bias)
        )  # as Python's integers, which do not overflow
        smallest = bias + (positive * low - negative * high).min(axis=1)
        largest = bias + (positive * high - negative * low).max(axis=1)
        return smallest.tolist(), largest.tolist()


def accumulator_findings(place: NodePlace, layer: _Accumulator) -> Iterator[Finding]:
    """Overflow of 32 bits, sums that float32 cannot hold, biases at the end, outputs that cannot move or hardly do."""
    if not len(layer.bias):
        return
    bounds = layer.bounds()
    channel = max(range(len(bounds)), key=bounds.__getitem__)
    bound, over = bounds[channel], sum(b > _LARGEST for b in bounds)
    what = f"the bound Σ|w|·{layer.reach} + |b| of channel {channel} is {bound}"
    if over:
        more = f" ({over} channels are above it)" if over > 1 else ""
        reason = f"{what}; a 32-bit accumulator ends at {_LARGEST}{more}"
        remedy = "Use narrower data or weights, or split the layer."
        yield place.finding(rules.ACCUMULATOR_OVERFLOW, reason, remedy)
    elif bound >= _EXACT_IN_FLOAT:
        reason = f"{what}; float32 holds every integer up to {_EXACT_IN_FLOAT} only"
        remedy = "Nothing to do for linger or a device; do not judge the file with a simulator in float32."
        yield place.finding(rules.INEXACT_FLOAT, reason, remedy)
    at_end = np.flatnonzero(np.isin(layer.bias, limits(32)))
    if at_end.size:
        reason = f"{layer.bias_name!r} is {int(layer.bias[at_end[0]])} at channel {int(at_end[0])}, the end of int32"
        remedy = "Lower scale_x or scale_w of this layer."
        yield place.finding(rules.CLIPPED_BIAS, reason, remedy, tensor=layer.bias_name)
    if layer.ratio is not None and not layer.is_gate:
        yield from _output_findings(place, layer, layer.ratio)


def _output_findings(place: NodePlace, layer: _Accumulator, ratio: NDArray[np.float64] | float) -> Iterator[Finding]:
    """Channels that stay at one end of the output's range, and outputs that no input brings far."""
    low, high = _BYTES if layer.is_unsigned[1] else limits(layer.output_bits)
    smallest, largest = (np.floor(np.array(ends, float) * ratio + 0.5) for ends in layer.ends())
    stuck = np.flatnonzero((smallest > high) | (largest < low))
    if stuck.size:
        first, last = int(smallest[stuck[0]]), int(largest[stuck[0]])
        count = f" ({len(stuck)} channels are so)" if len(stuck) > 1 else ""
        end = f"channel {stuck[0]} is {high if first > high else low} for every input"
        reason = f"{end}: it could only reach {first} to {last}{count}"
        yield place.finding(rules.ALWAYS_SATURATED, reason, "Lower scale_o, or look at the bias of this channel.")
    reached = int((np.abs([smallest, largest]) if low else np.maximum(largest, 0)).max())
    if layer.output_bits <= _NARROW and np.max(ratio) < 1 and reached < (high + 1) // 2:
        reason = f"no input brings the output beyond {'±' * (low < 0)}{reached} of {high}"
        remedy = f"scale_o could be {2 ** int(math.log2((high + 1) / max(reached, 1)))} times as large."
        yield place.finding(rules.UNUSED_RANGE, reason, remedy)


BLOCK = 1 << 20
"""How many numbers of a tensor are read at a time."""


class _WeightSums:
    """Sums over the weights of each output channel.

    Attributes:
        positive: Σ of the positive weights. Where the taps of a channel take turns (transposed convolutions), there is
            one row for each turn: the shape is [channels, turns].
        negative: Σ of the negative ones, without their sign.
        low: The smallest weight, at most 0.
        high: The largest weight, at least 0.
    """

    def __init__(self, channels: int, turns: int = 1) -> None:
        self.positive = np.zeros((channels, turns), np.int64)
        self.negative = np.zeros((channels, turns), np.int64)
        self.low, self.high = 0, 0

    def add(self, channel: NDArray[np.int64], turn: int, block: NDArray[Any]) -> None:
        """Add rows of weights, each to its channel."""
        np.add.at(self.positive[:, turn], channel, np.maximum(block, 0).sum(axis=1, dtype=np.int64))
        np.subtract.at(self.negative[:, turn], channel, np.minimum(block, 0).sum(axis=1, dtype=np.int64))
        self.low, self.high = min(self.low, int(block.min(initial=0))), max(self.high, int(block.max(initial=0)))


def row_sums(tensor: ir.TensorProtocol, channels: int) -> _WeightSums:
    """The sums of weights of the shape [channels, …]."""
    row = max(math.prod(tensor.shape.numpy()) // max(channels, 1), 1)
    sums = _WeightSums(channels)
    for start, block in blocks(tensor, row):
        sums.add(start + np.arange(len(block)), 0, block)
    return sums


def transposed_sums(
    tensor: ir.TensorProtocol, *, group: int, strides: Sequence[int], dilations: Sequence[int]
) -> _WeightSums:
    """The sums of weights of the shape [in, out/group, taps …].

    The taps take turns with the stride: an output pixel is the sum over the taps of one turn only.
    """
    inputs, outputs, *window = tensor.shape.numpy()
    turns = np.zeros(1, np.int64)  # the number of the turn that every tap belongs to
    for size, stride, dilation in zip(window, strides, dilations, strict=True):
        turns = (turns[:, None] * stride + np.arange(size) * dilation % stride).reshape(-1)
    count, taps = int(turns.max(initial=0)) + 1, math.prod(window)
    sums = _WeightSums(outputs * group, count)
    for start, block in blocks(tensor, taps, max(BLOCK, taps)):
        pair = start + np.arange(len(block))
        channel = pair // outputs // (inputs // group) * outputs + pair % outputs
        for turn in range(count):
            sums.add(channel, turn, block[:, turns == turn])
    return sums


def blocks(tensor: ir.TensorProtocol, row: int, block: int = BLOCK) -> Iterator[tuple[int, NDArray[Any]]]:
    """The content as (index of the first row, [rows, numbers]); a row longer than a block comes in pieces."""
    size = math.prod(tensor.shape.numpy())
    if row <= block:
        step = row * (block // row)
        for start in range(0, size, step):
            yield start // row, _read(tensor, start, min(start + step, size)).reshape(-1, row)
        return
    for first in range(0, size, row):
        for start in range(first, first + row, block):
            yield first // row, _read(tensor, start, min(start + block, first + row))[None, :]


def _read(tensor: ir.TensorProtocol, start: int, stop: int) -> NDArray[Any]:
    """Some of a tensor's numbers; from an external file only these."""
    if isinstance(tensor, ir.ExternalTensor) and tensor.dtype.bitwidth >= 8:
        kind = tensor.dtype.numpy()
        with Path(tensor.path).open("rb") as file:
            file.seek((tensor.offset or 0) + start * kind.itemsize)
            return np.fromfile(file, kind, stop - start)
    content: NDArray[Any] = tensor.numpy().reshape(-1)[start:stop]
    return content


_BIAS_OF = {"w": "b", "w_ih": "b_ih", "w_hh": "b_hh"}
_WIDTHS = ("data_bits", "parameter_bits", "o_bits")
_NARROWEST, _WIDEST = 2, 32


@dataclass(frozen=True)
class _Parameter:
    name: str
    tensor: ir.TensorProtocol

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.tensor.shape.numpy())


def number_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """What is wrong with the constants of each dialect node; `skip` are nodes whose attributes or operands are wrong."""
    sums = cache(_sums)  # of a weight that several nodes share
    for place in checked.places:
        if is_dialect(place.node) and is_known(place.node.op_type) and str(place) not in skip:
            op = op_of(place.node)
            widths = {a.name: _int(place.node, a.name, a.default) for a in op.attributes if a.name in _WIDTHS}
            wrong = [f"{name} = {bits}" for name, bits in widths.items() if bits not in range(_NARROWEST, _WIDEST + 1)]
            if wrong:
                yield place.finding(rules.BIT_WIDTH, f"{', '.join(wrong)}: no width", "Use 4, 8, 16 or 32 bits.")
            else:
                yield from _node_findings(place, op, widths, sums)


def _int(node: ir.Node, name: str, default: object) -> int | None:
    attribute = node.attributes.get(name)
    if attribute is None:
        return default if isinstance(default, int) else None
    return attribute.as_int() if attribute.type == ir.AttributeType.INT and not attribute.is_ref() else None


def _node_findings(
    place: NodePlace, op: Op, widths: Mapping[str, Any], sums_of: Callable[..., _WeightSums]
) -> Iterator[Finding]:
    parameters = {}
    for name, value in zip(op.form(len(place.node.inputs)), place.node.inputs, strict=False):
        tensor = constant_tensor(value)
        if tensor is not None:
            parameters[name] = _Parameter(getattr(value, "name", None) or "?", tensor)
    for name, bias_name in _BIAS_OF.items():
        weight, bias = parameters.get(name), parameters.get(bias_name)
        problems = [*_weight_problems(place, op, name, weight, widths), *_bias_problems(place, bias)]
        if weight is not None and not problems:
            problems = list(_shape_problems(place, op, weight, bias))
        yield from problems
        if weight is not None and not problems and "parameter_bits" in widths:
            yield from _sum_findings(place, op, name, (weight, bias), widths, sums_of)


def _sum_findings(
    place: NodePlace,
    op: Op,
    name: str,
    parameters: tuple[_Parameter, _Parameter | None],
    widths: Mapping[str, Any],
    sums_of: Callable[..., _WeightSums],
) -> Iterator[Finding]:
    """Weights beyond their width, and what their sums can reach."""
    weight, bias = parameters
    group = _int(place.node, "group", 1) or 1 if op.is_transposed else 1
    turns = [tuple(place.node.attributes[n].as_ints()) for n in ("strides", "dilations") if op.is_transposed]
    sums = sums_of(weight.tensor, op.output_channels(weight.shape, group) if weight.shape else 1, group, *turns)
    low, high = limits(widths["parameter_bits"])
    if sums.low < low or sums.high > high:
        outside, bits = sums.low if sums.low < low else sums.high, widths["parameter_bits"]
        reason = f"{weight.name!r} holds {outside}; {bits} bits hold {low} to {high}"
        remedy = f"Quantize the weights to {bits} bits, or set parameter_bits to what they need."
        yield place.finding(rules.PARAMETER_RANGE, reason, remedy, tensor=weight.name)
    if op.weight_axes is not None:
        yield from accumulator_findings(place, _accumulator(place.node, op, name, sums, bias, widths))


def _weight_problems(
    place: NodePlace, op: Op, name: str, weight: _Parameter | None, widths: Mapping[str, Any]
) -> Iterator[Finding]:
    bits = widths.get("parameter_bits")
    if weight is None or name not in op.inputs:
        return
    if bits is None and weight.tensor.dtype not in INTEGERS:
        yield _type_finding(place, weight, "an integer type")
    elif bits is not None and weight.tensor.dtype != integer_type(bits):
        yield _type_finding(place, weight, f"{integer_type(bits).name} for {bits} bits")


def _type_finding(place: NodePlace, parameter: _Parameter, expected: str) -> Finding:
    reason = f"{parameter.name!r} is stored as {parameter.tensor.dtype.name}; expected {expected}"
    remedy = "Export the model again, or store the integers in that type."
    return place.finding(rules.PARAMETER_TYPE, reason, remedy, tensor=parameter.name)


def _bias_problems(place: NodePlace, bias: _Parameter | None) -> Iterator[Finding]:
    if bias is None or bias.tensor.dtype == ir.DataType.INT32:
        return
    yield _type_finding(place, bias, "INT32 for a bias")
    if bias.tensor.dtype in (ir.DataType.INT64, ir.DataType.UINT32, ir.DataType.UINT64):
        content = bias.tensor.numpy().reshape(-1)
        low, high = limits(32)
        outside = np.flatnonzero((content < low) | (content > high))
        if outside.size:
            channel = int(outside[0])
            reason = f"{bias.name!r} has {int(content[channel])} at channel {channel}; int32 ends at {high}"
            yield place.finding(rules.BIAS_RANGE, reason, "Lower scale_x or scale_w of this layer.", tensor=bias.name)


def _shape_problems(place: NodePlace, op: Op, weight: _Parameter, bias: _Parameter | None) -> Iterator[Finding]:
    """Why the shapes of weight and bias, and the attributes of a convolution, do not fit."""
    shape, group = weight.shape, _int(place.node, "group", 1) or 1
    window = list(place.node.attributes["kernel_shape"].as_ints()) if op.window_axes else list(shape[2:])
    short = _short_attributes(place.node, len(window)) if op.window_axes else []
    if op.weight_axes not in (None, len(shape)):
        yield _shape_finding(place, weight, f"{op.weight_axes} axes")
    elif short:
        reason = f"{' and '.join(short)} and kernel_shape have different lengths"
        yield place.finding(rules.PARAMETER_SHAPE, reason, "Give one number per axis of the window.")
    elif window != list(shape[2:]):
        yield _shape_finding(place, weight, f"the window {window} of kernel_shape")
    elif op.window_axes and shape[0] % group:
        yield _shape_finding(place, weight, f"a first axis that its {group} groups divide")
    elif bias is not None and op.weight_axes is not None:
        yield from _bias_shape_problems(place, bias, op.output_channels(shape, group))


def _short_attributes(node: ir.Node, axes: int) -> list[str]:
    return [name for name in ("strides", "dilations") if len(node.attributes[name].as_ints()) != axes]


def _bias_shape_problems(place: NodePlace, bias: _Parameter, channels: int) -> Iterator[Finding]:
    if bias.shape != (channels,):
        yield _shape_finding(place, bias, f"[{channels}], one number per channel of the weight")


def _shape_finding(place: NodePlace, parameter: _Parameter, expected: str) -> Finding:
    reason = f"{parameter.name!r} has the shape {list(parameter.shape)}; expected {expected}"
    return place.finding(rules.PARAMETER_SHAPE, reason, "Export the model again.", tensor=parameter.name)


def _sums(tensor: ir.TensorProtocol, channels: int, group: int, *turns: tuple[int, ...]) -> _WeightSums:
    """The sums of a weight; `turns` are the strides and dilations of a transposed convolution."""
    if not turns:
        return row_sums(tensor, channels)
    return transposed_sums(tensor, group=group, strides=turns[0], dilations=turns[1])


def _accumulator(
    node: ir.Node, op: Op, name: str, sums: _WeightSums, bias: _Parameter | None, widths: Mapping[str, Any]
) -> _Accumulator:
    return _Accumulator(
        sums=sums,
        bias=np.zeros(len(sums.positive), np.int64) if bias is None else bias.tensor.numpy().astype(np.int64),
        bias_name="" if bias is None else bias.name,
        # what a recurrent layer feeds back is its own output
        data_bits=widths["o_bits"] if name == "w_hh" else widths["data_bits"],
        output_bits=widths["o_bits"],
        ratio=_ratio(node, len(sums.positive)),
        is_gate=op.is_recurrent,
        is_unsigned=(name == "w" and _has_unsigned(node.inputs[0]), makes_unsigned(node)),
    )


def _ratio(node: ir.Node, channels: int) -> NDArray[np.float64] | None:
    """By what each channel's sum is multiplied: scale_o / (scale_x·scale_w·2^e); None where the scales give no number.

    e is 0 where a layer has no exponents, or another number of them than channels, which settings are judged for.
    """
    scales = {n: node.attributes[n].as_float() for n in ("scale_x", "scale_w", "scale_o") if n in node.attributes}
    if len(scales) < 3 or not all(math.isfinite(s) and s > 0 for s in scales.values()):
        return None
    given = node.attributes.get("exponents_w")
    exponents = given.as_ints() if given is not None and given.type == ir.AttributeType.INTS else ()
    powers = np.exp2(-np.array(exponents, float)) if len(exponents) == channels else np.ones(channels)
    return scales["scale_o"] / (scales["scale_x"] * scales["scale_w"]) * powers


def _has_unsigned(value: ir.Value | None) -> bool:
    """Whether a tensor is known to have unsigned bytes: as it is declared, or as what it is moved from was made."""
    passed = set[ir.Node]()
    while value is not None and value.dtype is None and (node := value.producer()) is not None and node not in passed:
        if is_quantizing(node) and stated_formats(node).kept is None:
            return makes_unsigned(node)
        passed.add(node)
        value = node.inputs[0] if node.inputs and node.op_type in (*_MOVES, "Relu", "MaxPool", "Clip") else None
    return value is not None and value.dtype == ir.DataType.UINT8


FACTORS = ("scale_x", "scale_w", "scale_y")
_MOVES = frozenset({"Identity", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})
_CHOICE, _BELOW_MAX = "iqWhere", "iqSubMax"
_CALIBRATE = "Calibrate or train the model with linger and export it again."


def scale_findings(checked: CheckedModel, *, for_target: bool = False) -> Iterator[Finding]:
    """What is wrong with the scales of each node by itself; `for_target`: a chip judges shifts and scales below 1 by its own rules."""
    for place in checked.places:
        if is_quantizing(place.node):
            scales = scales_of(place.node)
            yield from _value_findings(place, scales, for_target=for_target)
            if all(_is_positive(scale) for scale in scales.values()):
                yield from _relation_findings(place, scales, for_target=for_target)


def _value_findings(place: NodePlace, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    invalid = listed_scales(scales, lambda scale: not _is_positive(scale))
    odd = listed_scales(scales, lambda scale: _is_positive(scale) and not is_power_of_two(scale))
    small = listed_scales(scales, lambda scale: 0 < scale < 1)
    if invalid:
        yield place.finding(rules.INVALID_SCALE, f"{invalid}: no scale", _CALIBRATE)
    if odd and not for_target:
        yield place.finding(rules.ODD_SCALE, f"{odd}: no power of two", "Choose scales that are powers of two.")
    if small and not for_target:
        remedy = "Keep the layer's range smaller, with linger.normalize_layers or a scaled input."
        yield place.finding(rules.SMALL_SCALE, f"{small}: below 1, which no device has", remedy)


def _relation_findings(place: NodePlace, scales: dict[str, float], *, for_target: bool) -> Iterator[Finding]:
    output, op = scales.get("scale_o"), _op(place.node)
    if output is None or op is None:
        return
    operands = [scales[name] for name in FACTORS if name in scales]
    if op.limit in (math.prod, min) and operands and not for_target and output > op.limit(operands):
        whose = {math.prod: "that of the product", min: "that of an operand"}[op.limit]
        reason = f"scale_o = {output:g} is above {op.limit(operands):g}, {whose}, so the result would be shifted left"
        yield place.finding(rules.LEFT_SHIFT, reason, _CALIBRATE)
    if is_dialect(place.node) and op.output_scale not in (None, output):
        reason = f"scale_o = {output:g}; the device's {op.name} gives {op.output_scale:g}"
        yield place.finding(rules.FIXED_SCALE, reason, f"Export with linger, which writes {op.output_scale:g}.")


def scales_of(node: ir.Node) -> dict[str, float]:
    """The scales among a node's attributes."""
    return {
        name: float(attribute.value)
        for name, attribute in node.attributes.items()
        if name.startswith("scale_") and attribute.type == ir.AttributeType.FLOAT and not attribute.is_ref()
    }


def _is_positive(scale: float) -> bool:
    return math.isfinite(scale) and scale > 0


def listed_scales(scales: Mapping[str, float], is_meant: Callable[[float], bool]) -> str:
    """Some of the scales, for a message."""
    return ", ".join(f"{name} = {scale:g}" for name, scale in scales.items() if is_meant(scale))


def _op(node: ir.Node) -> Op | None:
    """The op of the dialect that a node of either dialect computes; None for any other node."""
    if is_dialect(node):
        return op_of(node) if is_known(node.op_type) else None
    newer = NEWER_OPS.get(node.op_type) if is_newer(node) else None
    return None if newer is None or newer.older is None or not is_known(newer.older) else find_op(newer.older)


def input_range_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """Nodes whose input, by its scale and width, goes beyond what the device's format of it holds, those of `skip` left out."""
    for place in checked.places:
        op = None if str(place) in skip else _op(place.node)
        if op is None or op.input_end is None or not place.node.inputs:
            continue
        scale, source = _scale(place.node, "scale_x"), _source(place.node.inputs[0])
        if scale is None or (source is not None and is_dialect(source, _BELOW_MAX)):
            continue
        bits, reach = _reach(place.node, source, scale)
        if reach > op.input_end:
            yield _range_finding(place, op, scale, bits, reach)


def _range_finding(place: NodePlace, op: Op, scale: float, bits: int, reach: float) -> Finding:
    if op.last_axis is not None:
        lost = "numbers beyond become equal"
        remedy = "Calibrate again with linger, which subtracts the largest number of each row first; or limit the layer before it."
    else:
        lost = f"numbers beyond count as ±{op.input_end:g}"
        remedy = "Limit the layer before it with linger.normalize_module and fine-tune, or keep this function in float."
    reached = f"{bits} bits at scale_x = {scale:g} reach ±{reach:g}"
    reason = f"{reached}, the device's format of it ends at ±{op.input_end:g}: {lost}"
    return place.finding(rules.INPUT_RANGE, reason, remedy, severity=None if bits <= _NARROW else NOTE)


def _source(value: ir.Value | None) -> ir.Node | None:
    """The node that computed a tensor; nodes that only move numbers are skipped. None for a file that goes in a circle."""
    passed = set()
    while value is not None and (node := value.producer()) is not None:
        if node.domain or node.op_type not in _MOVES or not node.inputs or node.inputs[0] is None:
            return node
        if node in passed:
            return None
        passed.add(node)
        value = node.inputs[0]
    return None


def _reach(node: ir.Node, source: ir.Node | None, scale: float) -> tuple[int, float]:
    """Width and largest magnitude of a node's input; behind a mask, of the numbers that the mask keeps."""
    if source is None or not is_dialect(source, _CHOICE):
        bits = _bits(node.inputs[0], node)
        return bits, 2.0 ** (bits - 1) / scale
    given = zip(source.inputs[:2], (_scale(source, "scale_x"), _scale(source, "scale_y")), strict=False)
    chosen = [(_bits(v), s) for v, s in given if v is not None and s is not None and not _is_constant(v)]
    ranges = [(bits, 2.0 ** (bits - 1) / s) for bits, s in chosen]
    return max(ranges, key=lambda pair: pair[1], default=(_NARROW, 0.0))


def _is_constant(value: ir.Value) -> bool:
    producer = value.producer()
    return value.const_value is not None if producer is None else producer.op_type == "Constant"


def _bits(value: ir.Value | None, reader: ir.Node | None = None) -> int:
    """The width of a tensor: as its reader or its maker states it, else as it is stored."""
    maker = None if value is None else value.producer()
    places = ((reader, "data_bits"), (reader, "x_bits"), (maker, "o_bits"), (maker, "data_bits"))
    for width in (_int(node, name, None) for node, name in places if node is not None):
        if width in range(2, _WIDEST + 1):
            return width or 0
    return (None if value is None else integer_bits(value.dtype)) or _NARROW


def _scale(node: ir.Node, name: str) -> float | None:
    """A scale that is a positive number; None where there is no such scale."""
    scale = scales_of(node).get(name)
    return scale if scale is not None and _is_positive(scale) else None
