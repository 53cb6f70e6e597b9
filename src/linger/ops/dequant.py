# SPDX-License-Identifier: Apache-2.0
"""Dequant: integers to float32."""

from __future__ import annotations

from linger.dialect import Newer, op
from linger.numeric.kernel import UNSIGNED, Draw, Kernel, Sample, T


@op(
    "Dequant",
    has_platform_quant=False,
    newer=(Newer("Dequant", has_rounding=False),),
    output_bits=None,
    has_integer_output=False,
    float_op="DequantizeLinear",
    chip_limits=("wide-end",),
    takes_unsigned=True,
)
def dequant(k: Kernel[T], x: T, *, scale_o: float) -> T:
    """Y = q / scale_o, rounded once to float32."""
    return k.real(k.div(k.wide(x), k.scalar(scale_o)))


dequant.samples = (
    *(
        Sample(f"{bits} bits", (Draw((2, 3), bits),), {"scale_o": scale})
        for bits, scale in ((8, 16.0), (8, 0.25), (16, 1024.0), (32, 65536.0))
    ),
    Sample("unsigned", (UNSIGNED,), {"scale_o": 16.0}),
)
