# SPDX-License-Identifier: Apache-2.0
"""Limits of single channels: what ReLU6 becomes when channels have factors.

ReLU6 of x·s is not s·ReLU6(x). With factors s ≤ 1 the limit of a channel is 6·s, which a layer of its own puts on the output
of the producing layer; the ReLU6 that follows, wherever it is called, then changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn

from linger.constraint.tracing import replace_everywhere
from linger.tuning.channels.flow import Numbers
from linger.tuning.channels.watching import Clip, Watch
from linger.tuning.channels.weights import Factors, factors_of


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


@dataclass(frozen=True)
class Limited:
    """A module whose output always goes into a limit: path, channels, limit and the channels' axis, from the end."""

    path: str
    numbers: Numbers
    limit: float
    axis: int


def limited_modules(watch: Watch, *, has_limits: bool) -> list[Limited]:
    """The modules whose output is limited in every call; the channels of all other limits are pinned.

    Args:
        watch: What was watched.
        has_limits: Whether limits of single channels can be had.
    """
    by_module: dict[str | None, list[Clip]] = defaultdict(list)
    for clip in watch.clips:
        by_module[clip.module].append(clip)
    found = []
    for path, clips in by_module.items():
        if path and has_limits and watch.calls[path] == len(clips) and _is_alike(clips):
            found.append(Limited(path, clips[0].numbers, clips[0].limit, clips[0].axis))
        else:
            for clip in clips:
                watch.channels.pin(clip.numbers)
    return found


def _is_alike(clips: list[Clip]) -> bool:
    """Whether all calls have one limit, and nothing but the limit sees the output."""
    is_sole = all(clip.is_in_place or clip.uses[0] == 1 for clip in clips)
    return is_sole and len({(clip.limit, clip.axis) for clip in clips}) == 1


def put_limits(model: nn.Module, limited: Iterable[Limited], factors: Factors) -> dict[nn.Module, nn.Module]:
    """Give modules whose channels have factors their limits; returns the wrapped layers by what wraps them."""
    made: dict[nn.Module, nn.Module] = {}
    for entry in limited:
        own = factors_of(entry.numbers, factors)
        if bool((own == 1).all()):
            continue
        layer = model.get_submodule(entry.path)
        like = next(layer.parameters())
        limit = (entry.limit * own).to(like).reshape(-1, *[1] * (-entry.axis - 1))
        made[layer] = ChannelLimits(layer, limit, entry.limit)
    replace_everywhere(model, made)
    return {wrapped: layer for layer, wrapped in made.items()}
