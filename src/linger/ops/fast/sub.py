# SPDX-License-Identifier: Apache-2.0
"""Fast path of iqSub on real carriers.

−⌊y + ½⌋ is not ⌊½ − y⌋ at a tie, so a finer y is rounded by itself; after that it is a whole number n of steps, and
⌊x + ½⌋ − n = ⌊x − n + ½⌋: one more rounding does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from linger.numeric.torch.kernel import carrier
from linger.numeric.torch.quantize import fake_quantize, limited

_UNLIMITED = 48  # rounding without limiting: no operand of 32 bits reaches 48
_SIGNIFICAND = 24  # bits that a float32 difference holds exactly


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The exact difference of the real values."""
    x, y = operands
    if any(isinstance(s, Tensor) for s in scales):  # on a device, and not read back: wide enough for every pair
        return x.double() - y.double()
    spread = math.log2(max(scales) / min(scales))
    return x - y if max(bits) + spread < _SIGNIFICAND else x.double() - y.double()


def evaluate(
    total: Tensor | None, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool
) -> Tensor:
    """Both operands rounded to scale_o and subtracted, limited to o_bits; `total` is their exact difference, if known."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    scale_x, scale_y = attributes["scale_x"], attributes["scale_y"]
    x, y = operands
    if isinstance(scale, Tensor):
        y = fake_quantize(y.double(), scale, _UNLIMITED, can_saturate=False)
        return fake_quantize(x.double() - y, scale, bits).to(carrier(bits))
    if scale_y > scale:
        if carrier(bits) != y.dtype:
            y = y.to(carrier(bits))
        y = fake_quantize(y, scale, _UNLIMITED, can_saturate=False)
        total = None
    if total is None:
        total = real_result((x, y), (scale_x, min(scale_y, scale)), (bits, bits))
    if scale_x <= scale:
        return limited(total, scale, bits).to(carrier(bits)) if can_saturate else total.to(carrier(bits))
    return fake_quantize(total, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))
