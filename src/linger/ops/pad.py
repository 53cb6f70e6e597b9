# SPDX-License-Identifier: Apache-2.0
"""iqPad: a border of one integer around a tensor; scale and width stay.

`pads` is int64 in the order of ONNX: all beginnings, then all ends; a negative number cuts off. `value` is a scalar of x's
type. A real constant is rounded half up to the steps of x (zero is exact), one that x cannot hold stays float. Packers
take zeros only. Other modes copy numbers of x and need no op of their own: linger writes them as slices.
"""

from __future__ import annotations

import math
from typing import Any

from linger.dialect import NodeFacts, Refusal, Settings, op
from linger.numeric.kernel import Draw, DrawUnsigned, Kernel, Sample, T


@op(
    "iqPad",
    texts={"mode": "constant"},
    is_scale_free=True,
    output_bits=None,
    picks=True,
    is_sized_by_values=True,
    chip_limits=("pad",),
    if_differs="Leave padding to the convolution behind it (padding=), which is exact.",
    takes_unsigned=True,
)
def iq_pad(k: Kernel[T], x: T, pads: T, value: T) -> T:
    """Y = x with `pads` more places at the ends of each axis, all of them `value`."""
    return k.pad(x, pads, value)


@iq_pad.refuse
def refuse_copied_border(node: NodeFacts) -> str | None:
    """Refuse modes that copy numbers into the border."""
    mode = node.attributes["mode"]
    return None if mode == "constant" else f"mode={mode!r}; only a constant border has an op. Use Slice and Concat."


def _steps(value: float, scale: float) -> int:
    return math.floor(value * scale + 0.5)


@iq_pad.constants("pads", "value", need_scale=False)
def border(*, pads: tuple[int, ...], value: float, scale: float, bits: int) -> tuple[tuple[int, ...], int]:
    """The pads as they are, and the integer of the real value; the binding has checked that it fits.

    >>> border(pads=(0, 1, 0, 1), value=0.1, scale=16.0, bits=8)
    ((0, 1, 0, 1), 2)
    """
    return pads, 0 if value == 0.0 else _steps(value, scale)


@iq_pad.function("torch.nn.functional.pad", "torch.constant_pad_nd")
def from_pad(x: Any, pad: Any, mode: Any = "constant", value: float | None = None) -> Settings:
    """torch counts pads from the last axis, begin and end in turn. `mode` is the value in torch.constant_pad_nd."""
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode != "constant":
        return Refusal(f"mode={mode!r} of this size has no integer form")
    real = 0.0 if value is None else float(value)
    bits = getattr(x, "bits", 32)
    limit = 1 << (bits - 1)
    scale = 1.0 if real == 0.0 else getattr(x, "scale_on_host", None) or 1.0  # a zero fits at every scale
    if not math.isfinite(real) or not -limit <= _steps(real, scale) < limit:
        return Refusal(f"the constant {real} does not fit into {bits} bits at scale {scale}; use a smaller one")
    begins, ends = [0] * x.dim(), [0] * x.dim()
    for position in range(len(pad) // 2):
        begins[-1 - position], ends[-1 - position] = int(pad[2 * position]), int(pad[2 * position + 1])
    return {"pads": (*begins, *ends), "value": real}


def _sample(name: str, x: Draw, most: int = 2, value: int = 0) -> Sample:
    pads = Draw((2 * len(x.shape),), 64, low=0, high=most)
    return Sample(name, (x, pads, Draw((), x.bits, value, value, x.is_unsigned)), {})


iq_pad.samples = (
    _sample("images", Draw((2, 3, 4, 5))),
    _sample("signals", Draw((2, 3, 7)), 4),
    _sample("rows", Draw((3, 4))),
    _sample("another constant", Draw((1, 2, 3, 3)), value=-7),
    _sample("nothing to add", Draw((1, 2, 3)), 0),
    _sample("the largest constant", Draw((2, 3), 16), value=32767),
    *(_sample(f"{bits} bits", Draw((1, 2, 4, 3), bits), value=5) for bits in (4, 16, 32)),
    _sample("empty batch", Draw((0, 3)), 0),
    _sample("one element", Draw((1,)), 3),
    _sample("unsigned", DrawUnsigned((2, 3, 4, 5)), value=200),
)
