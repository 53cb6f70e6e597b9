# SPDX-License-Identifier: Apache-2.0
"""A layer's parameters as integers: within the limits of the constraint stage, rounded, and kept while they do not change."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linger.constraint.conv_bn import batch_statistics, fold, per_weight
from linger.constraint.limits import Limits, clamp
from linger.numeric.fixed import BIAS_BITS, is_power_of_two, limits
from linger.numeric.torch.kernel import SplitPlan, carrier, integer_type, plan_product, split_weight
from linger.numeric.torch.quantize import Scale, fake_quantize, holders_of_memory

_SMALL = 4096
"""Elements up to which a tensor's whole content is hashed."""

_FLOAT32_BITS = 24
"""Ranges are kept as float32, which holds 1 − 2^-24 but nothing between that and 1."""


# limits
def integer_bound(limit: float | None, bits: int) -> float | None:
    """The largest magnitude of integers of this width that keep a limit; None where there is no limit.

    A power of two L becomes L·B/(B + 1) with B = 2^(bits−1) − 1: ±8 in 8 bits is ±127/16, the format Q4. The limit
    itself would be 128/16, one step too many, and cost a bit of every other value.

    >>> integer_bound(8.0, 8), integer_bound(6.0, 8)
    (7.9375, 6.0)
    """
    if limit is None or not is_power_of_two(limit):
        return limit
    return limit * (1.0 - 2.0 ** -min(bits - 1, _FLOAT32_BITS))


def limits_of_rows(limits: Limits) -> Limits:
    """The limits of an embedding's table: its rows are its output, so the smaller of both limits holds for them."""
    both = [limit for limit in (limits.weight, limits.output) if limit is not None]
    return Limits(weight=min(both, default=None))


def limit_parameters(
    limits: Limits,
    bits: int,
    weight: Tensor,
    factor: Tensor | None,
    bias: Tensor | None,
    transposed_groups: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weight, the factor on it (one number per output channel) and bias, limited before they are rounded.

    Without a weight limit the factor stays apart, because rounding can apply it in the same pass. `transposed_groups` as
    for `fold`.
    """
    bias, bound = clamp(bias, limits.bias), integer_bound(limits.weight, bits)
    if bound is None:
        return weight, factor, bias
    if factor is not None:
        weight = weight * per_weight(factor, weight, transposed_groups)
    return clamp(weight, bound), None, bias


def fold_by_batch(
    weight: Tensor, bias: Tensor | None, bn: Any, z: Tensor, factor: Tensor, transposed_groups: int | None = None
) -> tuple[Tensor, Tensor]:
    """Weight and bias with a batch norm folded in, by the statistics of this batch, through which the gradient goes.

    `z` is conv(x, weight·factor) without bias, so that mean and variance of conv(x, weight) are mean z/factor and
    var z/factor².
    """
    mean, var = batch_statistics(z)
    mean = mean / factor
    statistics = (mean if bias is None else mean + bias, var / (factor * factor))
    return fold(weight, bias, bn, statistics=statistics, transposed_groups=transposed_groups)


# rounding
@dataclass(frozen=True)
class Frozen:
    """Parameters as integers for one input scale: as real carriers and as the file stores them."""

    weight: Tensor
    bias: Tensor | None
    weight_integers: Tensor
    bias_integers: Tensor | None
    scale_w: Any
    """A number; a tensor in a pass that leaves ranges on a device."""
    extras: tuple[Tensor, ...] = ()
    """Other tensors that the node has in the file."""


@dataclass(frozen=True)
class Ready:
    """Parameters as the simulation multiplies them.

    `is_rounding_folded`: the product delivers y·scale_o + ½, so that rounding is a floor. Exact while the bound of
    `torch_exact` also holds with the ½ (2^(shift−1) in units of the accumulator) added.
    """

    weight: Tensor
    bias: Tensor | None
    plan: SplitPlan
    is_rounding_folded: bool
    parts: tuple[Tensor, ...] = ()
    """The weights of each part of a split product, where they are kept."""


def make_frozen(integers: Tensor, bias: Tensor | None, scale_x: Scale, scale_w: Scale, bits: int) -> Frozen:
    """Rounded weights (integers in a float tensor) and a real bias, frozen for one input scale."""
    rounded_bias = bias_integers = None
    if bias is not None:
        rounded_bias = round_bias(bias, scale_x * scale_w)
        bias_integers = (rounded_bias.detach() * (scale_x * scale_w)).to(integer_type(BIAS_BITS))
    weight_integers = integers.detach().to(integer_type(bits))
    return Frozen(integers * (1.0 / scale_w), rounded_bias, weight_integers, bias_integers, scale_w)


def make_ready(
    frozen: Frozen,
    scale_x: float,
    scale_o: float,
    data_bits: int,
    output_bits: int,
    *,
    is_nonnegative: bool,
    can_fold: bool = True,
    transposed_groups: int | None = None,
) -> Ready:
    """The cheapest exact form of frozen parameters for an input and an output scale.

    `is_nonnegative`: the input comes from ReLU. `can_fold`: rounding may become part of the bias. `transposed_groups`:
    groups of a transposed convolution, whose weights are [in, out/groups, …].
    """
    source = scale_x * frozen.scale_w
    half = 0.5 * source / scale_o
    arguments = (frozen.weight_integers, frozen.bias_integers, data_bits)
    plan_for = partial(plan_product, *arguments, is_nonnegative=is_nonnegative, transposed_groups=transposed_groups)
    if can_fold and half >= 1 and output_bits <= 16:
        plan = plan_for(headroom=half)
        if plan == SplitPlan(1):
            weight = frozen.weight * scale_o
            channels = weight.shape[0] if transposed_groups is None else weight.shape[1] * transposed_groups
            zero = torch.zeros(channels, device=weight.device)
            bias = (zero if frozen.bias is None else frozen.bias.float() * scale_o) + 0.5
            return Ready(weight, bias, plan, is_rounding_folded=True)
    plan = plan_for()
    # beyond a shift of 24 float32 cannot hold v + ½
    if math.log2(source / scale_o) > 24:
        plan = SplitPlan(0)
    # what has a gradient belongs to one pass, so its parts are not kept
    parts = () if frozen.weight.requires_grad else split_weight(frozen.weight, plan, transposed_groups)
    return Ready(frozen.weight, frozen.bias, plan, is_rounding_folded=False, parts=parts)


def round_output(y: Tensor, scale_o: float, bits: int, *, is_rounding_folded: bool, is_relu: bool) -> Tensor:
    """Round a product to the output's integers, as real values; the product itself is written over."""
    if is_rounding_folded:
        low, high = limits(bits)
        return y.floor_().clamp_(0 if is_relu else low, high).mul_(1.0 / scale_o)
    if carrier(bits) == torch.float64:
        y = y.double()
    return fake_quantize(y, scale_o, bits, is_relu=is_relu, is_owned=True).to(carrier(bits))


@contextmanager
def kept() -> Iterator[None]:
    """Make tensors that outlive this pass: without gradients, and usable outside `torch.inference_mode`."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


def round_bias(bias: Tensor, scale: Scale) -> Tensor:
    """The bias at int32 precision, saturated; float64, because float32 cannot hold 32 bits."""
    return fake_quantize(bias.double(), scale, BIAS_BITS, can_saturate=True)


# changes
PARTS = 4
"""A large tensor is checked in so many parts, one in each evaluation pass: reading all of it would cost as much as rounding."""


View = Any
"""A part of a tensor: the bytes of a small one as an array, the bits of a large one as a tensor of integers, or a function
that copies these, where they do not lie in a row on the CPU, or in memory that others use too."""


def views_of(t: Tensor) -> list[View]:
    """The parts of a tensor, output channels first: one of a small tensor, PARTS of a large one."""
    if not (t.is_cpu and t.is_contiguous()) or _is_held_elsewhere(t):
        return [partial(_copied, t.detach(), part) for part in range(PARTS if t.numel() > _SMALL else 1)]
    rows = t.detach().reshape(t.shape[0] if t.dim() > 1 else 1, -1)
    if rows.numel() <= _SMALL:
        return [rows.view(torch.uint8).numpy()]
    columns = rows.shape[1]
    blocks = [rows[:, columns * part // PARTS : columns * (part + 1) // PARTS] for part in range(PARTS)]
    return [_as_integers(block, is_even=columns % 2 == 0) for block in blocks]


def _copied(t: Tensor, part: int) -> View:
    return views_of(torch.empty(t.shape, dtype=t.dtype).copy_(t))[part]


def _is_held_elsewhere(t: Tensor) -> bool:
    """Whether another tensor uses the same memory: what is written through that one, torch does not count here.

    So does FSDP, which frees the memory of parameters between passes and fills it again. An array would forbid that.
    """
    holders = holders_of_memory(t)
    return holders is not None and holders > (2 if t._is_view() else 1)  # noqa: SLF001 - torch has no public name


def _as_integers(block: Tensor, *, is_even: bool) -> Tensor:
    size = block.element_size()
    is_aligned = is_even and block.shape[1] * size % 8 == 0 and block.storage_offset() * size % 8 == 0
    return block.view(torch.int64 if is_aligned else torch.int32)


def checksum(view: View) -> bytes:
    """Bytes that change when any element of a part does, or when output channels change places.

    Those of a small tensor itself; of a large one the sum of each channel's bits, without rounding.
    """
    if callable(view):
        view = view()
    summed: bytes = (view.sum(1).numpy() if isinstance(view, Tensor) else view).tobytes()
    return summed


def _look_at(view: View) -> Callable[[], bytes]:
    """What gives the checksum of a part, as cheaply as it can be asked for."""
    return view.tobytes if isinstance(view, np.ndarray) else partial(checksum, view)


def _looks_at(t: Tensor) -> list[tuple[Callable[[], bytes], bytes]]:
    """For each part of a tensor, how its checksum is found, and what it is now."""
    looks = [_look_at(view) for view in views_of(t)]
    return [(look, look()) for look in looks]


@dataclass
class Watchman:
    """Notices when parameters change.

    Everything that torch counts is noticed at once, and so is what changes a tensor as a whole through `.data` (which
    torch does not count). An edit of a few elements through `.data` is noticed by the next thorough look: before an
    export or a recording and after a change of mode; else within four passes. Every look is thorough where other tensors
    use the memory, too.
    """

    known: list[tuple[Any, ...]] | None = None
    """Of each tensor, where its numbers are and how often torch has written them."""
    passes: int = 0
    is_shared: bool = False
    """Whether others use the memory of a tensor."""
    _looks: list[list[tuple[Callable[[], bytes], bytes]]] = field(default_factory=list)
    """For each part, how its checksums are found, and what they were. Views are kept: making them costs more than a look."""

    def has_changed(self, tensors: Sequence[Tensor], *, is_thorough: bool) -> bool:
        """Whether a tensor differs from the last time; remembers the present state."""
        identity = [(t.data_ptr(), t._version, t.shape, t.stride()) for t in tensors]  # noqa: SLF001 - no public counter
        self.passes += 1
        if self.known == identity and not self._sees_change(self._looks if is_thorough or self.is_shared else ()):
            return False
        self._looks.clear()  # its views use the memory, too
        self.is_shared = any(map(_is_held_elsewhere, tensors))
        known = [_looks_at(t) for t in tensors]
        self.known = identity
        self._looks = [[each[part % len(each)] for each in known] for part in range(PARTS)]
        return True

    def _sees_change(self, looks: Sequence[list[tuple[Callable[[], bytes], bytes]]]) -> bool:
        """Whether a checksum differs; the looks are those of this pass unless some are given."""
        for each in looks or (self._looks[self.passes % PARTS],):
            for look, known in each:
                if look() != known:
                    return True
        return False

    def forget(self) -> None:
        """Report a change at the next look."""
        self.known = None
        self._looks.clear()
