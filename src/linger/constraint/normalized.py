# SPDX-License-Identifier: Apache-2.0
"""Layers whose weight, bias and output stay within limits, in training and in evaluation; outside them the gradient is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.limits import Limits, Normalized, clamp
from linger.errors import UsageError

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
"""Layers whose weights are [in, out/groups, …]."""


Convolution = nn.Conv1d | nn.Conv2d | nn.ConvTranspose1d | nn.ConvTranspose2d


class _Window(Protocol):
    """The attributes of a transposed convolution that its output size depends on."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


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
    conv = cast(_Window, layer)
    axes = len(conv.kernel_size)
    return tuple(find(conv, x, output_size, conv.stride, conv.padding, conv.kernel_size, axes, conv.dilation))


class NormalizeConv1d(Normalized, nn.Conv1d):
    """A one-dimensional convolution within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name, as a caller may write it
        """Limited output of the convolution with limited parameters."""
        return _limited_convolution(self, self, input)


class NormalizeConv2d(Normalized, nn.Conv2d):
    """A two-dimensional convolution within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Limited output of the convolution with limited parameters."""
        return _limited_convolution(self, self, input)


class NormalizeConvTranspose2d(Normalized, nn.ConvTranspose2d):
    """A transposed convolution within limits."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:  # noqa: A002
        """Limited output of the convolution with limited parameters."""
        return _limited_convolution(self, self, input, output_size)


def _limited_convolution(
    conv: Convolution, limited: Normalized, x: Tensor, output_size: list[int] | None = None
) -> Tensor:
    """A convolution that is within limits; it is given twice because it is of two types."""
    weight, bias = clamp(conv.weight, limited.normalize_weight), clamp(conv.bias, limited.normalize_bias)
    return clamp(convolve(conv, x, weight, bias, output_size), limited.normalize_data)


class NormalizeLinear(Normalized, nn.Linear):
    """A fully connected layer within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Limited output of the product with limited parameters."""
        weight, bias = clamp(self.weight, self.normalize_weight), clamp(self.bias, self.normalize_bias)
        return clamp(F.linear(input, weight, bias), self.normalize_data)


class NormalizeLayerNorm(Normalized, nn.LayerNorm):
    """A layer norm within limits."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
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

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Limited rows of the table: the same as rows of a limited table, without limiting all of it."""
        rows = nn.Embedding.forward(self, input)
        return clamp(clamp(rows, self.normalize_weight), self.normalize_data)
