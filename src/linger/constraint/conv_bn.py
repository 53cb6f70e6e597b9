# SPDX-License-Identifier: Apache-2.0
"""A convolution and its batch norm as one layer, and the arithmetic of folding one into the other.

Batch norm within limits, which act on what hardware multiplies and adds: y = alpha·x + offset.

Layers whose weight, bias and output stay within limits, in training and in evaluation; outside them the gradient is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.limits import Limits, Normalized, clamp, exceeds, limits_of
from linger.errors import UsageError
from linger.numeric.torch.quantize import per_weight


class BatchNorm(Protocol):
    """The attributes of torch's batch norms, of which torch declares only some."""

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    eps: float
    momentum: float | None
    training: bool
    track_running_stats: bool

    def _check_input_dim(self, input: Tensor) -> None: ...  # noqa: A002 - torch's name


def as_batch_norm(module: nn.Module) -> BatchNorm:
    """A module that has the attributes of a batch norm, with their types."""
    return cast(BatchNorm, module)


def running_statistics(bn: BatchNorm) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch norm that keeps them."""
    mean, var = bn.running_mean, bn.running_var
    assert mean is not None  # a batch norm without statistics is never fused
    assert var is not None
    return mean, var


def batch_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and (biased) variance per channel, as batch norm takes them; the gradient goes through both."""
    var, mean = torch.var_mean(x, [axis for axis in range(x.dim()) if axis != 1], correction=0)
    return mean, var


_MOMENTUM = "_linger_momentum"
"""Attribute of a batch norm whose statistics are frozen: the momentum it had."""


def freeze_statistics(module: nn.Module, *, is_frozen: bool) -> None:
    """Give a batch norm the momentum 0, or the one it had before."""
    bn = as_batch_norm(module)
    if is_frozen:
        module.__dict__.setdefault(_MOMENTUM, bn.momentum)
        bn.momentum = 0.0
    elif _MOMENTUM in module.__dict__:
        bn.momentum = module.__dict__.pop(_MOMENTUM)


class _LimitedBatchNorm(Normalized):
    """The forward of the three kinds of batch norm."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, as a caller may write it
        """clamp(alpha)·x + clamp(offset), limited; statistics are learned as torch learns them."""
        bn = as_batch_norm(self)
        if self.normalize_weight is None and self.normalize_bias is None:
            return clamp(cast(Tensor, super().forward(input)), self.normalize_data)
        bn._check_input_dim(input)  # noqa: SLF001 - as torch's forward does
        is_by_batch = self.training or bn.running_mean is None
        gamma, beta = self._limited_affine(*(batch_statistics(input) if is_by_batch else running_statistics(bn)))
        has_buffers = not self.training or bn.track_running_stats
        running = (bn.running_mean, bn.running_var) if has_buffers else (None, None)
        y = F.batch_norm(input, *running, gamma, beta, is_by_batch, self._count_batch(), bn.eps)
        return clamp(y, self.normalize_data)

    def _count_batch(self) -> float:
        """The weight of this batch in the running statistics; a momentum of None is a plain mean over all batches."""
        bn = as_batch_norm(self)
        if not (bn.training and bn.track_running_stats and bn.num_batches_tracked is not None):
            return bn.momentum or 0.0
        bn.num_batches_tracked.add_(1)
        return 1.0 / float(bn.num_batches_tracked) if bn.momentum is None else bn.momentum

    def _limited_affine(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """γ and β that keep alpha = γ/σ and offset = β − μ·alpha within their limits; untouched where they are.

        With them torch's own batch norm does the rest, so a channel inside its limits does not change by a bit.
        """
        bn = as_batch_norm(self)
        sigma = torch.sqrt(var + bn.eps)
        gamma = torch.ones_like(sigma) if bn.weight is None else bn.weight
        beta = torch.zeros_like(sigma) if bn.bias is None else bn.bias
        alpha = gamma / sigma
        offset = beta - mean * alpha
        limited_alpha, limited_offset = clamp(alpha, self.normalize_weight), clamp(offset, self.normalize_bias)
        is_steep = limited_alpha != alpha
        is_changed = is_steep | (limited_offset != offset)
        return (
            torch.where(is_steep, limited_alpha * sigma, gamma),
            torch.where(is_changed, limited_offset + mean * limited_alpha, beta),
        )


class NormalizeBatchNorm1d(_LimitedBatchNorm, nn.BatchNorm1d):
    """Batch norm of vectors or sequences within limits."""


class NormalizeBatchNorm2d(_LimitedBatchNorm, nn.BatchNorm2d):
    """Batch norm of images within limits."""


class NormalizeBatchNorm3d(_LimitedBatchNorm, nn.BatchNorm3d):
    """Batch norm of volumes within limits."""


TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers whose weights are [in, out/groups, …]."""


Convolution = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


def convolve(
    conv: Convolution, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None = None
) -> Tensor:
    """A convolution's own computation, transposed or not, with other parameters."""
    if not isinstance(conv, TRANSPOSED):
        return cast(Tensor, conv._conv_forward(x, weight, bias))  # noqa: SLF001 - torch's hook for other weights
    padding = output_padding(conv, x, output_size)
    function: Callable[..., Tensor] = F.conv_transpose2d if isinstance(conv, nn.ConvTranspose2d) else F.conv_transpose1d
    return function(x, weight, bias, conv.stride, conv.padding, padding, conv.groups, conv.dilation)


def output_padding(layer: nn.Module, x: Tensor, output_size: Sequence[int] | None = None) -> tuple[int, ...]:
    """The output padding that gives a transposed convolution this output size; its own if there is none."""
    find: Callable[..., list[int]] = nn.ConvTranspose2d._output_padding  # noqa: SLF001 - the only place where torch does it
    conv = cast(nn.ConvTranspose2d, layer)  # or a quantized layer, which has its attributes
    axes = len(conv.kernel_size)
    return tuple(find(conv, x, output_size, conv.stride, conv.padding, conv.kernel_size, axes, conv.dilation))


class _LimitedLayer(Normalized):
    """The forward of layers that are a function of their input and of limited parameters; the result is limited as well."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, as a caller may write it
        """Limited output of the layer with limited parameters."""
        layer = cast(Convolution, self)  # or another one with these parameters
        weight, bias = clamp(layer.weight, self.normalize_weight), clamp(layer.bias, self.normalize_bias)
        return clamp(self._computed(input, weight, bias), self.normalize_data)

    def _computed(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(cast(Convolution, self), x, weight, bias)


class NormalizeConv1d(_LimitedLayer, nn.Conv1d):
    """A one-dimensional convolution within limits."""


class NormalizeConv2d(_LimitedLayer, nn.Conv2d):
    """A two-dimensional convolution within limits."""


class NormalizeConvTranspose2d(Normalized, nn.ConvTranspose2d):
    """A transposed convolution within limits."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 - torch's name
        """Limited output of the convolution with limited parameters."""
        weight, bias = clamp(self.weight, self.normalize_weight), clamp(self.bias, self.normalize_bias)
        return clamp(convolve(self, input, weight, bias, output_size), self.normalize_data)


class NormalizeLinear(_LimitedLayer, nn.Linear):
    """A fully connected layer within limits."""

    def _computed(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)


class NormalizeLayerNorm(_LimitedLayer, nn.LayerNorm):
    """A layer norm within limits."""

    def _computed(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)


class NormalizeEmbedding(Normalized, nn.Embedding):
    """A table within limits; it has no bias, and so no limit for one."""

    def __init__(
        self,
        *arguments: object,
        normalize_data: float | None = None,
        normalize_weight: float | None = None,
        **options: Any,
    ) -> None:
        if "normalize_bias" in options:
            raise UsageError("NormalizeEmbedding: an embedding has no bias. Leave normalize_bias out.")
        super().__init__(*arguments, normalize_data=normalize_data, normalize_weight=normalize_weight, **options)

    def limit_to(self, chosen: Limits) -> None:
        """Replace the limits."""
        super().limit_to(Limits(weight=chosen.weight, output=chosen.output))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Limited rows of the table: the same as rows of a limited table, without limiting all of it."""
        rows = nn.Embedding.forward(self, input)
        return clamp(clamp(rows, self.normalize_weight), self.normalize_data)


_Pair = TypeVar("_Pair", bound="ConvBN")

_NEGLIGIBLE_GAMMA = 1e-8
"""Below this a channel's statistics cannot be read back from the folded convolution."""


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


def _affine(module: nn.Module, statistics: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """γ/σ, μ and β of a batch norm."""
    bn = as_batch_norm(module)
    mean, var = running_statistics(bn) if statistics is None else statistics
    gamma, beta = bn.weight, bn.bias
    slope = torch.rsqrt(var + bn.eps)
    return slope if gamma is None else gamma * slope, mean, torch.zeros_like(mean) if beta is None else beta


class _LearningFactor(NamedTuple):
    """γ/σ of the running statistics, without gradient: batch norm makes the output independent of it."""

    values: Tensor
    """One number per output channel."""
    signs: Tensor | None
    """None where all are known to be positive."""


def learning_factor(bn: nn.Module) -> _LearningFactor:
    """The factor that a batch norm which learns is folded by.

    A channel with γ ≈ 0 takes the largest factor of the others (1 if there is none): folded away it could neither
    show its statistics nor give γ a gradient.
    """
    with torch.no_grad():
        factor = _affine(bn)[0]
        # on another device, reading the answer would wait for it
        if factor.is_cpu and factor.amin().item() > _NEGLIGIBLE_GAMMA:
            return _LearningFactor(factor, None)
        is_visible = factor.abs() > _NEGLIGIBLE_GAMMA
        largest = torch.where(is_visible.any(), factor.abs().amax(), torch.ones_like(factor[0]))
        factor = torch.where(is_visible, factor, largest)
        return _LearningFactor(factor, factor.sign())


def learn_statistics(module: nn.Module, mean: Tensor, var: Tensor) -> None:
    """Let a batch's mean and unbiased variance move the running ones; a momentum of None is a plain mean over all batches.

    On another device than the CPU the mean's weight is a tensor, so that nothing waits for the device.
    """
    bn = as_batch_norm(module)
    (running_mean, running_var), count = running_statistics(bn), cast(Tensor, bn.num_batches_tracked)
    count.add_(1)
    weight: float | Tensor | None = bn.momentum
    if weight is None:
        weight = 1.0 / float(count) if count.is_cpu else (1.0 / count.double()).to(running_mean.dtype)
    running_mean.lerp_(mean.to(running_mean.dtype), weight)
    running_var.lerp_(var.to(running_var.dtype), weight)


Learn = Callable[[nn.Module, Tensor, Tensor], None]
"""Takes a batch norm, and a batch's mean and unbiased variance."""


def normalize_folded(
    z: Tensor,
    bias: Tensor | None,
    module: nn.Module,
    factor: _LearningFactor,
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
    bn = as_batch_norm(module)
    beta = bn.bias
    if reaches_bias and bias is not None and bias.requires_grad:
        nothing = bias * torch.zeros_like(bias)
        beta = nothing if beta is None else beta + nothing
    gamma = bn.weight if bn.weight is None or factor.signs is None else bn.weight * factor.signs
    mean, var = map(torch.zeros_like, running_statistics(bn))
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
            return clamp(self._convolve_folded(input, *self.folded(), output_size), self.normalize_data)
        u = self.conv(input) if output_size is None else self.conv(input, output_size)
        y: Tensor = self.bn(u)
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
        if isinstance(module, (ConvBN, _LimitedBatchNorm)):
            freeze_statistics(module.bn if isinstance(module, ConvBN) else module, is_frozen=is_frozen)


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
        conv = self._parts[0](*arguments, **options)
        where = {"device": conv.weight.device, "dtype": conv.weight.dtype}
        bn = self._parts[1](conv.out_channels, eps, momentum, affine, track_running_stats, **where)
        super().__init__(conv, bn, **extras)


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
