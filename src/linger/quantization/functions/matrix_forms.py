# SPDX-License-Identifier: Apache-2.0
"""Other spellings of matrix products: einsum of that kind, addmm and baddbmm."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.dialect import Refusal
from linger.quantization.core.qtensor import QTensor
from linger.quantization.functions.constants import is_state

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

MATRIX_FORMS: dict[Any, Callable[..., Any]] = {
    torch.einsum: _einsum,
    **dict.fromkeys((torch.addmm, Tensor.addmm, torch.baddbmm, Tensor.baddbmm), _sum_and_product),
}
