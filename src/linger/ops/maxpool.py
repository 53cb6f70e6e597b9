# SPDX-License-Identifier: Apache-2.0
"""MaxPool: the largest integer of each window; scale and width stay."""

from __future__ import annotations

from typing import Any

from linger.dialect import Newer, Refusal, Settings, op
from linger.numeric import fixed
from linger.numeric.kernel import Draw, DrawUnsigned, Ints, Kernel, Sample, T


@op(
    "MaxPool",
    has_platform_quant=False,
    standard_name="MaxPool",
    newer=(Newer("QMaxPool2d"),),
    is_scale_free=True,
    output_bits=None,
    window_axes=2,
    float_op="MaxPool",
    chip_limits=("pool", "pool-window"),
    picks=True,
    takes_unsigned=True,
)
def maxpool(
    k: Kernel[T],
    x: T,
    *,
    kernel_shape: Ints,
    strides: Ints = (1, 1),
    pads: Ints = (0, 0, 0, 0),
    dilations: Ints = (1, 1),
    ceil_mode: int = 0,
) -> T:
    """Y = max over the window; positions outside the image do not take part."""
    return k.max_pool2d(
        x, kernel_shape=kernel_shape, strides=strides, pads=pads, dilations=dilations, ceil_mode=ceil_mode
    )


@maxpool.function("torch.nn.functional.max_pool2d", "torch.max_pool2d")
def from_max_pool2d(
    x: object,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Settings:
    """The window of F.max_pool2d."""
    if return_indices:
        return Refusal("return_indices=True has no integer form")
    kernel = fixed.pair(kernel_size)
    return {
        "kernel_shape": kernel,
        "strides": kernel if stride is None or stride == [] else fixed.pair(stride),
        "pads": fixed.pair(padding) * 2,
        "dilations": fixed.pair(dilation),
        "ceil_mode": int(ceil_mode),
    }


def _sample(name: str, x: Draw, kernel: Ints = (2, 2), **window: Any) -> Sample:
    return Sample(name, (x,), {"kernel_shape": kernel, **window})


maxpool.samples = (
    _sample("2×2", Draw((2, 3, 6, 6)), strides=(2, 2)),
    _sample("3×3 padded", Draw((1, 2, 7, 7)), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    _sample("all negative at the edge", Draw((1, 1, 4, 4), low=-128, high=-100), (3, 3), pads=(1, 1, 1, 1)),
    _sample("ceil mode", Draw((1, 2, 6, 6)), (3, 3), strides=(2, 2), ceil_mode=1),
    _sample("dilated", Draw((1, 2, 7, 7)), dilations=(2, 2)),
    *(_sample(f"{bits} bits", Draw((1, 2, 4, 4), bits)) for bits in (4, 16, 32)),
    _sample("empty batch", Draw((0, 2, 4, 4))),
    _sample("one element", Draw((1, 1, 1, 1)), (1, 1)),
    _sample("unsigned, padded", DrawUnsigned((1, 2, 7, 7)), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
)
