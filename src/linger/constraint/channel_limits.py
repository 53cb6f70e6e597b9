# SPDX-License-Identifier: Apache-2.0
"""A layer whose output has a limit for each channel, which equalisation makes of a layer before ReLU6."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn


class ChannelLimits(nn.Module):
    """A layer whose output is limited to 0 … `limit`, channel by channel.

    Its state is that of the layer, under `layer.`, and the buffer `limit`, whose axes of size 1 let it be repeated over
    the output. The integers are those of Clip to the largest limit and of iqMin with the limits, constants of 8 bits.
    """

    limit: Tensor

    def __init__(self, layer: nn.Module, limit: Tensor, largest: float) -> None:
        super().__init__()
        self.layer = layer
        self.largest = largest
        self.register_buffer("limit", limit)
        self.training = layer.training

    def forward(self, x: Tensor) -> Tensor:
        """min(max(layer(x), 0), limit); the first step, with one limit for all channels, tells the range to the layer."""
        return torch.minimum(F.hardtanh(self.layer(x), 0.0, self.largest), self.limit)

    def extra_repr(self) -> str:
        """The limit that all channels share."""
        return f"largest={self.largest:g}"
