# SPDX-License-Identifier: Apache-2.0
"""iqLargest: the largest integer along one axis, which stays with size 1; scale and width stay; linger's own op.

It stands for max pooling with windows whose size is open when the file is written; others are MaxPool, which devices have.
"""

from __future__ import annotations

from linger.dialect import op
from linger.numeric.kernel import Draw, Kernel, Sample, T


@op("iqLargest", has_platform_quant=False, is_scale_free=True, keeps_open_sizes=False, is_for_open_sizes=True)
def iq_largest(k: Kernel[T], x: T, *, dims: int, o_bits: int = 8) -> T:
    """O = max x along the axis `dims`."""
    return k.store(k.max_along(k.wide(x), dims), o_bits)


iq_largest.samples = (
    Sample("plain", (Draw((3, 4, 5)),), {"dims": 1}),
    Sample("all negative", (Draw((3, 4), low=-128, high=-100),), {"dims": 1}),
    Sample("first axis", (Draw((9, 4)),), {"dims": 0}),
    Sample("negative axis", (Draw((2, 3, 4, 5)),), {"dims": -2}),
    Sample("4 bits", (Draw((3, 4), 4),), {"dims": 1, "o_bits": 4}),
    Sample("16 bits", (Draw((3, 4), 16),), {"dims": 1, "o_bits": 16}),
    Sample("32 bits", (Draw((3, 4), 32),), {"dims": 1, "o_bits": 32}),
    Sample("empty", (Draw((0, 3)),), {"dims": 1}),
    Sample("one element", (Draw((1,)),), {"dims": 0}),
)
