# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are others in disguise.

−x is x·(−1), x² is x·x, a mean over pictures is global pooling, pixel shuffle and nearest interpolation are reshapes.
Only what gives the same real numbers is rewritten: dividing by three is not multiplying by a rounded third.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.numeric.interpolation import nearest_places, output_sizes
from linger.quantization.padding import can_copy, pad_by_copying

Call = tuple[Any, tuple[Any, ...]]
"""A function and its positional arguments."""


def _negated(x: Any) -> list[Call]:
    return [(torch.mul, (x, -1.0))]


def _square(x: Any) -> list[Call]:
    return [(torch.mul, (x, x))]


def _power(x: Any, exponent: Any) -> list[Call] | None:
    is_square = isinstance(exponent, (int, float)) and not isinstance(exponent, bool) and exponent == 2
    return _square(x) if is_square else None


def _quotient(x: Any, other: Any, *, rounding_mode: str | None = None) -> list[Call] | None:
    """Division by a power of two, whose inverse is exact."""
    if rounding_mode is not None or not isinstance(other, (int, float)) or isinstance(other, bool):
        return None
    if other == 0 or not math.isfinite(other) or abs(math.frexp(other)[0]) != 0.5:
        return None
    return [(torch.mul, (x, 1.0 / other))]


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> list[Call] | None:  # noqa: FBT001, FBT002 - torch's signature
    """The mean over height and width of pictures is their global average pool."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if dtype is not None or x.dim() != 4 or sorted(d % 4 for d in dims) != [2, 3]:
        return None
    pooled: list[Call] = [(F.adaptive_avg_pool2d, (x, 1))]
    return pooled if keepdim else [*pooled, (torch.flatten, (None, 1))]


def shuffle_pixels(x: Tensor, r: int) -> Tensor:
    """[n, c·r², h, w] → [n, c, h·r, w·r], by reshapes: runtimes lack other forms for some integers."""
    n, c, h, w = x.shape
    return x.reshape(n, c // (r * r), r, r, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // (r * r), h * r, w * r)


def unshuffle_pixels(x: Tensor, r: int) -> Tensor:
    """[n, c, h·r, w·r] → [n, c·r², h, w]."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4).reshape(n, c * r * r, h // r, w // r)


def repeat_pixels(x: Tensor, high: int, wide: int) -> Tensor:
    """[n, c, h, w] → [n, c, h·high, w·wide], every pixel repeated."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, high, w, wide).reshape(n, c, h * high, w * wide)


def pick_pixels(x: Tensor, places: tuple[tuple[int, ...], ...]) -> Tensor:
    """The pixels at these places of each axis behind the channels."""
    for axis, chosen in enumerate(places, start=2):
        x = x.index_select(axis, torch.tensor(chosen, device=x.device))
    return x


MOVES = frozenset({shuffle_pixels, unshuffle_pixels, repeat_pixels, pick_pixels, pad_by_copying})
"""Functions, of this file and of `padding`, that only move numbers."""


def _pixel_shuffle(x: Any, upscale_factor: int) -> list[Call] | None:
    r = upscale_factor
    is_right = x.dim() == 4 and x.shape[1] % (r * r) == 0  # else torch says what is wrong with it
    return [(shuffle_pixels, (x, r))] if is_right else None


def _pixel_unshuffle(x: Any, downscale_factor: int) -> list[Call] | None:
    r = downscale_factor
    is_right = x.dim() == 4 and x.shape[2] % r == 0 and x.shape[3] % r == 0
    return [(unshuffle_pixels, (x, r))] if is_right else None


def _padded(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> list[Call] | None:
    """Padding by copies; a constant border is an op."""
    return [(pad_by_copying, (x, tuple(pad), mode))] if value in (None, 0) and can_copy(x.shape, pad, mode) else None


def _whole_factors(old: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[int, int] | None:
    """How often each pixel of a picture is repeated; the sizes themselves are looked at only where they must be."""
    if len(old) != 2 or (size is None) == (scale_factor is None):
        return None
    if size is None:
        factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor, scale_factor)
    else:
        wanted = size if isinstance(size, (tuple, list)) else (size, size)
        factors = [new / before if before else 0 for new, before in zip(wanted, old, strict=False)]
    if len(factors) != 2 or any(f < 1 or f != int(f) for f in factors):
        return None
    return int(factors[0]), int(factors[1])


def _interpolated(
    x: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: Any = None,
    recompute_scale_factor: Any = None,
    antialias: Any = False,  # noqa: FBT002 - torch's signature
) -> list[Call] | None:
    """Nearest interpolation picks pixels; by whole factors, of pictures, it repeats each, also where sizes are open."""
    if mode not in ("nearest", "nearest-exact") or align_corners is not None or antialias or x.dim() < 3:
        return None
    old = tuple(x.shape[2:])
    whole = _whole_factors(old, size, scale_factor)
    if whole is not None:
        return [(repeat_pixels, (x, *whole))]
    found = output_sizes(old, size, scale_factor)
    if found is None or min(*old, *found[0]) < 1:
        return None  # torch says what is wrong
    new, factors = found
    used = [None if recompute_scale_factor else factor for factor in factors]
    is_exact = mode == "nearest-exact"
    places = [nearest_places(int(n), *rest, is_exact=is_exact) for n, *rest in zip(old, new, used, strict=True)]
    return [(pick_pixels, (x, tuple(places)))]


REWRITES: dict[Any, Callable[..., list[Call] | None]] = {
    **dict.fromkeys((torch.neg, torch.negative, Tensor.neg, Tensor.negative, Tensor.__neg__), _negated),
    **dict.fromkeys((torch.square, Tensor.square), _square),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _power),
    **dict.fromkeys((torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__), _quotient),
    **dict.fromkeys((torch.mean, Tensor.mean), _mean),
    **dict.fromkeys((torch.pixel_shuffle, F.pixel_shuffle), _pixel_shuffle),
    **dict.fromkeys((torch.pixel_unshuffle, F.pixel_unshuffle), _pixel_unshuffle),
    F.pad: _padded,
    F.interpolate: _interpolated,
    F.upsample: _interpolated,
}


def rewritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call] | None:
    """The calls that stand for this one, each but the first on the result of the one before (its first argument None).

    None if it stands for itself.
    """
    rewrite = REWRITES.get(func)
    if rewrite is None or "out" in kwargs:
        return None
    return rewrite(*args, **{"dim" if name == "axis" else name: value for name, value in kwargs.items()})
