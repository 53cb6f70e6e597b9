# SPDX-License-Identifier: Apache-2.0
"""LinearInt: a fully connected layer over the last axis."""

from __future__ import annotations

import math

from linger.dialect import Newer, no_settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawUnsigned, Ints, Kernel, Sample, T


@op(
    "LinearInt",
    newer=(Newer("QLinear"),),
    limit=math.prod,
    weight_axes=2,
    keeps_open_sizes=False,
    float_op="Gemm",
    takes_unsigned=True,
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
    exponents_w: Ints = (),
    o_unsigned: int = 0,
) -> T:
    """Y = sat(⌊(x·wᵀ + b)·scale_o/(scale_x·scale_w) + ½⌋), the sum exact; w is [out, in]."""
    sums = k.linear(x, w, b, x_bits=data_bits, w_bits=parameter_bits)
    return blocks.requantize_product(
        k, sums, (scale_x, scale_w), scale_o, o_bits, exponents=exponents_w, has_last_channels=True, unsigned=o_unsigned
    )


linear_int.layer("torch.nn.Linear")(no_settings)


_BIAS = {"bits": 32, "low": -5000, "high": 5000}

_FOUR_CHANNELS = Draw((4, 10)), Draw((4,), **_BIAS)
linear_int.samples = (
    Sample.product("plain", (Draw((3, 10)), Draw((4, 10)), Draw((4,), **_BIAS)), shift=7),
    Sample.product("no bias, three axes", (Draw((2, 3, 6)), Draw((5, 6)), None), shift=6),
    Sample.product("saturating", (Draw((2, 32)), Draw((4, 32)), Draw((4,), **_BIAS)), shift=3),
    Sample.product("4 bits", (Draw((2, 7), 4), Draw((3, 7), 4), None), shift=3, bits=(4, 4, 4)),
    Sample.product(
        "16-bit input and output", (Draw((2, 40), 16), Draw((3, 40)), Draw((3,), 32)), shift=9, bits=(16, 8, 16)
    ),
    Sample.product(
        "16-bit weights", (Draw((2, 40), 16), Draw((3, 40), 16), Draw((3,), 32)), shift=16, bits=(16, 16, 16)
    ),
    Sample.product("32-bit output", (Draw((2, 40)), Draw((3, 40)), Draw((3,), 32)), shift=0, bits=(8, 8, 32)),
    Sample.product("accumulator beyond 2^24", (Draw((2, 2048), low=100), Draw((3, 2048), low=100), None), shift=18),
    Sample.product("empty batch", (Draw((0, 6)), Draw((5, 6)), None), shift=6),
    Sample.product("one element", (Draw((1, 1)), Draw((1, 1)), Draw((1,), **_BIAS)), shift=6),
    Sample.product("a scale for each channel", (Draw((3, 10)), *_FOUR_CHANNELS), exponents_w=(0, 3, 1, 7)),
    Sample.product("unsigned input", (DrawUnsigned((3, 10)), Draw((4, 10)), None)),
    Sample.product(
        "unsigned, a scale for each channel, three axes",
        (DrawUnsigned((2, 3, 10)), *_FOUR_CHANNELS),
        exponents_w=(2, 0, 5, 1),
        o_unsigned=1,
    ),
)
