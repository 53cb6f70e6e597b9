# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of group norm: its range is observed, its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.curves.normalization import DEFAULT_EPS


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """torch.group_norm of the real values; unlike the functional form it also takes groups of one number."""
    x, w, b = operands
    return torch.group_norm(x, settings["groups"], w, b, settings.get("eps", DEFAULT_EPS))
