# SPDX-License-Identifier: Apache-2.0
"""Padding with numbers of the tensor itself: reflected, repeated or wrapped around, as slices that are joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

COPYING_MODES = ("reflect", "replicate", "circular")


def can_copy(shape: Sequence[int], pad: Sequence[int], mode: str) -> bool:
    """Whether every border is long enough to be copied from; else torch says what is wrong, or computes in float."""
    if mode not in COPYING_MODES or len(pad) % 2 or len(pad) // 2 >= len(shape) or min(pad, default=0) < 0:
        return False
    missing = {"reflect": 1, "replicate": None, "circular": 0}[mode]
    sizes = [int(shape[-1 - i // 2]) for i in range(len(pad))]
    return all(size > 0 and (missing is None or n <= size - missing) for n, size in zip(pad, sizes, strict=True))


def pad_by_copying(x: Tensor, pad: Sequence[int], mode: str) -> Tensor:
    """F.pad in one of the copying modes, from slices: integers of every width have them, and sizes may stay open."""
    for position in range(len(pad) // 2):
        begin, end = int(pad[2 * position]), int(pad[2 * position + 1])
        axis = x.dim() - 1 - position
        parts = [_border(x, axis, begin, mode, is_end=False), x, _border(x, axis, end, mode, is_end=True)]
        present = [part for part in parts if part is not None]
        x = present[0] if len(present) == 1 else torch.cat(present, axis)
    return x


def _border(x: Tensor, axis: int, count: int, mode: str, *, is_end: bool) -> Tensor | None:
    if count == 0:
        return None
    if mode == "circular":
        return _cut(x, axis, slice(0, count) if is_end else slice(-count, None))
    if mode == "reflect":
        return _cut(x, axis, slice(-1 - count, -1) if is_end else slice(1, 1 + count)).flip(axis)
    sizes = [count if i == axis else -1 for i in range(x.dim())]
    return _cut(x, axis, slice(-1, None) if is_end else slice(0, 1)).expand(sizes)


def _cut(x: Tensor, axis: int, part: slice) -> Tensor:
    return x[(slice(None),) * axis + (part,)]


def pad_for(layer: Any, x: Any) -> Any:
    """The input of a convolution with the border that its padding_mode asks for; zeros are the convolution's own."""
    mode = getattr(layer, "padding_mode", "zeros")
    if mode == "zeros":
        return x
    kernel, dilation, padding = layer.kernel_size, layer.dilation, layer.padding
    totals = [d * (n - 1) for d, n in zip(dilation, kernel, strict=True)]
    pads: list[int] = []
    for axis in reversed(range(len(kernel))):
        if padding == "same":
            pads += [totals[axis] // 2, totals[axis] - totals[axis] // 2]
        elif padding != "valid":
            pads += [padding[axis]] * 2
    return F.pad(x, pads, mode=mode) if any(pads) else x
