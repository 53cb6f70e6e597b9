# SPDX-License-Identifier: Apache-2.0
"""The reference interpreter: numpy integers, float64 as the wide carrier.

float64 holds every integer below 2^53; the largest accumulator here (32-bit data, 16-bit weights) stays below
that for up to 64 products, and the common ones (8-bit) for 2^39. Nothing is rounded but by `floor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from linger.numeric.fixed import ceil_pads, storage_bits
from linger.numeric.kernel import ConvGeometry, ConvTransposeGeometry, Ints, step_by_step

Array = NDArray[Any]


def integer_dtype(bits: int, *, is_unsigned: bool = False) -> np.dtype[Any]:
    """The numpy type that stores integers of this width."""
    return np.dtype(f"{'u' if is_unsigned else ''}int{storage_bits(bits)}")


class NumpyKernel:
    """Interprets bodies on numpy arrays."""

    add, sub, mul, div = map(staticmethod, (np.add, np.subtract, np.multiply, np.divide))
    floor, log, pow2 = map(staticmethod, (np.floor, np.log, np.exp2))

    def scalar(self, value: float | Sequence[int]) -> Array:
        return np.asarray(value, dtype=np.float64)

    vector = table = scalar

    def single(self, value: float) -> Array:
        return np.asarray(value, dtype=np.float32)

    def like(self, value: float, reference: Array) -> Array:
        return np.asarray(value, dtype=reference.dtype)

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> Array:
        return self.scalar(compute(*attributes))

    def wide(self, x: Array) -> Array:
        return x.astype(np.float64)

    narrow = wide

    def store(self, x: Array, bits: int, *, is_unsigned: bool = False) -> Array:
        return x.astype(integer_dtype(bits, is_unsigned=is_unsigned))

    def real(self, x: Array) -> Array:
        return x.astype(np.float32)

    def clip(self, x: Array, low: Array, high: Array) -> Array:
        return np.asarray(np.minimum(np.maximum(x, low), high))

    clamp = clip

    def where_less(self, a: Array, b: Array, then: Array, other: Array) -> Array:
        return np.where(a < b, then, other)

    def lookup(self, table: Sequence[float], index: Array) -> Array:
        return np.asarray(table, dtype=np.float64)[index.astype(np.int64)]

    def ladder(self, values: Sequence[float]) -> Array:
        return np.asarray(values, dtype=np.float64).reshape(-1, 1, 1)

    def max_along(self, x: Array, axis: int) -> Array:
        return np.asarray(x.max(axis=axis, keepdims=True))

    def sum_along(self, x: Array, axis: int) -> Array:
        return np.asarray(x.sum(axis=axis, keepdims=True))

    def lines(self, x: Array, w: Array) -> Array:
        return x.reshape(-1, w.size)

    def group_lines(self, x: Array, groups: int) -> Array:
        return x.reshape(-1, math.prod(x.shape[1:]) // groups)

    def reshape_like(self, x: Array, other: Array) -> Array:
        return x.reshape(other.shape)

    def line_length(self, x: Array) -> Array:
        return self.scalar(x.shape[-1])

    def linear(self, x: Array, w: Array, b: Array | None, *, x_bits: int, w_bits: int) -> Array:
        product: Array = np.matmul(x.astype(np.float64), w.astype(np.float64).T)
        return product if b is None else product + b

    def matmul(self, x: Array, y: Array) -> Array:
        product: Array = np.matmul(x.astype(np.float64), y.astype(np.float64))
        return product

    def conv1d(
        self, x: Array, w: Array, b: Array | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Array:
        # a signal is an image of one row
        left, right = geometry["pads"]
        strides, dilations = ((1, *geometry[name]) for name in ("strides", "dilations"))
        row = ConvGeometry(strides=strides, pads=(0, left, 0, right), dilations=dilations, group=geometry["group"])
        return self.conv2d(x[:, :, None], w[:, :, None], b, x_bits=x_bits, w_bits=w_bits, **row)[:, :, 0]

    def conv2d(
        self, x: Array, w: Array, b: Array | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Array:
        group = geometry["group"]
        padded = _pad(x, geometry["pads"]).astype(np.float64)
        windows = _windows(padded, w.shape[2:], geometry["strides"], geometry["dilations"])
        batch, _, height, width = windows.shape[:4]
        inside, outside = w.shape[1], w.shape[0] // group
        parts = []
        for g in range(group):
            columns = windows[:, g * inside : (g + 1) * inside].transpose(0, 2, 3, 1, 4, 5)
            matrix = w[g * outside : (g + 1) * outside].reshape(outside, -1).astype(np.float64)
            product = columns.reshape(batch * height * width, matrix.shape[1]) @ matrix.T
            parts.append(product.reshape(batch, height, width, outside).transpose(0, 3, 1, 2))
        result = np.concatenate(parts, axis=1)
        return result if b is None else result + b.reshape(1, -1, 1, 1)

    def conv_transpose2d(
        self,
        x: Array,
        w: Array,
        b: Array | None,
        *,
        x_bits: int,
        w_bits: int,
        **geometry: Unpack[ConvTransposeGeometry],
    ) -> Array:
        strides, pads, dilations = geometry["strides"], geometry["pads"], geometry["dilations"]
        group, output_padding = geometry["group"], geometry["output_padding"]
        batch, _, height, width = x.shape
        inside, outside = w.shape[0] // group, w.shape[1]
        spread = [
            (n - 1) * s + d * (k - 1) + 1
            for n, s, d, k in zip((height, width), strides, dilations, w.shape[2:], strict=True)
        ]
        full = np.zeros((batch, outside * group, spread[0] + output_padding[0], spread[1] + output_padding[1]))
        for row in range(w.shape[2]):
            for column in range(w.shape[3]):
                top, left = row * dilations[0], column * dilations[1]
                rows = slice(top, top + (height - 1) * strides[0] + 1, strides[0])
                columns = slice(left, left + (width - 1) * strides[1] + 1, strides[1])
                for g in range(group):
                    source = x[:, g * inside : (g + 1) * inside].astype(np.float64)
                    taps = w[g * inside : (g + 1) * inside, :, row, column].astype(np.float64)
                    target = full[:, g * outside : (g + 1) * outside, rows, columns]
                    target += np.einsum("nihw,io->nohw", source, taps)
        result = full[:, :, pads[0] : full.shape[2] - pads[2], pads[1] : full.shape[3] - pads[3]]
        return result if b is None else result + b.reshape(1, -1, 1, 1)

    def window_sum(self, x: Array, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> Array:
        windows = _windows(_pad(x, pads).astype(np.float64), kernel_shape, strides, (1, 1))
        return np.asarray(windows.sum(axis=(-2, -1)))

    def max_pool2d(
        self, x: Array, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int
    ) -> Array:
        smallest = np.iinfo(x.dtype).min
        if ceil_mode:
            pads = ceil_pads(x.shape[2:], kernel_shape, strides, pads, dilations)
        windows = _windows(_pad(x, pads, fill=smallest), kernel_shape, strides, dilations)
        return np.asarray(windows.max(axis=(-2, -1)))

    def relu(self, x: Array) -> Array:
        return np.maximum(x, np.zeros((), x.dtype))

    def rows(self, table: Array, index: Array) -> Array:
        return np.asarray(table[index.astype(np.int64)])

    def pad(self, x: Array, pads: Array, value: Array) -> Array:
        begins, ends = pads.astype(np.int64).reshape(2, -1).tolist()
        sizes = [begin + n + end for begin, n, end in zip(begins, x.shape, ends, strict=True)]
        result = np.full(sizes, value, x.dtype)
        inside = tuple(
            slice(max(begin, 0), size - max(end, 0)) for begin, size, end in zip(begins, sizes, ends, strict=True)
        )
        source = tuple(
            slice(max(-begin, 0), n - max(-end, 0)) for begin, n, end in zip(begins, x.shape, ends, strict=True)
        )
        result[inside] = x[source]
        return result

    def shuffle(self, x: Array, groups: int) -> Array:
        return x[:, np.arange(x.shape[1]).reshape(groups, -1).T.reshape(-1)]

    def swap_height_width(self, x: Array) -> Array:
        return x.transpose(0, 1, 3, 2)

    def per_channel(self, w: Array, x: Array) -> Array:
        return w.reshape(-1, *[1] * (x.ndim - 2))

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return np.concatenate(xs, axis=axis)

    def split(self, x: Array, parts: int, axis: int) -> tuple[Array, ...]:
        return tuple(np.split(x, parts, axis=axis))

    def entries(self, table: Array, row: Array) -> Callable[[Array], Array]:
        return lambda index: table[index.astype(np.int64)]

    def rounded_product(self, w: Array, b: Array, factor: Array, *, axes: int) -> Callable[[Array], Array]:
        matrix, offset = w.astype(np.float64).T, b.astype(np.float64)
        return lambda x: np.floor((np.matmul(x, matrix) + offset) * factor + 0.5)

    def to_steps(self, x: Array, lengths: Array | None, *, batch_first: int, go_forward: int) -> Array:
        steps = x.swapaxes(0, 1) if batch_first else x
        return steps if go_forward else _turned(steps, lengths)

    def from_steps(self, y: Array, lengths: Array | None, *, batch_first: int, go_forward: int) -> Array:
        if lengths is not None:
            y = np.where(_is_inside(y, lengths).reshape(*y.shape[:2], *[1] * (y.ndim - 2)), y, np.zeros((), y.dtype))
        ordered = y if go_forward else _turned(y, lengths)
        return ordered.swapaxes(0, 1) if batch_first else ordered

    def at_end(self, y: Array, lengths: Array) -> Array:
        return np.asarray(y[lengths - 1, np.arange(y.shape[1])])

    def zero_state(self, sequence: Array, w: Array) -> Array:
        return np.zeros((sequence.shape[1], w.shape[1]))

    def squeeze_first(self, x: Array) -> Array:
        return np.asarray(x[0])

    def unsqueeze_first(self, x: Array) -> Array:
        return x[None]

    def scan(
        self,
        step: Callable[[tuple[Array, ...], Array], tuple[Array, ...]],
        states: tuple[Array, ...],
        sequence: Array,
        *,
        stacked: int,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        steps: list[tuple[Array, ...]] = []
        for item in sequence:
            states = step(states, item)
            steps.append(states[:stacked])
        return states, tuple(np.stack(part) for part in zip(*steps, strict=True))

    recurrence = step_by_step


def _is_inside(steps: Array, lengths: Array) -> Array:
    """Whether step t of sequence b is before its end, [time, batch]."""
    return np.asarray(np.arange(len(steps))[:, None] < lengths[None])


def _turned(steps: Array, lengths: Array | None) -> Array:
    """Each sequence from its end to its beginning."""
    if lengths is None:
        return steps[::-1]
    time = np.arange(len(steps))[:, None]
    index = np.where(_is_inside(steps, lengths), lengths[None] - 1 - time, time)
    return np.asarray(steps[index, np.arange(steps.shape[1])[None]])


def _pad(x: Array, pads: Ints, *, fill: int = 0) -> Array:
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)


def _windows(x: Array, kernel: Sequence[int], strides: Ints, dilations: Ints) -> Array:
    reach = [d * (n - 1) + 1 for n, d in zip(kernel, dilations, strict=True)]
    views = sliding_window_view(x, reach, axis=(2, 3))
    return views[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]
