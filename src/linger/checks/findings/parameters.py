# SPDX-License-Identifier: Apache-2.0
"""Weights and biases: their types and ranges, and the sums that they can make."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.structure import CheckedModel, NodePlace
from linger.dialect import Op, is_known
from linger.graph.core import check_rules as rules
from linger.graph.core.nodes import Finding, is_dialect, op_of
from linger.graph.core.tensor_types import INTEGERS, constant_tensor
from linger.numeric.fixed import limits
from linger.numeric.onnx.writer import integer_type

_LARGEST = limits(32)[1]
_EXACT_IN_FLOAT = 1 << 24
_NARROW = 8
"""Wider outputs are not expected to use their range."""


@dataclass(frozen=True)
class Accumulator:
    """Weights, bias and widths of a layer that adds products.

    Attributes:
        sums: Sums of the weights of each channel.
        bias: One number per channel.
        bias_name: The bias's tensor; empty where there is none.
        data_bits: Width of what the weights are multiplied with.
        output_bits: Width of the output.
        ratio: scale_o/(scale_x·scale_w), what an accumulator is multiplied with at the end; None where not known.
        is_gate: The sum is not the layer's output, but goes through a gate first.
    """

    sums: WeightSums
    bias: NDArray[np.int64]
    bias_name: str
    data_bits: int
    output_bits: int
    ratio: float | None
    is_gate: bool = False

    def bounds(self) -> list[int]:
        """For each channel max Σ|w|·2^(bits−1) + |b|, in integers of any size."""
        largest = (self.sums.positive + self.sums.negative).max(axis=1, initial=0)
        reach = 1 << (self.data_bits - 1)
        return [int(total) * reach + abs(int(b)) for total, b in zip(largest, self.bias, strict=True)]

    def ends(self) -> tuple[list[int], list[int]]:
        """The smallest and the largest accumulator of each channel that some input gives."""
        low, high = limits(self.data_bits)
        smallest, largest = [], []
        for positive, negative, b in zip(self.sums.positive, self.sums.negative, self.bias, strict=True):
            turns = [(int(p), int(n)) for p, n in zip(positive, negative, strict=True)]
            smallest.append(int(b) + min(p * low - n * high for p, n in turns))
            largest.append(int(b) + max(p * high - n * low for p, n in turns))
        return smallest, largest


def accumulator_findings(place: NodePlace, layer: Accumulator) -> Iterator[Finding]:
    """Overflow of 32 bits, sums that float32 cannot hold, biases at the end, outputs that cannot move or hardly do."""
    if not len(layer.bias):
        return
    bounds = layer.bounds()
    channel = max(range(len(bounds)), key=bounds.__getitem__)
    bound, over = bounds[channel], sum(b > _LARGEST for b in bounds)
    what = f"the bound Σ|w|·{1 << (layer.data_bits - 1)} + |b| of channel {channel} is {bound}"
    if over:
        more = f" ({over} channels are above it)" if over > 1 else ""
        reason = f"{what}; a 32-bit accumulator ends at {_LARGEST}{more}"
        yield place.finding(rules.ACCUMULATOR_OVERFLOW, reason, "Use narrower data or weights, or split the layer.")
    elif bound >= _EXACT_IN_FLOAT:
        reason = f"{what}; float32 holds every integer up to {_EXACT_IN_FLOAT} only"
        remedy = "Nothing to do for linger or a device; do not judge the file with a simulator in float32."
        yield place.finding(rules.INEXACT_FLOAT, reason, remedy)
    yield from _clipped_bias(place, layer)
    if layer.ratio is not None and not layer.is_gate:
        yield from _output_findings(place, layer, layer.ratio)


def _clipped_bias(place: NodePlace, layer: Accumulator) -> Iterator[Finding]:
    low, high = limits(32)
    at_end = np.flatnonzero((layer.bias == low) | (layer.bias == high))
    if at_end.size:
        reason = f"{layer.bias_name!r} is {int(layer.bias[at_end[0]])} at channel {int(at_end[0])}, the end of int32"
        remedy = "Lower scale_x or scale_w of this layer."
        yield place.finding(rules.CLIPPED_BIAS, reason, remedy, tensor=layer.bias_name)


def _output_findings(place: NodePlace, layer: Accumulator, ratio: float) -> Iterator[Finding]:
    low, high = limits(layer.output_bits)
    smallest, largest = ([_rounded(a * ratio) for a in ends] for ends in layer.ends())
    stuck = [c for c, (a, z) in enumerate(zip(smallest, largest, strict=True)) if a > high or z < low]
    if stuck:
        yield _stuck_finding(place, stuck, (low, high), (smallest[stuck[0]], largest[stuck[0]]))
    reached = max(map(abs, smallest + largest))
    if layer.output_bits <= _NARROW and ratio < 1 and reached < (high + 1) // 2:
        remedy = f"scale_o could be {2 ** int(math.log2((high + 1) / max(reached, 1)))} times as large."
        yield place.finding(rules.UNUSED_RANGE, f"no input brings the output beyond ±{reached} of {high}", remedy)


def _stuck_finding(place: NodePlace, stuck: list[int], ends: tuple[int, int], reach: tuple[int, int]) -> Finding:
    """Channels that stay at one end of the output's range.

    Args:
        place: The layer.
        stuck: The channels.
        ends: The smallest and the largest number of the output's width.
        reach: What the first of them would reach without saturation.
    """
    end = ends[1] if reach[0] > ends[1] else ends[0]
    count = f" ({len(stuck)} channels are so)" if len(stuck) > 1 else ""
    reason = f"channel {stuck[0]} is {end} for every input: it could only reach {reach[0]} to {reach[1]}{count}"
    return place.finding(rules.ALWAYS_SATURATED, reason, "Lower scale_o, or look at the bias of this channel.")


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)


BLOCK = 1 << 20
"""How many numbers of a tensor are read at a time."""


@dataclass(frozen=True)
class WeightSums:
    """Sums over the weights of each output channel.

    Attributes:
        positive: Σ of the positive weights. Where the taps of a channel take turns (transposed convolutions), there is
            one row for each turn: the shape is [channels, turns].
        negative: Σ of the negative ones, without their sign.
        low: The smallest weight.
        high: The largest weight.
    """

    positive: NDArray[np.int64]
    negative: NDArray[np.int64]
    low: int
    high: int


def row_sums(tensor: ir.TensorProtocol, channels: int) -> WeightSums:
    """The sums of weights of the shape [channels, …]."""
    row = max(math.prod(tensor.shape.numpy()) // max(channels, 1), 1)
    found = _Collected(channels, 1)
    for start, block in blocks(tensor, row):
        found.add(start + np.arange(len(block)), 0, block)
        found.see(block)
    return found.result()


def transposed_sums(
    tensor: ir.TensorProtocol, *, group: int, strides: Sequence[int], dilations: Sequence[int]
) -> WeightSums:
    """The sums of weights of the shape [in, out/group, taps …].

    The taps take turns with the stride: an output pixel is the sum over the taps of one turn only.
    """
    inputs, outputs, *window = tensor.shape.numpy()
    turns = _turns(window, strides, dilations)
    found = _Collected(outputs * group, int(turns.max(initial=0)) + 1)
    taps = math.prod(window)
    each = inputs // group
    for start, block in blocks(tensor, taps, max(BLOCK, taps)):
        pair = start + np.arange(len(block))
        channel = pair // outputs // each * outputs + pair % outputs
        for turn in range(found.turns):
            found.add(channel, turn, block[:, turns == turn])
        found.see(block)
    return found.result()


def _turns(window: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> NDArray[np.int64]:
    """The number of the turn that every tap belongs to."""
    turns = np.zeros(1, np.int64)
    for size, stride, dilation in zip(window, strides, dilations, strict=True):
        along = np.arange(size) * dilation % stride
        turns = (turns[:, None] * stride + along[None, :]).reshape(-1)
    return turns


class _Collected:
    def __init__(self, channels: int, turns: int) -> None:
        self.turns = turns
        self._positive = np.zeros((channels, turns), np.int64)
        self._negative = np.zeros((channels, turns), np.int64)
        self._low, self._high = 0, 0

    def add(self, channel: NDArray[np.int64], turn: int, block: NDArray[Any]) -> None:
        np.add.at(self._positive[:, turn], channel, np.maximum(block, 0).sum(axis=1, dtype=np.int64))
        np.subtract.at(self._negative[:, turn], channel, np.minimum(block, 0).sum(axis=1, dtype=np.int64))

    def see(self, block: NDArray[Any]) -> None:
        self._low = min(self._low, int(block.min(initial=0)))
        self._high = max(self._high, int(block.max(initial=0)))

    def result(self) -> WeightSums:
        return WeightSums(self._positive, self._negative, self._low, self._high)


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


_WEIGHTS = ("w", "w_ih", "w_hh")
_BIAS_OF = {"w": "b", "w_ih": "b_ih", "w_hh": "b_hh"}
_WIDTHS = ("data_bits", "parameter_bits", "o_bits")
_NARROWEST, _WIDEST = 2, 32

Seen = dict[tuple[object, ...], WeightSums]
"""Sums of weights that several nodes may share, by the tensor and what else they depend on."""


@dataclass(frozen=True)
class _Parameter:
    value: ir.Value
    tensor: ir.TensorProtocol

    @property
    def name(self) -> str:
        return self.value.name or "?"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.tensor.shape.numpy())


def number_findings(checked: CheckedModel, *, skip: Collection[str] = ()) -> Iterator[Finding]:
    """What is wrong with the constants of each dialect node.

    Args:
        checked: The model.
        skip: Nodes, as findings name them, whose attributes or operands are wrong: nothing more can be said of them.
    """
    seen: Seen = {}
    for place in checked.places:
        node = place.node
        if is_dialect(node) and is_known(node.op_type) and str(place) not in skip:
            op = op_of(node)
            stated = {a.name: _int(node, a.name, a.default) for a in op.attributes if a.name in _WIDTHS}
            widths = {name: bits for name, bits in stated.items() if bits is not None}
            yield from _width_findings(place, stated) or _node_findings(place, op, widths, seen)


def _width_findings(place: NodePlace, widths: dict[str, int | None]) -> list[Finding]:
    wrong = [f"{n} = {bits}" for n, bits in widths.items() if bits is None or not _NARROWEST <= bits <= _WIDEST]
    reason = f"{', '.join(wrong)}: no width"
    return [place.finding(rules.BIT_WIDTH, reason, "Use 4, 8, 16 or 32 bits.")] if wrong else []


def _int(node: ir.Node, name: str, default: object) -> int | None:
    found = node.attributes.get(name)
    if found is None:
        return default if isinstance(default, int) else None
    return found.as_int() if found.type == ir.AttributeType.INT and not found.is_ref() else None


def _node_findings(place: NodePlace, op: Op, widths: dict[str, int], seen: Seen) -> Iterator[Finding]:
    given = dict(zip(op.form(len(place.node.inputs)), place.node.inputs, strict=False))
    parameters = {name: found for name, value in given.items() if (found := _constant(value)) is not None}
    for name in _WEIGHTS:
        weight, bias = parameters.get(name), parameters.get(_BIAS_OF[name])
        problems = [*_weight_problems(place, op, name, weight, widths), *_bias_problems(place, bias)]
        if weight is not None and not problems:
            problems = list(_shape_problems(place, op, weight, bias))
        yield from problems
        if weight is not None and not problems and "parameter_bits" in widths:
            sums = _sums(place.node, op, weight, seen)
            yield from _range_problems(place, weight, sums, widths["parameter_bits"])
            if op.weight_axes is not None:
                yield from accumulator_findings(place, _accumulator(place.node, op, name, sums, bias, widths))


def _constant(value: ir.Value | None) -> _Parameter | None:
    tensor = constant_tensor(value)
    return None if value is None or tensor is None else _Parameter(value, tensor)


def _weight_problems(
    place: NodePlace, op: Op, name: str, weight: _Parameter | None, widths: dict[str, int]
) -> Iterator[Finding]:
    bits = widths.get("parameter_bits")
    if weight is None or name not in op.inputs:
        return
    dtype = weight.tensor.dtype
    if bits is None:
        if dtype not in INTEGERS:
            yield _type_finding(place, weight, "an integer type")
    elif dtype != integer_type(bits):
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
    if op.weight_axes is not None and len(weight.shape) != op.weight_axes:
        yield _shape_finding(place, weight, f"{op.weight_axes} axes")
        return
    group = _int(place.node, "group", 1) or 1
    problem = _window_problem(place, weight, group) if op.window_axes else None
    if problem is not None:
        yield problem
        return
    channels = _channels(op, weight.shape, group)
    if bias is not None and op.weight_axes is not None and bias.shape != (channels,):
        yield _shape_finding(place, bias, f"[{channels}], one number per channel of the weight")


def _window_problem(place: NodePlace, weight: _Parameter, group: int) -> Finding | None:
    """Why the attributes of a convolution and the shape of its weight do not fit."""
    attributes, shape = place.node.attributes, weight.shape
    window = list(attributes["kernel_shape"].as_ints())
    short = [n for n in ("strides", "dilations") if len(attributes[n].as_ints()) != len(window)]
    if short:
        reason = f"{' and '.join(short)} and kernel_shape have different lengths"
        return place.finding(rules.PARAMETER_SHAPE, reason, "Give one number per axis of the window.")
    if window != list(shape[2:]):
        return _shape_finding(place, weight, f"the window {window} of kernel_shape")
    return _shape_finding(place, weight, f"a first axis that its {group} groups divide") if shape[0] % group else None


def _shape_finding(place: NodePlace, parameter: _Parameter, expected: str) -> Finding:
    reason = f"{parameter.name!r} has the shape {list(parameter.shape)}; expected {expected}"
    return place.finding(rules.PARAMETER_SHAPE, reason, "Export the model again.", tensor=parameter.name)


def _channels(op: Op, shape: tuple[int, ...], group: int) -> int:
    return op.output_channels(shape, group) if shape else 1


def _sums(node: ir.Node, op: Op, weight: _Parameter, seen: Seen) -> WeightSums:
    """The sums of a weight; one that several nodes share is read once."""
    key: tuple[object, ...]
    if op.is_transposed:
        group = node.attributes["group"].as_int()
        strides, dilations = (tuple(node.attributes[name].as_ints()) for name in ("strides", "dilations"))
        key = (id(weight.tensor), group, strides, dilations)
        if key not in seen:
            seen[key] = transposed_sums(weight.tensor, group=group, strides=strides, dilations=dilations)
        return seen[key]
    channels = _channels(op, weight.shape, 1)
    key = (id(weight.tensor), channels)
    if key not in seen:
        seen[key] = row_sums(weight.tensor, channels)
    return seen[key]


def _range_problems(place: NodePlace, weight: _Parameter, sums: WeightSums, bits: int) -> Iterator[Finding]:
    low, high = limits(bits)
    outside = sums.low if sums.low < low else sums.high
    if sums.low < low or sums.high > high:
        reason = f"{weight.name!r} holds {outside}; {bits} bits hold {low} to {high}"
        remedy = f"Quantize the weights to {bits} bits, or set parameter_bits to what they need."
        yield place.finding(rules.PARAMETER_RANGE, reason, remedy, tensor=weight.name)


def _accumulator(
    node: ir.Node, op: Op, name: str, sums: WeightSums, bias: _Parameter | None, widths: dict[str, int]
) -> Accumulator:
    offsets: NDArray[np.int64] = (
        np.zeros(len(sums.positive), np.int64) if bias is None else bias.tensor.numpy().astype(np.int64)
    )
    scales = {n: node.attributes[n].as_float() for n in ("scale_x", "scale_w", "scale_o") if n in node.attributes}
    ratio = None
    if len(scales) == 3 and all(math.isfinite(s) and s > 0 for s in scales.values()):
        ratio = scales["scale_o"] / (scales["scale_x"] * scales["scale_w"])
    return Accumulator(
        sums=sums,
        bias=offsets,
        bias_name="" if bias is None else bias.name,
        # what a recurrent layer feeds back is its own output
        data_bits=widths["o_bits"] if name == "w_hh" else widths["data_bits"],
        output_bits=widths["o_bits"],
        ratio=ratio,
        is_gate=op.is_recurrent,
    )
