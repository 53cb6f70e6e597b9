# SPDX-License-Identifier: Apache-2.0
"""A layer whose channels have limits of their own, as `linger.equalize` makes it where ReLU6 follows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.tracing import replace_everywhere


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


def limit_channels(model: nn.Module, wanted: Mapping[str, tuple[float, tuple[int, ...]]]) -> dict[nn.Module, nn.Module]:
    """Put `ChannelLimits` around modules of a model, all channels at the largest limit until a checkpoint says more.

    Args:
        model: A float model.
        wanted: The largest limit and the shape of the limits, by the path of the module.

    Returns:
        The modules by what is around them, so that `replace_everywhere` can undo it. One that has limits already stays.
    """
    made: dict[nn.Module, nn.Module] = {}
    for path, (largest, shape) in wanted.items():
        layer = model.get_submodule(path)
        if not isinstance(layer, ChannelLimits):
            like = next(layer.parameters(), torch.zeros(()))
            made[layer] = ChannelLimits(layer, torch.full(shape, largest).to(like), largest)
    replace_everywhere(model, made)
    return {around: layer for layer, around in made.items()}
