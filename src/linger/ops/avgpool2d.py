# SPDX-License-Identifier: Apache-2.0
"""AvgPool2dInt: average pooling with the device's reciprocal; padding counts as zeros in the area."""

from __future__ import annotations

from typing import Any

from linger.dialect import Newer, NodeFacts, Refusal, Settings, op
from linger.numeric import blocks, fixed
from linger.numeric.kernel import Draw, DrawUnsigned, Ints, Kernel, Sample, T

_WHOLE_AREA = {"count_include_pad": 1, "divisor_override": -1}


@op(
    "AvgPool2dInt",
    newer=(
        Newer("QAvgPool2d", own=_WHOLE_AREA),
        Newer("QAvgPool1d", own=_WHOLE_AREA, axes=3, is_packed=False),
        Newer("QGlobalAveragePool2d", own=_WHOLE_AREA, is_global=True, is_packed=False),
    ),
    window_axes=2,
    widest_data=16,
    float_op="AveragePool",
    chip_limits=("average", "pool", "pool-window"),
    keeps_sign=True,
)
def avgpool2d_int(
    k: Kernel[T],
    x: T,
    *,
    kernel_shape: Ints,
    strides: Ints,
    pads: Ints,
    ceil_mode: int = 0,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    o_unsigned: int = 0,
) -> T:
    """Y = sat(⌊Σ·r·scale_o/scale_x + ½⌋), r the reciprocal of the area (`fixed.window_reciprocal`).

    ceil_mode windows that hang over the edge have no agreed divisor; linger keeps such a layer float.
    """
    total = k.window_sum(x, kernel_shape=kernel_shape, strides=strides, pads=pads)
    mean = k.mul(total, k.derive("window_reciprocal", fixed.window_reciprocal, kernel_shape))
    source, target = k.scalar(scale_x), k.scalar(scale_o)
    return blocks.requantize(k, mean, source=source, target=target, bits=o_bits, unsigned=o_unsigned)


@avgpool2d_int.refuse
def refuse_ceil_mode(node: NodeFacts) -> str | None:
    """Refuse windows that hang over the edge."""
    reason = "ceil_mode=1 has no agreed divisor. Export with ceil_mode=0 and explicit pads."
    return reason if node.attributes["ceil_mode"] else None


@avgpool2d_int.function("torch.nn.functional.avg_pool2d")
def from_avg_pool2d(
    x: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Settings:
    """The window of F.avg_pool2d; refuses what the device's fixed divisor cannot express."""
    kernel, pads = fixed.pair(kernel_size), fixed.pair(padding)
    strides = kernel if stride is None or stride == [] else fixed.pair(stride)
    if not count_include_pad and any(pads):
        return Refusal("count_include_pad=False with padding has no fixed divisor; use count_include_pad=True")
    if divisor_override not in (None, kernel[0] * kernel[1]):
        return Refusal("divisor_override differs from the window's area")
    axes = zip(x.shape[-2:], kernel, strides, pads, strict=True)
    if ceil_mode and any((size + 2 * pad - n) % step for size, n, step, pad in axes):
        return Refusal("ceil_mode windows hang over the edge; choose a size that divides evenly")
    return {"kernel_shape": kernel, "strides": strides, "pads": pads * 2, "ceil_mode": 0}


@avgpool2d_int.function("torch.nn.functional.adaptive_avg_pool2d")
def from_adaptive_avg_pool2d(x: Any, output_size: Any) -> Settings:
    """Output sizes for which all windows have one size: that of a global pool, or one that divides the image's."""
    sides = tuple(int(n) for n in x.shape[-2:])
    counts = [side if n is None else int(n) for side, n in zip(sides, fixed.pair(output_size), strict=True)]
    runs = [fixed.adaptive_runs(side, n) for side, n in zip(sides, counts, strict=True)]
    if any(len(run) != 1 for run in runs):
        return Refusal(f"AdaptiveAvgPool2d to {output_size} has uneven windows; choose a size that divides the image's")
    kernel = tuple(run[0].size for run in runs)
    strides = tuple(run[0].stride if run[0].end - run[0].start > run[0].size else run[0].size for run in runs)
    return {"kernel_shape": kernel, "strides": strides, "pads": (0, 0, 0, 0), "ceil_mode": 0}


@avgpool2d_int.layer("torch.nn.AvgPool2d")
def from_avgpool_layer(layer: Any) -> Settings:
    """A layer is a call of the function; its window is bound when the input's size is known."""
    window = (layer.kernel_size, layer.stride, layer.padding)
    arguments = (*window, layer.ceil_mode, layer.count_include_pad, layer.divisor_override)
    return {"call": "torch.nn.functional.avg_pool2d", "arguments": arguments}


@avgpool2d_int.layer("torch.nn.AdaptiveAvgPool2d")
def from_adaptive_layer(layer: Any) -> Settings:
    """As for AvgPool2d: a call of the function."""
    return {"call": "torch.nn.functional.adaptive_avg_pool2d", "arguments": (layer.output_size,)}


def _sample(name: str, x: Draw, kernel: Ints, *, bits: int = 8, o_shift: int = 0, **geometry: Any) -> Sample:
    window = {"kernel_shape": kernel, "strides": kernel, "pads": (0, 0, 0, 0)} | geometry
    scales = {"scale_x": 16.0, "scale_o": 16.0 * 2.0**-o_shift}
    return Sample(name, (x,), {**window, "data_bits": bits, "o_bits": bits, **scales})


avgpool2d_int.samples = (
    _sample("2×2", Draw((2, 3, 6, 6)), (2, 2)),
    _sample("2×3, ties both ways", Draw((2, 3, 8, 9)), (2, 3)),
    _sample("3×3 padded, strided", Draw((1, 2, 7, 7)), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    _sample("uneven pads", Draw((1, 2, 6, 5)), (2, 2), pads=(0, 1, 0, 0)),
    _sample("global 7×7", Draw((2, 4, 7, 7)), (7, 7)),
    _sample("global 8×8 of extremes", Draw((1, 2, 8, 8), low=-128, high=-120), (8, 8)),
    _sample("coarser output", Draw((1, 2, 6, 6)), (3, 2), o_shift=2),
    _sample("4 bits", Draw((1, 2, 4, 4), 4), (2, 2), bits=4),
    _sample("16 bits", Draw((1, 2, 6, 6), 16), (3, 3), bits=16),
    _sample("empty batch", Draw((0, 2, 4, 4)), (2, 2)),
    _sample("one element", Draw((1, 1, 1, 1)), (1, 1)),
    _sample("unsigned", DrawUnsigned((2, 3, 8, 9)), (2, 3), o_unsigned=1),
    _sample("unsigned, global 8×8 of extremes", DrawUnsigned((1, 2, 8, 8), low=250), (8, 8), o_unsigned=1),
)
