# SPDX-License-Identifier: Apache-2.0
"""iqMul: the product of two quantized tensors, or of one and an integer scalar."""

from __future__ import annotations

import math

from linger.dialect import Newer, op, two_operands
from linger.numeric import blocks
from linger.numeric.fixed import FLOAT32_BITS
from linger.numeric.kernel import UNSIGNED, Draw, Kernel, Sample, T


@op(
    "iqMul",
    newer=(Newer("QMul"),),
    limit=math.prod,
    float_op="Mul",
    chip_limits=("factor",),
    state_name="iqmul__default_index",
    keeps_sign=True,
)
def iq_mul(
    k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8, o_unsigned: int = 0
) -> T:
    """O = sat(⌊x·y·scale_o/(scale_x·scale_y) + ½⌋)."""
    product = k.mul(k.wide(x), k.wide(y))
    return blocks.requantize_product(k, product, (scale_x, scale_y), scale_o, o_bits, unsigned=o_unsigned)


# in float64 where float32 could not hold the product
iq_mul.exact(lambda _, x, y, *, bits: x * y if sum(bits) <= FLOAT32_BITS else x.double() * y.double())
iq_mul.function("torch.mul", "torch.multiply", methods=("mul", "mul_", "__mul__", "__rmul__", "__imul__"))(two_operands)
_sample = Sample.pair

iq_mul.samples = (
    _sample("plain", Draw((2, 3, 4)), Draw((2, 3, 4)), (16.0, 32.0, 8.0)),
    _sample("channel broadcast", Draw((2, 3, 4, 4)), Draw((3, 1, 1)), (16.0, 128.0, 16.0)),
    _sample("scalar operand", Draw((2, 3)), Draw(()), (16.0, 64.0, 16.0)),
    _sample("no shift saturates", Draw((4, 4)), Draw((4, 4)), (4.0, 4.0, 16.0)),
    _sample("16 bits", Draw((2, 3), 16), Draw((2, 3), 16), (1024.0, 256.0, 64.0), 16),
    _sample("empty", Draw((0, 3)), Draw((0, 3)), (16.0, 16.0, 8.0)),
    _sample("one element", Draw((1,)), Draw((1,)), (16.0, 32.0, 8.0)),
    _sample("unsigned operand", UNSIGNED, Draw((2, 3)), (16.0, 32.0, 8.0)),
    _sample("unsigned", UNSIGNED, UNSIGNED, (16.0, 32.0, 2.0)).extended(o_unsigned=1),
)
