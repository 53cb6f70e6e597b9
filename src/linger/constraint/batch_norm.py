# SPDX-License-Identifier: Apache-2.0
"""Batch norm within limits, which act on what hardware multiplies and adds: y = alpha·x + offset.

Layers whose weight, bias and output stay within limits, in training and in evaluation; outside them the gradient is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.limits import Limits, Normalized, clamp, limits_of
from linger.errors import UsageError


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


def _limited_affine(bn: BatchNorm, limits: Limits, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """γ and β that keep alpha = γ/σ and offset = β − μ·alpha within their limits; untouched where they are.

    With them torch's own batch norm does the rest, so a channel inside its limits does not change by a bit.
    """
    sigma = torch.sqrt(var + bn.eps)
    gamma = torch.ones_like(sigma) if bn.weight is None else bn.weight
    beta = torch.zeros_like(sigma) if bn.bias is None else bn.bias
    alpha = gamma / sigma
    offset = beta - mean * alpha
    limited_alpha, limited_offset = clamp(alpha, limits.weight), clamp(offset, limits.bias)
    is_steep = limited_alpha != alpha
    is_changed = is_steep | (limited_offset != offset)
    return (
        torch.where(is_steep, limited_alpha * sigma, gamma),
        torch.where(is_changed, limited_offset + mean * limited_alpha, beta),
    )


class LimitedBatchNorm(Normalized):
    """The forward of the three kinds of batch norm."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, as a caller may write it
        """clamp(alpha)·x + clamp(offset), limited; statistics are learned as torch learns them."""
        bn = as_batch_norm(self)
        if self.normalize_weight is None and self.normalize_bias is None:
            return clamp(cast(Tensor, super().forward(input)), self.normalize_data)
        bn._check_input_dim(input)  # noqa: SLF001 - as torch's forward does
        is_by_batch = self.training or bn.running_mean is None
        mean, var = batch_statistics(input) if is_by_batch else running_statistics(bn)
        gamma, beta = _limited_affine(bn, limits_of(self), mean, var)
        has_buffers = not self.training or bn.track_running_stats
        running = (bn.running_mean, bn.running_var) if has_buffers else (None, None)
        y = F.batch_norm(input, *running, gamma, beta, is_by_batch, _count_batch(bn), bn.eps)
        return clamp(y, self.normalize_data)


def _count_batch(bn: BatchNorm) -> float:
    """The weight of this batch in the running statistics; a momentum of None is a plain mean over all batches."""
    if not (bn.training and bn.track_running_stats and bn.num_batches_tracked is not None):
        return bn.momentum or 0.0
    bn.num_batches_tracked.add_(1)
    return 1.0 / float(bn.num_batches_tracked) if bn.momentum is None else bn.momentum


def batch_momentum(momentum: float | None, count: Tensor, dtype: torch.dtype) -> float | Tensor:
    """The weight of the newest of `count` batches in the running statistics; a momentum of None is a plain mean over all.

    On another device than the CPU the mean's weight is a tensor, so that nothing waits for the device.
    """
    if momentum is not None:
        return momentum
    return 1.0 / float(count) if count.is_cpu else (1.0 / count.double()).to(dtype)


class NormalizeBatchNorm1d(LimitedBatchNorm, nn.BatchNorm1d):
    """Batch norm of vectors or sequences within limits."""


class NormalizeBatchNorm2d(LimitedBatchNorm, nn.BatchNorm2d):
    """Batch norm of pictures within limits."""


class NormalizeBatchNorm3d(LimitedBatchNorm, nn.BatchNorm3d):
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
    conv = cast(nn.ConvTranspose2d, layer)  # or a quantised layer, which has its attributes
    axes = len(conv.kernel_size)
    return tuple(find(conv, x, output_size, conv.stride, conv.padding, conv.kernel_size, axes, conv.dilation))


class _LimitedConvolution(Normalized):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, as a caller may write it
        """Limited output of the convolution with limited parameters."""
        return self._convolve(input, None)

    def _convolve(self, x: Tensor, output_size: list[int] | None) -> Tensor:
        conv = cast(Convolution, self)
        weight, bias = clamp(conv.weight, self.normalize_weight), clamp(conv.bias, self.normalize_bias)
        return clamp(convolve(conv, x, weight, bias, output_size), self.normalize_data)


class NormalizeConv1d(_LimitedConvolution, nn.Conv1d):
    """A one-dimensional convolution within limits."""


class NormalizeConv2d(_LimitedConvolution, nn.Conv2d):
    """A two-dimensional convolution within limits."""


class NormalizeConvTranspose2d(_LimitedConvolution, nn.ConvTranspose2d):
    """A transposed convolution within limits."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002 - torch's name
        """Limited output of the convolution with limited parameters."""
        return self._convolve(input, output_size)


class NormalizeLinear(Normalized, nn.Linear):
    """A fully connected layer within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Limited output of the product with limited parameters."""
        weight, bias = clamp(self.weight, self.normalize_weight), clamp(self.bias, self.normalize_bias)
        return clamp(F.linear(input, weight, bias), self.normalize_data)


class NormalizeLayerNorm(Normalized, nn.LayerNorm):
    """A layer norm within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Limited output of the layer norm with limited parameters."""
        weight, bias = clamp(self.weight, self.normalize_weight), clamp(self.bias, self.normalize_bias)
        return clamp(F.layer_norm(input, self.normalized_shape, weight, bias, self.eps), self.normalize_data)


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
