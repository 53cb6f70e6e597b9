# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of iqGelu: its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

_END = 16.0  # of Q27 in 32 bits


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """F.gelu of the real values, limited as the device limits them."""
    del settings
    return F.gelu(operands[0].clamp(-_END, _END))
