# SPDX-License-Identifier: Apache-2.0
"""How many multiply-accumulates a torch function does, from the shapes it met: convolutions and matrix products.

Products of single elements (a · b, a norm, an activation) are not counted: they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import Tensor

_Count = Callable[[Sequence[Any], Mapping[str, Any], Tensor], int]


def multiplications(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> int:
    """Multiply-accumulates of one call of a torch function; 0 for a function that multiplies no matrices.

    >>> import torch
    >>> x, w = torch.zeros(2, 3), torch.zeros(4, 3)
    >>> multiplications("linear", (x, w), {}, torch.nn.functional.linear(x, w))
    24
    """
    count = _COUNTS.get(name.strip("_"))
    return 0 if count is None else count(args, kwargs, cast(Tensor, result))


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], index: int, *names: str) -> Any:
    """An argument by position, or by one of its names."""
    if index < len(args):
        return args[index]
    return next(kwargs[name] for name in names if name in kwargs)


def _over_last_axis(index: int, *names: str) -> _Count:
    """Every output is a sum over the last axis of this argument."""

    def count(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
        return int(result.numel() * _argument(args, kwargs, index, *names).shape[-1])

    return count


def _batched_sum(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """addbmm adds up the products of a whole batch."""
    first = _argument(args, kwargs, 1, "batch1")
    return int(result.numel() * first.shape[-1] * first.shape[0])


def _convolution(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Each output takes in/group·taps products."""
    return int(result.numel() * math.prod(_argument(args, kwargs, 1, "weight").shape[1:]))


def _transposed_convolution(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Each input gives out/group·taps products."""
    del result
    x, weight = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "weight")
    return int(x.numel() * math.prod(weight.shape[1:]))


def _bilinear(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Both inputs over their last axes: x1·W, then ·x2."""
    weight = _argument(args, kwargs, 2, "weight")
    return int(result.numel() * (weight.shape[1] * weight.shape[2] + weight.shape[2]))


def _recurrent(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Every weight matrix once per time step and sequence: (data, state, weights, …) or (data, sizes, state, weights, …)."""
    del kwargs, result
    data, second = args[:2]
    # packed: rows of data, with the number of sequences at each step; else [time, batch, features] in either order
    is_packed = isinstance(second, Tensor) and not second.is_floating_point()
    return int(math.prod(data.shape[:-1]) * sum(w.numel() for w in args[3 if is_packed else 2] if w.dim() == 2))


def _recurrent_cell(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Both weight matrices once per row of the batch."""
    x = _argument(args, kwargs, 0, "input")
    weights = (_argument(args, kwargs, 2, "w_ih"), _argument(args, kwargs, 3, "w_hh"))
    del result
    return int(math.prod(x.shape[:-1]) * sum(w.numel() for w in weights))


def _attention(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """q·kᵀ over the width of a head, then its product with v."""
    q, k = _argument(args, kwargs, 0, "query"), _argument(args, kwargs, 1, "key")
    return int(math.prod(q.shape) * k.shape[-2] + result.numel() * k.shape[-2])


def _attention_with_projections(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Three projections in, attention over all heads, one projection out; inputs are [length, batch, width]."""
    del result
    q, k, v = (_argument(args, kwargs, i, name) for i, name in enumerate(("query", "key", "value")))
    width, keys = q.shape[-1], k.shape[0]
    projections = (2 * q.numel() + k.numel() + v.numel()) * width
    return int(projections + 2 * q.numel() * keys)


def _einsum(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """Every output is a sum over the labels that it lacks."""
    del kwargs
    if not isinstance(args[0], str):
        return 0  # the form with lists of axes has no labels to read
    inputs, arrow, output = args[0].replace(" ", "").partition("->")
    operands = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), operands, strict=True):
        before, _, after = labels.partition("...")
        sizes |= dict(zip(before, operand.shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(operand.shape), strict=False))
    kept = output if arrow else "".join(label for label in sizes if inputs.count(label) == 1)
    products = max(len(operands) - 1, 0)
    return int(result.numel() * products * math.prod(n for label, n in sizes.items() if label not in kept))


def _tensordot(args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> int:
    """√(|a|·|b|/|result|) terms in each sum: |a| = outside·terms, |b| = terms·outside."""
    a, b = _argument(args, kwargs, 0, "a"), _argument(args, kwargs, 1, "b")
    return math.isqrt(a.numel() * b.numel() * result.numel())


_COUNTS: dict[str, _Count] = {
    **dict.fromkeys(("linear", "mm", "bmm", "matmul", "mv", "dot", "vdot", "inner"), _over_last_axis(0, "input")),
    "rmatmul": _over_last_axis(1, "other"),
    "addmm": _over_last_axis(1, "mat1"),
    "baddbmm": _over_last_axis(1, "batch1"),
    "addmv": _over_last_axis(1, "mat"),
    "addbmm": _batched_sum,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution),
    "bilinear": _bilinear,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _recurrent_cell),
    "scaled_dot_product_attention": _attention,
    "multi_head_attention_forward": _attention_with_projections,
    "einsum": _einsum,
    "tensordot": _tensordot,
}
"""By the function's name without underscores at its ends: matmul is __matmul__, addmm is addmm_."""
