# SPDX-License-Identifier: Apache-2.0
"""A learnt parameter that a function takes (the slopes of F.prelu), as integers at a scale of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from linger.errors import UsageError
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import round_weight
from linger.numeric.torch.scale import Scale, scale_for_range
from linger.quantization.core.frozen import kept
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import RUN_FIRST, Runtime, is_exporting

PARAMETER_BITS = 16

Kept = tuple[Tensor, float]
"""Integers and their scale, as the last pass with values left them."""


def is_parameter(value: object) -> bool:
    """Whether an operand is an ordinary float tensor."""
    return isinstance(value, Tensor) and not isinstance(value, QTensor) and value.is_floating_point()


def quantize_parameter(
    value: Tensor, known: Kept | None, runtime: Runtime, where: str, *, stays_there: bool = False
) -> tuple[QTensor, Kept]:
    """The parameter rounded, with straight-through gradient; while a file is written, the integers `known` before.

    `stays_there` as for `round_weight`.

    Raises:
        UsageError: The parameter holds NaN or infinity; or a trace comes before any pass.
    """
    if runtime.emitter is not None or is_exporting():
        if known is None:
            raise UsageError(RUN_FIRST)
        integers, scale = known
        content = integers if runtime.emitter is not None else integers.to(torch.float32) / scale
        return QTensor(content, scale, PARAMETER_BITS, runtime), known

    def choose_scale(largest: Scale) -> Scale:
        if not isinstance(largest, Tensor) and not math.isfinite(largest):
            raise UsageError(f"{where}: the slopes hold NaN or infinity, so no scale can be chosen.")
        return scale_for_range(largest, PARAMETER_BITS)

    rounded, scale = round_weight(value.float(), None, choose_scale, stays_there=stays_there)
    with kept():
        integers = rounded.detach().to(integer_type(PARAMETER_BITS)).clone()
    return QTensor(rounded * (1.0 / scale), scale, PARAMETER_BITS, runtime), (integers, scale)
