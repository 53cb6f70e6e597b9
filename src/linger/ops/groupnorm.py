# SPDX-License-Identifier: Apache-2.0
"""GroupNormInt: groups of channels normalized as LayerNormInt does it, then one factor and one offset per channel.

The file format has no such op; this one is linger's own, with the arithmetic of LayerNormInt. An instance norm is a group
norm with one channel in each group. `eps` is written where it is not 1e-5. The weight has 16 bits always.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks, curves
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op("GroupNormInt", limit=curves.finest_normal_scale, normalizes=True, keeps_shape=True, state_name="groupnorm")
def groupnorm_int(
    k: Kernel[T],
    x: T,
    w: T,
    b: T,
    *,
    groups: int,
    data_bits: int,
    parameter_bits: int,
    o_bits: int,
    scale_x: float,
    scale_w: float,
    scale_o: float,
    eps: float = curves.DEFAULT_EPS,
) -> T:
    """Y = sat(⌊sat32(n·w + b)·scale_o/(2^10·scale_w) + ½⌋), n = (x − mean)/√(var + eps) of each group in Q10.

    x is [n, c, …], w and b have one number per channel. n has 16 bits; how it is computed is in
    `linger.numeric.curves`. b is int32 at 2^10·scale_w.
    """
    lines = k.group_lines(k.wide(x), groups)
    n = k.reshape_like(curves.normalize(k, lines, source=k.scalar(scale_x), eps=eps), x)
    total = k.add(k.mul(n, k.per_channel(k.wide(w), x)), k.per_channel(k.wide(b), x))
    source = k.mul(k.scalar(2.0**curves.FRACTION), k.scalar(scale_w))
    return blocks.requantize(k, blocks.saturate(k, total, 32), source=source, target=k.scalar(scale_o), bits=o_bits)


@groupnorm_int.real
def real(torch: Any, x: Any, w: Any, b: Any, *, groups: int, eps: float = curves.DEFAULT_EPS, **_: Any) -> Any:
    """torch.group_norm, which unlike the functional form also takes groups of one number."""
    return torch.group_norm(x, groups, w, b, eps)


def _settings(groups: int, eps: float) -> Settings:
    return {"groups": groups} | ({} if eps == curves.DEFAULT_EPS else {"eps": float(eps)})


@groupnorm_int.layer("torch.nn.GroupNorm")
def from_group_norm(layer: Any) -> Settings:
    """The groups and eps."""
    return _settings(layer.num_groups, layer.eps)


@groupnorm_int.layer("torch.nn.InstanceNorm1d", "torch.nn.InstanceNorm2d", "torch.nn.InstanceNorm3d")
def from_instance_norm(layer: Any) -> Settings:
    """Every channel is a group."""
    if layer.track_running_stats:
        return Refusal("track_running_stats=True makes it a batch norm in evaluation; use track_running_stats=False")
    return _settings(layer.num_features, layer.eps)


@groupnorm_int.function("torch.nn.functional.group_norm")
def from_functional_group_norm(
    x: object, num_groups: int, weight: object = None, bias: object = None, eps: float = curves.DEFAULT_EPS
) -> Settings:
    """The groups and eps."""
    return _settings(num_groups, eps)


@groupnorm_int.function("torch.nn.functional.instance_norm")
def from_functional_instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: object = None,
    weight: object = None,
    bias: object = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = curves.DEFAULT_EPS,
) -> Settings:
    """Every channel is a group."""
    if not use_input_stats or running_mean is not None:
        return Refusal("running statistics make it a batch norm; use those of the input")
    return _settings(int(x.shape[1]), eps)


def _sample(name: str, x: Draw, groups: int, **more: Any) -> Sample:
    return Sample.norm(name, x, x.shape[1], groups=groups, **more)


groupnorm_int.samples = (
    _sample("two groups", Draw((2, 6, 4, 5)), 2),
    _sample("one group", Draw((2, 6, 4, 5)), 1),
    _sample("every channel a group", Draw((2, 6, 4, 5)), 6),
    _sample("sequences", Draw((2, 6, 7)), 3),
    _sample("vectors", Draw((4, 6)), 2),
    _sample("volumes", Draw((1, 4, 2, 3, 2)), 2),
    _sample("saturating", Draw((2, 6, 4, 5)), 2, scale_o=256.0),
    _sample("another eps", Draw((2, 6, 4), low=-9, high=9), 2, eps=0.125),
    _sample("4 bits", Draw((2, 6, 4), 4), 2, scale_o=2.0, bits=4),
    _sample("16 bits", Draw((2, 6, 4, 5), 16), 2, scale_x=2048.0, scale_o=2.0**12, bits=16),
    _sample("32-bit output", Draw((2, 6, 4)), 2, scale_o=2.0**20, bits=32),
    _sample("empty batch", Draw((0, 6, 4, 5)), 2),
    _sample("one element", Draw((1, 1, 1)), 1),
)
