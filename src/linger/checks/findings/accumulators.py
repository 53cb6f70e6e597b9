# SPDX-License-Identifier: Apache-2.0
"""What a layer's accumulator and output can reach for any input: overflow, saturation, unused range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from linger.checks.findings.node_places import NodePlace
from linger.graph.core import check_rules as rules
from linger.graph.core.finding import Finding
from linger.numeric.fixed import limits

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
        yield place.finding(
            rules.ACCUMULATOR_OVERFLOW,
            f"{what}; a 32-bit accumulator ends at {_LARGEST}{more}",
            "Use narrower data or weights, or split the layer.",
        )
    elif bound >= _EXACT_IN_FLOAT:
        yield place.finding(
            rules.INEXACT_FLOAT,
            f"{what}; float32 holds every integer up to {_EXACT_IN_FLOAT} only",
            "Nothing to do for linger or a device; do not judge the file with a simulator in float32.",
        )
    yield from _clipped_bias(place, layer)
    if layer.ratio is not None and not layer.is_gate:
        yield from _output_findings(place, layer, layer.ratio)


def _clipped_bias(place: NodePlace, layer: Accumulator) -> Iterator[Finding]:
    low, high = limits(32)
    at_end = np.flatnonzero((layer.bias == low) | (layer.bias == high))
    if at_end.size:
        yield place.finding(
            rules.CLIPPED_BIAS,
            f"{layer.bias_name!r} is {int(layer.bias[at_end[0]])} at channel {int(at_end[0])}, the end of int32",
            "Lower scale_x or scale_w of this layer.",
            tensor=layer.bias_name,
        )


def _output_findings(place: NodePlace, layer: Accumulator, ratio: float) -> Iterator[Finding]:
    low, high = limits(layer.output_bits)
    smallest, largest = ([_rounded(a * ratio) for a in ends] for ends in layer.ends())
    stuck = [c for c, (a, z) in enumerate(zip(smallest, largest, strict=True)) if a > high or z < low]
    if stuck:
        yield _stuck_finding(place, stuck, (low, high), (smallest[stuck[0]], largest[stuck[0]]))
    reached = max(map(abs, smallest + largest))
    if layer.output_bits <= _NARROW and ratio < 1 and reached < (high + 1) // 2:
        yield place.finding(
            rules.UNUSED_RANGE,
            f"no input brings the output beyond ±{reached} of {high}",
            f"scale_o could be {2 ** int(math.log2((high + 1) / max(reached, 1)))} times as large.",
        )


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
    return place.finding(
        rules.ALWAYS_SATURATED,
        f"channel {stuck[0]} is {end} for every input: it could only reach {reach[0]} to {reach[1]}{count}",
        "Lower scale_o, or look at the bias of this channel.",
    )


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
