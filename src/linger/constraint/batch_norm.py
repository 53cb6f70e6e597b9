# SPDX-License-Identifier: Apache-2.0
"""Batch norm within limits, which act on what hardware multiplies and adds: y = alpha·x + offset."""

from __future__ import annotations

from typing import Protocol, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.limits import Limits, Normalized, clamp, limits_of


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
