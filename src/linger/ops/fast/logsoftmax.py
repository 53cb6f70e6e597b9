# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of log_softmax: its range is observed, its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """torch.log_softmax of the real values."""
    return torch.log_softmax(operands[0], settings["dim"])
