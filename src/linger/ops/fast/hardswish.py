# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of hardswish: its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """F.hardswish of the real values."""
    del settings
    return F.hardswish(operands[0])
