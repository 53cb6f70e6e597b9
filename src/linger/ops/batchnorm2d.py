# SPDX-License-Identifier: Apache-2.0
"""BatchNorm2dInt: one factor and one offset per channel: a batch norm that is not folded into a convolution.

alpha = γ/√(σ² + eps) is the weight (one scale for all channels), β − μ·alpha the bias at scale_x·scale_w. The file also
carries the running statistics they were computed from; the arithmetic does not use them.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import Newer, Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawReal, DrawUnsigned, Kernel, Sample, T


@op(
    "BatchNorm2dInt",
    newer=(
        Newer("QBatchNorm2d", inputs=("x", "w", "b")),
        Newer("QBatchNorm1d", inputs=("x", "w", "b"), axes=3, is_packed=False),
    ),
    unread_inputs={"running_mean": 0.0, "running_var": 1.0},
    limit=math.prod,
    weight_axes=1,
    keeps_shape=True,
    takes_unsigned=True,
)
def batchnorm2d_int(
    k: Kernel[T],
    x: T,
    w: T,
    b: T,
    running_mean: T,
    running_var: T,
    *,
    data_bits: int,
    parameter_bits: int,
    o_bits: int,
    scale_x: float,
    scale_w: float,
    scale_o: float,
    o_unsigned: int = 0,
) -> T:
    """Y = sat(⌊(x·w + b)·scale_o/(scale_x·scale_w) + ½⌋), w and b one number per channel (axis 1)."""
    product = k.mul(k.wide(x), k.per_channel(k.wide(w), x))
    accumulator = k.add(product, k.per_channel(k.wide(b), x))
    return blocks.requantize_product(k, accumulator, (scale_x, scale_w), scale_o, o_bits, unsigned=o_unsigned)


@batchnorm2d_int.layer("torch.nn.BatchNorm2d", "torch.nn.BatchNorm1d")
def from_batch_norm(layer: Any) -> Settings:
    """A batch norm has no geometry; without running statistics its numbers would depend on the batch."""
    if layer.running_mean is None:
        return Refusal("track_running_stats=False: every batch has other factors, so there are none to write")
    return {}


def _sample(name: str, x: Draw, *, shift: int, bits: tuple[int, int, int] = (8, 8, 8), b: Draw | None = None) -> Sample:
    channels = (x.shape[1],)
    bias = b or Draw(channels, 32, low=-9000, high=9000)
    inputs = (x, Draw(channels, bits[1]), bias, DrawReal(channels), DrawReal(channels))
    return Sample.product(name, inputs, shift=shift, bits=bits)


batchnorm2d_int.samples = (
    _sample("plain", Draw((2, 5, 4, 3)), shift=7),
    _sample("saturating", Draw((2, 5, 4, 3)), shift=3),
    _sample("many ties", Draw((2, 4, 6, 6), low=-16, high=16), shift=2, b=Draw((4,), 32, low=-8, high=8)),
    _sample("left shift", Draw((1, 3, 2, 2), 4), shift=-1, bits=(4, 4, 8)),
    _sample("4 bits", Draw((1, 3, 4, 4), 4), shift=4, bits=(4, 4, 4)),
    _sample("16-bit input and output", Draw((1, 3, 4, 4), 16), shift=8, bits=(16, 8, 16)),
    _sample("16-bit weights", Draw((1, 3, 4, 4), 16), shift=16, bits=(16, 16, 16)),
    _sample("32-bit output", Draw((1, 3, 4, 4)), shift=0, bits=(8, 8, 32)),
    _sample("bias beyond 2^24", Draw((1, 3, 4, 4)), shift=22, b=Draw((3,), 32)),
    _sample("empty batch", Draw((0, 3, 4, 4)), shift=7),
    _sample("one element", Draw((1, 1, 1, 1)), shift=7),
    _sample("unsigned", DrawUnsigned((2, 5, 4, 3)), shift=7).extended(o_unsigned=1),
)
