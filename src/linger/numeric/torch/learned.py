# SPDX-License-Identifier: Apache-2.0
"""The gradient of rounded tensors by the grid that they were rounded to, so that an optimizer can learn the grid.

Rounding gives y = q·s with q = sat(⌊x/s + ½⌋) and the step s. Straight through the rounding, ∂y/∂s is q − x/s where nothing
saturates and q where it does: a coarser grid adds rounding error, a finer one cuts off more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.numeric.fixed import limits
from linger.numeric.torch.scale import Scale


@dataclass(frozen=True)
class Grid:
    """The grid of a rounded tensor, and the parameter that it follows from.

    Attributes:
        scale: Steps per unit, a power of two.
        bits: Width of the integers.
        wanted: The scale that the parameter asks for; the device's format may allow only another one.
        is_logarithm: Whether the parameter is the binary logarithm of a range, else it is a step.
        per_step: Of a step, by how much the grid's own step grows with it; its sign is that of the parameter.
        is_relu: Whether negative numbers became zero.
        is_integer: Whether the rounded tensor holds the integers themselves, not their real values.
        part: The only part that was rounded to this grid: a place on the first axis; None: all of it.
    """

    scale: Scale
    bits: int
    wanted: Scale
    is_logarithm: bool
    per_step: Scale = 1.0
    is_relu: bool = False
    is_integer: bool = False
    part: int | None = None

    def derivative(self, real: Tensor) -> Tensor:
        """∂y/∂s of every element: q − x/s, or q where it saturates."""
        low, high = limits(self.bits)
        steps = real * self.scale
        if self.is_relu:
            steps = steps.clamp_(min=0.0)
        whole = (steps + 0.5).floor_()
        held: Tensor = whole.clamp(low, high)
        held -= steps.mul_(whole == held)  # in place: new memory costs more than the arithmetic
        return held

    def factor(self, count: int) -> Scale:
        """From the sum over gradient·∂y/∂s to the gradient of the parameter; `count` elements were rounded."""
        unit = self.scale if self.is_integer else 1.0
        if self.is_logarithm:
            return math.log(2.0) * unit / self.scale
        return unit / math.sqrt(max(count, 1) * limits(self.bits)[1])

    def inward(self, gradient: Tensor) -> Tensor:
        """A gradient by the size of the step, unless it would lead further away from the grids that the device allows: those are no use."""
        if isinstance(self.scale, Tensor) or isinstance(self.wanted, Tensor):
            is_finer, is_coarser = self.wanted > self.scale, self.wanted < self.scale
            return gradient.masked_fill((is_finer & (gradient > 0)) | (is_coarser & (gradient < 0)), 0.0)
        if self.wanted == self.scale:
            return gradient
        return gradient.clamp(max=0.0) if self.wanted > self.scale else gradient.clamp(min=0.0)


class _Learn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rounded: Tensor, parameter: Tensor, real: Tensor, factor: Tensor | None, grid: Grid
    ) -> Tensor:
        ctx.mark_dirty(rounded)  # it stays as it is; a view could not be written to later, as relu_ does
        ctx.save_for_backward(real, factor)
        ctx.grid, ctx.like = grid, (parameter.shape, parameter.dtype)
        return rounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), grid = gradients, ctx.grid
        real, factor = ctx.saved_tensors
        own = gradient if grid.part is None else gradient[grid.part]
        real = real.to(own.dtype)
        found = grid.derivative(real if factor is None else real * factor)
        total = found.mul_(own).sum() * grid.factor(found.numel())
        shape, dtype = ctx.like
        return gradient, (grid.inward(total) * grid.per_step).to(dtype).reshape(shape), None, None, None


def learn_grid(rounded: Tensor, parameter: Tensor, real: Tensor, grid: Grid, factor: Tensor | None = None) -> Tensor:
    """The rounded tensor itself; from now on its gradient also reaches the parameter of its grid.

    Args:
        rounded: Rounded numbers that nobody else holds.
        parameter: One number.
        real: The numbers before they were rounded, in a tensor that is not written over.
        grid: What they were rounded to.
        factor: What the real numbers are to be multiplied with.
    """
    if not (torch.is_grad_enabled() and parameter.requires_grad):
        return rounded
    kept = None if factor is None else factor.detach()
    result: Tensor = _Learn.apply(rounded, parameter, real.detach(), kept, grid)
    return result
