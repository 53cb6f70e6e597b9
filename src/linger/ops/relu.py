# SPDX-License-Identifier: Apache-2.0
"""Relu: negative integers become zero; scale and width stay."""

from __future__ import annotations

import math

from linger.dialect import no_settings, only_in_place, op
from linger.numeric.kernel import UNSIGNED, Draw, Kernel, Sample, T


@op(
    "Relu",
    has_platform_quant=False,
    standard_name="Relu",
    is_scale_free=True,
    output_bits=None,
    float_op="Relu",
    picks=True,
    takes_unsigned=True,
)
def relu(k: Kernel[T], x: T) -> T:
    """Y = max(q, 0)."""
    return k.relu(x)


relu.used(lambda _settings, _constants: (0.0, math.inf))
relu.function("torch.relu", "torch.relu_", "torch.Tensor.relu", "torch.Tensor.relu_")(no_settings)
relu.function("torch.nn.functional.relu")(only_in_place)
relu.samples = (
    *tuple(Sample(f"{bits} bits", (Draw((2, 3, 5), bits),), {}) for bits in (4, 8, 16, 32)),
    Sample("empty", (Draw((0, 3)),), {}),
    Sample("one element", (Draw((1,)),), {}),
    Sample("unsigned", (UNSIGNED,), {}),
)
