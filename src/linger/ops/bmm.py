# SPDX-License-Identifier: Apache-2.0
"""BmmInt: the matrix product of two quantized tensors, over any leading axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from linger.dialect import Newer, Settings, op, two_operands
from linger.numeric import blocks
from linger.numeric.fixed import FLOAT32_BITS
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op(
    "BmmInt",
    newer=(Newer("QBmm", axes=3), Newer("QMatmul", is_packed=False)),
    limit=math.prod,
    keeps_open_sizes=False,
    chip_limits=("left-matrix", "right-matrix", "product-width", "product-rank"),
    state_name="function_bmm",
    has_own_counter=True,
    switch="bmm",
    keeps_sign=True,
)
def bmm_int(
    k: Kernel[T],
    x: T,
    y: T,
    *,
    scale_x: float,
    scale_y: float,
    scale_o: float,
    data_bits: int = 8,
    o_bits: int = 8,
    o_unsigned: int = 0,
) -> T:
    """O = sat(⌊(x·y)·scale_o/(scale_x·scale_y) + ½⌋)."""
    total = k.matmul(x, y)
    return blocks.requantize_product(k, total, (scale_x, scale_y), scale_o, o_bits, unsigned=o_unsigned)


@bmm_int.exact
def exact(torch: Any, x: Any, y: Any, *, bits: Sequence[int]) -> Any:
    """The matrix product, in float64 where float32 could not hold every partial sum.

    A sum of n products of b and c-bit integers stays below n·2^(b+c−2): in units of the operands' steps every partial sum
    is a whole number, so float32 is exact, in any order, while that is at most 2^24.
    """
    terms = x.shape[-1]
    is_narrow = terms == 0 or sum(bits) - 2 + math.log2(terms) <= FLOAT32_BITS
    return torch.matmul(x, y) if is_narrow else torch.matmul(x.double(), y.double())


@bmm_int.function("torch.bmm", "torch.Tensor.bmm", "torch.mm", "torch.Tensor.mm")
def from_bmm(x: object, mat2: object) -> Settings:
    """torch.bmm and torch.mm have no settings."""
    return {}


bmm_int.function("torch.matmul", "torch.Tensor.matmul", "torch.Tensor.__matmul__", "torch.linalg.matmul")(two_operands)


@bmm_int.function("torch.Tensor.__rmatmul__", order=("y", "x"))
def from_reversed(y: object, other: object) -> Settings:
    """The second argument times the first."""
    return {}


def _sample(name: str, x: Draw, y: Draw, scales: tuple[float, float, float], bits: int = 8) -> Sample:
    attributes: dict[str, Any] = dict(zip(("scale_x", "scale_y", "scale_o"), scales, strict=True))
    return Sample(name, (x, y), attributes if bits == 8 else attributes | {"data_bits": bits, "o_bits": bits})


bmm_int.samples = (
    _sample("a batch of matrices", Draw((2, 3, 4)), Draw((2, 4, 5)), (16.0, 16.0, 4.0)),
    _sample("two matrices", Draw((3, 4)), Draw((4, 5)), (16.0, 8.0, 2.0)),
    _sample("heads", Draw((2, 2, 3, 4)), Draw((2, 2, 4, 3)), (16.0, 16.0, 4.0)),
    _sample("one matrix for every batch", Draw((2, 3, 4)), Draw((4, 2)), (16.0, 16.0, 8.0)),
    _sample("no shift saturates", Draw((1, 2, 8)), Draw((1, 8, 2)), (8.0, 8.0, 64.0)),
    _sample("16 bits", Draw((1, 2, 3), 16), Draw((1, 3, 2), 16), (1024.0, 1024.0, 64.0), 16),
    _sample("4 bits", Draw((1, 2, 3), 4), Draw((1, 3, 2), 4), (2.0, 2.0, 1.0), 4),
    _sample("beyond 2^24", Draw((1, 2, 2000), 8, 100, 127), Draw((1, 2000, 1), 8, 100, 127), (16.0, 16.0, 2.0**-16)),
    _sample("empty batch", Draw((0, 3, 4)), Draw((0, 4, 2)), (16.0, 16.0, 8.0)),
    _sample("one element", Draw((1, 1, 1)), Draw((1, 1, 1)), (16.0, 16.0, 8.0)),
    _sample("unsigned operand", DrawUnsigned((2, 3, 4)), Draw((2, 4, 5)), (16.0, 16.0, 4.0)),
    _sample("unsigned output", Draw((2, 3, 4)), Draw((2, 4, 5)), (16.0, 16.0, 4.0)).extended(o_unsigned=1),
)
