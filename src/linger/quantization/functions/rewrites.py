# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are others in disguise.

−x is x·(−1), x² is x·x, a mean over pictures is global pooling, a sum over several axes is one over a single axis, pixel shuffle and nearest interpolation are reshapes.
Only what gives the same real numbers is rewritten: dividing by three is not multiplying by a rounded third.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Refusal
from linger.numeric.curves.interpolation import nearest_places, output_sizes
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import TorchFunction
from linger.quantization.functions.constants import is_state

NUMPY_SPELLINGS = {"axis": "dim", "keepdims": "keepdim"}
"""Names that torch's own functions take besides their documented ones."""

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


def _reciprocal(x: Any) -> list[Call]:
    return [(Tensor.__rtruediv__, (x, 1.0))]


def _mean(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> list[Call] | None:  # noqa: FBT001, FBT002 - torch's signature
    """The mean over height and width of pictures is their global average pool."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if dtype in (None, torch.float32) and x.dim() == 4 and sorted(d % 4 for d in dims) == [2, 3]:
        pooled: list[Call] = [(F.adaptive_avg_pool2d, (x, 1))]
        return pooled if keepdim else [*pooled, (torch.flatten, (None, 1))]
    return _reduced(torch.mean, x, dim, is_kept=keepdim) if dtype in (None, torch.float32) else None


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> list[Call] | None:  # noqa: FBT001, FBT002
    return _reduced(torch.sum, x, dim, is_kept=keepdim) if dtype in (None, torch.float32) else None


def _variance(
    x: Any,
    dim: Any = None,
    unbiased: bool = True,  # noqa: FBT001, FBT002
    keepdim: bool = False,  # noqa: FBT001, FBT002
    *,
    correction: Any = None,
) -> list[Call] | None:
    if isinstance(dim, bool):  # torch.var(x, False)
        dim, unbiased = None, dim
    if correction not in (None, 0, 1):
        return None
    is_unbiased = bool(unbiased if correction is None else correction)
    found = _reduced(torch.var, x, dim, is_unbiased, is_kept=keepdim)
    return found if found is not None or correction is None else [(torch.var, (x, dim, is_unbiased, keepdim))]


def _reduced(func: Any, x: Any, dim: Any, *settings: Any, is_kept: bool) -> list[Call] | None:
    """A reduction of any axes as one of a single axis that stays: `func(x, axis, *settings, True)`.

    None if it is of that form already, or if its axes are wrong: torch says what is wrong with them.
    """
    rank = x.dim()
    dims = [dim] if isinstance(dim, int) else list(range(rank)) if dim is None or len(dim) == 0 else list(dim)
    axes = sorted({d % rank for d in dims}) if rank else []
    if not axes or len(axes) != len(dims) or any(not -rank <= d < rank for d in dims):
        return None
    if len(axes) == 1:
        (axis,) = axes
        if is_kept and dim == axis:
            return None
        reduced: list[Call] = [(func, (x, axis, *settings, True))]
        return reduced if is_kept else [*reduced, (torch.squeeze, (None, axis))]
    kept = [axis for axis in range(rank) if axis not in axes]
    last = len(kept)
    moved: list[Call] = [(torch.permute, (x, (*kept, *axes)))] if [*kept, *axes] != list(range(rank)) else []
    joined: Call = (torch.flatten, (None if moved else x, last))
    back: list[Call] = [(torch.unsqueeze, (None, axis)) for axis in axes] if is_kept else []
    return [*moved, joined, (func, (None, last, *settings, True)), (torch.squeeze, (None, last)), *back]


def shuffle_pixels(x: Tensor, r: int) -> Tensor:
    """[n, c·r², h, w] → [n, c, h·r, w·r], by reshapes: runtimes lack other forms for some integers."""
    n, c, h, w = x.shape
    return x.reshape(n, c // (r * r), r, r, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // (r * r), h * r, w * r)


def unshuffle_pixels(x: Tensor, r: int) -> Tensor:
    """[n, c, h·r, w·r] → [n, c·r², h, w]."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h // r, r, w // r, r).permute(0, 1, 3, 5, 2, 4).reshape(n, c * r * r, h // r, w // r)


def shuffle_channels(x: Tensor, groups: int) -> Tensor:
    """[n, c, …] with one channel of each group in turn, by reshapes."""
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).transpose(1, 2).reshape(n, c, *rest)


def repeat_pixels(x: Tensor, high: int, wide: int) -> Tensor:
    """[n, c, h, w] → [n, c, h·high, w·wide], every pixel repeated."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, high, w, wide).reshape(n, c, h * high, w * wide)


def pick_pixels(x: Tensor, places: tuple[tuple[int, ...], ...]) -> Tensor:
    """The pixels at these places of each axis behind the channels."""
    for axis, chosen in enumerate(places, start=2):
        x = x.index_select(axis, torch.tensor(chosen, device=x.device))
    return x


# -- padding with numbers of the tensor itself --------------------------------------------------------------
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


MOVES = frozenset({shuffle_channels, shuffle_pixels, unshuffle_pixels, repeat_pixels, pick_pixels, pad_by_copying})
"""Functions of this file that only move numbers."""


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


def _average_1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    count_include_pad: bool = True,  # noqa: FBT001, FBT002
) -> list[Call] | None:
    """A signal is a picture of one row."""
    window = (_row(kernel_size, 1), _row(stride or kernel_size, 1), _row(padding, 0), ceil_mode, count_include_pad)
    return _as_picture(x, F.avg_pool2d, *window)


def _largest_1d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,  # noqa: FBT001, FBT002
    return_indices: bool = False,  # noqa: FBT001, FBT002
) -> list[Call] | None:
    if return_indices:
        return None
    window = (_row(kernel_size, 1), _row(stride or kernel_size, 1), _row(padding, 0), _row(dilation, 1), ceil_mode)
    return _as_picture(x, F.max_pool2d, *window)


def _adaptive_1d(func: Any) -> Callable[..., list[Call] | None]:
    def rewrite(x: Any, output_size: Any, return_indices: bool = False) -> list[Call] | None:  # noqa: FBT001, FBT002
        return None if return_indices else _as_picture(x, func, _row(output_size, 1))

    return rewrite


def _transposed_1d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> list[Call] | None:
    window = (_row(stride, 1), _row(padding, 0), _row(output_padding, 0), groups, _row(dilation, 1))
    return _as_picture(x, F.conv_transpose2d, weight.unsqueeze(-2), bias, *window)


def _row(value: Any, other: int) -> tuple[int, int]:
    return (other, int(value[0] if isinstance(value, (tuple, list)) else value))


def _as_picture(x: Any, func: Any, *arguments: Any) -> list[Call] | None:
    if x.dim() != 3:
        return None
    return [(torch.unsqueeze, (x, -2)), (func, (None, *arguments)), (torch.squeeze, (None, -2))]


REWRITES: dict[Any, Callable[..., list[Call] | None]] = {
    **dict.fromkeys((torch.neg, torch.negative, Tensor.neg, Tensor.negative, Tensor.__neg__), _negated),
    **dict.fromkeys((torch.square, Tensor.square), _square),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _power),
    **dict.fromkeys((torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.true_divide), _quotient),
    **dict.fromkeys((Tensor.divide, Tensor.__truediv__, Tensor.__div__), _quotient),
    **dict.fromkeys((torch.reciprocal, Tensor.reciprocal), _reciprocal),
    **dict.fromkeys((torch.mean, Tensor.mean), _mean),
    **dict.fromkeys((torch.sum, Tensor.sum), _sum),
    **dict.fromkeys((torch.var, Tensor.var), _variance),
    **dict.fromkeys((torch.pixel_shuffle, F.pixel_shuffle), _pixel_shuffle),
    **dict.fromkeys((torch.pixel_unshuffle, F.pixel_unshuffle), _pixel_unshuffle),
    F.pad: _padded,
    F.avg_pool1d: _average_1d,
    **dict.fromkeys((F.max_pool1d, torch.max_pool1d), _largest_1d),
    F.adaptive_avg_pool1d: _adaptive_1d(F.adaptive_avg_pool2d),
    F.adaptive_max_pool1d: _adaptive_1d(F.adaptive_max_pool2d),
    F.conv_transpose1d: _transposed_1d,
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
    return rewrite(*args, **{NUMPY_SPELLINGS.get(name, name): value for name, value in kwargs.items()})


# -- stacks and other spellings of matrix products -----------------------------------------------------------
Handler = Callable[..., Any]
"""(function, args, kwargs, call) → the result, a Refusal, or NotImplemented where another rule may know the call.

`call(function, *args, **kwargs)` runs a function inside: on quantised tensors as in the model's own forward.
"""


def _stack(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
    """A new axis in each tensor, joined along it."""
    del func
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
    tensors, dim = list(given["tensors"]), given.get("dim", 0)
    if "out" in kwargs or not all(isinstance(t, QTensor) and t.scale is not None for t in tensors):
        return NotImplemented
    return call(torch.cat, [call(torch.unsqueeze, t, dim) for t in tensors], dim)


_NO_PRODUCT = Refusal("only an einsum that is a matrix product has an integer form; write it with matmul")


def _einsum(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
    del func
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    found = re.fullmatch(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)", str(equation).replace(" ", ""))
    if kwargs or found is None or len(operands) != 2:
        return _NO_PRODUCT
    left, right, out = found.groups()
    if any(len(set(labels)) != len(labels) for labels in (left, right, out)):
        return _NO_PRODUCT
    shared = [label for label in left if label in right]
    batch = [label for label in shared if label in out]
    inner = [label for label in shared if label not in out]
    rows = [label for label in left if label not in right]
    columns = [label for label in right if label not in left]
    is_product = len(inner) == len(columns) == 1 and (len(rows) == 1 or (rows and not batch))
    if not is_product or set(out) != {*batch, *rows, *columns}:
        return _NO_PRODUCT
    x = _permuted(operands[0], left, [*batch, *rows, *inner], call)
    y = _permuted(operands[1], right, [*batch, *inner, *columns], call)
    return _permuted(call(torch.matmul, x, y), [*batch, *rows, *columns], list(out), call)


def _permuted(x: Any, labels: Any, wanted: list[str], call: Any) -> Any:
    order = [list(labels).index(label) for label in wanted]
    return x if order == sorted(order) else call(torch.permute, x, order)


def _sum_and_product(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
    """input + x·y; with parameters on both places, a fully connected layer."""
    names = ("input", "mat1", "mat2") if "addmm" in func.__name__ and "badd" not in func.__name__ else _BATCHED
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) - {*names, "beta", "alpha"} or len(args) > 3:
        return NotImplemented
    if given.get("beta", 1) != 1 or given.get("alpha", 1) != 1:
        return Refusal("beta and alpha have no integer form; multiply first")
    summand, x, y = (given[name] for name in names)
    if isinstance(x, QTensor) and y.dim() == 2:
        runtime = x.runtime
        if is_state(y, runtime) and is_state(summand, runtime) and summand.dim() == 1:
            return call(F.linear, x, y.t(), summand)
    product = call(torch.matmul, x, y)
    return call(torch.add, product, summand)


_BATCHED = ("input", "batch1", "batch2")

FORMS: dict[TorchFunction, Handler] = {
    torch.stack: _stack,
    torch.einsum: _einsum,
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _sum_and_product),
}
"""einsum of two matrices, addmm, baddbmm and stack."""
