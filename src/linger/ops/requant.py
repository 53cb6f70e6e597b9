# SPDX-License-Identifier: Apache-2.0
"""Requant: integers of one width and scale as integers of another."""

from __future__ import annotations

from linger.dialect import op
from linger.numeric import blocks
from linger.numeric.kernel import UNSIGNED, Draw, Kernel, Sample, T


@op(
    "Requant",
    has_platform_quant=False,
    why_not_newer="it changes a scale only together with another computation; a Requant goes only where it widens the input "
    "of iqSigmoid and iqTanh",
    float_op="Identity",
    is_pointwise=True,
    takes_unsigned=True,
)
def requant(
    k: Kernel[T], x: T, *, data_bits: int, o_bits: int, scale_x: float, scale_o: float, o_unsigned: int = 0
) -> T:
    """Y = sat(⌊q·scale_o/scale_x + ½⌋)."""
    return blocks.requantize(
        k, k.wide(x), source=k.scalar(scale_x), target=k.scalar(scale_o), bits=o_bits, unsigned=o_unsigned
    )


requant.samples = (
    *(
        Sample(
            f"{data_bits} to {o_bits} bits, shift {shift}",
            (Draw((3, 5), data_bits),),
            {"data_bits": data_bits, "o_bits": o_bits, "scale_x": 32.0, "scale_o": 32.0 * 2.0**shift},
        )
        for data_bits, o_bits, shift in (
            (8, 16, 8),
            (16, 8, -8),
            (8, 32, 24),
            (8, 8, -3),
            (8, 8, 2),
            (16, 4, -12),
            (8, 8, 0),
        )
    ),
    Sample("unsigned to signed", (UNSIGNED,), {"data_bits": 8, "o_bits": 8, "scale_x": 32.0, "scale_o": 16.0}),
    Sample("unsigned to 16 bits", (UNSIGNED,), {"data_bits": 8, "o_bits": 16, "scale_x": 32.0, "scale_o": 4096.0}),
    Sample(
        "to unsigned", (Draw((3, 5)),), {"data_bits": 8, "o_bits": 8, "scale_x": 32.0, "scale_o": 64.0, "o_unsigned": 1}
    ),
)
