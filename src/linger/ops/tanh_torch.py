# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of tanh: its gradient is the one that training sees, and a faster way to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.tables import TANH
from linger.numeric.torch_pieces import evaluate_pieces


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """torch.tanh of the real values."""
    del settings
    return torch.tanh(operands[0])


def exact_values(operands: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor:
    """What the body gives for operands of 16 bits, as real values."""
    return evaluate_pieces(operands[0], TANH, attributes["scale_o"], attributes["o_bits"])
