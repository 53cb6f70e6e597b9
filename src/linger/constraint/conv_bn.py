# SPDX-License-Identifier: Apache-2.0
"""A convolution and its batch norm as one layer, and the arithmetic of folding one into the other."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

_NEGLIGIBLE_GAMMA = 1e-8
"""Below this a channel's statistics cannot be read back from the folded convolution."""


def fold(weight: Tensor, bias: Tensor | None, bn: nn.Module) -> tuple[Tensor, Tensor]:
    """w' = w·γ/σ and b' = (b − μ)·γ/σ + β with the running statistics."""
    factor, mean, beta = _affine(bn)
    offset = -mean if bias is None else bias - mean
    return weight * factor.reshape(-1, *([1] * (weight.dim() - 1))), offset * factor + beta


def _affine(bn: Any) -> tuple[Tensor, Tensor, Tensor]:
    gamma = torch.ones_like(bn.running_var) if bn.weight is None else bn.weight
    beta = torch.zeros_like(bn.running_mean) if bn.bias is None else bn.bias
    return gamma * torch.rsqrt(bn.running_var + bn.eps), bn.running_mean, beta


def learning_factor(bn: Any) -> Tensor:
    """γ/σ of the running statistics, without gradient: batch norm makes the output independent of it.

    A channel with γ ≈ 0 takes the largest factor of the others (1 if there is none): folded away it could neither
    show its statistics nor give γ a gradient.
    """
    factor = _affine(bn)[0].detach()
    is_visible = factor.abs() > _NEGLIGIBLE_GAMMA
    if bool(is_visible.all()):
        return factor
    largest = factor.abs().max() if bool(is_visible.any()) else torch.ones_like(factor[0])
    return torch.where(is_visible, factor, largest)


def normalize_folded(z: Tensor, bias: Tensor | None, bn: Any, factor: Tensor, gain: float = 1.0) -> Tensor:
    """Batch norm of z = gain·conv(x, w·factor), as if it had been conv(x, w): one convolution, true batch statistics.

    With u = z/(factor·gain), BN(u) = γ·sign(factor)·(z − mean z)/std z + β; the running statistics learn mean u and var u.
    eps acts on the folded variance instead of u's, which matters only for channels whose variance is near eps.
    """
    batch_mean, batch_var = torch.zeros_like(bn.running_mean), torch.zeros_like(bn.running_var)
    gamma = None if bn.weight is None else bn.weight * factor.sign()
    y = F.batch_norm(z, batch_mean, batch_var, gamma, bn.bias, training=True, momentum=1.0, eps=bn.eps * gain * gain)
    with torch.no_grad():
        _learn_statistics(bn, batch_mean / gain, batch_var / (gain * gain), factor, bias)
    return y


def _learn_statistics(bn: Any, mean: Tensor, var: Tensor, factor: Tensor, bias: Tensor | None) -> None:
    bn.num_batches_tracked += 1
    momentum = 1.0 / float(bn.num_batches_tracked) if bn.momentum is None else bn.momentum
    mean_u = mean / factor if bias is None else mean / factor + bias
    bn.running_mean.lerp_(mean_u, momentum)
    bn.running_var.lerp_(var / (factor * factor), momentum)


class ConvBN(nn.Module):
    """conv then bn in training (one convolution, statistics learned), the folded convolution in evaluation."""

    def __init__(self, conv: Any, bn: nn.Module) -> None:
        super().__init__()
        self.conv = conv
        self.bn = bn

    def forward(self, x: Tensor) -> Tensor:
        """The same function as bn(conv(x))."""
        if self.training:
            return cast(Tensor, self.bn(self.conv(x)))
        weight, bias = fold(self.conv.weight, self.conv.bias, self.bn)
        return cast(Tensor, self.conv._conv_forward(x, weight, bias))  # noqa: SLF001 - torch's hook for other weights

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # a checkpoint of the float model knows no .conv
        for name in ("weight", "bias"):
            if prefix + name in state_dict:
                state_dict[f"{prefix}conv.{name}"] = state_dict.pop(prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class EmptyBatchNorm(nn.Module):
    """What stays where a batch norm was: passes its input on."""

    def __init__(self) -> None:
        super().__init__()
        # the key that checkpoints of this stage have here; never trained
        self._linger_ignore_parameter = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """X."""
        return x

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        state_dict.setdefault(f"{prefix}_linger_ignore_parameter", self._linger_ignore_parameter.detach())
        super()._load_from_state_dict(state_dict, prefix, *rest)
