# SPDX-License-Identifier: Apache-2.0
"""Widths in a checkpoint: layers whose widths change while they train keep them in a buffer, so that evaluation finds them."""

from __future__ import annotations

from typing import Any, cast

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


class HasWidths:
    """Widths of a layer; those in its buffer, once it has one, are always the same."""

    _widths: Widths
    _buffers: dict[str, Tensor | None]

    @property
    def widths(self) -> Widths:
        """Bits of input, parameters and output."""
        return self._widths

    @widths.setter
    def widths(self, wanted: Widths) -> None:
        self._widths = wanted = self.possible_widths(wanted)
        if BITS in self._buffers:
            keep_widths(cast(nn.Module, self), wanted)

    def possible_widths(self, wanted: Widths) -> Widths:
        """What it makes of widths that are asked for."""
        return wanted

    def follow_widths(self) -> None:
        """Take the widths of the buffer, which other code may have written: an average of models copies all buffers."""
        numbers = self._buffers.get(BITS)
        if numbers is not None:
            self._widths = Widths(*(int(bits) for bits in numbers.tolist()))


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
