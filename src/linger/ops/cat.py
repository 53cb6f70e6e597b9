# SPDX-License-Identifier: Apache-2.0
"""iqCat: quantized tensors joined along an axis, each brought to the output's scale."""

from __future__ import annotations

from typing import Any

from linger.dialect import Newer, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import UNSIGNED, Draw, Kernel, Sample, T


@op(
    "iqCat",
    newer=(Newer("QCat"),),
    limit=max,
    float_op="Concat",
    chip_limits=("join",),
    picks=True,
    state_name="iqcat",
    keeps_sign=True,
)
def iq_cat(k: Kernel[T], *xs: T, scale_o: float, dim: int, o_bits: int = 8, o_unsigned: int = 0, **scales: float) -> T:
    """O = concat of sat(⌊xᵢ·scale_o/scale_x_i + ½⌋)."""
    target = k.scalar(scale_o)
    parts = [
        blocks.requantize(
            k, k.wide(x), source=k.scalar(scales[f"scale_x_{i}"]), target=target, bits=o_bits, unsigned=o_unsigned
        )
        for i, x in enumerate(xs)
    ]
    return k.concat(parts, dim)


@iq_cat.function("torch.cat", "torch.concat", "torch.concatenate")
def from_cat(tensors: object, dim: int = 0) -> Settings:
    """torch.cat along `dim`."""
    return {"dim": dim}


def _sample(
    name: str, xs: tuple[Draw, ...], scales: tuple[float, ...], scale_o: float, dim: int, bits: int = 8
) -> Sample:
    attributes: dict[str, Any] = {f"scale_x_{i}": s for i, s in enumerate(scales)} | {"scale_o": scale_o, "dim": dim}
    return Sample(name, xs, attributes if bits == 8 else attributes | {"o_bits": bits})


iq_cat.samples = (
    _sample("equal scales", (Draw((2, 3, 4)), Draw((2, 1, 4))), (16.0, 16.0), 16.0, 1),
    _sample("shifted, last axis", (Draw((2, 3)), Draw((2, 5))), (64.0, 16.0), 16.0, -1),
    _sample("left shift saturates", (Draw((2, 3)), Draw((2, 3))), (16.0, 64.0), 64.0, 0),
    _sample("three inputs", (Draw((1, 2)), Draw((1, 2)), Draw((1, 3))), (16.0, 32.0, 8.0), 8.0, 1),
    _sample("one input", (Draw((1, 2)),), (16.0,), 8.0, 1),
    _sample("16 bits", (Draw((1, 2), 16), Draw((1, 2), 16)), (1024.0, 512.0), 512.0, 1, 16),
    _sample("empty batch", (Draw((0, 2)), Draw((0, 2))), (16.0, 32.0), 16.0, 1),
    _sample("unsigned and signed", (UNSIGNED, Draw((2, 1))), (32.0, 16.0), 16.0, 1),
    _sample("unsigned", (UNSIGNED, UNSIGNED), (32.0, 16.0), 16.0, 1).extended(o_unsigned=1),
)
