# SPDX-License-Identifier: Apache-2.0
"""LogSoftmaxInt: the logarithm of the device's softmax, rounded to the output's scale.

A softmax of 0 in Q15 has the logarithm −64. The device joins all axes from `dim` on, so linger writes the last one only
and moves another one there and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from linger.dialect import PLATFORM_QUANT, Draw, Refusal, Sample, op
from linger.numeric import blocks
from linger.numeric import curves as device
from linger.numeric.kernel import Kernel, T

_LOG_OF_ZERO = -64.0


@op(
    "LogSoftmaxInt",
    limit=2.0**25,  # the device shifts its Q25 result right only
    last_axis="dim",
    input_end=64.0,
    chip_limits=("softmax",),
    state_name="LogSoftmaxInt",
)
def log_softmax_int(
    k: Kernel[T],
    x: T,
    *,
    dim: int,
    data_bits: int,
    o_bits: int,
    scale_x: float,
    scale_o: float,
    platform_quant: str = PLATFORM_QUANT,
) -> T:
    """Y = sat(⌊ln(s/2^15)·scale_o + ½⌋), s the softmax in Q15 (`linger.numeric.curves`); ln 0 counts as −64."""
    s = device.softmax(k, k.wide(x), source=k.scalar(scale_x), axis=dim)
    one = k.scalar(1.0)
    real = k.log(k.mul(k.where_less(s, one, one, s), k.scalar(2.0**-15)))
    # for s = 1 … 32767 no ln(s/2^15)·2^n is within 7e-7 of a tie, so every good logarithm gives the same integer
    y = k.where_less(s, one, k.scalar(_LOG_OF_ZERO), real)
    return blocks.requantize(k, y, source=one, target=k.scalar(scale_o), bits=o_bits)


@log_softmax_int.real
def real(torch: Any, x: Any, *, dim: int, **_: Any) -> Any:
    """torch.log_softmax."""
    return torch.log_softmax(x, dim)


@log_softmax_int.function("torch.log_softmax", "torch.special.log_softmax", "torch.Tensor.log_softmax")
def from_log_softmax(x: Any, dim: Any = None, dtype: object = None) -> Mapping[str, Any] | Refusal:
    """The axis; refuses a missing one, which torch guesses, and results of other types."""
    if not isinstance(dim, int):
        return Refusal("the axis is not given as a number; write dim=-1")
    if str(dtype) not in ("None", "torch.float32"):
        return Refusal(f"the result is asked for as {dtype}")
    if not x.dim():
        return Refusal("the tensor has no axis")
    return {"dim": dim}


@log_softmax_int.function("torch.nn.functional.log_softmax")
def from_functional_log_softmax(
    x: Any, dim: Any = None, _stacklevel: int = 3, dtype: object = None
) -> Mapping[str, Any] | Refusal:
    """The same; `_stacklevel` is for torch's own warning."""
    return from_log_softmax(x, dim, dtype)


def _sample(name: str, x: Draw, *, dim: int = -1, bits: int = 8, scale_x: float = 8.0, scale_o: float = 8.0) -> Sample:
    attributes = {"dim": dim, "data_bits": x.bits, "o_bits": bits, "scale_x": scale_x, "scale_o": scale_o}
    return Sample(name, (x,), attributes)


log_softmax_int.samples = (
    _sample("plain", Draw((6, 40))),
    _sample("many alike", Draw((2, 300), low=-3, high=3), scale_o=16.0),
    _sample("another axis", Draw((2, 5, 6)), dim=1, scale_x=16.0),
    _sample("coarse input saturates", Draw((4, 10)), scale_x=1.0),
    _sample("fine input", Draw((4, 10)), scale_x=2.0**30),
    _sample("16 bits", Draw((3, 20), 16), bits=16, scale_x=2048.0, scale_o=2048.0),
    _sample("32 bits", Draw((3, 20), 32), scale_x=2.0**26),
    _sample("empty", Draw((0, 3))),
    _sample("one element", Draw((1,))),
)
