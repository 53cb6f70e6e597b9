# SPDX-License-Identifier: Apache-2.0
"""iqSigmoid: sixteen straight pieces between Q11 and Q15, rounded to Q7.

The device wants 16-bit input, so a Requant stands in front of it where the input is narrower. The output's scale is
always 128. arcs takes 8 bits as they are and goes from Q27 to Q31 with longer tables; so does venusA, whose offsets are
shorter and whose sum is rounded once (its numbers have not been compared with a chip).
"""

from __future__ import annotations

from linger.dialect import Newer, no_settings, op
from linger.numeric import blocks, tables
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "iqSigmoid",
    texts={"castor_mode": "luna"},
    newer=(Newer("QSigmoid"),),
    input_bits=16,
    is_pointwise=True,
    output_scale=128.0,
    pieces=tables.SIGMOID,
    chip_limits=("curve",),
    state_name="iqsigmoid",
    never_negative=True,
)
def iq_sigmoid(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0) -> T:
    """O = sat(⌊σ(sat(⌊x·2^11/scale_x + ½⌋))·scale_o/2^15 + ½⌋), σ: Q11 → Q15 by `tables.SIGMOID`."""
    y = blocks.piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(2.0**15), target=k.scalar(scale_o), bits=o_bits, unsigned=o_unsigned)


@iq_sigmoid.on("arcs", input_bits=8, pieces=tables.ARCS_SIGMOID)
def iq_sigmoid_on_arcs(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊σ(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^31 + ½⌋), σ: Q27 → Q31 by `tables.ARCS_SIGMOID`."""
    # ⌊⌊a/2^11⌋/2^n + ½⌋ = ⌊a/2^(11+n) + ½⌋, so the curve need not be rounded down to Q31 in between
    y = blocks.wide_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.ARCS_SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(blocks.WIDE_CURVE_SCALE), target=k.scalar(scale_o), bits=o_bits)


@iq_sigmoid.on("venusA")
def iq_sigmoid_on_venus_a(k: Kernel[T], x: T, *, scale_x: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊σ(sat(⌊x·2^27/scale_x + ½⌋))·scale_o/2^58 + ½⌋), σ: Q27 → Q58 by `tables.VENUS_A_SIGMOID`."""
    # 16 of the 58 bits are dropped on the way, which rounding to fewer than 42 does not see
    y = blocks.wide_piecewise_linear(k, k.wide(x), source=k.scalar(scale_x), pieces=tables.VENUS_A_SIGMOID)
    return blocks.requantize(k, y, source=k.scalar(blocks.WIDE_CURVE_SCALE), target=k.scalar(scale_o), bits=o_bits)


iq_sigmoid.real(lambda torch, x, **_: torch.sigmoid(x))
iq_sigmoid.function("torch.sigmoid", "torch.sigmoid_", "torch.special.expit", methods=("sigmoid", "sigmoid_"))(
    no_settings
)
iq_sigmoid.samples = (
    *Sample.gate_curves(),
    Sample.single("unsigned output", Draw((4, 50), 16), 2048.0, 256.0, 8).extended(o_unsigned=1),
)

for _variant in iq_sigmoid.variants.values():
    _variant.samples = Sample.wide_gate_curves()
