# SPDX-License-Identifier: Apache-2.0
"""iqSwish: SiLU (swish) by sixteen straight pieces between Q27 and Q27, rounded to the output's scale.

The pieces are those of one chip (venusA), whose 32 bits end at ±16: an input beyond is taken for ±16. The name follows
`iqSigmoid`; no packer knows it yet. Before the output's rounding the curve is within 1.16e-3 of SiLU.
"""

from __future__ import annotations

from linger.dialect import Newer, only_in_place, op
from linger.numeric import blocks, tables
from linger.numeric.kernel import Kernel, Sample, T

_END = 16.0  # of Q27 in 32 bits


@op(
    "iqSwish",
    newer=(Newer("QSwish", is_packed=False),),
    limit=2.0**27,  # the Q27 result is shifted right only
    input_end=_END,
    is_pointwise=True,
    pieces=tables.SILU,
    if_missing="Write x * torch.sigmoid(x), of two ops that venus and arcs compute exactly; or use ReLU.",
    state_name="iqswish",
)
def iq_swish(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊silu(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^27 + ½⌋), silu: Q27 → Q27 by `tables.SILU`."""
    y = blocks.long_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.SILU)
    return blocks.requantize(k, y, source=k.scalar(tables.ONE), target=k.scalar(scale_o), bits=o_bits)


# limited as the device limits its input
iq_swish.real(lambda torch, x, **_: torch.nn.functional.silu(x.clamp(-_END, _END)))
iq_swish.function("torch.nn.functional.silu")(only_in_place)
iq_swish.samples = Sample.long_curves()
