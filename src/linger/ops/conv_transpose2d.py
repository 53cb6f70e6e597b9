# SPDX-License-Identifier: Apache-2.0
"""ConvTranspose2dInt: transposed two-dimensional convolution, grouped, dilated, with or without bias.

The device's packer takes dilations of 1, outputs of 8 bits and no depthwise groups; the formula holds for all.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from linger.dialect import Newer, NodeFacts, Refusal, Settings, op
from linger.numeric import blocks, fixed
from linger.numeric.kernel import Draw, Ints, Kernel, Sample, T


@op(
    "ConvTranspose2dInt",
    texts={"castor_mode": "luna"},
    newer=(Newer("QConvTranspose2d"), Newer("QConvTranspose1d", axes=3, is_packed=False)),
    limit=math.prod,
    window_axes=2,
    weight_axes=4,
    is_transposed=True,
    widest_data=16,
    float_op="ConvTranspose",
    takes_unsigned=True,
    chip_limits=("window", "window-width", "depthwise", "groups", "room", "transposed-bias"),
    state_name="function_conv_transpose2d",
    has_own_counter=True,
)
def conv_transpose2d_int(
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
    output_padding: Ints,
    pads: Ints,
    strides: Ints,
    exponents_w: Ints = (),
    o_unsigned: int = 0,
) -> T:
    """Y = sat(⌊(x ∗ᵀ w + b)·scale_o/(scale_x·scale_w) + ½⌋), the sum exact; w is [in, out/group, kh, kw]."""
    accumulator = k.conv_transpose2d(
        x,
        w,
        b,
        x_bits=data_bits,
        w_bits=parameter_bits,
        strides=strides,
        pads=pads,
        output_padding=output_padding,
        dilations=dilations,
        group=group,
    )
    return blocks.requantize_product(
        k, accumulator, (scale_x, scale_w), scale_o, o_bits, exponents=exponents_w, unsigned=o_unsigned
    )


@conv_transpose2d_int.refuse
def refuse_long_sums(node: NodeFacts) -> str | None:
    """Refuse more products per output than can be added exactly."""
    inputs = node.size("w", 0)
    taps = 0 if inputs is None else inputs // node.attributes["group"] * math.prod(node.attributes["kernel_shape"])
    if taps <= fixed.MOST_TRANSPOSED_TAPS:
        return None
    return f"{taps} products per output; at most {fixed.MOST_TRANSPOSED_TAPS} are supported. Use more groups."


@conv_transpose2d_int.layer("torch.nn.ConvTranspose2d", "torch.nn.ConvTranspose1d")
def from_conv_transpose(layer: Any) -> Settings:
    """The geometry of a transposed convolution; a signal is an image of one row.

    An `output_size` given to the layer's forward replaces output_padding.
    """
    if layer.padding_mode != "zeros":
        return Refusal(f"padding_mode={layer.padding_mode!r} has no integer form; pad with zeros instead")
    missing = 2 - len(layer.kernel_size)
    ones, zeros = (1,) * missing, (0,) * missing
    return {
        "dilations": (*ones, *layer.dilation),
        "group": layer.groups,
        "kernel_shape": (*ones, *layer.kernel_size),
        "output_padding": (*zeros, *layer.output_padding),
        "pads": (*zeros, *layer.padding) * 2,
        "strides": (*ones, *layer.stride),
    }


_sample = partial(Sample.convolution, output_padding=(0, 0))

_BIAS = {"bits": 32, "low": -9000, "high": 9000}
_LARGE = (Draw((1, 320, 3, 3), low=120), Draw((320, 2, 3, 3), low=120))
_UP: dict[str, Any] = {"strides": (2, 2), "pads": (1, 1, 1, 1)}

conv_transpose2d_int.samples = (
    _sample("plain", Draw((2, 3, 4, 5)), Draw((3, 4, 3, 3)), Draw((4,), **_BIAS), pads=(1, 1, 1, 1)),
    _sample("no bias, strided", Draw((1, 2, 3, 4)), Draw((2, 3, 3, 3)), None, strides=(2, 3)),
    _sample(
        "output padding", Draw((1, 2, 3, 3)), Draw((2, 3, 3, 3)), Draw((3,), **_BIAS), **_UP, output_padding=(1, 0)
    ),
    _sample("uneven pads", Draw((1, 2, 4, 4)), Draw((2, 2, 2, 3)), Draw((2,), **_BIAS), pads=(0, 1, 1, 2)),
    _sample("dilated", Draw((1, 2, 4, 3)), Draw((2, 3, 3, 3)), Draw((3,), **_BIAS), dilations=(2, 3)),
    _sample("two groups", Draw((2, 4, 3, 3)), Draw((4, 3, 3, 3)), Draw((6,), **_BIAS), group=2, strides=(2, 2)),
    _sample("depthwise", Draw((1, 5, 4, 4)), Draw((5, 1, 3, 3)), None, group=5, **_UP),
    _sample("saturating", Draw((1, 8, 3, 3)), Draw((8, 4, 3, 3)), None, shift=3),
    _sample("left shift", Draw((1, 1, 4, 4), 4), Draw((1, 2, 1, 1), 4), None, shift=-1),
    _sample("4 bits", Draw((1, 3, 4, 4), 4), Draw((3, 4, 3, 3), 4), None, bits=(4, 4, 4), shift=4),
    _sample("16-bit output", Draw((1, 3, 4, 4)), Draw((3, 4, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 16), shift=2),
    _sample("32-bit output", Draw((1, 3, 4, 4)), Draw((3, 4, 3, 3)), Draw((4,), **_BIAS), bits=(8, 8, 32), shift=0),
    _sample("16-bit input", Draw((1, 3, 4, 4), 16), Draw((3, 4, 3, 3)), Draw((4,), **_BIAS), bits=(16, 8, 16), shift=9),
    _sample("16-bit weights", Draw((1, 3, 4, 4), 16), Draw((3, 4, 3, 3), 16), None, bits=(16, 16, 16), shift=17),
    _sample(
        "accumulator beyond 2^24",
        Draw((1, 160, 3, 3), low=120),
        Draw((160, 3, 3, 3), low=120),
        Draw((3,), **_BIAS),
        shift=18,
    ),
    _sample("accumulator beyond 2^24 in two groups", *_LARGE, Draw((4,), **_BIAS), shift=18, group=2),
    _sample("bias beyond 2^24", Draw((1, 2, 3, 3)), Draw((2, 2, 1, 1)), Draw((2,), 32), shift=22),
    _sample("empty batch", Draw((0, 2, 4, 4)), Draw((2, 3, 3, 3)), None),
    _sample("one element", Draw((1, 1, 1, 1)), Draw((1, 1, 1, 1)), Draw((1,), **_BIAS)),
    *Sample.extended_convolutions(2, transposed=True),
)
