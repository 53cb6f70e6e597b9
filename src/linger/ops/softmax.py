# SPDX-License-Identifier: Apache-2.0
"""SoftmaxInt: softmax along an axis, computed in Q25, Q23 and Q15 as the device does, rounded to the output's scale.

The device joins all axes from `dim` on, so linger writes the last one only and moves another one there and back. arcs
and venusA look for `axis`, where they understand −1 only, and divide in another way (venusA's numbers have not been
compared with a chip).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Newer, Refusal, Sample, op
from linger.numeric import blocks
from linger.numeric import curves as device
from linger.numeric.kernel import Kernel, T


@op(
    "SoftmaxInt",
    newer=(Newer("QSoftmax"),),
    limit=2.0**15,  # the device shifts its Q15 result right only
    last_axis="dim",
    input_end=64.0,
    chip_limits=("softmax",),
    state_name="SoftmaxInt",
)
def softmax_int(
    k: Kernel[T],
    x: T,
    *,
    dim: int,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋), the softmax in Q15 (`linger.numeric.curves`)."""
    y = device.softmax(k, k.wide(x), source=k.scalar(scale_x), axis=dim)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@softmax_int.on("arcs")
def softmax_on_arcs(
    k: Kernel[T],
    x: T,
    *,
    axis: int = -1,
    dim: int = -1,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    platform: str = "arcs",
    quant_mode: str = "floor_add",
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋) along `axis`, with a long division (`softmax_by_division`)."""
    y = device.softmax_by_division(k, k.wide(x), source=k.scalar(scale_x), axis=axis)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@softmax_int.on("venusA")
def softmax_on_venus_a(
    k: Kernel[T],
    x: T,
    *,
    axis: int = -1,
    dim: int = -1,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    platform: str = "venusA",
    quant_mode: str = "floor_add",
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """Y = sat(⌊softmax(x/scale_x)·scale_o/2^15 + ½⌋) along `axis`, powers rounded (`softmax_with_rounded_powers`)."""
    y = device.softmax_with_rounded_powers(k, k.wide(x), source=k.scalar(scale_x), axis=axis)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@softmax_int.real
def real(torch: Any, x: Any, *, dim: int, **_: Any) -> Any:
    """torch.softmax."""
    return torch.softmax(x, dim)


@softmax_int.function("torch.softmax", "torch.special.softmax", "torch.Tensor.softmax")
def from_softmax(x: Any, dim: Any = None, dtype: object = None) -> Mapping[str, Any] | Refusal:
    """The axis; refuses a missing one, which torch guesses, and results of other types."""
    if not isinstance(dim, int):
        return Refusal("the axis is not given as a number; write dim=-1")
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not x.dim():
        return Refusal("the tensor has no axis")
    return {"dim": dim}


@softmax_int.function("torch.nn.functional.softmax")
def from_functional_softmax(
    x: Any, dim: Any = None, _stacklevel: int = 3, dtype: object = None
) -> Mapping[str, Any] | Refusal:
    """The same; `_stacklevel` is for torch's own warning."""
    return from_softmax(x, dim, dtype)


def _sample(
    name: str, x: Draw, *, dim: int = -1, bits: int = 8, scale_x: float = 8.0, scale_o: float = 128.0
) -> Sample:
    attributes = {"dim": dim, "data_bits": x.bits, "o_bits": bits, "scale_x": scale_x, "scale_o": scale_o}
    return Sample(name, (x,), attributes)


softmax_int.samples = (
    _sample("plain", Draw((6, 40))),
    _sample("many alike", Draw((2, 300), low=-3, high=3), scale_o=256.0),
    _sample("another axis", Draw((2, 5, 6)), dim=1, scale_x=16.0),
    _sample("coarse input saturates", Draw((4, 10)), scale_x=1.0),
    _sample("fine input", Draw((4, 10)), scale_x=2.0**30),
    _sample("16 bits", Draw((3, 20), 16), bits=16, scale_x=2048.0, scale_o=2.0**14),
    _sample("32 bits", Draw((3, 20), 32), scale_x=2.0**26),
    _sample("empty", Draw((0, 3))),
    _sample("one element", Draw((1,))),
)

for _variant in softmax_int.variants.values():
    _variant.samples = (
        *(sample for sample in softmax_int.samples if sample.name != "another axis"),
        Sample("another axis", (Draw((2, 5, 6)),), {**softmax_int.samples[0].attributes, "axis": 1, "dim": 1}),
    )
