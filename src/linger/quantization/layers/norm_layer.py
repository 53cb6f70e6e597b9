# SPDX-License-Identifier: Apache-2.0
"""Layer norm and its kin as quantised layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.constraint.marks import Widths
from linger.dialect import Op
from linger.numeric.curves.normalization import NORMAL_BITS
from linger.quantization.core.frozen import limit_parameters
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import OpCall, Runtime
from linger.quantization.functions.norms import PARAMETER_BITS, SCALE, Affine, run_norm
from linger.quantization.layers.layer import QuantLayer

_AXES = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""Axes of a batch, of the layers that also take one item alone."""


class NormLayer(QuantLayer):
    """A norm as integers, its weight always of 16 bits; keys are those of the float layer and the ranges."""

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        super().__init__(op, source, geometry, widths, runtime)
        self.count = _parameter_count(source)
        self._axes = next((n for kind, n in _AXES.items() if isinstance(source, kind)), 0)
        # the device's format, under the names that checkpoints have
        self.register_buffer("running_normal", torch.full((1,), (2.0 ** (NORMAL_BITS - 1) - 1) / SCALE))
        self.register_buffer("scale_normal", torch.full((1,), SCALE))

    @property
    def widths(self) -> Widths:
        """Bits of input and output; those of the weight are fixed."""
        return self._widths

    @widths.setter
    def widths(self, wanted: Widths) -> None:
        self._widths = replace(wanted, parameter=PARAMETER_BITS)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Integers in, integers out; an instance norm also takes one picture without a batch."""
        if x.dim() + 1 != self._axes:
            return super().forward(x, output_size)
        y = cast(QTensor, super().forward(x.unsqueeze(0), output_size))
        return y.like(y.content.squeeze(0))

    def _learn(self, q: QTensor, geometry: Mapping[str, Any], call: OpCall) -> QTensor:
        return self._deploy(q, geometry, call)

    def _deploy(self, q: QTensor, geometry: Mapping[str, Any], call: OpCall) -> QTensor:
        frozen, bits = self.freeze(SCALE), self.widths.output
        return run_norm(call, q, frozen, geometry, self, bits, is_relu=self.is_ahead_of_relu)

    def _limited_parts(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        affine = Affine(cast("Tensor | None", self.weight), self.bias, self.count)
        weight, bias = affine.flat(cast(Tensor, self.running_normal).device)
        return limit_parameters(self.limited_to, PARAMETER_BITS, weight, None, bias)

    def _sources(self) -> list[Tensor | None]:
        return [cast("Tensor | None", self.weight), self.bias]


def _parameter_count(norm: nn.Module) -> int:
    """How many weights a norm has, or would have."""
    source = cast(Any, norm)
    if hasattr(source, "normalized_shape"):
        return math.prod(source.normalized_shape)
    return int(source.num_channels if hasattr(source, "num_channels") else source.num_features)
