# SPDX-License-Identifier: Apache-2.0
"""A convolution and its batch norm as one layer, and the arithmetic of folding one into the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.batch_norm import (
    TRANSPOSED,
    BatchNorm,
    Convolution,
    LimitedBatchNorm,
    as_batch_norm,
    batch_momentum,
    batch_statistics,
    convolve,
    freeze_statistics,
)
from linger.constraint.limits import Limits, Normalized, clamp, exceeds, limits_of

_Pair = TypeVar("_Pair", bound="ConvBN")

_NEGLIGIBLE_GAMMA = 1e-8
"""Below this a channel's statistics cannot be read back from the folded convolution."""


class FusedBatchNorm(BatchNorm, Protocol):
    """A batch norm that keeps statistics: one without is never fused."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor


def fold(
    weight: Tensor,
    bias: Tensor | None,
    bn: nn.Module,
    *,
    statistics: tuple[Tensor, Tensor] | None = None,
    transposed_groups: int | None = None,
) -> tuple[Tensor, Tensor]:
    """w' = w·γ/σ and b' = (b − μ)·γ/σ + β.

    Args:
        weight: Output channels first; [in, out/groups, …] for a transposed convolution.
        bias: One number per output channel.
        bn: The batch norm.
        statistics: μ and σ² per output channel; None: the running ones.
        transposed_groups: Groups of a transposed convolution; None for any other layer.
    """
    factor, mean, beta = _affine(bn, statistics)
    offset = -mean if bias is None else bias - mean
    return weight * per_weight(factor, weight, transposed_groups), offset * factor + beta


def per_weight(factor: Tensor, weight: Tensor, transposed_groups: int | None = None) -> Tensor:
    """One number per output channel, in the shape that multiplies the weight."""
    trailing = [1] * (weight.dim() - 2)
    if transposed_groups is None:
        return factor.reshape(-1, 1, *trailing)
    # input channel i belongs to group i // (in/groups); its row holds the out/groups outputs of that group
    rows = factor.reshape(transposed_groups, -1)
    return rows.repeat_interleave(weight.shape[0] // transposed_groups, dim=0).reshape(*weight.shape[:2], *trailing)


def _affine(module: nn.Module, statistics: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """γ/σ, μ and β of a batch norm."""
    bn = cast(FusedBatchNorm, module)
    mean, var = (bn.running_mean, bn.running_var) if statistics is None else statistics
    gamma, beta = bn.weight, bn.bias
    slope = torch.rsqrt(var + bn.eps)
    return slope if gamma is None else gamma * slope, mean, torch.zeros_like(mean) if beta is None else beta


class LearningFactor(NamedTuple):
    """γ/σ of the running statistics, without gradient: batch norm makes the output independent of it."""

    values: Tensor
    """One number per output channel."""
    signs: Tensor | None
    """None where all are known to be positive."""


def learning_factor(bn: nn.Module) -> LearningFactor:
    """The factor that a batch norm which learns is folded by.

    A channel with γ ≈ 0 takes the largest factor of the others (1 if there is none): folded away it could neither
    show its statistics nor give γ a gradient.
    """
    with torch.no_grad():
        factor = _affine(bn)[0]
        # on another device, reading the answer would wait for it
        if factor.is_cpu and factor.amin().item() > _NEGLIGIBLE_GAMMA:
            return LearningFactor(factor, None)
        is_visible = factor.abs() > _NEGLIGIBLE_GAMMA
        largest = torch.where(is_visible.any(), factor.abs().amax(), torch.ones_like(factor[0]))
        factor = torch.where(is_visible, factor, largest)
        return LearningFactor(factor, factor.sign())


def learn_statistics(module: nn.Module, mean: Tensor, var: Tensor) -> None:
    """Let a batch's mean and unbiased variance move the running ones."""
    bn = cast(FusedBatchNorm, module)
    running_mean, running_var, momentum = bn.running_mean, bn.running_var, bn.momentum
    bn.num_batches_tracked.add_(1)
    weight = batch_momentum(None, bn.num_batches_tracked, running_mean.dtype) if momentum is None else momentum
    running_mean.lerp_(mean.to(running_mean.dtype), weight)
    running_var.lerp_(var.to(running_var.dtype), weight)


Learn = Callable[[nn.Module, Tensor, Tensor], None]
"""Takes a batch norm, and a batch's mean and unbiased variance."""


def normalize_folded(
    z: Tensor,
    bias: Tensor | None,
    module: nn.Module,
    factor: LearningFactor,
    gain: float,
    learn: Learn = learn_statistics,
    *,
    reaches_bias: bool = False,
) -> Tensor:
    """Batch norm of z = gain·conv(x, w·factor), as if it had been conv(x, w): one convolution, true batch statistics.

    With u = z/(factor·gain), BN(u) = γ·sign(factor)·(z − mean z)/std z + β; the running statistics learn mean u and var u.
    eps acts on the folded variance instead of u's, which matters only for channels whose variance is near eps. `reaches_bias`: the
    bias of the convolution, which no output depends on, gets a gradient of zeros instead of none.
    """
    bn = cast(FusedBatchNorm, module)
    beta = bn.bias
    if reaches_bias and bias is not None and bias.requires_grad:
        nothing = bias * torch.zeros_like(bias)
        beta = nothing if beta is None else beta + nothing
    gamma = bn.weight if bn.weight is None or factor.signs is None else bn.weight * factor.signs
    mean, var = torch.zeros_like(bn.running_mean), torch.zeros_like(bn.running_var)
    y = F.batch_norm(z, mean, var, gamma, beta, training=True, momentum=1.0, eps=bn.eps * gain * gain)
    with torch.no_grad():
        # not in place: the gradient has kept both. A gain is a power of two, so no order of these products rounds otherwise
        divisor = factor.values * gain
        mean_u = mean / divisor if bias is None else (mean / divisor).add_(bias)
        learn(module, mean_u, var / (divisor * divisor))
    return y


class ConvBN(Normalized):
    """conv then bn in training (one convolution, statistics learned), the folded convolution in evaluation.

    Limits act on the folded weight and bias, in training with the batch's statistics. What the batch norm learns are
    always the statistics of the unlimited convolution.
    """

    def __init__(self, conv: Convolution, bn: nn.Module, **extras: Any) -> None:
        super().__init__(**extras)
        self.conv = conv
        self.bn = bn

    @classmethod
    def join(cls: type[_Pair], conv: nn.Module, bn: nn.Module) -> _Pair:
        """The pair as one layer of this class. The parts' own limits become the pair's, see `joined_limits`."""
        pair = cls.__new__(cls)
        ConvBN.__init__(pair, cast(Convolution, conv), bn)
        pair.limit_to(joined_limits(limits_of(conv), limits_of(bn)))
        for part in (conv, bn):
            if isinstance(part, Normalized):
                part.limit_to(Limits())
        return pair

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 - the name that conv's callers may write
        """The same function as bn(conv(input)) while nothing exceeds its limit."""
        has_statistics = as_batch_norm(self.bn).running_mean is not None
        if not self.training and has_statistics:
            y = self._convolve_folded(input, *self.folded(), output_size)
            return clamp(y, self.normalize_data)
        u = self.conv(input) if output_size is None else self.conv(input, output_size)
        y = self.bn(u)
        if self.normalize_weight is not None or self.normalize_bias is not None:
            is_by_batch = self.bn.training or not has_statistics
            weight, bias = self.folded(batch_statistics(u) if is_by_batch else None)
            if exceeds((weight, self.normalize_weight), (bias, self.normalize_bias)):
                y = self._convolve_folded(input, weight, bias, output_size)
        return clamp(y, self.normalize_data)

    def folded(self, statistics: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution that the pair is, by the running or other statistics; not limited."""
        groups = self.conv.groups if isinstance(self.conv, TRANSPOSED) else None
        return fold(self.conv.weight, self.conv.bias, self.bn, statistics=statistics, transposed_groups=groups)

    def _convolve_folded(self, x: Tensor, weight: Tensor, bias: Tensor, output_size: list[int] | None) -> Tensor:
        weight, bias = clamp(weight, self.normalize_weight), clamp(bias, self.normalize_bias)
        return convolve(self.conv, x, weight, bias, output_size)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
        # a checkpoint of the float model knows no .conv
        for name in ("weight", "bias"):
            if prefix + name in state_dict:
                state_dict[f"{prefix}conv.{name}"] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def joined_limits(conv: Limits, bn: Limits) -> Limits:
    """Limits of a fused pair: weight and bias as the convolution's, the output as the batch norm's if that has one."""
    return Limits(conv.weight, conv.bias, conv.output if bn.output is None else bn.output)


def layer_of(module: nn.Module) -> nn.Module:
    """The convolution of a fused pair; any other module itself."""
    return module.conv if isinstance(module, ConvBN) else module


def counts_as(module: nn.Module, types: tuple[type[nn.Module], ...]) -> bool:
    """Whether a module is of one of these types; a fused pair counts as its convolution too."""
    return isinstance(module, types) or isinstance(layer_of(module), types)


def parts_of_pairs(model: nn.Module) -> set[nn.Module]:
    """The convolutions and batch norms inside the fused pairs of a model: they are no layers of their own."""
    return {part for pair in model.modules() if isinstance(pair, ConvBN) for part in pair.children()}


def freeze_batch_norms(model: nn.Module, *, is_frozen: bool) -> None:
    """Freeze the statistics of fused and of limited batch norms, or let them learn again; plain ones stay as they are."""
    for module in model.modules():
        if isinstance(module, ConvBN):
            freeze_statistics(module.bn, is_frozen=is_frozen)
        elif isinstance(module, LimitedBatchNorm):
            freeze_statistics(module, is_frozen=is_frozen)


class _BuiltPair(ConvBN):
    """A pair made from numbers: the arguments of the convolution, and by keyword those of the batch norm and limits."""

    _parts: ClassVar[tuple[Callable[..., Convolution], Callable[..., nn.Module]]]

    def __init__(
        self,
        *arguments: object,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        **options: Any,
    ) -> None:
        extras = {name: options.pop(name) for name in list(options) if name.startswith(("normalize_", "ahead_"))}
        make_conv, make_bn = self._parts
        conv = make_conv(*arguments, **options)
        where = {"device": conv.weight.device, "dtype": conv.weight.dtype}
        super().__init__(
            conv, make_bn(conv.out_channels, eps, momentum, affine, track_running_stats, **where), **extras
        )


class NormalizeConvBN1d(_BuiltPair):
    """Conv1d and BatchNorm1d as one layer."""

    _parts = (nn.Conv1d, nn.BatchNorm1d)


class NormalizeConvBN2d(_BuiltPair):
    """Conv2d and BatchNorm2d as one layer."""

    _parts = (nn.Conv2d, nn.BatchNorm2d)


class NormalizeConvTransposeBN1d(_BuiltPair):
    """ConvTranspose1d and BatchNorm1d as one layer."""

    _parts = (nn.ConvTranspose1d, nn.BatchNorm1d)


class NormalizeConvTransposeBN2d(_BuiltPair):
    """ConvTranspose2d and BatchNorm2d as one layer."""

    _parts = (nn.ConvTranspose2d, nn.BatchNorm2d)


ConvBN1d = CConvBN1d = NormalizeConvBN1d
ConvBN2d = NormalizeConvBN2d
"""The names of linger 3.x: a layer without limits and one with limits are the same class."""


class EmptyBatchNorm(nn.Module):
    """Takes the place of a batch norm that was fused: returns its input."""

    def __init__(self) -> None:
        super().__init__()
        # the key that checkpoints of this stage have here; never trained
        self._linger_ignore_parameter = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """X."""
        return x

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: object) -> None:
        state_dict.setdefault(f"{prefix}_linger_ignore_parameter", self._linger_ignore_parameter.detach())
        super()._load_from_state_dict(state_dict, prefix, *rest)
