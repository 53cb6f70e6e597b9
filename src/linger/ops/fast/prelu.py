# SPDX-License-Identifier: Apache-2.0
"""Fast twin of iqPRelu on real carriers: the exact product, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.torch.kernel import carrier
from linger.numeric.torch.quantize import fake_quantize

_SIGNIFICAND = 24  # bits that a float32 product holds exactly
_SLOPE_BITS = 16


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The exact product of the real values, where they are negative."""
    x, w = operands
    return torch.prelu(x, w.to(x.dtype)) if sum(bits) <= _SIGNIFICAND else torch.prelu(x.double(), w.double())


def evaluate(
    product: Tensor | None, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool
) -> Tensor:
    """The product at scale_o, limited to o_bits; `product` is the exact one, if known."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    if product is None:
        product = real_result(operands, (), (bits, _SLOPE_BITS))
    return fake_quantize(product, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))
