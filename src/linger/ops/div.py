# SPDX-License-Identifier: Apache-2.0
"""iqDiv: the exact quotient of two quantized tensors, or of a tensor and a number, rounded once, half up.

The device divides by a power of two in 8 bits only; there the rule is the same shift. What it does for a divisor of zero
is not known: here the result is the largest or smallest integer, by the sign of x, and 0/0 is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from linger.dialect import Refusal, Settings, op
from linger.numeric import blocks
from linger.numeric.kernel import Draw, Kernel, Sample, T

_FINER = 20


def _finest(scales: Iterable[float]) -> float:
    """Up to this ratio of the scales the quotient of 32 bits is exact."""
    x, y = scales
    return x / y * 2.0**_FINER


@op("iqDiv", limit=_finest, chip_limits=("divisor",), state_name="iqdiv__default_index")
def iq_div(k: Kernel[T], x: T, y: T, *, scale_x: float, scale_y: float, scale_o: float, o_bits: int = 8) -> T:
    """O = sat(⌊x·scale_y·scale_o/(y·scale_x) + ½⌋), the quotient not rounded before; ±∞ for y = 0, and 0 for 0/0."""
    x, y, zero, one = k.wide(x), k.wide(y), k.scalar(0.0), k.scalar(1.0)
    size = k.where_less(y, zero, k.sub(zero, y), y)
    x = k.where_less(y, zero, k.sub(zero, x), x)
    ratio = k.div(k.mul(k.scalar(scale_y), k.scalar(scale_o)), k.scalar(scale_x))
    quotient = blocks.round_quotient(k, x, k.where_less(size, one, one, size), ratio=ratio)
    beyond = k.mul(x, k.scalar(2.0**32))
    return k.store(blocks.saturate(k, k.where_less(size, one, beyond, quotient), o_bits), o_bits)


@iq_div.real
def real(torch: Any, x: Any, y: Any, **_: Any) -> Any:
    """The quotient; a divisor of zero counts neither for the range nor for the gradient."""
    is_zero = y == 0
    return torch.where(is_zero, torch.zeros_like(x), x / torch.where(is_zero, torch.ones_like(y), y))


@iq_div.function(
    "torch.div",
    "torch.divide",
    "torch.true_divide",
    methods=(
        "div",
        "divide",
        "true_divide",
        "__truediv__",
        "__div__",
        "div_",
        "divide_",
        "true_divide_",
        "__itruediv__",
    ),
)
def from_div(x: object, other: Any, *, rounding_mode: str | None = None) -> Settings:
    """Plain division."""
    if rounding_mode is not None:
        return Refusal(f"rounding_mode={rounding_mode!r} has no integer form; divide without it")
    if isinstance(other, (int, float)) and other == 0:
        return Refusal("it divides by zero")
    return {}


@iq_div.function("torch.Tensor.__rtruediv__", order=("y", "x"))
def from_reversed(y: object, other: object) -> Settings:
    """The second argument divided by the first."""
    return {}


_sample, _NINES = Sample.pair, Draw((20, 20), low=-9, high=9)

iq_div.samples = (
    _sample("plain", Draw((4, 5, 6)), Draw((4, 5, 6)), (16.0, 16.0, 16.0)),
    _sample("by four", Draw((4, 30)), Draw((), low=4, high=4), (16.0, 1.0, 16.0)),
    _sample("by a negative number", Draw((4, 30)), Draw((), low=-3, high=-3), (16.0, 1.0, 32.0)),
    _sample("by few small numbers, zeros and ties", _NINES, Draw((20, 20), low=-4, high=4), (8.0, 8.0, 1.0)),
    _sample("broadcast", Draw((2, 3, 4)), Draw((3, 1)), (16.0, 64.0, 8.0)),
    _sample("coarse", Draw((2, 3, 4)), Draw((2, 3, 4)), (64.0, 4.0, 0.5)),
    _sample("saturating", Draw((2, 3, 4)), Draw((2, 3, 4)), (4.0, 64.0, 64.0)),
    _sample("16 bits", Draw((5, 60), 16), Draw((5, 60), 16), (1024.0, 256.0, 2048.0), 16),
    _sample("4 bits", Draw((5, 6), 4), Draw((5, 6), 4), (4.0, 2.0, 2.0), 4),
    _sample("32 bits", Draw((5, 6), 32), Draw((5, 6), 32), (2.0**20, 2.0**16, 2.0**10), 32),
    _sample("empty", Draw((0, 3)), Draw((0, 3)), (16.0, 16.0, 8.0)),
    _sample("one element", Draw((1,)), Draw((1,)), (16.0, 32.0, 8.0)),
)
