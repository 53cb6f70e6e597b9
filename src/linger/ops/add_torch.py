# SPDX-License-Identifier: Apache-2.0
"""Fast twin of iqAdd on real carriers.

An operand that is at the output's scale already is a whole number of steps, and adding whole steps commutes with
rounding: ⌊x + ½⌋ + n = ⌊x + n + ½⌋. So one rounding of the sum does, unless both operands are finer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from linger.numeric.fixed import limits
from linger.numeric.torch_kernel import carrier
from linger.numeric.torch_quantize import fake_quantize

_UNLIMITED = 48  # rounding without limiting: no operand of 32 bits reaches 48
_SIGNIFICAND = 24  # bits that a float32 sum holds exactly


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The exact sum of the real values."""
    x, y = operands
    spread = math.log2(max(scales) / min(scales))
    return x + y if max(bits) + spread < _SIGNIFICAND else x.double() + y.double()


def evaluate(total: Tensor, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool) -> Tensor:
    """The sum of both operands, each rounded to scale_o, limited to o_bits."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    is_finer = [source > scale for source in (attributes["scale_x"], attributes["scale_y"])]
    if not any(is_finer):
        low, high = limits(bits)
        return (total.clamp(low / scale, high / scale) if can_saturate else total).to(carrier(bits))
    if all(is_finer):
        x, y = operands
        total = fake_quantize(x.to(total.dtype), scale, _UNLIMITED, can_saturate=False) + y
        can_saturate = True  # two roundings may go one step beyond the sum that was seen
    return fake_quantize(total, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))
