# SPDX-License-Identifier: Apache-2.0
"""iqAdd: the sum of two quantized tensors, each rounded to the output's scale first."""

from __future__ import annotations

from typing import Any

from linger.dialect import Newer, NodeFacts, Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op(
    "iqAdd",
    texts={"mode": "Non_t710_mode"},
    aliases=("iqadd",),
    newer=(Newer("QAdd"),),
    limit=min,
    float_op="Add",
    chip_limits=("sum",),
    state_name="iqadd__default_index",
    keeps_sign=True,
)
def iq_add(
    k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(⌊x·scale_o/scale_x + ½⌋ + ⌊y·scale_o/scale_y + ½⌋)."""
    left, right = blocks.rescale_pair(k, (x, scale_x), (y, scale_y), scale_o)
    return blocks.stored(k, k.add(left, right), o_bits, o_unsigned)


@iq_add.refuse
def refuse_two_roundings(node: NodeFacts) -> str | None:
    """Refuse to add a real number as old files mean it, ⌊(x/scale_x + c)·scale_o + ½⌋: iqAdd rounds each operand."""
    scale_x, scale_o = node.attributes["scale_x"], node.attributes["scale_o"]
    if not node.is_real("y") or scale_o >= scale_x:
        return None
    content = node.content("y")
    if content is not None and not (content * scale_o % 1).any():
        return None
    return (
        f"adds a real number that is no whole number at scale_o={scale_o:g}, which is coarser than scale_x={scale_x:g}: "
        "two roundings are not one. Quantize the number first."
    )


@iq_add.function("torch.add", "torch.Tensor.add", "torch.Tensor.__add__", "torch.Tensor.__radd__")
def from_add(x: object, other: object, *, alpha: float = 1) -> Settings:
    """Plain addition; alpha would need a product first."""
    return {} if alpha == 1 else Refusal("alpha ≠ 1 in torch.add has no integer form; multiply first")


@iq_add.function("torch.Tensor.add_", "torch.Tensor.__iadd__")
def from_add_in_place(x: Any, other: Any, *, alpha: float = 1) -> Settings:
    """As for torch.add."""
    return from_add(x, other, alpha=alpha)


iq_add.samples = (*Sample.sums(), Sample.pair("scalar operand", Draw((2, 3)), Draw(()), (16.0, 32.0, 8.0)))
