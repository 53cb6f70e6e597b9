# SPDX-License-Identifier: Apache-2.0
"""iqGelu: GELU by sixteen straight pieces between Q27 and Q27, rounded to the output's scale.

The pieces are those of one chip (venusA), whose 32 bits end at ±16: an input beyond is taken for ±16. The name follows
`iqSigmoid`; no packer knows it yet. Before the output's rounding the curve is within 1.10e-3 of GELU and within 1.24e-3 of its tanh form.
"""

from __future__ import annotations

from linger.dialect import Newer, Settings, op
from linger.numeric import blocks, tables
from linger.numeric.kernel import Kernel, Sample, T

_END = 16.0  # of Q27 in 32 bits


@op(
    "iqGelu",
    newer=(Newer("QGelu", is_packed=False),),
    limit=2.0**27,  # the Q27 result is shifted right only
    input_end=_END,
    is_pointwise=True,
    pieces=tables.GELU,
    if_missing="Use ReLU.",
    state_name="iqgelu",
)
def iq_gelu(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊gelu(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^27 + ½⌋), gelu: Q27 → Q27 by `tables.GELU`."""
    y = blocks.long_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.GELU)
    return blocks.requantize(k, y, source=k.scalar(tables.ONE), target=k.scalar(scale_o), bits=o_bits)


# limited as the device limits its input
iq_gelu.real(lambda torch, x, **_: torch.nn.functional.gelu(x.clamp(-_END, _END)))


@iq_gelu.function("torch.nn.functional.gelu")
def from_gelu(x: object, *, approximate: str = "none") -> Settings:
    """Both forms have the same pieces: they differ by at most 4.8e-4."""
    return {}


iq_gelu.samples = Sample.long_curves()
