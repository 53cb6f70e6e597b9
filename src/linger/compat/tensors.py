# SPDX-License-Identifier: Apache-2.0
"""Tensors made by hand: quant, dequant, and quantised tensors from ordinary ones and back."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.errors import UnsupportedError, UsageError, listing
from linger.notation import as_width
from linger.numeric.fixed import is_power_of_two, limits, scale_for
from linger.numeric.torch.kernel import INTEGER_TYPES
from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime
from linger.quantization.functions.dispatch import dispatch
from linger.quantization.setup.float_tensors import FloatWatch
from linger.quantization.setup.marking import QuantMode

_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "floor_add": lambda x: torch.floor(x + 0.5),
    "floor": torch.floor,
    "round": torch.round,
    "ceil": torch.ceil,
}
_WIDTHS = (4, *INTEGER_TYPES)


def quant(
    x: Tensor, bits: int = 8, scale: float = -1, zero_point: int = 0, mode: str | Enum = "floor_add"
) -> tuple[Tensor, float]:
    """Round a tensor to integers of a width, and return them, in a float tensor, with their scale.

    Args:
        x: Real numbers.
        bits: Width of the integers.
        scale: What the numbers are multiplied by; −1: the power of two nearest to (2^(bits−1) − 1)/max|x|, by logarithm.
        zero_point: Must be 0.
        mode: "floor_add", as all of linger and the device round, or "floor", "round" (half to even), "ceil".

    Raises:
        UsageError: An argument is wrong; every wrong one is named.

    >>> import linger, torch
    >>> linger.quant(torch.tensor([0.5, -1.0, 0.99]), scale=128)
    (tensor([  64., -128.,  127.]), 128.0)
    """
    name = "floor_add" if mode is QuantMode.floor_add else mode.name if isinstance(mode, Enum) else mode
    is_free, bits = scale == -1, as_width(bits)
    problems = [*_format_problems(bits, zero_point), *([] if is_free else _scale_problems(scale))]
    if name not in _ROUNDINGS:
        problems.append(f"mode={name!r} is none of {listing(_ROUNDINGS)}")
    _refuse("quant", problems)
    low, high = limits(bits)
    largest = float(x.detach().abs().amax()) if x.numel() else 0.0
    free = 2.0 ** round(math.log2(high / largest)) if largest else scale_for(0.0, bits)
    used = free if is_free else float(scale)
    return _ROUNDINGS[str(name)](x * used).clamp(low, high), used


def dequant(x: Tensor, scale: float) -> Tensor:
    """The real numbers x/scale that integers stand for; a quantised tensor of linger gives its own.

    Raises:
        UsageError: The scale is no positive number.
    """
    if isinstance(x, QTensor):
        return x.dequantize()
    _refuse("dequant", _scale_problems(scale))
    return x / scale


def from_tensor_to_qtensor(
    t: Tensor, scale: float | None = None, data_bits: int | None = None, zero_point: int = 0
) -> Tensor:
    """A quantised tensor with the numbers of an ordinary one, rounded and saturated.

    Quantised layers take its integers as they are. Functions on it are integer ops once a layer of a model has returned
    them; before that they compute in float. In a forward use `linger.quant_tensor`, which also learns the scale: an export
    refuses a tensor made by hand.

    Args:
        t: Real numbers; a quantised tensor of this format stays as it is.
        scale: A power of two; None: the finest at which nothing saturates.
        data_bits: Width; None: 8.
        zero_point: Must be 0.

    Raises:
        UsageError: An argument is wrong; every wrong one is named.
        UnsupportedError: A model is being exported.

    >>> import linger, torch
    >>> linger.from_tensor_to_qtensor(torch.tensor([0.5, -0.26]), scale=4.0).integers()
    tensor([ 2, -1], dtype=torch.int8)
    """
    return _wrapped("from_tensor_to_qtensor", t, scale, 8 if data_bits is None else data_bits, zero_point)


def from_qtensor_to_tensor(t: Tensor) -> Tensor:
    """The numbers of a quantised tensor as an ordinary float tensor; any other tensor itself."""
    return t.dequantize() if isinstance(t, QTensor) else t


def from_torch_tensor(
    t: Tensor,
    scale: float,
    bits: int,
    zero_point: int = 0,
    running: float | None = None,  # noqa: ARG001 - the documented signature
) -> Tensor:
    """`from_tensor_to_qtensor` in the words of linger 1.x; a running range belongs to layers here, and is not looked at."""
    return _wrapped("from_torch_tensor", t, scale, bits, zero_point)


def iqadd(module: nn.Module, x: Tensor, y: Tensor, name: str = "_default") -> Tensor:  # noqa: ARG001 - as documented
    """The sum x + y: its range belongs to the module at work, under a number, whatever module and name are given."""
    return x + y


def iqmul(module: nn.Module, x: Tensor, y: Tensor, name: str = "_default") -> Tensor:  # noqa: ARG001 - as documented
    """The product x · y; see `iqadd`."""
    return x * y


def _wrapped(where: str, t: Tensor, scale: float | None, bits: int, zero_point: int) -> Tensor:
    if isinstance(t, QTensor) and t.bits == bits and scale in (None, t.scale_data):
        return t
    problems = _format_problems(bits, zero_point)
    if scale is not None and not is_power_of_two(scale):
        problems.append(f"scale={scale!r} is no power of two")
    _refuse(where, problems)
    if torch._C._is_tracing() or is_exporting():  # noqa: SLF001 - torch.jit hides it from mypy
        raise UnsupportedError(
            f"{where}: an export cannot see a quantised tensor that was made by hand. Write linger.quant_tensor(self, x) in "
            "the forward, whose scale the module keeps, or give the tensor to the model from outside."
        )
    real = from_qtensor_to_tensor(t)
    largest = float(real.detach().abs().amax()) if real.numel() else 0.0
    used = scale_for(largest, bits) if scale is None else float(scale)
    return QTensor(fake_quantize(real, used, bits), used, bits, Runtime(dispatch, make_watch=FloatWatch))


def _format_problems(bits: int, zero_point: int) -> list[str]:
    problems = (
        [] if bits in _WIDTHS and isinstance(bits, int) else [f"bits={bits!r} is none of {listing(map(str, _WIDTHS))}"]
    )
    return problems if zero_point == 0 else [*problems, f"zero_point={zero_point!r}: the formats are symmetric"]


def _scale_problems(scale: float) -> list[str]:
    return [] if 0 < scale < math.inf else [f"scale={scale!r} is no positive number"]


def _refuse(where: str, problems: list[str]) -> None:
    if problems:
        raise UsageError(f"{where}: {'; '.join(problems)}.")
