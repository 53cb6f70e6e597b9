# SPDX-License-Identifier: Apache-2.0
"""The mean of each channel of a tensor, and how many positions it was taken over."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

Call = tuple[int, int]
"""Number of the batch, and which call of a layer in that pass, both from 0."""


@dataclass(frozen=True)
class ChannelMeans:
    """The mean of each channel of a tensor, over `count` positions; `power` is the mean square of all channels."""

    mean: Tensor
    count: int
    power: float

    @classmethod
    def of(cls, y: Tensor, axis: int) -> ChannelMeans:
        """Those of a tensor whose channels are on this axis."""
        rows = y.detach().transpose(axis, -1).reshape(-1, y.shape[axis]).double()
        return cls(rows.mean(0), rows.shape[0], float(rows.square().mean()))
