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


def _sample(name: str, x: Draw, o_bits: int, shift: int, **more: int) -> Sample:
    scales = {"scale_x": 32.0, "scale_o": 32.0 * 2.0**shift}
    return Sample(name, (x,), {"data_bits": x.bits, "o_bits": o_bits, **scales, **more})


_WIDTHS = ((8, 16, 8), (16, 8, -8), (8, 32, 24), (8, 8, -3), (8, 8, 2), (16, 4, -12), (8, 8, 0))
requant.samples = (
    *(_sample(f"{bits} to {o_bits} bits, shift {n}", Draw((3, 5), bits), o_bits, n) for bits, o_bits, n in _WIDTHS),
    _sample("unsigned to signed", UNSIGNED, 8, -1),
    _sample("unsigned to 16 bits", UNSIGNED, 16, 7),
    _sample("to unsigned", Draw((3, 5)), 8, 1, o_unsigned=1),
)
