# SPDX-License-Identifier: Apache-2.0
"""Fast twin of BatchNorm2dInt: the product on real carriers; requantisation is `torch_quantize.fake_quantize`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def accumulate(x: Tensor, w: Tensor, b: Tensor | None, attributes: dict[str, Any]) -> Tensor:
    """X·w + b with one number of w and b per channel; a batch norm has no geometry."""
    factor = w.reshape(-1, 1, 1)
    return x * factor if b is None else torch.addcmul(b.reshape(-1, 1, 1), x, factor)


CHANNEL_AXIS = -3
