# SPDX-License-Identifier: Apache-2.0
"""Products as products of matrices (im2col): the numbers that each output of a layer is a sum over, at some of its positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Op

_IMAGE_AXES = 2


def positions(op: Op, y: Tensor) -> tuple[int, ...]:
    """The shape of an output without its channels."""
    shape = list(y.shape)
    del shape[-1 - op.window_axes]
    return tuple(shape)


def output_rows(op: Op, y: Tensor, picks: Tensor) -> Tensor:
    """The channels of an output at some positions (numbers within `positions`), [picks, channels]."""
    return y.movedim(-1 - op.window_axes, -1)[torch.unravel_index(picks.to(y.device), positions(op, y))]


def input_rows(op: Op, x: Tensor, geometry: Mapping[str, Any], picks: Tensor, shape: Sequence[int]) -> Tensor:
    """The inputs of an output's sums at some positions of its `shape` (without channels), [picks, groups, taps].

    Taps are in the order of `to_rows`.
    """
    axes, picks = op.window_axes, picks.to(x.device)
    if not axes:
        return x.reshape(-1, 1, x.shape[-1])[picks]
    strides, dilations, kernel = (_image(geometry[n], 1) for n in ("strides", "dilations", "kernel_shape"))
    begin, end = _image(geometry["pads"][:axes], 0), _image(geometry["pads"][axes:], 0)
    if x.dim() == axes + 1:
        x, shape = x.unsqueeze(0), (1, *shape)
    if axes < _IMAGE_AXES:
        x, shape = x.unsqueeze(-2), (shape[0], 1, shape[1])
    if op.is_transposed:
        x = _spread(x, strides)
        reach = [d * (n - 1) for d, n in zip(dilations, kernel, strict=True)]
        more = _image(geometry["output_padding"], 0)
        begin, end = (
            [r - b for r, b in zip(reach, begin, strict=True)],
            [r - e for r, e in zip(reach, end, strict=True)],
        )
        end, strides = [e + m for e, m in zip(end, more, strict=True)], [1, 1]
    x = F.pad(x, (begin[1], end[1], begin[0], end[0]))
    batch, row, column = torch.unravel_index(picks, tuple(shape))
    rows = row[:, None] * strides[0] + torch.arange(kernel[0], device=x.device) * dilations[0]
    columns = column[:, None] * strides[1] + torch.arange(kernel[1], device=x.device) * dilations[1]
    found = x.movedim(1, -1)[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
    return found.movedim(-1, 1).reshape(len(picks), geometry["group"], -1)


def _image(numbers: Sequence[int], missing: int) -> list[int]:
    return [*[missing] * (_IMAGE_AXES - len(numbers)), *numbers]


def _spread(x: Tensor, strides: Sequence[int]) -> Tensor:
    """A image with zeros between its pixels: a transposed convolution is a plain one of it, with a turned kernel."""
    height, width = ((n - 1) * s + 1 for n, s in zip(x.shape[2:], strides, strict=True))
    wide = x.new_zeros(*x.shape[:2], height, width)
    wide[..., :: strides[0], :: strides[1]] = x
    return wide


def to_rows(weight: Tensor, groups: int, *, is_transposed: bool) -> Tensor:
    """A weight as one matrix per group, [groups, channels, taps]."""
    if not is_transposed:
        return weight.reshape(groups, weight.shape[0] // groups, -1)
    turned = weight.flip(tuple(range(2, weight.dim())))
    parts = turned.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(groups, weight.shape[1], -1)


def from_rows(rows: Tensor, like: Tensor, *, is_transposed: bool) -> Tensor:
    """The weight of the shape of `like` that has these matrices."""
    if not is_transposed:
        return rows.reshape(like.shape)
    parts = rows.reshape(len(rows), like.shape[1], -1, *like.shape[2:]).transpose(1, 2)
    return parts.reshape(like.shape).flip(tuple(range(2, like.dim())))
