"""The statistics of a weight analysis by their definition: everything in memory, sorted, summed as fractions."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

SHARE = 0.99


@dataclass(frozen=True)
class Statistics:
    count: int
    mean: float
    maximum: float
    dynamic: float
    multiple: float
    versu: float
    nans: int
    infinities: int

    def __str__(self) -> str:
        """Equal texts are equal bits, also where numbers are NaN."""
        return repr(self)


def statistics(tensor: Tensor, share: float = SHARE) -> Statistics:
    """Mean, maximum and order statistic of the finite magnitudes of a dense real tensor."""
    numbers = elements(tensor)
    finite = [x for x in numbers if math.isfinite(x)]
    nans = sum(x != x for x in numbers) if len(finite) < len(numbers) else 0
    infinities = len(numbers) - len(finite) - nans
    ordered = np.sort(np.array([*map(abs, finite)], float if tensor.is_floating_point() else object)).tolist()
    if not ordered:
        return Statistics(0, *[math.nan] * 5, nans, infinities)
    count = len(ordered)
    maximum, dynamic = ordered[-1], ordered[int(count * share) - 1]
    exact = exact_total(ordered) / count
    mean = float(exact) if tensor.dtype is torch.float64 else single(exact)
    divide = _single_ratio if tensor.is_floating_point() and tensor.dtype is not torch.float64 else _double_ratio
    return Statistics(count, mean, maximum, dynamic, divide(maximum, mean), divide(maximum, dynamic), nans, infinities)


def elements(tensor: Tensor) -> list[float]:
    """The numbers of a tensor as Python's, exactly: floats, or integers of any size."""
    wide = tensor.double() if tensor.is_floating_point() else tensor
    numbers = wide.reshape(-1).tolist()
    return [int(x) for x in numbers] if tensor.dtype is torch.bool else numbers


def exact_total(numbers: list[float]) -> Fraction:
    """The sum without rounding."""
    if all(isinstance(x, int) for x in numbers):
        return Fraction(sum(numbers))
    if len(numbers) > 1000:
        multiples = np.array(numbers) * 2.0**200  # exact, unless it is infinite
        if np.array_equal(multiples, np.floor(multiples)) and multiples.max() < 2.0**1000:
            return Fraction(sum(map(int, multiples.tolist())), 2**200)
    return sum(map(Fraction, numbers), Fraction(0))


def single(value: Fraction) -> float:
    """The float32 nearest to a fraction from zero up, ties to even: 24 bits, at most 149 of them behind the point."""
    if value == 0:
        return 0.0
    size = value.numerator.bit_length() - value.denominator.bit_length()  # 2^(size−1) < value < 2^(size+1)
    exponent = max((size if value >= Fraction(2) ** size else size - 1) - 23, -149)
    return float(round(value / Fraction(2) ** exponent) * Fraction(2) ** exponent)


def _single_ratio(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(a) / np.float32(b))


def _double_ratio(a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(np.float64(a) / np.float64(b)))
