"""Quantization written the slow, plain way: float64 numbers, one operation after the other, gradients by autograd."""

import torch
from torch import Tensor


class StraightFloor(torch.autograd.Function):
    """⌊x⌋ whose gradient is the identity."""

    @staticmethod
    def forward(ctx, x):
        return torch.floor(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def rounded(x: Tensor, scale: float) -> Tensor:
    """⌊x·scale + ½⌋."""
    return StraightFloor.apply(x * scale + 0.5)


def quantized(x: Tensor, scale: float, bits: int, *, is_relu: bool = False) -> Tensor:
    """sat(⌊x·scale + ½⌋)/scale; torch's clamp lets the gradient pass at its ends and inside."""
    if is_relu:
        x = torch.relu(x)
    return rounded(x, scale).clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) / scale


def with_gradient(function, x: Tensor, upstream: Tensor, **settings) -> tuple[Tensor, Tensor]:
    """function(x) and the gradient of Σ upstream·function(x) with respect to x."""
    leaf = x.clone().requires_grad_()
    # a product makes an intermediate tensor, which an owner may write over; a leaf it may not
    result = function(leaf * 1.0, **settings)
    result.backward(upstream)
    return result.detach(), leaf.grad
