# SPDX-License-Identifier: Apache-2.0
"""Layers whose weight, bias and output stay within limits, in training and in evaluation; outside them the gradient is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.limits import Limits, Normalized, clamp
from linger.errors import UsageError

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
