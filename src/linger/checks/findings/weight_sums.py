# SPDX-License-Identifier: Apache-2.0
"""What weights can add up to, channel by channel: each tensor is read once, in blocks, never as a whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

BLOCK = 1 << 20
"""Numbers that are in memory at a time."""


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
    """Of weights that are [channels, …]."""
    row = max(math.prod(tensor.shape.numpy()) // max(channels, 1), 1)
    found = _Collected(channels, 1)
    for start, block in blocks(tensor, row):
        found.add(start + np.arange(len(block)), 0, block)
        found.see(block)
    return found.result()


def transposed_sums(
    tensor: ir.TensorProtocol, *, group: int, strides: Sequence[int], dilations: Sequence[int]
) -> WeightSums:
    """Of weights that are [in, out/group, taps …]: an output pixel meets only the taps of its turn (taps modulo stride)."""
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
    """For every tap, which of the taking turns it belongs to."""
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
