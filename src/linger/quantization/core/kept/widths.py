# SPDX-License-Identifier: Apache-2.0
"""Widths in a checkpoint: layers whose widths change while they train keep them in a buffer, so that evaluation finds them."""

from __future__ import annotations

from typing import Any

import torch

from linger.constraint.marks import Widths
from linger.errors import UsageError
from linger.quantization.core.kept.buffers import RangeBuffers

BITS = "bits"
"""The buffer: bits of input, parameters and output."""

_POSSIBLE = (4, 8, 16, 32)


def add_widths(layer: RangeBuffers) -> None:
    """Give a layer the buffer, which says nothing yet."""
    layer.add_optional(BITS, None, size=3, dtype=torch.int64)


def keep_widths(layer: RangeBuffers, widths: Widths) -> None:
    """Write the widths of a layer into its buffer."""
    layer.write_all(BITS, (widths.data, widths.parameter, widths.output))


class HasWidths(RangeBuffers):
    """A layer with widths; those in its buffer, once it says something, are always the same."""

    path: str
    _widths: Widths

    @property
    def widths(self) -> Widths:
        """Bits of input, parameters and output."""
        return self._widths

    @widths.setter
    def widths(self, wanted: Widths) -> None:
        self._widths = wanted = self.possible_widths(wanted)
        if self._keeps_widths:
            keep_widths(self, wanted)

    @property
    def _keeps_widths(self) -> bool:
        return self.read_all(BITS)[0] != 0

    def possible_widths(self, wanted: Widths) -> Widths:
        """What it makes of widths that are asked for."""
        return wanted

    def follow_widths(self) -> None:
        """Take the widths of the buffer, which other code may have written: an average of models copies all buffers.

        Raises:
            UsageError: They are a mean of several.
        """
        if not self._keeps_widths:
            return
        numbers = [int(bits) for bits in self.read_all(BITS)]
        if not set(numbers) <= set(_POSSIBLE):
            raise UsageError(
                f"{self.path}: its widths are {'/'.join(map(str, numbers))}, a mean of those that the model has had, and no "
                "layer can have them. Average the weights alone: AveragedModel(model, use_buffers=False)."
            )
        self._widths = Widths(*numbers)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self.follow_widths()


def widths_in(state_dict: dict[str, Any], prefix: str) -> Widths | None:
    """The widths that a checkpoint has for a layer; None where it says nothing."""
    numbers = state_dict.get(prefix + BITS)
    return None if numbers is None else Widths(*(int(bits) for bits in numbers.tolist()))
