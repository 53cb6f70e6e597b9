# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of iqSum: its range is observed, its gradient is the one that training sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """The sum of the real values along one axis, which stays."""
    return operands[0].sum(settings["dims"], keepdim=True)
