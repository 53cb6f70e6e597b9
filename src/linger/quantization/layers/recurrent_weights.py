# SPDX-License-Identifier: Apache-2.0
"""The parameters of one layer of a recurrent network as integers, both directions side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from linger.constraint.limits import Limits, clamp
from linger.numeric.fixed import BIAS_BITS
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import round_weight
from linger.numeric.torch.scale import Scale
from linger.quantization.core.frozen import round_bias
from linger.quantization.core.integer_limits import integer_bound
from linger.quantization.core.statistics import weight_scale

ROLES = ("w_ih", "w_hh", "b_ih", "b_hh")
"""Inputs of a node that hold parameters."""


@dataclass(frozen=True)
class Direction:
    """Real parameters of one direction; biases may be missing."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None

    def within(self, limits: Limits, bits: int) -> Direction:
        """The same within the limits of the constraint stage."""
        bound = integer_bound(limits.weight, bits)
        weights = clamp(self.w_ih, bound), clamp(self.w_hh, bound)
        return Direction(*weights, clamp(self.b_ih, limits.bias), clamp(self.b_hh, limits.bias))


@dataclass(frozen=True)
class RoundedWeights:
    """Rounded parameters of all directions, stacked: real carriers that the fast cells take, integers for the file."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    scale_iw: tuple[Scale, ...]
    scale_hw: tuple[Scale, ...]
    largest: tuple[tuple[Scale, Scale], ...]

    def integers(self, direction: int, scale_i: float, scale_h: float, bits: int) -> dict[str, Tensor]:
        """The inputs of a node by role; a missing bias is zeros."""
        scales = (self.scale_iw[direction], self.scale_hw[direction])
        found: dict[str, Tensor] = {}
        parts = zip(
            ("ih", "hh"), (self.w_ih, self.w_hh), (self.b_ih, self.b_hh), scales, (scale_i, scale_h), strict=True
        )
        for name, w, b, scale_w, scale_x in parts:
            found[f"w_{name}"] = (w[direction].detach() * scale_w).to(integer_type(bits))
            offset = w.new_zeros(w.shape[1]) if b is None else b[direction].detach() * (scale_x * scale_w)
            found[f"b_{name}"] = offset.to(integer_type(BIAS_BITS))
        return {role: found[role] for role in ROLES}


def round_parameters(
    directions: Sequence[Direction],
    scale_i: Scale,
    scale_h: Scale,
    bits: int,
    where: str,
    *,
    stays_there: bool = False,
) -> RoundedWeights:
    """Round the parameters of a layer, straight through; scales are lowered where a bias would not fit its 32 bits.

    `stays_there` as for `round_weight`.

    Raises:
        UsageError: The weights hold NaN or infinity.
    """

    def rounded(weight: Tensor, bias: Tensor | None, scale_x: Scale) -> tuple[Tensor, Tensor | None, Scale, Scale]:
        seen: Scale = 0.0

        def choose_scale(largest: Scale) -> Scale:
            nonlocal seen
            seen = largest
            return weight_scale(largest, bits, bias, scale_x, where)

        integers, scale = round_weight(weight, None, choose_scale, stays_there=stays_there)
        return integers * (1.0 / scale), None if bias is None else round_bias(bias, scale_x * scale), scale, seen

    inputs = [rounded(d.w_ih, d.b_ih, scale_i) for d in directions]
    states = [rounded(d.w_hh, d.b_hh, scale_h) for d in directions]
    return RoundedWeights(
        w_ih=torch.stack([part[0] for part in inputs]),
        w_hh=torch.stack([part[0] for part in states]),
        b_ih=_stacked([part[1] for part in inputs]),
        b_hh=_stacked([part[1] for part in states]),
        scale_iw=tuple(part[2] for part in inputs),
        scale_hw=tuple(part[2] for part in states),
        largest=tuple((i[3], h[3]) for i, h in zip(inputs, states, strict=True)),
    )


def _stacked(biases: Sequence[Any]) -> Tensor | None:
    return None if any(b is None for b in biases) else torch.stack(list(biases))
