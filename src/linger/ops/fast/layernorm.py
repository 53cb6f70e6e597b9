# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of layer norm: its range is observed, its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.numeric.curves.normalization import DEFAULT_EPS


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """F.layer_norm over as many of the last axes as the flat weight has numbers for."""
    x, w, b = operands
    lines = x.reshape(-1, w.numel())
    return F.layer_norm(lines, (w.numel(),), w, b, settings.get("eps", DEFAULT_EPS)).reshape(x.shape)
