# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of iqSwish: its gradient is the one that training sees, and a faster way to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from linger.numeric.long_tables import SILU
from linger.numeric.torch.pieces import evaluate_long_pieces

_END = 16.0  # of Q27 in 32 bits


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """F.silu of the real values, limited as the device limits them."""
    del settings
    return F.silu(operands[0].clamp(-_END, _END))


def exact_values(operands: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor:
    """What the body gives, as real values."""
    scales = (attributes["scale_x"], attributes["scale_o"])
    return evaluate_long_pieces(operands[0], SILU, *scales, attributes["o_bits"])
