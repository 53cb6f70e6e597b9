# SPDX-License-Identifier: Apache-2.0
"""Norms as quantized layers: layer norm and its kin, and a batch norm that no convolution takes in.

A transposed convolution of signals as a quantized layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.constraint.conv_bn import batch_statistics
from linger.constraint.limits import Widths, clamp
from linger.dialect import Op
from linger.errors import UsageError
from linger.numeric.curves import NORMAL_BITS
from linger.numeric.torch.quantize import Scale
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import Frozen, integer_bound, limit_parameters
from linger.quantization.core.ranges import Range
from linger.quantization.core.runtime import OpCall, Pass, Runtime
from linger.quantization.functions.norms import PARAMETER_BITS, SCALE, flat_affine, run_norm
from linger.quantization.layers.layer import Parameters, QuantLayer

_AXES = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""Layers that also take one item without a batch, and the axes of a batch."""

_IMAGE = 4
"""Axes of the op's input; vectors and sequences become images of one pixel or one column."""


class NormLayer(QuantLayer):
    """A norm as integers, its weight always of 16 bits; keys are those of the float layer and the ranges."""

    is_always_exact = True

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        super().__init__(op, source, geometry, widths, runtime)
        # how many weights it has, or would have
        shape = next(
            getattr(source, n) for n in ("normalized_shape", "num_channels", "num_features") if hasattr(source, n)
        )
        self.count = math.prod(cast("tuple[int, ...]", shape)) if isinstance(shape, tuple) else int(cast(int, shape))
        self._axes = next((n for kind, n in _AXES.items() if isinstance(source, kind)), 0)
        # the device's format, under the names that checkpoints have
        self.ranges["normal"] = Range(self, "normal")
        self.ranges["normal"].set((2.0 ** (NORMAL_BITS - 1) - 1) / SCALE, SCALE)

    def possible_widths(self, wanted: Widths) -> Widths:
        """Bits of input and output; those of the weight are fixed."""
        return replace(wanted, parameter=PARAMETER_BITS)

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Integers in, integers out; an instance norm also takes one image without a batch."""
        if x.dim() + 1 != self._axes:
            return super().forward(x, output_size)
        y = cast(QTensor, super().forward(x.unsqueeze(0), output_size))
        return y.like(y.moved_content.squeeze(0))

    def _deploy(self, q: QTensor, geometry: Mapping[str, Any], call: OpCall) -> QTensor:
        frozen, bits = self.freeze(SCALE, call.now), self.widths.output
        if call.now.is_real:
            weight, _, bias = self._limited_parts()
            frozen = replace(frozen, weight=weight, bias=bias)
        return run_norm(call, q, frozen, geometry, self, bits, is_relu=self.is_ahead_of_relu)

    def _limited_parts(self) -> Parameters:
        device = self.ranges["normal"].running.buffer.device
        weight, bias = flat_affine(cast("Tensor | None", self.weight), self.bias, self.count, device)
        return limit_parameters(self.limited_to, self._limit_bits, weight, None, bias)

    def _sources(self) -> list[Tensor | None]:
        return [cast("Tensor | None", self.weight), self.bias]


class BatchNormLayer(QuantLayer):
    """nn.BatchNorm1d and nn.BatchNorm2d as integers: y = alpha·x + offset, one pair of numbers per channel.

    Parameters, statistics and keys are those of the layer it replaced.

    Training: alpha and offset come from the batch's statistics, through which the gradient goes, and the running ones
    learn as torch's do. Evaluation: they come from the running statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    eps: float
    momentum: float | None

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        super().__init__(op, source, geometry, widths, runtime)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, cast(Tensor, getattr(source, name)))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer on an image; other inputs become one and back."""
        missing = _IMAGE - x.dim()
        if missing <= 0:
            return super().forward(x, output_size)
        for _ in range(missing):
            x = x.unsqueeze(-1)
        y = cast(QTensor, super().forward(x, output_size))
        return y.like(y.moved_content.flatten(-1 - missing))

    def _learn_product(
        self, q: QTensor, geometry: Mapping[str, Any], parts: Parameters, now: Pass
    ) -> tuple[Tensor, Scale]:
        if self.training and q.content.numel() and not self.holds_batch_norm:
            mean, var = batch_statistics(q.content)
            count = q.content.numel() // len(mean)
            if count == 1:
                raise UsageError(
                    f"{self.path}: one value per channel has no variance. Train with a larger batch, or put the layer in eval()."
                )
            with torch.no_grad():  # as torch's batch norm learns, by the unbiased variance
                self._learn_statistics(count * len(mean), now, self, mean.detach(), var * (count / (count - 1)))
            weight, bias = self._affine(mean, var)
            parts = weight, None, bias
        return super()._learn_product(q, geometry, parts, now)

    def _limited_parts(self) -> Parameters:
        weight, bias = self._affine(self.running_mean, self.running_var)
        return weight, None, bias

    def _affine(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Alpha and offset within their limits."""
        alpha = torch.rsqrt(var + self.eps)
        # without affine parameters torch's layer has None for both
        alpha = alpha if cast("Tensor | None", self.weight) is None else self.weight * alpha
        offset = -mean * alpha if self.bias is None else self.bias - mean * alpha
        bound = integer_bound(self.limited_to.weight, self._limit_bits)
        return clamp(alpha, bound), clamp(offset, self.limited_to.bias)

    @property
    def learning_norm(self) -> nn.Module:
        """Itself."""
        return self

    def _make_frozen(self, scale_x: float, now: Pass) -> Frozen:
        statistics = tuple(t.detach().float().clone() for t in (self.running_mean, self.running_var))
        return replace(super()._make_frozen(scale_x, now), extras=statistics)

    def _sources(self) -> list[Tensor | None]:
        return [cast("Tensor | None", self.weight), self.bias, self.running_mean, self.running_var]

    @property
    def _taps(self) -> int:
        return 1

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # checkpoints of torch before 0.4.1 do not count batches
        state_dict.setdefault(f"{prefix}num_batches_tracked", self.num_batches_tracked)
        super()._load_from_state_dict(state_dict, prefix, *rest)


_ROW = -2
"""The axis of size 1 that makes a signal an image."""

_BESIDE_THE_SIGNAL = {"kernel_size": 1, "stride": 1, "dilation": 1, "padding": 0, "output_padding": 0}


class TransposedSignalLayer(QuantLayer):
    """nn.ConvTranspose1d as integers: that of an image of one row, which is the op that devices have."""

    def __init__(
        self, op: Op, source: nn.Module, geometry: Mapping[str, Any], widths: Widths, runtime: Runtime
    ) -> None:
        super().__init__(op, source, geometry, widths, runtime)
        for name, value in _BESIDE_THE_SIGNAL.items():  # as of the image, from which an output_size is computed
            setattr(self, name, (value, *getattr(source, name)))

    def forward(self, x: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """The layer on an image of one row, which then is a signal again."""
        size = None if output_size is None else [*output_size[:-1], 1, output_size[-1]]
        return super().forward(x.unsqueeze(_ROW), size).squeeze(_ROW)

    def _laid_out(self, weight: Tensor) -> Tensor:
        """[in, out/groups, length], with a row."""
        return weight.unsqueeze(_ROW)
