# SPDX-License-Identifier: Apache-2.0
"""How the values of a tensor are spread, for pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.analysis.blocks import Values
from linger.analysis.exact_mean import BLOCK


@dataclass(frozen=True)
class Histogram:
    """Counts of finite values between equally spaced edges from −largest to largest."""

    edges: NDArray[Any]
    counts: NDArray[Any]


def histogram(values: Values, largest: float, bins: int = 256) -> Histogram:
    """Counts over −largest … largest, in one pass; zeros that a sparse tensor does not store are counted too."""
    reach = largest if largest > 0 else 1.0
    edges = np.linspace(-reach, reach, bins + 1)
    counts = np.zeros(bins, np.int64)
    for start in range(0, values.size, BLOCK):
        stop = min(start + BLOCK, values.size)
        block = values.read(start, stop)
        counts += np.histogram(block[np.isfinite(block)].astype(np.float64), edges)[0]
        values.release(start, stop)
    counts[bins // 2] += values.implicit_zeros
    return Histogram(edges, counts)
