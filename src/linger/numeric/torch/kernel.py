# SPDX-License-Identifier: Apache-2.0
"""The training and simulation interpreter: floats that carry integers, with straight-through gradients.

`TorchKernel(is_exact=True)` gives the reference's integers (float64 carriers, proven products);
`is_exact=False` is for training: float32 throughout, the same formulas, the same gradients.

Integer products are exact and fast: float32 adds integers exactly, in any order, while every partial sum stays below 2^24. The bound
2^(bits−1)·max Σ|w| + max|b| is static, so it proves the whole layer. Where it fails the input channels are
split until each part meets it; the parts are added in float64. What still fails runs in float64.

The same holds for real carriers q/scale: scaling by powers of two changes no rounding.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from typing import Any, Unpack

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake

from linger.numeric.fixed import FLOAT32_EXACT, ceil_pads, storage_bits
from linger.numeric.kernel import ConvGeometry, ConvTransposeGeometry, Ints, step_by_step

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
    for parts in range(1, min(MAX_PARTS, wide.shape[1]) + 1):
        if max(float(part.sum(-1).max()) for part in per_channel.chunk(parts, dim=-1)) < FLOAT32_EXACT:
            return SplitPlan(parts, is_bias_apart=True)
    return SplitPlan(0)


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
        inputs = (_picked(x, axis, chosen, sum(map(len, chunks)), group) for chosen in chunks)
        total = reduce(torch.add, (product(*pair, None).double() for pair in zip(inputs, weights, strict=True)))
    return total if bias is None else total + bias.double().reshape(-1, *[1] * (total.dim() - 1 - axis % total.dim()))


def _as_type(t: Tensor, dtype: torch.dtype) -> Tensor:
    """`t.to(dtype)`, called only where needed: torch's own check is slow."""
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


def _picked(t: Tensor, axis: int, chosen: range, channels: int, group: int) -> Tensor:
    """The chosen input channels of every group along an axis; a group has `channels` of them."""
    if group == 1:
        return t.narrow(axis, chosen.start, len(chosen))
    first = torch.arange(chosen.start, chosen.stop, device=t.device)
    return t.index_select(axis, torch.cat([first + g * channels for g in range(group)]))


def _taps(weight: Tensor, chosen: range, transposed_groups: int | None) -> Tensor:
    """The weights of the chosen input channels of every group."""
    if transposed_groups is None:
        return weight.narrow(1, chosen.start, len(chosen))
    return _picked(weight, 0, chosen, weight.shape[0] // transposed_groups, transposed_groups)


INTEGER_TYPES = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@cache  # as `limits`
def carrier(bits: int) -> torch.dtype:
    """The float type that holds every integer of this width."""
    return torch.float32 if bits <= 24 else torch.float64


def integer_type(bits: int) -> torch.dtype:
    """The torch type that stores integers of this width."""
    return INTEGER_TYPES[storage_bits(bits)]


class _StraightFloor(torch.autograd.Function):
    """⌊x⌋ whose gradient is 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004 - torch's signature
        return x.floor()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:  # noqa: ARG004
        return gradients[0]


class TorchKernel:
    """Interprets bodies on float tensors that carry integers; constants are created on `device`, the CPU if None."""

    add, sub, mul, div = map(staticmethod, (operator.add, operator.sub, operator.mul, operator.truediv))
    log, pow2, relu = map(staticmethod, (torch.log, torch.exp2, torch.relu))
    clip = clamp = staticmethod(torch.clamp)

    def __init__(self, *, is_exact: bool = True, device: torch.device | None = None) -> None:
        self.is_exact = is_exact
        self._wide = torch.float64 if is_exact else torch.float32
        self._device = None if device is None or device.type == "cpu" else device

    def _constant(self, value: Any, dtype: torch.dtype) -> Tensor:
        if self._device is None or isinstance(value, (Tensor, Sequence)):
            return torch.as_tensor(value, dtype=dtype, device=self._device)
        return torch.full((), value, dtype=dtype, device=self._device)  # nothing is copied from the host

    def scalar(self, value: float | Sequence[int]) -> Tensor:
        return self._constant(value, self._wide)

    vector = table = scalar

    def single(self, value: float) -> Tensor:
        return self._constant(value, torch.float32)

    def like(self, value: float, reference: Tensor) -> Tensor:
        return self._constant(value, reference.dtype)

    def derive(self, name: str, compute: Callable[..., float], *attributes: Any) -> Tensor:
        return self._constant(compute(*attributes), torch.float64)

    def wide(self, x: Tensor) -> Tensor:
        return x.to(self._wide)

    narrow = wide

    def store(self, x: Tensor, bits: int, *, is_unsigned: bool = False) -> Tensor:
        return x.to(carrier(bits))

    def real(self, x: Tensor) -> Tensor:
        return x.to(torch.float32)

    def floor(self, x: Tensor) -> Tensor:
        result: Tensor = _StraightFloor.apply(x)
        return result

    def where_less(self, a: Tensor, b: Tensor, then: Tensor, other: Tensor) -> Tensor:
        return torch.where(a < b, then, other)

    def lookup(self, table: Sequence[float], index: Tensor) -> Tensor:
        return torch.as_tensor(table, dtype=self._wide, device=index.device)[index.long()]

    def ladder(self, values: Sequence[float]) -> Tensor:
        return self._constant(values, self._wide).reshape(-1, 1, 1)

    def max_along(self, x: Tensor, axis: int) -> Tensor:
        return x.amax(axis, keepdim=True)

    def sum_along(self, x: Tensor, axis: int) -> Tensor:
        return x.sum(axis, keepdim=True)

    def lines(self, x: Tensor, w: Tensor) -> Tensor:
        return x.reshape(-1, w.numel())

    def group_lines(self, x: Tensor, groups: int) -> Tensor:
        return x.reshape(-1, math.prod(x.shape[1:]) // groups)

    def reshape_like(self, x: Tensor, other: Tensor) -> Tensor:
        return x.reshape(other.shape)

    def line_length(self, x: Tensor) -> Tensor:
        return self.scalar(x.shape[-1])

    def linear(self, x: Tensor, w: Tensor, b: Tensor | None, *, x_bits: int, w_bits: int) -> Tensor:
        if not self.is_exact:
            return F.linear(x, w, b)
        return run_product(F.linear, x, w, b, plan_product(w, b, x_bits + 1), group=1, axis=-1).double()

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(x.double(), y.double())

    def conv1d(
        self, x: Tensor, w: Tensor, b: Tensor | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Tensor:
        return self._convolution(partial(conv1d, **geometry), x, w, b, x_bits, geometry["group"])

    def conv2d(
        self, x: Tensor, w: Tensor, b: Tensor | None, *, x_bits: int, w_bits: int, **geometry: Unpack[ConvGeometry]
    ) -> Tensor:
        return self._convolution(partial(conv2d, **geometry), x, w, b, x_bits, geometry["group"])

    def conv_transpose2d(
        self,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        *,
        x_bits: int,
        w_bits: int,
        **geometry: Unpack[ConvTransposeGeometry],
    ) -> Tensor:
        product = partial(conv_transpose2d, **geometry)
        return self._convolution(product, x, w, b, x_bits, geometry["group"], is_transposed=True)

    def _convolution(
        self,
        product: Product,
        x: Tensor,
        w: Tensor,
        b: Tensor | None,
        x_bits: int,
        group: int,
        *,
        is_transposed: bool = False,
    ) -> Tensor:
        if not self.is_exact:
            return product(x, w, b)
        plan = plan_product(w, b, x_bits + 1, transposed_groups=group if is_transposed else None)  # or unsigned data
        return run_product(product, x, w, b, plan, group=group, axis=1, is_transposed=is_transposed).double()

    def window_sum(self, x: Tensor, *, kernel_shape: Ints, strides: Ints, pads: Ints) -> Tensor:
        padded = _pad(self.wide(x), pads)
        # divisor_override=1 makes the average a sum
        return F.avg_pool2d(padded, kernel_shape, strides, divisor_override=1)

    def max_pool2d(
        self, x: Tensor, *, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: int
    ) -> Tensor:
        # torch pads evenly, by at most half the window, and has its own idea of ceil_mode: padding first has none
        if ceil_mode:
            pads = ceil_pads(x.shape[2:], kernel_shape, strides, pads, dilations)
        padded = _pad(x, pads, fill=float("-inf"))
        return F.max_pool2d(padded, kernel_shape, strides, 0, dilations)

    def rows(self, table: Tensor, index: Tensor) -> Tensor:
        return F.embedding(index.long(), table)

    def pad(self, x: Tensor, pads: Tensor | Ints, value: Tensor) -> Tensor:
        numbers = [int(n) for n in (pads.detach().tolist() if isinstance(pads, Tensor) else pads)]
        begins, ends = numbers[: x.dim()], numbers[x.dim() :]
        from_last = [n for pair in zip(reversed(begins), reversed(ends), strict=True) for n in pair]
        # around x − value the border is zero: the value itself need not be known, as in a trace
        return F.pad(x - value, from_last) + value

    def shuffle(self, x: Tensor, groups: int) -> Tensor:
        result: Tensor = x.unflatten(1, (groups, x.shape[1] // groups)).transpose(1, 2).flatten(1, 2)
        return result

    def swap_height_width(self, x: Tensor) -> Tensor:
        return x.permute(0, 1, 3, 2)

    def per_channel(self, w: Tensor, x: Tensor) -> Tensor:
        return w.reshape(-1, *[1] * (x.dim() - 2))

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        return torch.cat(list(xs), dim=axis)

    def split(self, x: Tensor, parts: int, axis: int) -> tuple[Tensor, ...]:
        return x.chunk(parts, dim=axis)

    def entries(self, table: Tensor, row: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda index: table[index.long()]

    def rounded_product(self, w: Tensor, b: Tensor, factor: Tensor, *, axes: int) -> Callable[[Tensor], Tensor]:
        matrix, offset = w.to(self._wide), b.to(self._wide)
        return lambda x: self.floor(F.linear(x, matrix, offset) * factor + 0.5)

    def to_steps(self, x: Tensor, lengths: Tensor | None, *, batch_first: int, go_forward: int) -> Tensor:
        steps = x.transpose(0, 1) if batch_first else x
        return steps if go_forward else turned(steps, lengths)

    def from_steps(self, y: Tensor, lengths: Tensor | None, *, batch_first: int, go_forward: int) -> Tensor:
        if lengths is not None:
            y = y.where(is_inside(y, lengths)[(...,) + (None,) * (y.dim() - 2)], 0.0)
        ordered = y if go_forward else turned(y, lengths)
        return ordered.transpose(0, 1) if batch_first else ordered

    def at_end(self, y: Tensor, lengths: Tensor) -> Tensor:
        return y[beside(lengths, y).long() - 1, torch.arange(y.shape[1], device=y.device)]

    def zero_state(self, sequence: Tensor, w: Tensor) -> Tensor:
        return sequence.new_zeros(sequence.shape[1], w.shape[1], dtype=self._wide)

    def squeeze_first(self, x: Tensor) -> Tensor:
        return x.squeeze(0)

    def unsqueeze_first(self, x: Tensor) -> Tensor:
        return x.unsqueeze(0)

    def scan(
        self,
        step: Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]],
        states: tuple[Tensor, ...],
        sequence: Tensor,
        *,
        stacked: int,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        if is_fake(sequence):  # an open number of steps: all have the shape of one
            states = step(states, sequence[0])
            return states, tuple(s.expand(sequence.shape[0], *s.shape) for s in states[:stacked])
        steps: list[tuple[Tensor, ...]] = []
        for item in sequence.unbind(0):
            states = step(states, item)
            steps.append(states[:stacked])
        return states, tuple(torch.stack(part) for part in zip(*steps, strict=True))

    recurrence = step_by_step


def beside(t: Tensor, other: Tensor) -> Tensor:
    """The tensor on the device of another one: torch keeps the lengths of packed sequences on the CPU."""
    return t if t.device == other.device else t.to(other.device)  # asked for only where needed: a trace would write it


def is_inside(steps: Tensor, lengths: Tensor) -> Tensor:
    """Whether step t of sequence b is before its end, [time, batch]."""
    return torch.arange(steps.shape[0], device=steps.device)[:, None] < beside(lengths, steps).long()[None]


def turned(steps: Tensor, lengths: Tensor | None) -> Tensor:
    """Each sequence from its end to its beginning; what lies beyond a length stays where it is."""
    if lengths is None:
        return steps.flip(0)
    time = torch.arange(steps.shape[0], device=steps.device)[:, None]
    index = torch.where(is_inside(steps, lengths), beside(lengths, steps).long()[None] - 1 - time, time)
    return steps[index, torch.arange(steps.shape[1], device=steps.device)[None]]


def conv1d(x: Tensor, w: Tensor, b: Tensor | None, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> Tensor:
    """torch's convolution over one axis with separate padding at each end."""
    if pads[0] == pads[1]:
        return F.conv1d(x, w, b, strides, pads[:1], dilations, group)
    return F.conv1d(F.pad(x, pads), w, b, strides, 0, dilations, group)


def conv2d(x: Tensor, w: Tensor, b: Tensor | None, *, strides: Ints, pads: Ints, dilations: Ints, group: int) -> Tensor:
    """torch's convolution with separate padding at each edge."""
    if pads[:2] == pads[2:]:
        return F.conv2d(x, w, b, strides, pads[:2], dilations, group)
    return F.conv2d(_pad(x, pads), w, b, strides, 0, dilations, group)


def conv_transpose2d(x: Tensor, w: Tensor, b: Tensor | None, **geometry: Unpack[ConvTransposeGeometry]) -> Tensor:
    """torch's transposed convolution with separate padding at each edge; w is [in, out/group, kh, kw]."""
    pads, more = geometry["pads"], (geometry["output_padding"], geometry["group"], geometry["dilations"])
    if pads[:2] == pads[2:]:
        return F.conv_transpose2d(x, w, b, geometry["strides"], pads[:2], *more)
    full = F.conv_transpose2d(x, w, b, geometry["strides"], 0, *more)
    return full[..., pads[0] : full.shape[-2] - pads[2], pads[1] : full.shape[-1] - pads[3]]


def _pad(x: Tensor, pads: Ints, *, fill: float = 0.0) -> Tensor:
    top, left, bottom, right = pads
    return F.pad(x, (left, right, top, bottom), value=fill) if any(pads) else x
