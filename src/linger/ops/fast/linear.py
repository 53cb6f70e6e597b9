# SPDX-License-Identifier: Apache-2.0
"""Fast twin of LinearInt: the product on real carriers; requantisation is `torch_quantize.fake_quantize`."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def accumulate(x: Tensor, w: Tensor, b: Tensor | None, attributes: dict[str, Any]) -> Tensor:
    """X·wᵀ + b; a Linear layer has no geometry."""
    return F.linear(x, w, b)


CHANNEL_AXIS = -1
