# SPDX-License-Identifier: Apache-2.0
"""Pooling and interpolation to a size: as several pools where it does not divide the image's, and where sizes are open.

Output i of n over a side of s covers the pixels from ⌊i·s/n⌋ to ⌈(i+1)·s/n⌉. Neighbors of one size and one distance are
one ordinary pool, so a size that divides (and many that do not) needs a single one; others are pools over slices, joined.

Where sizes stay open in a file, `x.shape` is a tensor of the trace (or a symbol of torch.export). So windows, places and
weights are written here as arithmetic on it, in whole numbers, and become nodes of the file; with a known size they are the
numbers of `linger.numeric`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import find_op
from linger.numeric.curves import WEIGHT_BITS
from linger.numeric.fixed import WindowRun, adaptive_runs
from linger.quantization.core.qtensor import QTensor, compute, signed
from linger.quantization.core.runtime import TorchFunction
from linger.quantization.functions.functional_layer import own_format

MOST_POOLS = 64
"""With more slices than this, the pooling stays float."""

_LARGEST_RATIO = 1 << 20
"""Numerator and denominator of a factor up to here leave all products below 2^63, for images of any memory."""

_ONE = 1 << WEIGHT_BITS

_POOLS: dict[TorchFunction, TorchFunction] = {F.adaptive_avg_pool2d: F.avg_pool2d, F.adaptive_max_pool2d: F.max_pool2d}

Size = Any
"""The size of an axis: a number; in a trace a tensor, in torch.export a symbol, with which one computes alike."""

Sizes = Size | Sequence[Size]
"""One for both axes of an image, or one for each; None where an axis keeps its own."""

Run = Callable[[TorchFunction, tuple[Any, ...]], Tensor]
"""Calls a torch function from within one on quantized tensors."""


def pair(sizes: Sizes) -> tuple[Size, ...]:
    """One number for each axis of an image, as far as they are given."""
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes, sizes)


@dataclass(frozen=True)
class Interpolation:
    """The settings of a call of F.interpolate or F.upsample, in torch's order."""

    size: Sizes | None = None
    scale_factor: Sizes | None = None
    mode: str = "nearest"
    align_corners: bool | None = None
    recompute_scale_factor: bool | None = None
    antialias: bool = False

    @property
    def is_nearest(self) -> bool:
        """Whether it takes the nearest pixel."""
        return self.mode in ("nearest", "nearest-exact")

    @property
    def picks_pixels(self) -> bool:
        """Whether it does so with settings that torch accepts."""
        return self.is_nearest and self.align_corners is None and not self.antialias


def pool_adaptively(func: TorchFunction, x: Tensor, output_size: Sizes, run: Run) -> Tensor | None:
    """The pooling as other calls, each made by `run(function, arguments)`; None if there is no such form.

    So it is where there are too many runs of rows and columns, or where torch will refuse the call.
    """
    sizes = pair(output_size)
    if x.dim() != 4 or len(sizes) != 2:
        return None
    sides = [int(n) for n in x.shape[-2:]]
    counts = [side if n is None else int(n) for side, n in zip(sides, sizes, strict=True)]
    if min(*sides, *counts) < 1:
        return None
    rows, columns = map(adaptive_runs, sides, counts)
    if len(rows) * len(columns) > MOST_POOLS:
        return None
    bands = [_join([_pooled(_POOLS[func], x, row, column, run) for column in columns], -1, run) for row in rows]
    return _join(bands, -2, run)


def _pooled(pool: TorchFunction, x: Tensor, row: WindowRun, column: WindowRun, run: Run) -> Tensor:
    if (row.start, column.start) != (0, 0) or (row.end, column.end) != tuple(x.shape[-2:]):
        x = run(torch.Tensor.__getitem__, (x, (..., slice(row.start, row.end), slice(column.start, column.end))))
    return run(pool, (x, (row.size, column.size), (row.stride, column.stride)))


def _join(parts: list[Tensor], axis: int, run: Run) -> Tensor:
    return parts[0] if len(parts) == 1 else run(torch.cat, (parts, axis))


ADAPTIVE = frozenset(_POOLS)
"""Functions that are pools over slices."""


# open sizes
def run_openly(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> QTensor | None:
    """The function in a form that is right at every size; None if it has none, or needs none."""
    form = _FORMS.get(func)
    return None if form is None else form(*args, **kwargs)


def _averaged(x: QTensor, output_size: Sizes) -> QTensor | None:
    if x.dim() != 4:
        return None
    (height, rows), (width, columns) = zip(x.content.shape[2:], pair(output_size), strict=True)
    operands = [x, _membership(x, height, rows), _membership(x, width, columns)]
    return _computed("iqAdaptiveAvgPool", x, operands, own_format(x))


def _largest(x: QTensor, output_size: Sizes, return_indices: bool = False) -> QTensor | None:  # noqa: FBT001, FBT002 - torch's signature
    if return_indices or x.dim() != 4:
        return None
    x = signed(x)
    for axis, count in zip((2, 3), pair(output_size), strict=True):
        if count is not None:
            x = _largest_along(x, axis, count)
    return x


def _largest_along(x: QTensor, axis: int, count: int) -> QTensor:
    """Windows of one length, the last pixel of a shorter one repeated; then the largest of each."""
    side = x.content.shape[axis]
    number = torch.arange(count, device=x.content.device)[:, None]
    starts = _quotient(number * side, count)
    ends = _quotient((number + 1) * side + (count - 1), count)
    length = _quotient(side + count - 1, count) + (1 if count > 1 else 0)
    places = torch.minimum(starts + torch.arange(length, device=x.content.device)[None], ends - 1)
    picked = x.content.index_select(axis, places.reshape(-1))
    sizes = list(picked.shape)
    windows = x.like(picked.reshape(*sizes[:axis], count, -1, *sizes[axis + 1 :]))
    largest = _computed("iqLargest", windows, [windows], {"dims": axis + 1, "o_bits": x.bits})
    return largest.like(largest.content.squeeze(axis + 1))


def _interpolated(x: QTensor, *args: Any, **kwargs: Any) -> QTensor | None:
    how = Interpolation(*args, **kwargs)
    is_known = how.is_nearest or (how.mode == "bilinear" and x.dim() == 4)
    if not is_known or how.antialias or x.dim() < 3 or _repeats(x, how):
        return None
    steps = _steps(x, how)
    if steps is None:
        return None
    if not how.is_nearest:
        turned, align = enumerate(steps, start=2), bool(how.align_corners)
        weights = [_linear(x.content, axis, *step, align_corners=align) for axis, step in turned]
        return _computed("iqInterpolate", x, [x, *weights], own_format(x))
    content, is_exact = x.content, how.mode == "nearest-exact"
    for axis, (new, factor) in enumerate(steps, start=2):
        content = content.index_select(axis, _nearest(content, axis, new, factor, is_exact=is_exact))
    return x.like(content)


def _repeats(x: QTensor, how: Interpolation) -> bool:
    """Whether every pixel of an image is repeated a whole number of times, which needs no places."""
    are_whole = all(isinstance(f, (int, float)) and f >= 1 and f == int(f) for f in pair(how.scale_factor))
    return how.is_nearest and x.dim() == 4 and are_whole


def _computed(name: str, x: QTensor, operands: list[Any], attributes: dict[str, Any]) -> QTensor:
    result = compute(x.runtime.begin(find_op(name), x.runtime.path), operands, attributes, x.scale, x.bits)
    result.is_nonnegative = x.is_nonnegative
    return result


def _quotient(a: Size, b: Size) -> Size:
    """⌊a/b⌋ of whole numbers that are not negative."""
    return torch.div(a, b, rounding_mode="trunc") if isinstance(a, Tensor) or isinstance(b, Tensor) else a // b


def _membership(x: QTensor, side: Size, count: Size | None) -> Tensor:
    """[side, count]: 1 where ⌊i·side/count⌋ ≤ pixel < ⌈(i + 1)·side/count⌉, written without a division."""
    count = side if count is None else count
    pixel = torch.arange(side, device=x.content.device)[:, None]
    number = torch.arange(count, device=x.content.device)[None]
    is_inside: Tensor = ((pixel + 1) * count > number * side) & (pixel * count < (number + 1) * side)
    return is_inside.to(torch.int16)


def _steps(x: QTensor, how: Interpolation) -> list[tuple[Size, float | None]] | None:
    """The new size of each axis behind the channels, and the factor that decides about places; None if they are wrong."""
    old = x.content.shape[2:]
    if (how.size is None) == (how.scale_factor is None):
        return None
    numbers = how.scale_factor if how.size is None else how.size
    numbers = list(numbers) if isinstance(numbers, (tuple, list)) else [numbers] * len(old)
    if len(numbers) != len(old):
        return None
    if how.size is not None:
        return [(new, None) for new in numbers]
    if not all(map(_is_exact, numbers)):
        return None
    news = [_quotient(side * _ratio(f)[0], _ratio(f)[1]) for side, f in zip(old, numbers, strict=True)]
    used = [None] * len(old) if how.recompute_scale_factor else map(float, numbers)
    return list(zip(news, used, strict=True))


def _is_exact(factor: Size) -> bool:
    """Whether a factor is a number whose products with sizes are exact."""
    return not isinstance(factor, Tensor) and max(_ratio(factor)) <= _LARGEST_RATIO


def _ratio(factor: float) -> tuple[int, int]:
    return float(factor).as_integer_ratio()


def _nearest(content: Tensor, axis: int, new: Size, factor: float | None, *, is_exact: bool) -> Tensor:
    """`interpolation.nearest_places` of a size that may be open: float32, as torch computes it."""
    old = content.shape[axis]
    step = _whole(old, content).to(torch.float32) / _whole(new, content).to(torch.float32)
    if factor:
        step = torch.full((1,), 1.0 / factor, dtype=torch.float32, device=content.device)
    number = torch.arange(new, device=content.device).to(torch.float32)
    places = torch.floor((number + (0.5 if is_exact else 0.0)) * step)
    return torch.minimum(places.to(torch.int64), _whole(old, content) - 1)


def _linear(content: Tensor, axis: int, new: Size, factor: float | None, *, align_corners: bool) -> Tensor:
    """`interpolation.linear_weights` of a size that may be open, turned: [old, new], in whole numbers throughout."""
    old = content.shape[axis]
    place, pixel = (torch.arange(n, device=content.device) for n in (new, old))
    above, below = (_whole(n, content) for n in ((old, new) if factor is None else reversed(_ratio(factor))))
    if align_corners:
        above, below = _whole(old, content) - 1, torch.maximum(_whole(new, content) - 1, _whole(1, content))
        top, bottom = 2 * place * above, 2 * below
    else:
        top, bottom = (2 * place + 1) * above - below, 2 * below
    top = torch.maximum(top, torch.zeros_like(top))
    last = _whole(old, content) - 1
    first = torch.minimum(_quotient(top, bottom), last)
    rest = torch.minimum(top - first * bottom, bottom)
    weight = _quotient(rest * (2 * _ONE) + bottom, 2 * bottom)
    second = torch.minimum(first + 1, last)
    is_first, is_second = pixel[:, None] == first, pixel[:, None] == second
    return cast(Tensor, is_first * (_ONE - weight) + is_second * weight).to(torch.int16)


def _whole(size: Size, like: Tensor) -> Tensor:
    """A size as a tensor of the trace."""
    if isinstance(size, Tensor):
        return size.reshape(1)
    return torch.full((1,), size, dtype=torch.int64, device=like.device)


_FORMS: dict[TorchFunction, Callable[..., QTensor | None]] = {
    F.adaptive_avg_pool2d: _averaged,
    F.adaptive_max_pool2d: _largest,
    F.interpolate: _interpolated,
    F.upsample: _interpolated,
}
