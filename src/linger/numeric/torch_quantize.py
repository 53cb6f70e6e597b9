# SPDX-License-Identifier: Apache-2.0
"""Quantise-dequantise in one pass: the fast twin of Quant and of every layer's requantisation.

Works on real carriers q/scale. The forward is ⌊x·scale + ½⌋ limited and divided by the scale, in x's own
precision; the gradient is that of limiting alone (straight through the rounding). The input is kept only when
something may be limited, so an unsaturated tensor costs no memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linger.numeric.fixed import limits


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: float, low: int, high: int, is_relu: bool, can_saturate: bool
    ) -> Tensor:
        half = torch.tensor(0.5, dtype=x.dtype, device=x.device)
        result = torch.add(half, x, alpha=scale)
        result.floor_().clamp_(0 if is_relu else low, high).mul_(1.0 / scale)
        ctx.is_relu, ctx.can_saturate = is_relu, can_saturate
        ctx.edges = (0.0 if is_relu else (low - 0.5) / scale, (high + 0.5) / scale)
        if is_relu or can_saturate:
            ctx.save_for_backward(x)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        gradient = gradients[0]
        if ctx.can_saturate:
            gradient = torch.ops.aten.hardtanh_backward(gradient, ctx.saved_tensors[0], *ctx.edges)
        elif ctx.is_relu:
            gradient = torch.ops.aten.threshold_backward(gradient, ctx.saved_tensors[0], 0.0)
        return gradient, None, None, None, None, None


def fake_quantize(
    x: Tensor, scale: float, bits: int, *, is_relu: bool = False, can_saturate: bool = True
) -> Tensor:
    """sat(⌊x·scale + ½⌋)/scale, with ReLU fused on request.

    Args:
        x: Real values, float32 or float64.
        scale: A power of two.
        bits: Width of the integers.
        is_relu: Limit to 0 … max instead; the gradient is ReLU's, taken at the input, not at the rounded output.
        can_saturate: False where the caller knows that nothing is limited, which makes the gradient the identity.
    """
    low, high = limits(bits)
    result: Tensor = _FakeQuantize.apply(x, scale, low, high, is_relu, can_saturate)
    return result


def max_abs(x: Tensor, *, is_relu: bool = False) -> float:
    """Largest magnitude (of the positive part only, where ReLU follows); 0 for an empty tensor."""
    if x.numel() == 0:
        return 0.0
    x = x.detach()
    if is_relu:
        return max(float(x.max()), 0.0)
    low, high = torch.aminmax(x)
    largest = max(-float(low), float(high))
    return largest if largest == largest and float(low) == float(low) else float("nan")
