# SPDX-License-Identifier: Apache-2.0
"""iqSub: the difference of two quantized tensors, each rounded to the output's scale first.

The device's library has no op of this name; it is iqAdd with the second operand taken away, in the same formats.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "iqSub",
    limit=min,
    chip_limits=("sum",),
    if_differs="Quantize the model for this chip, linger.init(model, target={target!r}): it then computes x + y·(−1), which is "
    "exact.",
    state_name="iqsub__default_index",
    takes_unsigned=True,
)
def iq_sub(
    k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(⌊x·scale_o/scale_x + ½⌋ − ⌊y·scale_o/scale_y + ½⌋)."""
    left, right = blocks.rescale_pair(k, (x, scale_x), (y, scale_y), scale_o)
    return blocks.stored(k, k.sub(left, right), o_bits, o_unsigned)


@iq_sub.function("torch.sub", "torch.subtract", methods=("sub", "subtract", "__sub__", "sub_", "subtract_", "__isub__"))
def from_sub(x: object, other: object, *, alpha: float = 1) -> Settings:
    """Plain subtraction; alpha would need a product first."""
    return {} if alpha == 1 else Refusal("alpha ≠ 1 in torch.sub has no integer form; multiply first")


@iq_sub.function("torch.rsub", "torch.Tensor.__rsub__", order=("y", "x"))
def from_reversed(y: Any, other: Any, *, alpha: float = 1) -> Settings:
    """The second argument minus the first."""
    return from_sub(other, y, alpha=alpha)


iq_sub.samples = (*Sample.sums(), Sample.pair("a number minus a tensor", Draw(()), Draw((2, 3)), (32.0, 16.0, 8.0)))
