# SPDX-License-Identifier: Apache-2.0
"""A transposed convolution of signals as a quantised layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from linger.constraint.limits import Widths
from linger.dialect import Op
from linger.quantization.core.runtime import Runtime
from linger.quantization.layers.layer import QuantLayer

_ROW = -2
"""The axis of size 1 that makes a signal a picture."""

_BESIDE_THE_SIGNAL = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


class TransposedSignalLayer(QuantLayer):
    """nn.ConvTranspose1d as integers: that of a picture of one row, which is the op that devices have."""

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        super().__init__(op, source, geometry, widths, runtime)
        for name, value in _BESIDE_THE_SIGNAL.items():  # as of the picture, from which an output_size is computed
            setattr(self, name, (value, *getattr(source, name)))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer on a picture of one row, which then is a signal again."""
        size = None if output_size is None else [*output_size[:-1], 1, output_size[-1]]
        return super().forward(x.unsqueeze(_ROW), size).squeeze(_ROW)

    def _laid_out(self, weight: Tensor) -> Tensor:
        """[in, out/groups, length], with a row."""
        return weight.unsqueeze(_ROW)
