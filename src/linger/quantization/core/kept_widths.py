# SPDX-License-Identifier: Apache-2.0
"""Widths in a checkpoint: layers whose widths change while they train keep them in a buffer, so that evaluation finds them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from linger.constraint.marks import Widths

BITS = "bits"
"""The buffer: bits of input, parameters and output."""


def keep_widths(layer: nn.Module, widths: Widths) -> None:
    """Write the widths of a layer into its buffer, which is made on first use."""
    numbers = torch.tensor([widths.data, widths.parameter, widths.output])
    known = layer._buffers.get(BITS)  # noqa: SLF001 - getattr would find other things
    if known is not None:
        known.copy_(numbers)
        return
    home = next((b.device for b in layer.buffers(recurse=False)), torch.device("cpu"))
    with torch.inference_mode(mode=False):
        layer.register_buffer(BITS, numbers.to(home))


def widths_in(state_dict: dict[str, Any], prefix: str) -> Widths | None:
    """The widths that a checkpoint has for a layer; None where it says nothing."""
    numbers: Tensor | None = state_dict.get(prefix + BITS)
    return None if numbers is None else Widths(*(int(bits) for bits in numbers.tolist()))


def load_widths(layer: Any, state_dict: dict[str, Any], prefix: str) -> None:
    """Give a layer the widths of a checkpoint; where that says nothing, they stay."""
    found, known = widths_in(state_dict, prefix), layer._buffers.get(BITS)  # noqa: SLF001 - as above
    if found is not None:
        keep_widths(layer, found)
        if hasattr(layer, "widths"):
            layer.widths = found
    elif known is not None:
        state_dict[prefix + BITS] = known.clone()
