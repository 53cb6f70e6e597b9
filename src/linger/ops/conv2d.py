# SPDX-License-Identifier: Apache-2.0
"""Conv2dInt: two-dimensional convolution, grouped, dilated, with any padding, with or without bias."""

from __future__ import annotations

import math

from linger.dialect import Newer, convolution, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, DrawUnsigned, Ints, Kernel, Sample, T


@op(
    "Conv2dInt",
    texts={"castor_mode": "luna"},
    newer=(Newer("QConv2d"), Newer("QConvBN2d")),
    limit=math.prod,
    window_axes=2,
    weight_axes=4,
    widest_data=16,
    float_op="Conv",
    takes_unsigned=True,
    chip_limits=("window", "window-width", "depthwise", "groups"),
    state_name="function_conv2d",
    has_own_counter=True,
)
def conv2d_int(
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
    dilations: Ints,
    group: int,
    kernel_shape: Ints,
    pads: Ints,
    strides: Ints,
    exponents_w: Ints = (),
    o_unsigned: int = 0,
) -> T:
    """Y = sat(⌊(x ∗ w + b)·scale_o/(scale_x·scale_w) + ½⌋), the sum exact; b is int32 at scale_x·scale_w."""
    accumulator = k.conv2d(
        x, w, b, x_bits=data_bits, w_bits=parameter_bits, strides=strides, pads=pads, dilations=dilations, group=group
    )
    return blocks.requantize_product(
        k, accumulator, (scale_x, scale_w), scale_o, o_bits, exponents=exponents_w, unsigned=o_unsigned
    )


conv2d_int.layer("torch.nn.Conv2d")(convolution)

_sample = Sample.convolution

_BIAS = {"bits": 32, "low": -9000, "high": 9000}

_UNSIGNED_BEYOND = DrawUnsigned((1, 80, 3, 3), low=240), Draw((3, 80, 3, 3), low=120), Draw((3,), **_BIAS)
conv2d_int.samples = (
    _sample("plain", Draw((2, 3, 6, 5)), Draw((4, 3, 3, 3)), Draw((4,), **_BIAS), pads=(1, 1, 1, 1)),
    _sample("no bias, strided", Draw((1, 2, 7, 7)), Draw((3, 2, 3, 3)), None, strides=(2, 2)),
    _sample("uneven pads", Draw((1, 2, 5, 6)), Draw((2, 2, 2, 3)), Draw((2,), **_BIAS), pads=(0, 1, 1, 2)),
    _sample("dilated", Draw((1, 2, 9, 8)), Draw((3, 2, 3, 3)), Draw((3,), **_BIAS), dilations=(2, 3)),
    _sample("two groups", Draw((2, 4, 5, 5)), Draw((6, 2, 3, 3)), Draw((6,), **_BIAS), group=2),
    _sample("depthwise", Draw((1, 5, 6, 6)), Draw((5, 1, 3, 3)), None, group=5, pads=(1, 1, 1, 1)),
    _sample("saturating", Draw((1, 8, 4, 4)), Draw((4, 8, 3, 3)), None, shift=3),
    _sample("left shift", Draw((1, 1, 4, 4), 4), Draw((2, 1, 1, 1), 4), None, shift=-1),
    _sample("4 bits", Draw((1, 3, 5, 5), 4), Draw((4, 3, 3, 3), 4), None, bits=(4, 4, 4), shift=4),
    _sample("16-bit output", Draw((1, 3, 5, 5)), Draw((4, 3, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 16), shift=2),
    _sample("32-bit output", Draw((1, 3, 5, 5)), Draw((4, 3, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 32), shift=0),
    _sample("16-bit input", Draw((1, 3, 5, 5), 16), Draw((4, 3, 3, 3)), Draw((4,), **_BIAS), bits=(16, 8, 16), shift=9),
    _sample("16-bit weights", Draw((1, 3, 5, 5), 16), Draw((4, 3, 3, 3), 16), None, bits=(16, 16, 16), shift=17),
    _sample(
        "accumulator beyond 2^24",
        Draw((1, 160, 3, 3), low=120),
        Draw((3, 160, 3, 3), low=120),
        Draw((3,), **_BIAS),
        shift=18,
    ),
    _sample("bias beyond 2^24", Draw((1, 2, 3, 3)), Draw((2, 2, 1, 1)), Draw((2,), 32), shift=22),
    _sample("empty batch", Draw((0, 2, 4, 4)), Draw((3, 2, 3, 3)), None),
    _sample("one element", Draw((1, 1, 1, 1)), Draw((1, 1, 1, 1)), Draw((1,), **_BIAS)),
    *Sample.extended_convolutions(2),
    _sample("unsigned, accumulator beyond 2^24", *_UNSIGNED_BEYOND, shift=17, o_unsigned=1),
)
