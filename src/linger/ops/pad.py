# SPDX-License-Identifier: Apache-2.0
"""iqPad: zeros around a tensor; scale and width stay.

The counts are a tensor, in the order of ONNX: those before each axis, then those behind. The device pads with zeros.
"""

from __future__ import annotations

from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Sample, op
from linger.numeric.kernel import Kernel, T


@op("iqPad", output_bits=None)
def iq_pad(k: Kernel[T], x: T, pads: T, value: T, *, mode: str = "constant", platform_quant: str = PLATFORM_QUANT) -> T:
    """Y = x inside, value outside."""
    return k.pad(x, pads, value)


def onnx_order(pairs: Any, axes: int) -> list[int]:
    """torch's pairs, last axis first, as ONNX counts them.

    >>> onnx_order((1, 2, 3, 4), 4)
    [0, 0, 3, 1, 0, 0, 4, 2]
    """
    before, behind = [0] * axes, [0] * axes
    for i in range(len(pairs) // 2):
        before[axes - 1 - i], behind[axes - 1 - i] = int(pairs[2 * i]), int(pairs[2 * i + 1])
    return before + behind


def _sample(name: str, x: Draw, **counts: int) -> Sample:
    pads = Draw((2 * len(x.shape),), 32, low=counts.get("low", 0), high=counts.get("high", 3))
    return Sample(name, (x, pads, Draw((), x.bits, low=0, high=0)), {})


iq_pad.samples = (
    _sample("pictures", Draw((2, 3, 4, 5))),
    _sample("signals", Draw((2, 3, 4))),
    *(_sample(f"{bits} bits", Draw((2, 3), bits)) for bits in (4, 16, 32)),
    _sample("nothing to add", Draw((2, 3)), high=0),
    _sample("empty", Draw((0, 3)), low=0, high=0),
    _sample("one element", Draw((1,)), low=1, high=1),
)
