# SPDX-License-Identifier: Apache-2.0
"""Fast twin of iqAdd: on real carriers an operand that already is at the output's scale needs no rounding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.fixed import limits
from linger.numeric.torch_kernel import carrier
from linger.numeric.torch_quantize import fake_quantize

_UNLIMITED = 48  # rounding without limiting: no operand of 32 bits reaches 48


def evaluate(operands: Sequence[Tensor], attributes: dict[str, Any]) -> Tensor:
    """The sum of both operands, each rounded to scale_o, limited to o_bits."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    x, y = (
        value if source <= scale else fake_quantize(value, scale, _UNLIMITED, can_saturate=False)
        for value, source in zip(operands, (attributes["scale_x"], attributes["scale_y"]), strict=True)
    )
    low, high = limits(bits)
    return torch.clamp(x + y, low / scale, high / scale).to(carrier(bits))
