# SPDX-License-Identifier: Apache-2.0
"""Limits of single channels: what ReLU6 becomes when channels have factors.

ReLU6 of x·s is not s·ReLU6(x). With factors s ≤ 1 the limit of a channel is 6·s, which a layer of its own puts on the output
of the producing layer; the ReLU6 that follows, wherever it is called, then changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from linger.constraint.normalize import ChannelLimits
from linger.constraint.tracing import replace_everywhere
from linger.tuning.equalization.flow import Numbers
from linger.tuning.equalization.watching import Clip, Watch
from linger.tuning.equalization.weights import Factors, factors_of


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
