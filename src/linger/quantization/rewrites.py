# SPDX-License-Identifier: Apache-2.0
"""Torch functions that are another one in disguise: −x is x·(−1), x² is x·x, a mean over pictures is global pooling.

Only what gives the same real numbers is rewritten: dividing by three is not multiplying by a rounded third.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

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


REWRITES: dict[Any, Callable[..., list[Call] | None]] = {
    **dict.fromkeys((torch.neg, torch.negative, Tensor.neg, Tensor.negative, Tensor.__neg__), _negated),
    **dict.fromkeys((torch.square, Tensor.square), _square),
    **dict.fromkeys((torch.pow, Tensor.pow, Tensor.__pow__), _power),
    **dict.fromkeys((torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__), _quotient),
    **dict.fromkeys((torch.mean, Tensor.mean), _mean),
}


def rewritten(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Call] | None:
    """The calls that stand for this one, each but the first on the result of the one before (its first argument None).

    None if it stands for itself.
    """
    rewrite = REWRITES.get(func)
    if rewrite is None or "out" in kwargs:
        return None
    return rewrite(*args, **{"dim" if name == "axis" else name: value for name, value in kwargs.items()})
