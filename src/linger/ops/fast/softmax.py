# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of softmax: its range is observed, its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """torch.softmax of the real values."""
    return torch.softmax(operands[0], settings["dim"])
