# SPDX-License-Identifier: Apache-2.0
"""SoftmaxInt: softmax along an axis, computed in Q25, Q23 and Q15 as the device does, rounded to the output's scale.

The device joins all axes from `dim` on, so linger writes the last one only and moves another one there and back. arcs
and venusA look for `axis`, where they understand −1 only, and divide in another way (venusA's numbers have not been
compared with a chip).
"""

from __future__ import annotations

from linger.dialect import Newer, along_axis, along_axis_in_functional, op
from linger.numeric import blocks
from linger.numeric import curves as device
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "SoftmaxInt",
    newer=(Newer("QSoftmax"),),
    limit=2.0**15,  # the device shifts its Q15 result right only
    last_axis="dim",
    input_end=64.0,
    chip_limits=("softmax",),
    state_name="SoftmaxInt",
)
def softmax_int(k: Kernel[T], x: T, *, dim: int, data_bits: int, o_bits: int, scale_x: float, scale_o: float) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋), the softmax in Q15 (`linger.numeric.curves`)."""
    y = device.softmax(k, k.wide(x), source=k.scalar(scale_x), axis=dim)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@softmax_int.on("arcs")
def softmax_on_arcs(
    k: Kernel[T], x: T, *, axis: int = -1, dim: int = -1, data_bits: int, o_bits: int, scale_x: float, scale_o: float
) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋) along `axis`, with a long division (`softmax_by_division`)."""
    y = device.softmax_by_division(k, k.wide(x), source=k.scalar(scale_x), axis=axis)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@softmax_int.on("venusA")
def softmax_on_venus_a(
    k: Kernel[T], x: T, *, axis: int = -1, dim: int = -1, data_bits: int, o_bits: int, scale_x: float, scale_o: float
) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋) along `axis`, powers rounded (`softmax_with_rounded_powers`)."""
    y = device.softmax_with_rounded_powers(k, k.wide(x), source=k.scalar(scale_x), axis=axis)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


softmax_int.real(lambda torch, x, *, dim, **_: torch.softmax(x, dim))
softmax_int.function("torch.softmax", "torch.special.softmax", "torch.Tensor.softmax")(along_axis)
softmax_int.function("torch.nn.functional.softmax")(along_axis_in_functional)
softmax_int.samples = Sample.softmax(128.0, 256.0, 2.0**14)

for _variant in softmax_int.variants.values():
    _variant.samples = (
        *(sample for sample in softmax_int.samples if sample.name != "another axis"),
        Sample("another axis", (Draw((2, 5, 6)),), {**softmax_int.samples[0].attributes, "axis": 1, "dim": 1}),
    )
