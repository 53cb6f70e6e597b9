# SPDX-License-Identifier: Apache-2.0
"""LinearInt: a fully connected layer over the last axis."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Newer, Sample, op
from linger.numeric import blocks
from linger.numeric.kernel import Kernel, T


@op(
    "LinearInt",
    newer=(Newer("QLinear"),),
    limit=math.prod,
    weight_axes=2,
    keeps_open_sizes=False,
    float_op="Gemm",
    chip_limits=("left-matrix", "product-width", "product-rank"),
    state_name="function_linear",
    has_own_counter=True,
)
def linear_int(
    k: Kernel[T],
    x: T,
    w: T,
    b: T | None = None,
    *,
    data_bits: int,
    parameter_bits: int,
    o_bits: int,
    scale_x: float,
    scale_w: float,
    scale_o: float,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """Y = sat(⌊(x·wᵀ + b)·scale_o/(scale_x·scale_w) + ½⌋), the sum exact; w is [out, in]."""
    accumulator = k.linear(x, w, b, x_bits=data_bits, w_bits=parameter_bits)
    source = k.mul(k.scalar(scale_x), k.scalar(scale_w))
    return blocks.requantize(k, accumulator, source=source, target=k.scalar(scale_o), bits=o_bits)


@linear_int.layer("torch.nn.Linear")
def from_linear(layer: object) -> Mapping[str, Any]:
    """A Linear layer has no geometry."""
    return {}


def _sample(
    name: str, x: Draw, w: Draw, b: Draw | None, *, shift: int, bits: tuple[int, int, int] = (8, 8, 8)
) -> Sample:
    return Sample(
        name,
        (x, w, b),
        {
            "data_bits": bits[0],
            "parameter_bits": bits[1],
            "o_bits": bits[2],
            "scale_x": 8.0,
            "scale_w": 128.0,
            "scale_o": 1024.0 * 2.0**-shift,
        },
    )


_BIAS = {"bits": 32, "low": -5000, "high": 5000}

linear_int.samples = (
    _sample("plain", Draw((3, 10)), Draw((4, 10)), Draw((4,), **_BIAS), shift=7),
    _sample("no bias, three axes", Draw((2, 3, 6)), Draw((5, 6)), None, shift=6),
    _sample("saturating", Draw((2, 32)), Draw((4, 32)), Draw((4,), **_BIAS), shift=3),
    _sample("4 bits", Draw((2, 7), 4), Draw((3, 7), 4), None, shift=3, bits=(4, 4, 4)),
    _sample("16-bit input and output", Draw((2, 40), 16), Draw((3, 40)), Draw((3,), 32), shift=9, bits=(16, 8, 16)),
    _sample("16-bit weights", Draw((2, 40), 16), Draw((3, 40), 16), Draw((3,), 32), shift=16, bits=(16, 16, 16)),
    _sample("32-bit output", Draw((2, 40)), Draw((3, 40)), Draw((3,), 32), shift=0, bits=(8, 8, 32)),
    _sample("accumulator beyond 2^24", Draw((2, 2048), low=100), Draw((3, 2048), low=100), None, shift=18),
    _sample("empty batch", Draw((0, 6)), Draw((5, 6)), None, shift=6),
    _sample("one element", Draw((1, 1)), Draw((1, 1)), Draw((1,), **_BIAS), shift=6),
)
