# SPDX-License-Identifier: Apache-2.0
"""ShuffleChannel: interleaves the channels of several groups; scale and bit width do not change."""

from __future__ import annotations

from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op("ShuffleChannel", is_scale_free=True, keeps_shape=True, output_bits=None, picks=True, takes_unsigned=True)
def shuffle_channel(k: Kernel[T], x: T, *, groups: int) -> T:
    """Y[:, c] = x[:, (c mod groups)·channels/groups + ⌊c/groups⌋], c counting the channels of axis 1."""
    return k.shuffle(x, groups)


@shuffle_channel.function(
    "torch.channel_shuffle", "torch.nn.functional.channel_shuffle", "torch.native_channel_shuffle"
)
def from_channel_shuffle(x: Any, groups: int) -> Settings:
    """The number of groups, which must divide the number of channels; torch raises an error otherwise."""
    if x.dim() < 3 or groups < 1 or x.shape[1] % groups:
        return Refusal(f"{groups} groups do not divide the channels")
    return {"groups": int(groups)}


def _sample(name: str, x: Draw, groups: int) -> Sample:
    return Sample(name, (x,), {"groups": groups})


shuffle_channel.samples = (
    _sample("two groups", Draw((2, 6, 3, 4)), 2),
    _sample("three groups", Draw((2, 6, 3, 4)), 3),
    _sample("one group changes nothing", Draw((1, 4, 2, 2)), 1),
    _sample("as many groups as channels", Draw((1, 5, 2)), 5),
    _sample("many groups", Draw((1, 200, 2)), 100),
    *(_sample(f"{bits} bits", Draw((1, 6, 2, 3), bits), 2) for bits in (4, 16, 32)),
    _sample("empty batch", Draw((0, 4, 3)), 2),
    _sample("one element", Draw((1, 1, 1)), 1),
    _sample("unsigned", DrawUnsigned((2, 6, 3, 4)), 2),
)
