# SPDX-License-Identifier: Apache-2.0
"""Fast path of iqAdd on real carriers.

An operand that is at the output's scale already is a whole number of steps, and adding whole steps commutes with
rounding: ⌊x + ½⌋ + n = ⌊x + n + ½⌋. So one rounding of the sum does, unless both operands are finer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.fixed import limits
from linger.numeric.torch.kernel import carrier
from linger.numeric.torch.quantize import fake_quantize, limited

_UNLIMITED = 48  # rounding without limiting: no operand of 32 bits reaches 48
_SIGNIFICAND = 24  # bits that a float32 sum holds exactly


def real_result(operands: Sequence[Tensor], scales: Sequence[float], bits: Sequence[int]) -> Tensor:
    """The exact sum of the real values."""
    x, y = operands
    if any(isinstance(s, Tensor) for s in scales):  # on a device, and not read back: wide enough for every pair
        return x.double() + y.double()
    spread = math.log2(max(scales) / min(scales))
    return x + y if max(bits) + spread < _SIGNIFICAND else x.double() + y.double()


def evaluate(
    total: Tensor | None, operands: Sequence[Tensor], attributes: dict[str, Any], *, can_saturate: bool
) -> Tensor:
    """The sum of both operands, each rounded to scale_o, limited to o_bits; `total` is their exact sum, if known."""
    scale, bits = attributes["scale_o"], attributes["o_bits"]
    scales = (attributes["scale_x"], attributes["scale_y"])
    if isinstance(scale, Tensor):
        x, y = (fake_quantize(o.double(), scale, _UNLIMITED, can_saturate=False) for o in operands)
        return fake_quantize(x + y, scale, bits).to(carrier(bits))
    is_finer = [source > scale for source in scales]
    if all(is_finer):
        return _round_both(operands, scales, scale, bits)
    if total is None:
        total = real_result(operands, scales, (bits, bits))
    if not any(is_finer):
        return limited(total, scale, bits).to(carrier(bits)) if can_saturate else total.to(carrier(bits))
    return fake_quantize(total, scale, bits, can_saturate=can_saturate, is_owned=True).to(carrier(bits))


def _round_both(operands: Sequence[Tensor], scales: Sequence[float], scale: float, bits: int) -> Tensor:
    """Both operands are finer than the output: each is rounded to whole steps, then they are added."""
    dtype = carrier(bits)
    x, y = [o if o.dtype == dtype else o.to(dtype) for o in operands]
    if x.requires_grad or y.requires_grad:
        rounded = fake_quantize(x, scale, _UNLIMITED, can_saturate=False)
        if bits + math.log2(scales[1] / scale) >= _SIGNIFICAND:  # beside large steps float32 would lose y's last bits
            y = fake_quantize(y, scale, _UNLIMITED, can_saturate=False)
        return fake_quantize(rounded + y, scale, bits, is_owned=True)
    half = torch.full((), 0.5, dtype=dtype, device=x.device)
    steps = torch.add(half, x, alpha=scale).floor_()
    if x.shape != y.shape or bits + math.log2(scales[1] / scale) >= _SIGNIFICAND:
        steps = steps + torch.add(half, y, alpha=scale).floor_()
    else:  # adding the whole steps of x commutes with y's rounding, and needs no more memory
        steps.add_(y, alpha=scale).add_(0.5).floor_()
    return steps.clamp_(*limits(bits)).mul_(1.0 / scale)
