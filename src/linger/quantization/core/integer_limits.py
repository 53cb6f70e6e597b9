# SPDX-License-Identifier: Apache-2.0
"""The limits of the constraint stage as a quantised layer keeps them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from linger.constraint.batch_norm import batch_statistics
from linger.constraint.conv_bn import fold, per_weight
from linger.constraint.limits import Limits, clamp
from linger.numeric.fixed import is_power_of_two

_FLOAT32_BITS = 24
"""Ranges are kept as float32, which holds 1 − 2^-24 but nothing between that and 1."""


def integer_bound(limit: float | None, bits: int) -> float | None:
    """Where integers of this width end under a limit; None: nowhere.

    A power of two L becomes L·B/(B + 1) with B = 2^(bits−1) − 1: ±8 in 8 bits is ±127/16, the format Q4. The limit
    itself would be 128/16, one step too many, and cost a bit of every other value.

    >>> integer_bound(8.0, 8), integer_bound(6.0, 8)
    (7.9375, 6.0)
    """
    if limit is None or not is_power_of_two(limit):
        return limit
    return limit * (1.0 - 2.0 ** -min(bits - 1, _FLOAT32_BITS))


def limits_of_rows(limits: Limits) -> Limits:
    """What an embedding's table keeps: its output is its weights, so the smaller limit holds for them."""
    both = [limit for limit in (limits.weight, limits.output) if limit is not None]
    return Limits(weight=min(both, default=None))


def limit_parameters(
    limits: Limits,
    bits: int,
    weight: Tensor,
    factor: Tensor | None,
    bias: Tensor | None,
    transposed_groups: int | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weight, the factor on it (one number per output channel) and bias, limited before they are rounded.

    Without a weight limit the factor stays apart, because rounding can apply it in the same pass. `transposed_groups` as
    for `fold`.
    """
    bias, bound = clamp(bias, limits.bias), integer_bound(limits.weight, bits)
    if bound is None:
        return weight, factor, bias
    if factor is not None:
        weight = weight * per_weight(factor, weight, transposed_groups)
    return clamp(weight, bound), None, bias


def fold_by_batch(
    weight: Tensor, bias: Tensor | None, bn: Any, z: Tensor, factor: Tensor, transposed_groups: int | None = None
) -> tuple[Tensor, Tensor]:
    """Weight and bias with a batch norm folded in, by the statistics of this batch, through which the gradient goes.

    `z` is conv(x, weight·factor) without bias, so that mean and variance of conv(x, weight) are mean z/factor and
    var z/factor².
    """
    mean, var = batch_statistics(z)
    mean = mean / factor
    statistics = (mean if bias is None else mean + bias, var / (factor * factor))
    return fold(weight, bias, bn, statistics=statistics, transposed_groups=transposed_groups)
