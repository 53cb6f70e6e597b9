# SPDX-License-Identifier: Apache-2.0
"""Products of integers in torch, exact and fast.

float32 adds integers exactly, in any order, while every partial sum stays below 2^24. The bound
2^(bits−1)·max Σ|w| + max|b| is static, so it proves the whole layer. Where it fails the input channels are
split until each part meets it; the parts are added in float64. What still fails runs in float64.

The same holds for real carriers q/scale: scaling by powers of two changes no rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from linger.numeric.fixed import FLOAT32_EXACT

MAX_PARTS = 8
"""More parts than this cost more than one float64 product."""


@dataclass(frozen=True)
class SplitPlan:
    """How a product stays exact: 0 parts = float64, 1 = plain float32, more = input channels split."""

    parts: int
    is_bias_apart: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether one product in float32 is exact, bias included."""
        return self.parts == 1 and not self.is_bias_apart


def plan_product(
    weight: Tensor,
    bias: Tensor | None,
    bits: int,
    *,
    is_nonnegative: bool = False,
    headroom: float = 0.0,
    transposed_groups: int | None = None,
) -> SplitPlan:
    """Choose the cheapest exact form for integer weights [out, in/group, …] and inputs of `bits` bits.

    `headroom` is added to the bias's magnitude, for a rounding constant that the caller folds into it. After ReLU every
    partial sum, in whatever order, lies between −max·Σw⁻ and max·Σw⁺, so the larger of the two sums takes the place of
    Σ|w|. `transposed_groups`: the weights are those of a transposed convolution, [in, out/groups, …].
    """
    if weight.numel() == 0:
        return SplitPlan(1)
    reach = 2.0 ** (bits - 1)
    # sums of 8-bit weights stay far below 2^24 themselves, so float32 counts them exactly, and faster
    wide = weight.detach().to(torch.float32 if weight.dtype == torch.int8 else torch.float64)
    wide = _by_output(wide, transposed_groups)
    signs = [wide.clamp(min=0), -wide.clamp(max=0)] if is_nonnegative else [wide.abs()]
    per_channel = torch.stack([s.sum(-1) for s in signs]).double() * reach
    offset = headroom
    if bias is not None and bias.numel():
        offset += float(bias.detach().double().abs().max())
    total = float(per_channel.sum(-1).max())
    if total + offset < FLOAT32_EXACT:
        return SplitPlan(1)
    parts = _parts_needed(per_channel, min(MAX_PARTS, wide.shape[1]))
    return SplitPlan(parts, is_bias_apart=parts > 0)


def _parts_needed(per_channel: Tensor, most: int) -> int:
    """Into how many parts the input channels are split, so that float32 holds the sum of each; 0: more than `most`."""
    for parts in range(1, most + 1):
        if max(float(part.sum(-1).max()) for part in per_channel.chunk(parts, dim=-1)) < FLOAT32_EXACT:
            return parts
    return 0


def _by_output(weight: Tensor, transposed_groups: int | None) -> Tensor:
    """Weights as [out, in/group, taps].

    A transposed convolution spreads each input over the output: y[o, p] = b[o] + Σ x[i, q]·w[i, o', p − stride·q], with
    o = g·(out/groups) + o' and i running over the in/groups input channels of group g. For one p every pair (i, tap)
    occurs at most once, whatever stride, dilation and padding are. So Σ|w[i, o', ·]| over the group's input channels and
    all taps bounds every partial sum, and leaving input channels out of a part takes just their terms away.
    """
    if weight.dim() == 1:  # one factor per channel
        return weight.reshape(-1, 1, 1)
    if transposed_groups is None:
        return weight.reshape(weight.shape[0], weight.shape[1], -1)
    groups, outside = transposed_groups, weight.shape[1]
    parts = weight.reshape(groups, weight.shape[0] // groups, outside, -1)
    return parts.transpose(1, 2).reshape(groups * outside, weight.shape[0] // groups, -1)


Product = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]


def run_product(
    product: Product,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    plan: SplitPlan,
    *,
    group: int,
    axis: int,
    is_transposed: bool = False,
    parts: Sequence[Tensor] = (),
) -> Tensor:
    """Run `product(x, weight, bias)` as the plan says; `axis` is the channel axis of x, `parts` what `split_weight` gave.

    Returns float32 for the plain plan, float64 otherwise. A weight of one axis is a factor for each channel. The bias has
    one number per output channel. `is_transposed`: the weights are [in, out/group, …].
    """
    if plan.parts == 0 or plan.is_plain:
        if plan.parts == 0:
            x = x.double()
        return product(x, _as_type(weight, x.dtype), None if bias is None else _as_type(bias, x.dtype))
    if weight.dim() == 1:  # one factor per channel: there is nothing to split
        total = product(x, weight.to(x.dtype), None).double()
    else:
        transposed_groups = group if is_transposed else None
        chunks = _chunks(weight, plan, transposed_groups)
        weights = parts or [_taps(weight, chosen, transposed_groups) for chosen in chunks]
        inputs = (_inputs(x, chosen, sum(map(len, chunks)), group, axis) for chosen in chunks)
        total = reduce(torch.add, (product(*pair, None).double() for pair in zip(inputs, weights, strict=True)))
    return total if bias is None else total + _along(bias.double(), axis, total.dim())


def _as_type(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t.to(dtype)`, asked for only where needed: torch's own way to find out takes long."""
    return t if t.dtype == dtype else t.to(dtype)


def split_weight(weight: Tensor, plan: SplitPlan, transposed_groups: int | None = None) -> tuple[Tensor, ...]:
    """The weights of each part of a product that is split, else nothing.

    Each has memory of its own, because a convolution would copy a slice of the weights in every pass.
    """
    if plan.parts <= 1 or weight.dim() == 1:
        return ()
    return tuple(
        _taps(weight, chosen, transposed_groups).contiguous() for chosen in _chunks(weight, plan, transposed_groups)
    )


def _chunks(weight: Tensor, plan: SplitPlan, transposed_groups: int | None) -> Sequence[range]:
    """The input channels of a group that belong to each part."""
    channels = weight.shape[1] if transposed_groups is None else weight.shape[0] // transposed_groups
    size = -(-channels // plan.parts)
    return [range(first, min(first + size, channels)) for first in range(0, channels, size)]


def _picked(chosen: range, channels: int, group: int, device: torch.device) -> Tensor:
    """The places of some of a group's input channels, in every group."""
    first = torch.arange(chosen.start, chosen.stop, device=device)
    return torch.cat([first + g * channels for g in range(group)])


def _inputs(x: Tensor, chosen: range, channels: int, group: int, axis: int) -> Tensor:
    """Some input channels, the same of every group, of x."""
    if group == 1:
        return x.narrow(axis, chosen.start, len(chosen))
    return x.index_select(axis, _picked(chosen, channels, group, x.device))


def _taps(weight: Tensor, chosen: range, transposed_groups: int | None) -> Tensor:
    """The weights of some input channels, the same of every group."""
    if transposed_groups is None or transposed_groups == 1:
        return weight.narrow(1 if transposed_groups is None else 0, chosen.start, len(chosen))
    channels = weight.shape[0] // transposed_groups
    return weight.index_select(0, _picked(chosen, channels, transposed_groups, weight.device))


def _along(bias: Tensor, axis: int, rank: int) -> Tensor:
    """One number per channel, in the shape that broadcasts along an axis."""
    return bias.reshape(-1, *([1] * (rank - 1 - axis % rank)))
