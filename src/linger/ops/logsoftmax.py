# SPDX-License-Identifier: Apache-2.0
"""LogSoftmaxInt: the logarithm of the device's softmax, rounded to the output's scale.

A softmax of 0 in Q15 has the logarithm −64. The device joins all axes from `dim` on, so linger writes the last one only
and moves another one there and back.
"""

from __future__ import annotations

from linger.dialect import along_axis, along_axis_in_functional, op
from linger.numeric import blocks
from linger.numeric import curves as device
from linger.numeric.kernel import Kernel, Sample, T

_LOG_OF_ZERO = -64.0


@op(
    "LogSoftmaxInt",
    limit=2.0**25,  # the device shifts its Q25 result right only
    last_axis="dim",
    input_end=64.0,
    chip_limits=("softmax",),
    state_name="LogSoftmaxInt",
)
def log_softmax_int(k: Kernel[T], x: T, *, dim: int, data_bits: int, o_bits: int, scale_x: float, scale_o: float) -> T:
    """Y = sat(⌊ln(s/2^15)·scale_o + ½⌋), s the softmax in Q15 (`linger.numeric.curves`); ln 0 counts as −64."""
    s = device.softmax(k, k.wide(x), source=k.scalar(scale_x), axis=dim)
    one = k.scalar(1.0)
    real = k.log(k.mul(k.where_less(s, one, one, s), k.scalar(2.0**-15)))
    # for s = 1 … 32767 no ln(s/2^15)·2^n is within 7e-7 of a tie, so every good logarithm gives the same integer
    y = k.where_less(s, one, k.scalar(_LOG_OF_ZERO), real)
    return blocks.requantize(k, y, source=one, target=k.scalar(scale_o), bits=o_bits)


log_softmax_int.real(lambda torch, x, *, dim, **_: torch.log_softmax(x, dim))
log_softmax_int.function("torch.log_softmax", "torch.special.log_softmax", "torch.Tensor.log_softmax")(along_axis)
log_softmax_int.function("torch.nn.functional.log_softmax")(along_axis_in_functional)
log_softmax_int.samples = Sample.softmax(8.0, 16.0, 2048.0)
