# SPDX-License-Identifier: Apache-2.0
"""Clip: integers limited to two thresholds (ReLU6, clamp); scale and width stay.

The thresholds are integer scalars: for ReLU6, 0 and min(2^(bits−1)−1, 6·scale_x). 6·scale_x is whole for every
scale from ½ up; at a coarser scale it is rounded half up.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op(
    "Clip",
    has_platform_quant=False,
    standard_name="Clip",
    output_bits=None,
    float_op="Clip",
    chip_limits=("clip",),
    picks=True,
    takes_unsigned=True,
)
def clip(k: Kernel[T], x: T, low: T, high: T) -> T:
    """Y = min(max(q, low), high)."""
    return k.clamp(x, low, high)


@clip.constants("min_thresh", "max_thresh")
def thresholds(*, low: float, high: float, scale: float, bits: int) -> tuple[int, int]:
    """Integer thresholds for real ones.

    >>> thresholds(low=0.0, high=6.0, scale=16.0, bits=8)
    (0, 96)
    >>> thresholds(low=0.0, high=6.0, scale=64.0, bits=8)
    (0, 127)
    >>> thresholds(low=-math.inf, high=1.0, scale=16.0, bits=8)
    (-128, 16)
    """
    smallest, largest = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def nearest(end: float) -> int:
        limited = max(smallest - 1.0, min(largest + 1.0, end * scale))  # an open end is infinite
        return max(smallest, min(largest, math.floor(limited + 0.5)))

    return nearest(low), nearest(high)


clip.used(lambda settings, _: (settings["low"], settings["high"]))


@clip.function("torch.nn.functional.relu6")
def from_relu6(x: object, inplace: bool = False) -> Settings:
    """ReLU6 limits to 0 … 6."""
    return {"low": 0.0, "high": 6.0}


@clip.function("torch.nn.functional.hardtanh")
def from_hardtanh(x: object, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Settings:
    """torch's ReLU6 layer calls hardtanh."""
    return {"low": float(min_val), "high": float(max_val)}


def _is_end(end: Any) -> bool:
    """Whether a bound is a number, or open."""
    return isinstance(end, (int, float, type(None))) and not isinstance(end, bool)


@clip.function(
    *(f"{place}.{name}" for place in ("torch", "torch.Tensor") for name in ("clamp", "clamp_", "clip", "clip_"))
)
def from_clamp(x: object, min: Any = None, max: Any = None) -> Settings:  # noqa: A002 - torch's names
    """Bounds that are numbers, or open; they are rounded to the tensor's steps."""
    if not (_is_end(min) and _is_end(max)):
        return Refusal("bounds that are tensors have no integer form; use numbers")
    low, high = -math.inf if min is None else float(min), math.inf if max is None else float(max)
    if math.isnan(low) or math.isnan(high) or (min is None and max is None):
        return Refusal("it has no bound, or one that is no number")
    return {"low": low if low < high else high, "high": high}  # torch lets the upper bound win


@clip.layer("torch.nn.ReLU6")
def from_relu6_layer(layer: object) -> Settings:
    """The layer is a call of hardtanh with 0 … 6."""
    return {"call": "torch.nn.functional.hardtanh", "arguments": (0.0, 6.0)}


def _thresholds(bits: int, high: int = 5, *, is_unsigned: int = 0) -> tuple[Draw, Draw]:
    return Draw((), bits, 0, 0, is_unsigned), Draw((), bits, high, high, is_unsigned)


clip.samples = (
    *tuple(Sample(f"{bits} bits", (Draw((2, 3, 4), bits), *_thresholds(bits)), {}) for bits in (4, 8, 16, 32)),
    Sample("one element", (Draw((1,)), *_thresholds(8)), {}),
    Sample("unsigned", (DrawUnsigned((2, 3, 4)), *_thresholds(8, 192, is_unsigned=1)), {}),
)
