# SPDX-License-Identifier: Apache-2.0
"""What one forward pass computed, as arrays: the meeting point of the torch side and the deployment side."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass
class Recording:
    """Inputs and outputs in order, integer tensors by name in the order of execution."""

    inputs: list[NDArray[Any]] = field(default_factory=list)
    outputs: list[NDArray[Any]] = field(default_factory=list)
    integers: dict[str, NDArray[Any]] = field(default_factory=dict)
