# SPDX-License-Identifier: Apache-2.0
"""Relu: negative integers become zero; scale and width stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linger.dialect import Draw, Sample, op
from linger.numeric.kernel import Kernel, T


@op("Relu", standard_name="Relu", is_scale_free=True, output_bits=None, float_op="Relu")
def relu(k: Kernel[T], x: T) -> T:
    """Y = max(q, 0)."""
    return k.relu(x)


@relu.function("torch.relu", "torch.relu_", "torch.Tensor.relu", "torch.Tensor.relu_")
def from_relu(x: object) -> Mapping[str, Any]:
    """torch.relu has no settings."""
    return {}


@relu.function("torch.nn.functional.relu")
def from_functional_relu(x: object, inplace: bool = False) -> Mapping[str, Any]:
    """`inplace` is honoured by the caller."""
    return {}


relu.samples = (
    *tuple(Sample(f"{bits} bits", (Draw((2, 3, 5), bits),), {}) for bits in (4, 8, 16, 32)),
    Sample("empty", (Draw((0, 3)),), {}),
    Sample("one element", (Draw((1,)),), {}),
)
