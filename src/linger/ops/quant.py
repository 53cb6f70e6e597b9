# SPDX-License-Identifier: Apache-2.0
"""Quant: float32 to integers.

q = sat(⌊f32(f32(x·scale_x) + ½)⌋). The sum is rounded to float32 before the floor, as on the device:
0.49999997·1 + ½ becomes 1.
"""

from __future__ import annotations

from linger.dialect import Newer, op
from linger.numeric import blocks
from linger.numeric.kernel import DrawReal, Kernel, Sample, T


@op(
    "Quant",
    newer=(Newer("Quant", own={"zero_point": 0}, has_rounding=False),),
    real_inputs=("x",),
    output_bits="data_bits",
    float_op="QuantizeLinear",
    chip_limits=("quant",),
    state_name="iq_tensor_quant",
)
def quant(k: Kernel[T], x: T, *, data_bits: int, scale_x: float, o_unsigned: int = 0) -> T:
    """Q = sat(⌊x·scale_x + ½⌋), the product and the sum in float32."""
    rounded = blocks.round_half_up(k, k.mul(x, k.single(scale_x)))
    return blocks.stored(k, k.wide(rounded), data_bits, o_unsigned)


quant.samples = (
    *tuple(
        Sample(f"{bits} bits, scale {scale}", (DrawReal((2, 3, 4), spread),), {"data_bits": bits, "scale_x": scale})
        for bits, scale, spread in (
            (4, 2.0, 6.0),
            (8, 16.0, 6.0),
            (8, 0.5, 400.0),
            (16, 4096.0, 6.0),
            (32, 65536.0, 6.0),
        )
    ),
    Sample("one element", (DrawReal((1,)),), {"data_bits": 8, "scale_x": 32.0}),
    Sample("unsigned", (DrawReal((2, 3, 4), 6.0),), {"data_bits": 8, "scale_x": 16.0, "o_unsigned": 1}),
)
