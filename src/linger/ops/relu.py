# SPDX-License-Identifier: Apache-2.0
"""Relu: negative integers become zero; scale and width stay."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from linger.dialect import Draw, Interval, Sample, op
from linger.numeric.kernel import Kernel, T


@op("Relu", standard_name="Relu", is_scale_free=True, output_bits=None, float_op="Relu", picks=True)
def relu(k: Kernel[T], x: T) -> T:
    """Y = max(q, 0)."""
    return k.relu(x)


@relu.used
def used(settings: Mapping[str, Any], constants: Sequence[Interval]) -> Interval:
    """Positive numbers."""
    return 0.0, math.inf


@relu.function("torch.relu", "torch.relu_", "torch.Tensor.relu", "torch.Tensor.relu_")
def from_relu(x: object) -> Mapping[str, Any]:
    """torch.relu has no settings."""
    return {}


@relu.function("torch.nn.functional.relu")
def from_functional_relu(x: object, inplace: bool = False) -> Mapping[str, Any]:
    """`inplace` is honored by the caller."""
    return {}


relu.samples = (
    *tuple(Sample(f"{bits} bits", (Draw((2, 3, 5), bits),), {}) for bits in (4, 8, 16, 32)),
    Sample("empty", (Draw((0, 3)),), {}),
    Sample("one element", (Draw((1,)),), {}),
)
