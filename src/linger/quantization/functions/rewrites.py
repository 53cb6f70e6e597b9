# SPDX-License-Identifier: Apache-2.0
"""Torch functions that can be written as other torch calls, and functions that only move numbers.

−x is x·(−1), x² is x·x, a mean over images is global pooling, a sum over several axes is one over a single axis; pixel
shuffle, nearest interpolation and padding by copies are reshapes and slices; some einsums are matrix products.
Only what gives the same real numbers is rewritten: dividing by three is not multiplying by a rounded third.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Refusal
from linger.numeric.curves import nearest_places, output_sizes
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import TorchFunction
from linger.quantization.functions.constants import is_state
from linger.quantization.functions.resizing import Interpolation, Sizes, pair

_NUMPY_SPELLINGS = {"axis": "dim", "keepdims": "keepdim"}
"""Names that torch's own functions take besides their documented ones."""

Call = tuple[TorchFunction, tuple[Any, ...]]
"""A function and its positional arguments."""

Rewrite = Callable[..., "list[Call] | None"]
"""From the arguments of a function to the calls that stand for it; None if it stands for itself."""

Dims = int | Sequence[int] | None


def _power(x: Tensor, exponent: object = 2) -> list[Call] | None:
    is_square = isinstance(exponent, (int, float)) and not isinstance(exponent, bool) and exponent == 2
    return [(torch.mul, (x, x))] if is_square else None


def _quotient(x: Tensor, other: object, *, rounding_mode: str | None = None) -> list[Call] | None:
    """Division by a power of two, whose inverse is exact."""
    if rounding_mode is not None or not isinstance(other, (int, float)) or isinstance(other, bool):
        return None
    if other == 0 or not math.isfinite(other) or abs(math.frexp(other)[0]) != 0.5:
        return None
    return [(torch.mul, (x, 1.0 / other))]


def _mean(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    *,
    dtype: torch.dtype | None = None,
) -> list[Call] | None:
    """The mean over height and width of images is their global average pool."""
    if dtype not in (None, torch.float32):
        return None
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if x.dim() == 4 and sorted(d % 4 for d in dims) == [2, 3]:
        pooled: list[Call] = [(F.adaptive_avg_pool2d, (x, 1))]
        return pooled if keepdim else [*pooled, (torch.flatten, (None, 1))]
    return _reduced(torch.mean, x, dim, is_kept=keepdim)


def _sum(
    x: Tensor,
    dim: Dims = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002
    *,
    dtype: torch.dtype | None = None,
) -> list[Call] | None:
    return _reduced(torch.sum, x, dim, is_kept=keepdim) if dtype in (None, torch.float32) else None


def _variance(
    x: Tensor,
    dim: Dims = None,
    unbiased: bool = True,  # noqa: FBT001, FBT002
    keepdim: bool = False,  # noqa: FBT001, FBT002
    *,
    correction: float | None = None,
) -> list[Call] | None:
    if isinstance(dim, bool):  # torch.var(x, False)
        unbiased, dim = dim, None
    if correction not in (None, 0, 1):
        return None
    is_unbiased = bool(unbiased if correction is None else correction)
    calls = _reduced(torch.var, x, dim, is_unbiased, is_kept=keepdim)
    return calls if calls is not None or correction is None else [(torch.var, (x, dim, is_unbiased, keepdim))]


def _reduced(func: TorchFunction, x: Tensor, dim: Dims, *settings: object, is_kept: bool) -> list[Call] | None:
    """A reduction of any axes as one of a single axis that stays: `func(x, axis, *settings, True)`.

    None if it is of that form already, or if its axes are wrong: torch says what is wrong with them.
    """
    axes = _axes(dim, x.dim())
    if axes is None:
        return None
    if len(axes) > 1:
        return _reduced_together(func, x, axes, *settings, is_kept=is_kept)
    if is_kept and dim == axes[0]:
        return None
    reduced: list[Call] = [(func, (x, axes[0], *settings, True))]
    return reduced if is_kept else [*reduced, (torch.squeeze, (None, axes[0]))]


def _axes(dim: Dims, rank: int) -> list[int] | None:
    """The axes that a reduction names, in ascending order; None where one is missing or named twice."""
    dims = [dim] if isinstance(dim, int) else list(dim or range(rank))
    axes = sorted({d % rank for d in dims}) if rank else []
    is_right = len(axes) == len(dims) and all(-rank <= d < rank for d in dims)
    return axes if axes and is_right else None


def _reduced_together(func: TorchFunction, x: Tensor, axes: list[int], *settings: object, is_kept: bool) -> list[Call]:
    """Several axes moved to the end and joined."""
    last, order = x.dim() - len(axes), [*(axis for axis in range(x.dim()) if axis not in axes), *axes]
    moved: list[Call] = [(torch.permute, (x, tuple(order)))] if order != sorted(order) else []
    joined: Call = (torch.flatten, (None if moved else x, last))
    back: list[Call] = [(torch.unsqueeze, (None, axis)) for axis in axes] if is_kept else []
    return [*moved, joined, (func, (None, last, *settings, True)), (torch.squeeze, (None, last)), *back]


# functions that only move numbers
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


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """Channels of [batch, channels, …], one of each group in turn; of a quantized tensor one ShuffleChannel node.

    The same as `torch.channel_shuffle`, which works too.
    """
    return torch.channel_shuffle(x, groups)


def repeat_pixels(x: Tensor, high: int, wide: int) -> Tensor:
    """[n, c, h, w] → [n, c, h·high, w·wide], every pixel repeated."""
    n, c, h, w = x.shape
    return x.reshape(n, c, h, 1, w, 1).expand(n, c, h, high, w, wide).reshape(n, c, h * high, w * wide)


def pick_pixels(x: Tensor, places: tuple[tuple[int, ...], ...]) -> Tensor:
    """The pixels at these places of each axis behind the channels."""
    for axis, chosen in enumerate(places, start=2):
        x = x.index_select(axis, torch.tensor(chosen, device=x.device))
    return x


# padding with numbers of the tensor itself
COPYING_MODES = ("reflect", "replicate", "circular")


def can_copy(shape: Sequence[int], pad: Sequence[int], mode: str) -> bool:
    """Whether every border is long enough to be copied from; else torch says what is wrong, or computes in float."""
    if mode not in COPYING_MODES or len(pad) % 2 or len(pad) // 2 >= len(shape) or min(pad, default=0) < 0:
        return False
    sides = [int(shape[-1 - i // 2]) for i in range(len(pad))]
    missing = {"reflect": 1, "replicate": -math.inf, "circular": 0}[mode]  # pixels of a side that cannot be copied
    return all(side > 0 and n <= side - missing for n, side in zip(pad, sides, strict=True))


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


MOVES: frozenset[TorchFunction] = frozenset(
    {shuffle_channels, shuffle_pixels, unshuffle_pixels, repeat_pixels, pick_pixels, pad_by_copying}
)
"""Functions of this file that only move numbers."""


def _pixel_shuffle(x: Tensor, upscale_factor: int) -> list[Call] | None:
    is_right = x.dim() == 4 and x.shape[1] % upscale_factor**2 == 0  # else torch says what is wrong with it
    return [(shuffle_pixels, (x, upscale_factor))] if is_right else None


def _pixel_unshuffle(x: Tensor, downscale_factor: int) -> list[Call] | None:
    is_right = x.dim() == 4 and all(n % downscale_factor == 0 for n in x.shape[2:])
    return [(unshuffle_pixels, (x, downscale_factor))] if is_right else None


def _padded(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> list[Call] | None:
    """Padding by copies; a constant border is an op."""
    return [(pad_by_copying, (x, tuple(pad), mode))] if value in (None, 0) and can_copy(x.shape, pad, mode) else None


def _interpolated(x: Tensor, *args: Any, **kwargs: Any) -> list[Call] | None:
    """Nearest interpolation picks pixels; by whole factors, of images, it repeats each, also where sizes are open."""
    how = Interpolation(*args, **kwargs)
    if not how.picks_pixels or x.dim() < 3:
        return None
    old = tuple(x.shape[2:])
    whole = _whole_factors(old, how.size, how.scale_factor)
    if whole is not None:
        return [(repeat_pixels, (x, *whole))]
    sizes = output_sizes(old, how.size, how.scale_factor)
    if sizes is None or min(*old, *sizes[0]) < 1:
        return None  # torch says what is wrong
    new, factors = sizes
    used = [None if how.recompute_scale_factor else factor for factor in factors]
    is_exact = how.mode == "nearest-exact"
    places = [nearest_places(int(n), *rest, is_exact=is_exact) for n, *rest in zip(old, new, used, strict=True)]
    return [(pick_pixels, (x, tuple(places)))]


def _whole_factors(old: tuple[int, ...], size: Sizes | None, scale_factor: Sizes | None) -> tuple[int, int] | None:
    """How often each pixel of an image is repeated; the sizes themselves are looked at only where they must be."""
    if len(old) != 2 or (size is None) == (scale_factor is None):
        return None
    factors = pair(scale_factor)
    if scale_factor is None:
        factors = tuple(new / before if before else 0 for new, before in zip(pair(size), old, strict=False))
    if len(factors) != 2 or any(f < 1 or f != int(f) for f in factors):
        return None
    return int(factors[0]), int(factors[1])


# signals as images of one row
_ROWS = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "output_size": 1}
"""Settings that an image has for two axes, and what each is for the axis of size 1."""

_DEFAULTS = {"padding": 0, "dilation": 1, "output_padding": 0, "groups": 1, "bias": None}
_DEFAULTS |= {"ceil_mode": False, "count_include_pad": True, "return_indices": False}


def _as_image(func: TorchFunction, *names: str) -> Rewrite:
    """A function of signals as one of images; `names` are the arguments of both, behind the input."""

    def rewrite(x: Tensor, *args: Any, **kwargs: Any) -> list[Call] | None:
        given = _DEFAULTS | dict(zip((*names, "return_indices"), args, strict=False)) | kwargs
        given["stride"] = given.get("stride") or given.get("kernel_size", 1)
        if x.dim() != 3 or given["return_indices"]:
            return None
        for name in _ROWS.keys() & given.keys():  # with the axis of size 1
            value = given[name]
            given[name] = (_ROWS[name], int(value[0] if isinstance(value, (tuple, list)) else value))
        if "weight" in given:
            given["weight"] = given["weight"].unsqueeze(-2)
        values = [given[name] for name in names]
        return [(torch.unsqueeze, (x, -2)), (func, (None, *values)), (torch.squeeze, (None, -2))]

    return rewrite


REWRITES: dict[TorchFunction, Rewrite] = {
    **dict.fromkeys(
        (torch.neg, torch.negative, Tensor.neg, Tensor.negative, Tensor.__neg__), lambda x: [(torch.mul, (x, -1.0))]
    ),
    **dict.fromkeys((torch.square, Tensor.square, torch.pow, Tensor.pow, Tensor.__pow__), _power),
    **dict.fromkeys((torch.div, torch.true_divide, torch.divide, Tensor.div, Tensor.true_divide), _quotient),
    **dict.fromkeys((Tensor.divide, Tensor.__truediv__, Tensor.__div__), _quotient),
    **dict.fromkeys((torch.reciprocal, Tensor.reciprocal), lambda x: [(Tensor.__rtruediv__, (x, 1.0))]),
    **dict.fromkeys((torch.mean, Tensor.mean), _mean),
    **dict.fromkeys((torch.sum, Tensor.sum), _sum),
    **dict.fromkeys((torch.var, Tensor.var), _variance),
    **dict.fromkeys((torch.pixel_shuffle, F.pixel_shuffle), _pixel_shuffle),
    **dict.fromkeys((torch.pixel_unshuffle, F.pixel_unshuffle), _pixel_unshuffle),
    F.pad: _padded,
    F.avg_pool1d: _as_image(F.avg_pool2d, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"),
    **dict.fromkeys(
        (F.max_pool1d, torch.max_pool1d),
        _as_image(F.max_pool2d, "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
    ),
    F.adaptive_avg_pool1d: _as_image(F.adaptive_avg_pool2d, "output_size"),
    F.adaptive_max_pool1d: _as_image(F.adaptive_max_pool2d, "output_size"),
    F.conv_transpose1d: _as_image(
        F.conv_transpose2d, "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"
    ),
    F.interpolate: _interpolated,
    F.upsample: _interpolated,
}


def rewritten(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call] | None:
    """The calls that stand for this one, each but the first on the result of the one before (its first argument None).

    None if it stands for itself.
    """
    rewrite = REWRITES.get(func)
    return None if rewrite is None or "out" in kwargs else rewrite(*args, **spelled(kwargs))


def spelled(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by their documented names, without `out`."""
    return {_NUMPY_SPELLINGS.get(name, name): value for name, value in kwargs.items() if name != "out"}


# stacks and other spellings of matrix products
Handler = Callable[..., object]
"""(function, args, kwargs, call) → the result, a Refusal, or NotImplemented where another rule may know the call.

`call(function, *args, **kwargs)` runs a function inside: on quantized tensors as in the model's own forward.
"""

_NO_PRODUCT = Refusal("only an einsum that is a matrix product has an integer form; write it with matmul")


def _stack(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    """A new axis in each tensor, joined along it."""
    del func
    given = {**dict(zip(("tensors", "dim"), args, strict=False)), **kwargs}
    tensors, dim = list(given["tensors"]), given.get("dim", 0)
    if "out" in kwargs or not all(isinstance(t, Tensor) and t.is_floating_point() for t in tensors):
        return NotImplemented
    return call(torch.cat, [call(torch.unsqueeze, t, dim) for t in tensors], dim)


def _einsum(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    """Both operands with their axes in the order of a matrix product, and the result with its own."""
    del func
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = list(operands[0])
    labels = None if kwargs or len(operands) != 2 else _product_labels(str(equation).replace(" ", ""))
    if labels is None:
        return _NO_PRODUCT
    (left, right, out), (batch, rows, inner, columns) = labels

    def permuted(x: Tensor, present: str, wanted: str) -> Tensor:
        order = [present.index(label) for label in wanted]
        return cast(Tensor, x if order == sorted(order) else call(torch.permute, x, order))

    x = permuted(operands[0], left, batch + rows + inner)
    y = permuted(operands[1], right, batch + inner + columns)
    return permuted(call(torch.matmul, x, y), batch + rows + columns, out)


def _product_labels(equation: str) -> tuple[tuple[str, str, str], tuple[str, str, str, str]] | None:
    """The labels of operands and result, and those of batch, rows, inner axis and columns; None if it is no product."""
    match = re.fullmatch(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]+)", equation)
    if match is None or any(len(set(labels)) != len(labels) for labels in match.groups()):
        return None
    left, right, out = match.groups()
    batch, inner = _among(left, set(right) & set(out)), _among(left, set(right) - set(out))
    rows, columns = _among(left, set(left) - set(right)), _among(right, set(right) - set(left))
    has_rows = len(rows) == 1 or (len(rows) > 1 and not batch)
    if not has_rows or len(inner) != 1 or len(columns) != 1 or set(out) != {*batch, *rows, *columns}:
        return None
    return (left, right, out), (batch, rows, inner, columns)


def _among(labels: str, wanted: set[str]) -> str:
    return "".join(label for label in labels if label in wanted)


def _sum_and_product(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    """input + x·y; with parameters on both places, a fully connected layer."""
    names = _BATCHED if "baddbmm" in func.__name__ else _SINGLE
    given = dict(zip(names, args, strict=False)) | kwargs
    if set(given) - {*names, "beta", "alpha"} or len(args) > 3:
        return NotImplemented
    if (given.get("beta", 1), given.get("alpha", 1)) != (1, 1):
        return Refusal("beta and alpha have no integer form; multiply first")
    summand, x, y = (given[name] for name in names)
    if (
        isinstance(x, QTensor)
        and (y.dim(), summand.dim()) == (2, 1)
        and all(is_state(t, x.runtime) for t in (y, summand))
    ):
        return call(F.linear, x, y.t(), summand)
    return call(torch.add, call(torch.matmul, x, y), summand)


_SINGLE = ("input", "mat1", "mat2")
_BATCHED = ("input", "batch1", "batch2")

FORMS: dict[TorchFunction, Handler] = {
    torch.stack: _stack,
    torch.einsum: _einsum,
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _sum_and_product),
}
"""einsum of two matrices, addmm, baddbmm and stack."""
