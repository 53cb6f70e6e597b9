# SPDX-License-Identifier: Apache-2.0
"""How many multiply-accumulates a torch function does, from the shapes it met: convolutions and matrix products.

Products of single elements (a · b, a norm, an activation) are not counted: they are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from linger.analysis.multiplications import products_of

_Given = Mapping[str, Any]
_Count = Callable[[_Given, Tensor], int]
"""From the arguments of a call by their names, and its result, to its multiply-accumulates."""


def multiplications(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: object) -> int:
    """Multiply-accumulates of one call of a torch function; 0 for a function that multiplies no matrices.

    >>> import torch
    >>> x, w = torch.zeros(2, 3), torch.zeros(4, 3)
    >>> multiplications("linear", (x, w), {}, torch.nn.functional.linear(x, w))
    24
    """
    known = _COUNTS.get(name.strip("_"))
    if known is None:
        return 0
    names, count = known
    return count({**dict(zip(names, args, strict=False)), "operands": args[1:], **kwargs}, cast(Tensor, result))


def _as(op: str, names: Sequence[str], given: _Given, result: Tensor) -> int:
    """As many as the op of a file with these inputs."""
    made = result.shape if isinstance(result, Tensor) else None  # a cell returns a pair, and is counted by its inputs
    return products_of(op, [made, *(given[name].shape for name in names)]) or 0


def _batched_sum(given: _Given, result: Tensor) -> int:
    """addbmm adds up the products of a whole batch."""
    return int(result.numel() * given["batch1"].shape[-1] * given["batch1"].shape[0])


def _bilinear(given: _Given, result: Tensor) -> int:
    """Both inputs over their last axes: x1·W, then ·x2."""
    _, first, second = given["weight"].shape
    return int(result.numel() * (first * second + second))


def _recurrent(given: _Given, result: Tensor) -> int:  # noqa: ARG001
    """Every weight matrix once per time step and sequence: (data, state, weights, …) or (data, sizes, state, weights, …)."""
    data, second = given["data"], given["second"]
    # packed: rows of data, with the number of sequences at each step; else [time, batch, features] in either order
    is_packed = isinstance(second, Tensor) and not second.is_floating_point()
    weights = given["fourth" if is_packed else "third"]
    return int(math.prod(data.shape[:-1]) * sum(w.numel() for w in weights if w.dim() == 2))


def _attention(given: _Given, result: Tensor) -> int:
    """q·kᵀ over the width of a head, then its product with v."""
    return int((given["query"].numel() + result.numel()) * given["key"].shape[-2])


def _attention_with_projections(given: _Given, result: Tensor) -> int:  # noqa: ARG001
    """Three projections in, attention over all heads, one projection out; inputs are [length, batch, width]."""
    q, k, v = (given[name] for name in ("query", "key", "value"))
    projections = (2 * q.numel() + k.numel() + v.numel()) * q.shape[-1]
    return int(projections + 2 * q.numel() * k.shape[0])


def _einsum(given: _Given, result: Tensor) -> int:
    """Every output is a sum over the labels that it lacks."""
    if not isinstance(given["equation"], str):
        return 0  # the form with lists of axes has no labels to read
    inputs, arrow, output = given["equation"].replace(" ", "").partition("->")
    operands = given["operands"]
    if isinstance(operands[0], (tuple, list)):
        operands = operands[0]
    sizes: dict[str, int] = {}
    for labels, operand in zip(inputs.split(","), operands, strict=True):
        before, _, after = labels.partition("...")
        sizes |= dict(zip(before, operand.shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(operand.shape), strict=False))
    kept = output if arrow else "".join(label for label in sizes if inputs.count(label) == 1)
    products = max(len(operands) - 1, 0)
    return int(result.numel() * products * math.prod(n for label, n in sizes.items() if label not in kept))


def _tensordot(given: _Given, result: Tensor) -> int:
    """√(|a|·|b|/|result|) terms in each sum: |a| = outside·terms, |b| = terms·outside."""
    return math.isqrt(given["a"].numel() * given["b"].numel() * result.numel())


_MATRICES = ("linear", "mm", "bmm", "matmul", "mv", "dot", "vdot", "inner")
_CONVOLVED = ("input", "weight")
_CELL = ("input", "hx", "w_ih", "w_hh")

_COUNTS: dict[str, tuple[tuple[str, ...], _Count]] = {
    **dict.fromkeys(_MATRICES, (("input",), partial(_as, "MatMul", ("input",)))),
    "rmatmul": (("input", "other"), partial(_as, "MatMul", ("other",))),
    "addmm": (("input", "mat1"), partial(_as, "MatMul", ("mat1",))),
    "baddbmm": (("input", "batch1"), partial(_as, "MatMul", ("batch1",))),
    "addmv": (("input", "mat"), partial(_as, "MatMul", ("mat",))),
    "addbmm": (("input", "batch1"), _batched_sum),
    **{f"conv{n}d": (_CONVOLVED, partial(_as, "Conv", _CONVOLVED)) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (_CONVOLVED, partial(_as, "ConvTranspose", _CONVOLVED)) for n in (1, 2, 3)},
    "bilinear": (("input1", "input2", "weight"), _bilinear),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (("data", "second", "third", "fourth"), _recurrent)),
    **{
        f"{kind}_cell": (_CELL, partial(_as, "LSTM", ("input", "w_ih", "w_hh")))
        for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    },
    "scaled_dot_product_attention": (("query", "key"), _attention),
    "multi_head_attention_forward": (("query", "key", "value"), _attention_with_projections),
    "einsum": (("equation",), _einsum),
    "tensordot": (("a", "b"), _tensordot),
}
"""By the function's name without underscores at its ends (matmul is __matmul__, addmm is addmm_): the names of its first
arguments, and what counts."""
