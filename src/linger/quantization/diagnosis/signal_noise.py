# SPDX-License-Identifier: Apache-2.0
"""Signal and noise powers of tensors that should be equal, summed in float64 over any number of batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linger.errors import UsageError
from linger.quantization.core.qtensor import QTensor


@dataclass
class SignalNoise:
    """Σ f² and Σ (f − q)²."""

    signal: float = 0.0
    noise: float = 0.0

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Count one pair of tensors of the same shape."""
        f = as_real(reference)
        self.signal += power(f)
        self.noise += squared_error(f, as_real(other))

    def add_all(self, references: Sequence[Tensor], others: Sequence[Tensor]) -> None:
        """Count pairs of tensors.

        Raises:
            UsageError: There are not as many of one as of the other, or their shapes differ.
        """
        found = mismatch(references, others)
        if found is not None:
            raise UsageError(f"{found}. Compare results of the same computation.")
        for reference, other in zip(references, others, strict=True):
            self.add(reference, other)

    @property
    def db(self) -> float:
        """10·log10(signal/noise)."""
        return decibels(self.signal, self.noise)


def decibels(signal: float, noise: float) -> float:
    """10·log10(signal/noise); ∞ without noise, −∞ for noise without a signal.

    >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
    (20.0, inf, -inf)
    """
    if noise == 0:
        return math.inf
    if signal == 0 or noise == math.inf:
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def power(values: Tensor) -> float:
    """Σ v² over what is finite; `values` is float64 and flat."""
    return inner_product(values, values)


def inner_product(first: Tensor, second: Tensor) -> float:
    """Σ f·q over what is finite in both flat float64 tensors."""
    total = float(torch.dot(first, second))
    if math.isfinite(total):
        return total
    is_finite = first.isfinite() & second.isfinite()
    return float(torch.dot(first[is_finite], second[is_finite]))


def squared_error(reference: Tensor, other: Tensor) -> float:
    """Σ (f − q)² of flat float64 tensors; NaN and infinity are no error where both have the same."""
    difference = reference - other
    total = float(torch.dot(difference, difference))
    if math.isfinite(total):
        return total
    is_same = (reference == other) | (reference.isnan() & other.isnan())
    difference = difference.masked_fill(is_same, 0.0)
    return float(torch.dot(difference, difference)) if bool(difference.isfinite().all()) else math.inf


def as_real(tensor: Tensor) -> Tensor:
    """The values, flat, in float64; a quantised tensor's are q/scale, a complex one's are both parts."""
    plain = tensor.dequantize() if isinstance(tensor, QTensor) else tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    return plain.detach().double().reshape(-1)


def mismatch(references: Sequence[Tensor], others: Sequence[Tensor]) -> str | None:
    """How two lists of tensors differ in number or shape; None if they do not."""
    first, second = ([tuple(t.shape) for t in tensors] for tensors in (references, others))
    return None if first == second else f"shapes {first} in the float model, {second} in the quantised one"
