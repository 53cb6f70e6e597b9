# SPDX-License-Identifier: Apache-2.0
"""Conv1dInt: convolution over one axis, grouped, dilated, with any padding, with or without bias."""

from __future__ import annotations

import math

from linger.dialect import Newer, convolution, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Ints, Kernel, Sample, T


@op(
    "Conv1dInt",
    newer=(Newer("QConv1d"),),
    limit=math.prod,
    window_axes=1,
    weight_axes=3,
    widest_data=16,
    float_op="Conv",
    takes_unsigned=True,
    chip_limits=("window", "window-width", "depthwise", "groups"),
    state_name="function_conv1d",
    has_own_counter=True,
)
def conv1d_int(
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
    accumulator = k.conv1d(
        x, w, b, x_bits=data_bits, w_bits=parameter_bits, strides=strides, pads=pads, dilations=dilations, group=group
    )
    return blocks.requantize_product(
        k, accumulator, (scale_x, scale_w), scale_o, o_bits, exponents=exponents_w, unsigned=o_unsigned
    )


conv1d_int.layer("torch.nn.Conv1d")(convolution)

_sample = Sample.convolution

_BIAS = {"bits": 32, "low": -9000, "high": 9000}

conv1d_int.samples = (
    _sample("plain", Draw((2, 3, 9)), Draw((4, 3, 3)), Draw((4,), **_BIAS), pads=(1, 1)),
    _sample("no bias, strided", Draw((1, 2, 11)), Draw((3, 2, 3)), None, strides=(2,)),
    _sample("uneven pads", Draw((1, 2, 7)), Draw((2, 2, 4)), Draw((2,), **_BIAS), pads=(1, 2)),
    _sample("dilated", Draw((1, 2, 12)), Draw((3, 2, 3)), Draw((3,), **_BIAS), dilations=(3,)),
    _sample("two groups", Draw((2, 4, 8)), Draw((6, 2, 3)), Draw((6,), **_BIAS), group=2),
    _sample("depthwise", Draw((1, 5, 9)), Draw((5, 1, 3)), None, group=5, pads=(1, 1)),
    _sample("saturating", Draw((1, 8, 6)), Draw((4, 8, 3)), None, shift=3),
    _sample("left shift", Draw((1, 1, 6), 4), Draw((2, 1, 1), 4), None, shift=-1),
    _sample("4 bits", Draw((1, 3, 7), 4), Draw((4, 3, 3), 4), None, bits=(4, 4, 4), shift=4),
    _sample("16-bit output", Draw((1, 3, 7)), Draw((4, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 16), shift=2),
    _sample("32-bit output", Draw((1, 3, 7)), Draw((4, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 32), shift=0),
    _sample("16-bit input", Draw((1, 3, 7), 16), Draw((4, 3, 3)), Draw((4,), **_BIAS), bits=(16, 8, 16), shift=9),
    _sample("16-bit weights", Draw((1, 3, 7), 16), Draw((4, 3, 3), 16), None, bits=(16, 16, 16), shift=17),
    _sample(
        "accumulator beyond 2^24", Draw((1, 480, 5), low=120), Draw((3, 480, 3), low=120), Draw((3,), **_BIAS), shift=18
    ),
    _sample("bias beyond 2^24", Draw((1, 2, 3)), Draw((2, 2, 1)), Draw((2,), 32), shift=22),
    _sample("empty batch", Draw((0, 2, 6)), Draw((3, 2, 3)), None),
    _sample("one element", Draw((1, 1, 1)), Draw((1, 1, 1)), Draw((1,), **_BIAS)),
    *Sample.extended_convolutions(1),
)
