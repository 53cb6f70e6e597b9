# SPDX-License-Identifier: Apache-2.0
"""iqSigmoid: sixteen straight pieces between Q11 and Q15, rounded to Q7.

The device wants 16-bit input, so a Requant stands in front of it where the input is narrower. The output's scale is
always 128. arcs takes 8 bits as they are and goes from Q27 to Q31 with longer tables; so does venusA, whose offsets are
shorter and whose sum is rounded once (its numbers have not been compared with a chip).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Newer, Sample, op
from linger.numeric import blocks, tables
from linger.numeric.kernel import Kernel, T


@op(
    "iqSigmoid",
    newer=(Newer("QSigmoid"),),
    input_bits=16,
    is_pointwise=True,
    output_scale=128.0,
    pieces=tables.SIGMOID,
    chip_limits=("curve",),
    state_name="iqsigmoid",
)
def iq_sigmoid(
    k: Kernel[T],
    x: T,
    *,
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
    castor_mode: str = "luna",
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(⌊σ(sat(⌊x·2^11/scale_x + ½⌋))·scale_o/2^15 + ½⌋), σ: Q11 → Q15 by `tables.SIGMOID`."""
    y = blocks.piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits)


@iq_sigmoid.on("arcs", input_bits=8, pieces=tables.ARCS_SIGMOID)
def iq_sigmoid_on_arcs(
    k: Kernel[T],
    x: T,
    *,
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
    castor_mode: str = "luna",
    platform: str = "arcs",
    quant_mode: str = "floor_add",
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(⌊σ(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^31 + ½⌋), σ: Q27 → Q31 by `tables.ARCS_SIGMOID`."""
    # ⌊⌊a/2^11⌋/2^n + ½⌋ = ⌊a/2^(11+n) + ½⌋, so the curve need not be rounded down to Q31 in between
    y = blocks.wide_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.ARCS_SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(blocks.WIDE_CURVE_SCALE), target=k.scalar(scale_o), bits=o_bits)


@iq_sigmoid.on("venusA")
def iq_sigmoid_on_venus_a(
    k: Kernel[T],
    x: T,
    *,
    scale_x: float,
    scale_o: float,
    o_bits: int = 8,
    castor_mode: str = "luna",
    platform: str = "venusA",
    quant_mode: str = "floor_add",
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """O = sat(⌊σ(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^58 + ½⌋), σ: Q27 → Q58 by `tables.VENUS_A_SIGMOID`."""
    # 16 of the 58 bits are dropped on the way, which rounding to fewer than 42 does not see
    y = blocks.wide_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.VENUS_A_SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(blocks.WIDE_CURVE_SCALE), target=k.scalar(scale_o), bits=o_bits)


@iq_sigmoid.real
def real(torch: Any, x: Any, **_: Any) -> Any:
    """torch.sigmoid."""
    return torch.sigmoid(x)


@iq_sigmoid.function(
    "torch.sigmoid",
    "torch.sigmoid_",
    "torch.special.expit",
    "torch.Tensor.sigmoid",
    "torch.Tensor.sigmoid_",
)
def from_sigmoid(x: object) -> Mapping[str, Any]:
    """torch.sigmoid has no settings."""
    return {}


def _sample(name: str, x: Draw, scale_x: float) -> Sample:
    return Sample(name, (x,), {"scale_x": scale_x, "scale_o": 128.0})


iq_sigmoid.samples = (
    _sample("plain", Draw((4, 50), 16), 2048.0),
    _sample("finer than Q11", Draw((4, 50), 16), 8192.0),
    _sample("coarser than Q11 saturates", Draw((4, 50), 16), 512.0),
    _sample("many ties", Draw((20, 50), 16, low=-4000, high=4000), 4096.0),
    _sample("8 bits", Draw((3, 40)), 16.0),
    _sample("32 bits", Draw((3, 40), 32), 2.0**27),
    _sample("empty", Draw((0, 3), 16), 2048.0),
    _sample("one element", Draw((1,), 16), 2048.0),
)

for _variant in iq_sigmoid.variants.values():
    _variant.samples = (
        _sample("every 8-bit number", Draw((256,)), 16.0),
        _sample("coarse input saturates", Draw((3, 40)), 1.0),
        _sample("fine input", Draw((3, 40)), 2.0**30),
        _sample("16 bits", Draw((4, 50), 16), 2048.0),
        _sample("32 bits of products", Draw((4, 50), 32), 2.0**27),
        _sample("empty", Draw((0, 3)), 16.0),
        _sample("one element", Draw((1,)), 16.0),
    )
