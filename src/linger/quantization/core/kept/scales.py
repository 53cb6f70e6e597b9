# SPDX-License-Identifier: Apache-2.0
"""The scale of weights, whose bias must fit, too."""

from __future__ import annotations

import math

from torch import Tensor

from linger.errors import UsageError
from linger.numeric.fixed import BIAS_BITS
from linger.numeric.torch.quantize import largest_magnitude, max_abs
from linger.numeric.torch.scale import Scale, scale_for_range, smallest


def weight_scale(
    largest: Scale, bits: int, bias: Tensor | None, scale_x: Scale, where: str, *, chosen: Scale | None = None
) -> Scale:
    """The scale of weights up to `largest`, lowered where the int32 bias at scale_x·scale_w would not fit.

    `chosen` is the range to take instead; weights beyond it saturate.

    Raises:
        UsageError: The weights hold NaN or infinity; on a device, whose values are not read, both become NaN.
    """
    if not isinstance(largest, Tensor) and not math.isfinite(largest):
        raise UsageError(f"{where}: the weights hold NaN or infinity, so no scale can be chosen.")
    scale = scale_for_range(largest if chosen is None else chosen, bits)
    if bias is None or not bias.numel():
        return scale
    offset = largest_magnitude(bias) if isinstance(largest, Tensor) else max_abs(bias)
    return smallest([scale, scale_for_range(offset * scale_x, BIAS_BITS)])


def not_finite(where: str) -> str:
    """The message for a tensor without a largest number."""
    return f"{where}: the tensor holds NaN or infinity, so no scale can be chosen. Check the input and the weights."
