# SPDX-License-Identifier: Apache-2.0
"""The real function behind the integers of tanh: its gradient is the one that training sees, and a faster way to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from linger.numeric.tables import ARCS_TANH, TANH
from linger.numeric.torch.pieces import evaluate_pieces, evaluate_wide_pieces


def real_function(operands: Sequence[Tensor], settings: Mapping[str, Any]) -> Tensor:
    """torch.tanh of the real values."""
    del settings
    return torch.tanh(operands[0])


def exact_values(operands: Sequence[Tensor], attributes: Mapping[str, Any]) -> Tensor | None:
    """What the body gives, as real values, for operands of the width that the chip wants; None where it wants none."""
    scales = attributes["scale_x"], attributes["scale_o"]
    platform = attributes.get("platform")
    if platform is None:
        return evaluate_pieces(operands[0], TANH, scales[1], attributes["o_bits"])
    pieces = _OF_8_BITS.get(platform)
    return None if pieces is None else evaluate_wide_pieces(operands[0], pieces, *scales, attributes["o_bits"])


_OF_8_BITS = {"arcs": ARCS_TANH}
"""Chips that take 8 bits and nothing else."""
