# SPDX-License-Identifier: Apache-2.0
"""Fast twin of iqMax on real carriers: rounding keeps the order, so the larger operand is chosen first, then rounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.torch.kernel import carrier
from linger.numeric.torch.quantize import fake_quantize


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The larger of the real values."""
    del scales, bits
    return torch.maximum(*operands)


def evaluate(
    total: Tensor | None, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool
) -> Tensor:
    """The larger operand at scale_o, limited to o_bits; `total` is the larger one, if known."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    larger = real_result(operands, (), ()) if total is None else total
    return fake_quantize(larger.to(carrier(bits)), scale, bits, can_saturate=can_saturate).to(carrier(bits))
