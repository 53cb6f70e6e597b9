# SPDX-License-Identifier: Apache-2.0
"""LearnedRanges: scales that an optimizer learns together with the weights, and that stay powers of two.

Rounding y = q·2^θ with q = sat(⌊x·2^−θ + ½⌋) has, straight through the rounding, the derivative ln 2·(y − x) by θ where nothing
saturates and ln 2·y where it does: a coarser grid adds rounding error, a finer one cuts off more. θ is real and the optimizer's;
the forward pass takes the whole number next to it (TQT: Jain and others, Trained Quantization Thresholds, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from linger.dialect import Op
from linger.errors import UsageError
from linger.numeric.fixed import limits
from linger.ops.fast.fast_path import accumulate
from linger.quantization.core.quantized import Frozen, ranges_of
from linger.quantization.core.ranges import Saved
from linger.quantization.core.runtime import runtime_of
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import NormLayer
from linger.tuning.learned_rounding.rounding import folded_weight

_REACH = 4.0
"""A scale moves by at most so many powers of two."""


class LearnedRanges:
    """Learn the scales of a quantized model's layers in a training loop, as powers of two.

    Ranges of weights, outputs and own inputs of convolutions and linear layers learn; those of functions and recurrent layers
    stay. The model must be in evaluation mode, which computes the device's integers and passes gradients straight through;
    in training mode ranges follow the data instead.

        learned = linger.LearnedRanges(model.eval())
        optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": learned.parameters(), "lr": 0.03}], lr=1e-4)
        with learned:
            for x, y in batches:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()
                learned.after_step()

    Attributes:
        exponents: A parameter with one number θ per range: its scale is 2^−θ, rounded to a whole exponent.
        keys: The range that each number belongs to, as `block.conv.o`.
    """

    exponents: nn.Parameter
    keys: tuple[str, ...]

    def __init__(self, model: nn.Module) -> None:
        runtime = runtime_of(model)
        if runtime is None:
            raise UsageError("LearnedRanges: the model is not quantized. Call linger.init and calibrate it first.")
        self._model, self._runtime = model, runtime
        self._ranges = [r for r in ranges_of(model).values() if r.scale and _is_learned(r.layer)]
        self.keys = tuple(r.key for r in self._ranges)
        if not self.keys:
            raise UsageError(
                "LearnedRanges: no convolution or linear layer has a scale yet. Calibrate the model first."
            )
        self._layers = {r.layer.path: r.layer for r in self._ranges}
        self._numbers = {key: i for i, key in enumerate(self.keys)}
        self._first = torch.tensor([-math.log2(r.scale) for r in self._ranges])
        with torch.inference_mode(mode=False):
            self.exponents = nn.Parameter(self._first.clone())

    def __repr__(self) -> str:
        return f"LearnedRanges({len(self.keys)} ranges)"

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer learns."""
        return [self.exponents]

    def after_step(self) -> None:
        """Give the model the scales that the exponents have come to; call it after each step of the optimizer."""
        with torch.no_grad():
            self.exponents.copy_(self.exponents.clamp(self._first - _REACH, self._first + _REACH))
        for one, exponent in zip(self._ranges, self.exponents.tolist(), strict=True):
            scale = 2.0 ** -math.floor(exponent + 0.5)
            if scale != one.scale:
                one.choose(scale)

    def save(self) -> list[Saved]:
        """The present scales of the model."""
        return [one.save() for one in self._ranges]

    def restore(self, saved: list[Saved]) -> None:
        """Give the model back scales of before; exponents stay."""
        for one, state in zip(self._ranges, saved, strict=True):
            one.restore(state)

    # gradients
    def __enter__(self) -> LearnedRanges:
        if self._model.training:
            raise UsageError(
                "LearnedRanges: the model is in training mode, where ranges follow the data. Call model.eval() before the "
                "loop: gradients pass there, too."
            )
        self._runtime.observers.append(self._observe)
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.observers.remove(self._observe)

    def _observe(self, name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
        """An op was computed: ask its rounded tensors for their gradients."""
        path = name.rpartition(".")[0]
        layer = self._layers.get(path)
        if not torch.is_grad_enabled() or not isinstance(layer, QuantLayer):
            return
        if op.name == "Quant":
            self._ask(f"{path}.x", result.content, operands[0].detach, result.scale, result.signed_bits)
        elif len(operands) > 1 and isinstance(operands[1], Frozen) and not isinstance(layer, NormLayer):
            x, frozen = operands[0].content.detach(), operands[1]
            bias = None if frozen.bias is None else frozen.bias.detach()
            product = partial(accumulate, op, attributes, x, frozen.weight.detach(), bias)
            self._ask(f"{path}.o", result.content, product, result.scale, result.signed_bits)
            if layer.ranges["w"].rows is None:  # channels have the exponents that calibration found
                folded = partial(folded_weight, layer)
                self._ask(f"{path}.w", frozen.weight, folded, frozen.scale_w, layer.widths.parameter)

    def _ask(self, key: str, rounded: Tensor, real: Callable[[], Tensor], scale: float, bits: int) -> None:
        number = self._numbers.get(key.lstrip("."))
        if number is None:
            return
        if not rounded.requires_grad:
            rounded.requires_grad_()  # the model's input, which nothing else asks for a gradient
        values = rounded.detach()

        def learn(gradient: Tensor) -> None:
            with torch.no_grad():
                if self.exponents.grad is None:
                    self.exponents.grad = torch.zeros_like(self.exponents)
                self.exponents.grad[number] += float((gradient * _derivative(values, real(), scale, bits)).sum())

        rounded.register_hook(learn)


def _is_learned(layer: nn.Module) -> bool:
    return isinstance(layer, QuantLayer) and not isinstance(layer, NormLayer) and layer.can_shift


def _derivative(rounded: Tensor, real: Tensor, scale: float, bits: int) -> Tensor:
    """Of a rounded tensor by the binary logarithm of its step."""
    low, high = limits(bits)
    steps = real.reshape(rounded.shape) * scale
    is_held = (steps >= low - 0.5) & (steps < high + 0.5)
    return math.log(2.0) * (rounded - torch.where(is_held, real.reshape(rounded.shape), 0.0))
