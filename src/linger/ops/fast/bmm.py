# SPDX-License-Identifier: Apache-2.0
"""Fast twin of BmmInt on real carriers: the exact product, rounded once.

A sum of n products of b and c-bit integers stays below n·2^(b+c−2): in units of the operands' steps every partial sum is a
whole number, so float32 is exact, in any order, while that is at most 2^24.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from linger.numeric.torch.kernel import carrier
from linger.numeric.torch.quantize import fake_quantize

_SIGNIFICAND = 24


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The exact matrix product of the real values."""
    x, y = operands
    terms = x.shape[-1]
    if terms == 0 or sum(bits) - 2 + math.log2(terms) <= _SIGNIFICAND:
        return torch.matmul(x, y)
    return torch.matmul(x.double(), y.double())


def multiplications(operands: Sequence[Tensor]) -> int:
    """Multiply-accumulates: rows times columns times terms, for every pair of matrices."""
    x, y = operands
    batches = zip_longest(reversed(x.shape[:-2]), reversed(y.shape[:-2]), fillvalue=1)
    pairs = math.prod(b if a == 1 else a for a, b in batches)
    rows, columns = (x.shape[-2] if x.dim() > 1 else 1), (y.shape[-1] if y.dim() > 1 else 1)
    return pairs * rows * columns * x.shape[-1]


def evaluate(
    product: Tensor | None, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool
) -> Tensor:
    """The product at scale_o, limited to o_bits; `product` is the exact one, if known."""
    scale, bits, data_bits = attributes["scale_o"], attributes["o_bits"], attributes["data_bits"]
    if product is None:
        product = real_result(operands, (), (data_bits, data_bits))
    return fake_quantize(product, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))
