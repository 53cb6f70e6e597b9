# SPDX-License-Identifier: Apache-2.0
"""Fake quantization in one pass: the fast path of Quant and of every layer's requantization.

Works on real carriers q/scale. The forward is ⌊x·scale + ½⌋ limited and divided by the scale, in x's own
precision; the gradient is that of saturation alone (straight-through estimator for the rounding). The input is saved for
the backward pass only when something may saturate, so an unsaturated tensor costs no memory.

Also the gradient of rounded tensors by the step of their grid, so that an optimizer can learn it (learned step size
quantization, LSQ: Esser et al., 2020). Rounding gives y = q·s with q = sat(⌊x/s + ½⌋) and the step s. Straight through the rounding, ∂y/∂s is q − x/s where nothing
saturates and q where it does: a coarser grid adds rounding error, a finer one cuts off more.

Scales can stay on a device: in training, reading one back to the host would stall a GPU once for every tensor. There a scale, or
the range that it follows from, is a float64 tensor without axes; on the CPU it is a Python number, which is faster. Both follow the
rules of `linger.numeric.fixed`, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.errors import UsageError
from linger.numeric.fixed import BIAS_BITS, MAX_EXPONENT, NEGLIGIBLE, as_float32, limits, scale_for

Scale = Any
"""A power of two, or the largest magnitude it follows from: a Python number or a tensor without axes.

Weights with a scale for each output channel have a float64 vector. Its smallest number is the scale of the tensor (`base_of`); the
others are that times 2^e, e the exponent of a channel (`exponents_of`).
"""

LARGEST_CHANNEL_EXPONENT = 12
"""By how much a channel's scale may be finer than the tensor's: a longer shift would leave what float32 holds with its rounding."""


def base_of(scale: Scale) -> Scale:
    """The scale of a tensor of weights, where each channel may have its own."""
    is_one = not isinstance(scale, Tensor) or not scale.dim()
    return scale if is_one else float(scale.min()) if scale.is_cpu else scale.min()


def finest_of(scale: Scale) -> Scale:
    """The scale of a tensor of weights, or the finest one of its channels."""
    return 1.0 / base_of(1.0 / scale)


def exponents_of(scale: Scale) -> tuple[int, ...]:
    """By how many powers of two the scale of each channel is finer than the tensor's; nothing where none is."""
    is_one = not isinstance(scale, Tensor) or not scale.dim()
    found = [] if is_one else torch.log2(scale / scale.min()).int().tolist()
    return tuple(found) if any(found) else ()


ZEROS = 2.0**-126
"""Range of a tensor that held nothing but zeros: seen, but negligible."""

MOMENTUM = 0.1
"""Weight of the newest batch in a running range during training; the mean starts at the first one."""


def per_weight(factor: Tensor, weight: Tensor, transposed_groups: int | None = None) -> Tensor:
    """One number per output channel, in the shape that multiplies the weight."""
    trailing = [1] * (weight.dim() - 2)
    if transposed_groups is None:
        return factor.reshape(-1, 1, *trailing)
    # input channel i belongs to group i // (in/groups); its row holds the out/groups outputs of that group
    rows = factor.reshape(transposed_groups, -1)
    return rows.repeat_interleave(weight.shape[0] // transposed_groups, dim=0).reshape(*weight.shape[:2], *trailing)


def by_channel(weight: Tensor, transposed_groups: int | None = None) -> Tensor:
    """Weights as rows, one for each output channel; of a transposed convolution, which has `transposed_groups`, too."""
    if transposed_groups is None:
        return weight.flatten(1)
    rows = weight.reshape(transposed_groups, -1, *weight.shape[1:]).transpose(1, 2)
    return rows.reshape(transposed_groups * weight.shape[1], -1)


def channel_magnitudes(weight: Tensor, transposed_groups: int | None = None) -> Tensor:
    """The largest magnitude of each output channel, a float64 vector."""
    low, high = torch.aminmax(by_channel(weight.detach(), transposed_groups), dim=1)
    return torch.maximum(-low, high).double()


def scale_for_range(largest: Scale, bits: int) -> Scale:
    """`fixed.scale_for`, for a tensor too: the largest power of two at which `largest` still fits. NaN stays NaN."""
    if not isinstance(largest, Tensor):
        return scale_for(largest, bits)
    quotient = limits(bits)[1] / largest.double()
    # quotient = m·2^e with ½ ≤ m < 1, so the power of two at or below it is 2^(e−1) = quotient/(2m), without rounding
    exact = quotient / (2.0 * torch.frexp(quotient).mantissa)
    held = exact.clamp(max=2.0**MAX_EXPONENT)
    return held.masked_fill(largest < NEGLIGIBLE, 2.0 ** (bits - 1))


def smallest(scales: Sequence[Scale]) -> Scale:
    """The smallest of several scales; all must be on one device, or numbers."""
    return _reduced(min, torch.minimum, scales)


def largest_of(scales: Sequence[Scale]) -> Scale:
    """The largest of several scales."""
    return _reduced(max, torch.maximum, scales)


def _reduced(plain: Callable[..., float], pair: Callable[..., Tensor], scales: Sequence[Scale]) -> Scale:
    tensors = [s for s in scales if isinstance(s, Tensor)]
    if not tensors:
        return plain(scales)
    total = tensors[0]
    for other in tensors[1:]:
        total = pair(total, other)
    numbers: list[float] = [s for s in scales if not isinstance(s, Tensor) and math.isfinite(s)]
    if not numbers:
        return total
    return total.clamp(max=min(numbers)) if plain is min else total.clamp(min=max(numbers))


def limit_of(rule: Callable[..., Scale], scales: Sequence[Scale]) -> Scale:
    """An op's rule applied to the scales of its operands; Python's min and max run on the device."""
    if not [s for s in scales if isinstance(s, Tensor)]:
        return rule(scales)
    if rule is min:
        return smallest(scales)
    return largest_of(scales) if rule is max else rule(scales)


def magnitude_within(low: Scale, high: Scale, interval: tuple[float, float]) -> Scale:
    """The largest magnitude of numbers from `low` to `high` after clipping to an interval around zero."""
    if not isinstance(high, Tensor):
        return max(min(high, interval[1]), -max(low, interval[0]), 0.0)
    limited = torch.maximum(high.clamp(max=interval[1]), -low.clamp(min=interval[0])).clamp(min=0.0)
    return limited.masked_fill(~(high.isfinite() & low.isfinite()), math.nan)


def _round_to_grid(x: Tensor, scale: Scale, low: int | None, high: int | None, *, is_owned: bool) -> Tensor:
    """⌊x·scale + ½⌋ limited and divided by the scale; written over x where the caller owns it."""
    if isinstance(scale, Tensor):
        scale = scale.to(x.dtype)
        result: Tensor = (x * scale).add_(0.5).floor_()
        return (result if high is None else result.clamp_(low, high)).div_(scale)
    half = torch.full((), 0.5, dtype=x.dtype, device=x.device)  # half as dear as torch.tensor
    result = torch.add(half, x, alpha=scale, out=x) if is_owned else torch.add(half, x, alpha=scale)
    result.floor_()
    if high is not None:
        result.clamp_(low, high)
    return result.mul_(1.0 / scale)


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(  # torch's apply takes positional arguments only
        ctx: Any,
        x: Tensor,
        scale: Scale,
        low: int,
        high: int,
        is_relu: bool,  # noqa: FBT001 - apply passes positions only
        can_saturate: bool,  # noqa: FBT001 - apply passes positions only
        is_owned: bool,  # noqa: FBT001 - apply passes positions only
    ) -> Tensor:
        ctx.is_relu, ctx.can_saturate = is_relu, can_saturate
        if can_saturate:
            # open ends, as hardtanh_backward takes them: low − ½ rounds up to low, so the edge lies one step below it
            below = (low - 0.5) / scale * (1 + torch.finfo(x.dtype).eps)
            ctx.edges = (0.0 if is_relu else below, (high + 0.5) / scale)
        if is_relu or can_saturate:
            ctx.save_for_backward(x)  # the edges of a scale on a device are tensors too, but no inputs or outputs
            is_owned = False
        elif is_owned and not isinstance(scale, Tensor):
            ctx.mark_dirty(x)
        needs_limit = is_relu or can_saturate
        return _round_to_grid(x, scale, 0 if is_relu else low, high if needs_limit else None, is_owned=is_owned)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0]
        if ctx.can_saturate and isinstance(ctx.edges[1], Tensor):
            low, high = ctx.edges
            (x,) = ctx.saved_tensors
            gradient = gradient.masked_fill((x <= low) | (x >= high), 0.0)
        elif ctx.can_saturate:
            gradient = torch.ops.aten.hardtanh_backward.default(gradient, ctx.saved_tensors[0], *ctx.edges)
        elif ctx.is_relu:
            gradient = torch.ops.aten.threshold_backward.default(gradient, ctx.saved_tensors[0], 0.0)
        return gradient, None, None, None, None, None, None


def fake_quantize(
    x: Tensor, scale: Scale, bits: int, *, is_relu: bool = False, can_saturate: bool = True, is_owned: bool = False
) -> Tensor:
    """sat(⌊x·scale + ½⌋)/scale, with ReLU fused on request.

    Args:
        x: Real values, float32 or float64.
        scale: A power of two.
        bits: Width of the integers.
        is_relu: Limit to 0 … max instead; the gradient is ReLU's, taken at the input, not at the rounded output.
        can_saturate: False where the caller knows that nothing is limited, which makes the gradient the identity.
        is_owned: Nobody else needs x: it may be written over.
    """
    low, high = limits(bits)
    if not (torch.is_grad_enabled() and x.requires_grad):
        needs_limit = is_relu or can_saturate
        return _round_to_grid(
            x, scale, 0 if is_relu else low, high if needs_limit else None, is_owned=is_owned and not x.requires_grad
        )
    result: Tensor = _FakeQuantize.apply(x, scale, low, high, is_relu, can_saturate, is_owned)
    return result


def may_saturate(magnitude: Scale | None, scale: Scale, bits: int) -> bool:
    """Whether values up to a magnitude may saturate; True where it is unknown or on a device, which is not read."""
    if magnitude is None or isinstance(magnitude, Tensor) or isinstance(scale, Tensor):
        return True
    return bool(magnitude * scale > limits(bits)[1])


def limited(x: Tensor, scale: float, bits: int) -> Tensor:
    """Multiples of 1/scale that nobody else needs, limited to integers of this width; written over where that is allowed."""
    low, high = (end / scale for end in limits(bits))
    return x.clamp(low, high) if x.requires_grad else x.clamp_(low, high)


class Memory:
    """The memory of one tensor, reused by the next one of the same shape as soon as nothing else holds it.

    The system hands large blocks out page by page and takes them back when they are freed. For weights that are rounded
    in every step that costs more than rounding them. Who else holds the memory, a graph whose gradients are still to
    come for example, is known to torch: then the next tensor gets memory of its own.
    """

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """A copy starts without memory."""
        return Memory, ()

    def like(self, t: Tensor) -> Tensor:
        """An uninitialized tensor of the same shape, strides and type."""
        if not t.is_cpu or torch.is_inference_mode_enabled():  # other devices keep freed memory themselves
            return torch.empty_like(t)
        try:
            memory = self._free.pop()  # taken out first, so that two threads never share it
        except IndexError:
            memory = torch.empty_like(t)
        if (
            memory.shape != t.shape
            or memory.stride() != t.stride()
            or memory.dtype != t.dtype
            or holders_of_memory(memory) != 1
        ):
            memory = torch.empty_like(t)
        result = memory.detach()
        self._free.append(memory)
        return result

    def release(self) -> None:
        """Free the memory."""
        self._free.clear()


def holders_of_memory(t: Tensor) -> int | None:
    """How many tensors, and things that autograd has saved, use a tensor's memory; None where torch does not tell."""
    count = getattr(torch._C, "_storage_Use_Count", None)  # noqa: SLF001 - torch has no public one
    storage = t.untyped_storage()
    return None if count is None else int(count(storage._cdata)) - 1  # noqa: SLF001 - without `storage` itself


Rows = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor], Callable[[Tensor], Tensor]] | None
"""Of weights with a scale for each output channel, `channel_magnitudes`, `per_weight` and `by_channel`; None: one scale."""


def rows_of(transposed_groups: int | None = None) -> Rows:
    """`Rows` of weights [out, in/group, …], or of a transposed convolution with so many groups."""
    each: Any = (channel_magnitudes, per_weight, by_channel)
    return cast(Rows, tuple(partial(one, transposed_groups=transposed_groups) for one in each))


class _RoundWeight(torch.autograd.Function):
    @staticmethod
    def forward(  # torch's apply takes positional arguments only
        ctx: Any,
        weight: Tensor,
        factor: Tensor | None,
        choose_scale: Callable[[Any], Any],
        saturates_at: int | None,
        stays_there: bool,  # noqa: FBT001 - apply passes positions only
        is_real: bool,  # noqa: FBT001 - apply passes positions only
        memory: Memory,
        rows: Rows,
    ) -> Any:
        result = memory.like(weight)
        source = weight if factor is None else torch.mul(weight, factor, out=result)
        found = choose_scale(rows[0](source) if rows else largest_magnitude(source) if stays_there else max_abs(source))
        scale = rows[1](found, source) if rows else found
        if isinstance(scale, Tensor):
            scale = scale.to(result.dtype)
            torch.mul(source, scale, out=result).add_(0.5).floor_()
            ctx.mark_non_differentiable(found)
        else:
            half = torch.full((), 0.5, dtype=result.dtype, device=result.device)
            torch.add(half, source, alpha=scale, out=result).floor_()
        is_held = None
        if saturates_at is not None:
            low, high = limits(saturates_at)
            is_held = (result >= low) & (result <= high)
            result.clamp_(low, high)
        ctx.save_for_backward(factor, is_held)
        ctx.slope = None if is_real else scale.detach() if isinstance(scale, Tensor) else scale
        return result.mul_(1.0 / scale) if is_real else result, found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        factor, is_held = ctx.saved_tensors
        gradient, slope = gradients[0], ctx.slope
        if factor is not None:
            slope = factor if slope is None else factor * slope
        # in place: the gradient comes fresh from the product's backward and has no other reader
        for factor_of_it in (slope, is_held):
            gradient = gradient if factor_of_it is None else gradient.mul_(factor_of_it)
        return gradient, None, None, None, None, None, None, None


def round_weight(
    weight: Tensor,
    factor: Tensor | None,
    choose_scale: Callable[[Any], Any],
    *,
    saturates_at: int | None = None,
    stays_there: bool = False,
    is_real: bool = False,
    memory: Memory | None = None,
    rows: Rows = None,
) -> tuple[Tensor, Any]:
    """The integers ⌊w·factor·scale + ½⌋ (in a float tensor) and the scale.

    Args:
        weight: Output channels first.
        factor: Folds a batch norm in the same pass (one number per output channel, broadcastable); no gradient.
        choose_scale: From the largest |w·factor| to a scale.
        saturates_at: Width of integers at which weights saturate; None where the scale holds them all.
        stays_there: Choose the scale of weights on a device there and do not read it back: both numbers are then tensors.
        is_real: Divide the integers by the scale again.
        memory: Where to write them, if it is free.
        rows: Where each output channel has a scale: what gives their largest magnitudes, and what spreads a vector over the weights.
    """
    if weight.dtype in (torch.float16, torch.bfloat16):  # ⌊w·scale + ½⌋ itself would be rounded
        weight, factor = weight.float(), None if factor is None else factor.float()
    arguments = (choose_scale, saturates_at, stays_there, is_real, memory or Memory(), rows)
    rounded, scale = _RoundWeight.apply(weight, factor, *arguments)
    return rounded, scale.double() if isinstance(scale, Tensor) else scale


def weight_scale(
    largest: Scale, bits: int, bias: Tensor | None, scale_x: Scale, where: str, *, chosen: Scale | None = None
) -> Scale:
    """The scale of weights up to `largest`, lowered where the int32 bias at scale_x·scale_w would not fit.

    `chosen` is the range to take instead; weights beyond it saturate.

    Raises:
        UsageError: The weights hold NaN or infinity; on a device, whose values are not read, both become NaN.
    """
    if not isinstance(largest, Tensor) and not math.isfinite(largest):
        raise UsageError(f"{where}: the weights hold NaN or infinity, so no scale can be chosen.")
    reach = largest if chosen is None else chosen
    scale = scale_for_range(reach, bits) if isinstance(reach, Tensor) else scale_for(reach, bits)
    if bias is None or not bias.numel():
        return scale
    offset = largest_magnitude(bias) if isinstance(largest, Tensor) else max_abs(bias)
    return smallest([scale, scale_for_range(offset * scale_x, BIAS_BITS)])


def output_channels(weight: Tensor, transposed_groups: int | None) -> int:
    """How many output channels weights have; those of a transposed convolution are [in, out/groups, …]."""
    return weight.shape[0] if transposed_groups is None else weight.shape[1] * transposed_groups


def channel_scales(
    largest: Tensor, bits: int, bias: Tensor | None, scale_x: Scale, where: str, *, chosen: Tensor | None = None
) -> Tensor:
    """`weight_scale` of each output channel; a channel of zeros has the scale of the tensor."""
    if largest.is_cpu and not largest.isfinite().all():
        raise UsageError(f"{where}: the weights hold NaN or infinity, so no scale can be chosen.")
    reach = largest if chosen is None else chosen
    scales = scale_for_range(reach, bits)
    if bias is not None:
        scales = torch.minimum(scales, scale_for_range(bias.detach().abs().double() * scale_x, BIAS_BITS))
    is_zero = reach < NEGLIGIBLE
    coarsest = scales.masked_fill(is_zero, math.inf).min()
    base = torch.where(is_zero.all(), scales.min(), torch.minimum(coarsest, scales.min()))
    return torch.minimum(torch.where(is_zero, base, scales), base * 2.0**LARGEST_CHANNEL_EXPONENT)


def widened_range(before: Scale, magnitude: Scale, limit: float, *, is_calibrating: bool) -> Scale:
    """A range up to a limit with one more tensor: the largest magnitude of all in calibration, else a running mean."""
    if isinstance(magnitude, Tensor):
        new = magnitude.clamp(max=limit).masked_fill(~magnitude.isfinite(), math.nan)
        after = torch.maximum(before, new) if is_calibrating else (1 - MOMENTUM) * before + MOMENTUM * new
        after = torch.where(before <= ZEROS, new, after).float()
        return after.masked_fill(after == 0.0, ZEROS)
    new = min(magnitude, limit)
    after = max(before, new) if is_calibrating else (1 - MOMENTUM) * before + MOMENTUM * new
    # nothing but zeros so far: the first real batch sets the range; rounded to float32 as the buffer is, so that both give one scale
    return as_float32(new if before <= ZEROS else after) or ZEROS


def largest_magnitude(x: Tensor, *, is_relu: bool = False) -> Scale:
    """`max_abs`, left where x is: a float64 tensor without axes, unless x is on the CPU or empty."""
    if x.is_cpu or x.numel() == 0:
        return max_abs(x, is_relu=is_relu)
    x = x.detach()
    if is_relu:
        return x.amax().clamp(min=0.0).double()
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).double()


def ends_of(x: Tensor, *, is_relu: bool = False) -> tuple[Scale, Scale]:
    """The smallest and the largest number of a tensor that is not empty, left where it is; with ReLU from zero on."""
    x = x.detach()
    if is_relu:
        high = x.max()
        return (0.0, float(high)) if x.is_cpu else (torch.zeros_like(high).double(), high.double())
    low, high = torch.aminmax(x)
    return (float(low), float(high)) if x.is_cpu else (low.double(), high.double())


def max_abs(x: Tensor, *, is_relu: bool = False) -> float:
    """Largest magnitude (of the positive part only, where ReLU follows); 0 for an empty tensor."""
    if x.numel() == 0:
        return 0.0
    if not x.is_cpu:
        return float(largest_magnitude(x, is_relu=is_relu))  # one look
    x = x.detach()
    if is_relu:
        return max(float(x.max()), 0.0)
    low, high = map(float, torch.aminmax(x))
    return max(-low, high) if low == low and high == high else math.nan


@dataclass(frozen=True)
class Grid:
    """The grid of a rounded tensor, and the parameter that it follows from.

    Attributes:
        scale: Steps per unit, a power of two.
        bits: Width of the integers.
        requested: The scale that the parameter asks for; the device may support only another one.
        is_logarithm: Whether the parameter is the binary logarithm of a range, else it is a step.
        per_step: Of a step, by how much the grid's own step grows with it; its sign is that of the parameter.
        is_relu: Whether negative numbers became zero.
        is_integer: Whether the rounded tensor holds the integers themselves, not their real values.
        part: The only part that was rounded to this grid: a place on the first axis; None: all of it.
        processes: So many processes round a part of the tensor each.
        rows: Of weights with a scale, and a parameter, for each output channel, how these are told apart.
    """

    scale: Scale
    bits: int
    requested: Scale
    is_logarithm: bool
    per_step: Scale = 1.0
    is_relu: bool = False
    is_integer: bool = False
    part: int | None = None
    processes: int = 1
    rows: Rows = None

    def derivative(self, real: Tensor) -> Tensor:
        """∂y/∂s of every element: q − x/s, or q where it saturates."""
        low, high = limits(self.bits)
        steps = real * (self.scale if self.rows is None else self.rows[1](self.scale, real).to(real.dtype))
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
        """The gradient by the step, zero where it would lead further away from the scales that the device supports."""
        if isinstance(self.scale, Tensor) or isinstance(self.requested, Tensor):
            is_finer, is_coarser = self.requested > self.scale, self.requested < self.scale
            return gradient.masked_fill((is_finer & (gradient > 0)) | (is_coarser & (gradient < 0)), 0.0)
        if self.requested == self.scale:
            return gradient
        return gradient.clamp(max=0.0) if self.requested > self.scale else gradient.clamp(min=0.0)


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
        slopes = grid.derivative(real if factor is None else real * factor)
        products = slopes.mul_(own)
        sums = products.sum() if grid.rows is None else grid.rows[2](products).sum(1)
        total = sums * grid.factor(slopes.numel() * grid.processes // sums.numel())
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
    constant = None if factor is None else factor.detach()
    result: Tensor = _Learn.apply(rounded, parameter, real.detach(), constant, grid)
    return result
