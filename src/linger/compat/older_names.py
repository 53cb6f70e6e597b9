# SPDX-License-Identifier: Apache-2.0
"""Names of older versions: tensors made by hand, the layer classes of linger 1.x, `register_calibrate_method` of 3.x.

Here one class computes every op, so a class of 1.x is a question about the op: `isinstance(layer, linger.Conv2dInt)`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_exporting

from linger.constraint import conv_bn
from linger.constraint.normalize import DEFAULT_TYPES, NormalizeFastGRU, NormalizeFastLSTM
from linger.errors import UnsupportedError, UsageError, listing, refuse_if
from linger.notation import as_width
from linger.numeric.fixed import is_power_of_two, limits, scale_for
from linger.numeric.torch.kernel import INTEGER_TYPES
from linger.numeric.torch.quantize import fake_quantize
from linger.quantization.core.methods import calibration_method
from linger.quantization.core.observation import Bins
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import QuantizedBase
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
    """The real numbers x/scale that integers stand for; a quantized tensor of linger gives its own.

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
    """A quantized tensor with the numbers of an ordinary one, rounded and saturated.

    Quantized layers take its integers as they are. Functions on it are integer ops once a layer of a model has returned
    them; before that they compute in float. In a forward use `linger.quant_tensor`, which also learns the scale: an export
    refuses a tensor made by hand.

    Args:
        t: Real numbers; a quantized tensor of this format stays as it is.
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
    """The numbers of a quantized tensor as an ordinary float tensor; any other tensor itself."""
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
            f"{where}: an export cannot see a quantized tensor that was made by hand. Write linger.quant_tensor(self, x) in "
            "the forward, whose scale the module keeps, or give the tensor to the model from outside."
        )
    real = from_qtensor_to_tensor(t)
    largest = float(real.detach().abs().amax()) if real.numel() else 0.0
    used = scale_for(largest, bits) if scale is None else float(scale)
    return QTensor(fake_quantize(real, used, bits), used, bits, Runtime(dispatch, make_watch=FloatWatch))


def _format_problems(bits: int, zero_point: int) -> list[str]:
    is_known = bits in _WIDTHS and isinstance(bits, int)
    problems = [] if is_known else [f"bits={bits!r} is none of {listing(map(str, _WIDTHS))}"]
    return problems if zero_point == 0 else [*problems, f"zero_point={zero_point!r}: the formats are symmetric"]


def _scale_problems(scale: float) -> list[str]:
    return [] if 0 < scale < math.inf else [f"scale={scale!r} is no positive number"]


def _refuse(where: str, problems: list[str]) -> None:
    refuse_if(problems, f"{where}: {'; '.join(problems)}.")


class _OfOneOp(type):
    """A class whose objects are all quantized layers with certain ops; none can be made by calling it."""

    ops: tuple[str, ...]
    instead: str

    def __instancecheck__(cls, instance: object) -> bool:
        """Whether a layer computes one of the ops."""
        computed = [getattr(instance, name, "") for name in ("op_name", "function_op")]
        return isinstance(instance, QuantizedBase) and any(op in cls.ops for op in computed)

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        """Say what to write instead."""
        raise UsageError(
            f"{cls.__name__}: quantized layers are made by linger.init. Write {cls.instead} in the model, and call "
            "linger.init(model); linger.quant_module chooses other widths."
        )


def _layer(name: str, instead: str, what: str = "", op: str = "") -> _OfOneOp:
    """The class of this name in linger 1.x, for layers with an op, which mostly has its name."""
    what = what or instead.removeprefix("torch.")
    doc = f"A quantized {what}." if what.startswith("nn.") else f"The {what} in a module's forward."
    ops = (op or name.removesuffix("Layer"),)
    return _OfOneOp(name, (), {"ops": ops, "instead": instead, "__doc__": doc, "__module__": __name__})


Conv1dInt = _layer("Conv1dInt", "torch.nn.Conv1d")
Conv2dInt = _layer("Conv2dInt", "torch.nn.Conv2d")
ConvTranspose2dInt = _layer("ConvTranspose2dInt", "torch.nn.ConvTranspose2d")
LinearInt = _layer("LinearInt", "torch.nn.Linear")
BatchNormInt = _layer("BatchNormInt", "torch.nn.BatchNorm2d", "nn.BatchNorm2d or nn.BatchNorm1d", "BatchNorm2dInt")
LayerNormInt = _layer("LayerNormInt", "torch.nn.LayerNorm")
AvgPool2dInt = _layer("AvgPool2dInt", "torch.nn.AvgPool2d", "nn.AvgPool2d or nn.AdaptiveAvgPool2d")
ReLU6Int = _layer("ReLU6Int", "torch.nn.ReLU6", op="Clip")
EmbeddingInt = _layer("EmbeddingInt", "torch.nn.Embedding", op="Gather")
LSTMInt = _layer("LSTMInt", "torch.nn.LSTM")
GRUInt = _layer("GRUInt", "torch.nn.GRU")
BmmInt = _layer("BmmInt", "torch.bmm(x, y)", "range of a product of two quantized tensors")
iqAddLayer = _layer("iqAddLayer", "x + y", "range of a sum")
iqMulLayer = _layer("iqMulLayer", "x * y", "range of a product")
iqDivLayer = _layer("iqDivLayer", "x / y", "range of a quotient")
iqSumLayer = _layer("iqSumLayer", "x.sum(dim)", "range of a sum over axes")
iqCatLayer = _layer("iqCatLayer", "torch.cat((x, y), dim)", "range of joined tensors")
iqSigmoidLayer = _layer("iqSigmoidLayer", "torch.sigmoid(x)", "ranges of a sigmoid")
iqTanhLayer = _layer("iqTanhLayer", "torch.tanh(x)", "ranges of a tanh")
iqClampLayer = _layer("iqClampLayer", "torch.clamp(x, low, high)", "range of limited numbers")
softmaxIntLayer = _layer("softmaxIntLayer", "torch.softmax(x, dim)", "ranges of a softmax", "SoftmaxInt")
logsoftmaxIntLayer = _layer(
    "logsoftmaxIntLayer", "torch.log_softmax(x, dim)", "ranges of a log-softmax", "LogSoftmaxInt"
)


DefaultQuantIntXOP = (
    *(nn.BatchNorm2d, nn.Linear, nn.Conv2d, nn.ConvTranspose2d, nn.AvgPool2d, nn.Conv1d, nn.ReLU6, nn.GRU, nn.LSTM),
    *(conv_bn.NormalizeConvBN1d, conv_bn.NormalizeConvBN2d, conv_bn.NormalizeConvTransposeBN2d),
    *(conv_bn.NormalizeConv2d, conv_bn.NormalizeConv1d, conv_bn.NormalizeConvTranspose2d, conv_bn.NormalizeLinear),
    *(NormalizeFastLSTM, NormalizeFastGRU),
)
"""What `init` of linger 1.x quantized; here, without `quant_modules`, every type that linger has an op for but embeddings."""

SupportQuantTorchModules = (
    *DefaultQuantIntXOP,
    *(conv_bn.NormalizeBatchNorm2d, conv_bn.NormalizeLayerNorm, conv_bn.NormalizeEmbedding),
    *(nn.Embedding, nn.LayerNorm, nn.Upsample),
)
"""What could be named to `init` of linger 1.x; here Upsample, which it could not replace, works too."""

SupportQuantedIntModules = (
    *(BatchNormInt, LinearInt, Conv2dInt, ConvTranspose2dInt, AvgPool2dInt, Conv1dInt, ReLU6Int, GRUInt, LSTMInt),
    *(EmbeddingInt, LayerNormInt, BmmInt),
)
"""The classes of quantized layers, for `isinstance`."""

DefaultNormalizeIntXModule = DEFAULT_TYPES
"""What `normalize_layers` limits."""

SupportNormalizeTorchModules = (*DEFAULT_TYPES, nn.Embedding, nn.LayerNorm)
"""What can be named to `normalize_layers`."""


_Function = TypeVar("_Function", bound=Callable[..., Any])

_MOST = 65536
"""Numbers that a calibrator is shown."""


def register_calibrate_method(name: str) -> Callable[[_Function], _Function]:
    """Register a calibrator under a name, for `linger.calibration(name)`.

    A calibrator of linger 3.x is `f(quantizer, tensor, bits)`, which sets `quantizer.learning_data` to the base-2 logarithm of
    the range; here it may also return the range. It runs once a range, when calibration ends: the tensor holds up to 65536
    numbers that stand for all that were counted, the largest magnitude exactly. A function `f(bins, bits)` is a
    method of linger's own, see `linger.calibration_method`.

    >>> import linger
    >>> @linger.register_calibrate_method("nearly_all")
    ... def nearly_all(quantizer, tensor, bits):
    ...     quantizer.learning_data = tensor.abs().quantile(0.99).log2()

    Raises:
        UsageError: The name is empty or has a colon, or is one of linger's own.
    """
    register = calibration_method(name)

    def decorate(function: _Function) -> _Function:
        def method(bins: Bins, bits: int) -> float:
            quantizer = SimpleNamespace(learning_data=torch.tensor(math.nan), is_calibrate=torch.tensor(data=False))
            returned = function(quantizer, _numbers(bins), bits)
            reach = 2.0 ** float(quantizer.learning_data) if returned is None else float(returned)
            refuse_if(
                not math.isfinite(reach),
                f"register_calibrate_method: {name!r} found the range {reach}. Set quantizer.learning_data to the base-2 "
                "logarithm of the range, or return the range.",
            )
            return reach

        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        register(method if len(needed) == 3 else function)
        return function

    return decorate


def _numbers(bins: Bins) -> Tensor:
    """Numbers that stand for those of the bins: of each bin its end away from zero, as often as it was counted."""
    ends = np.where(np.abs(bins.low) > np.abs(bins.high), bins.low, bins.high)
    share = min(1.0, _MOST / max(float(bins.counts.sum()), 1.0))
    often = np.maximum(np.round(bins.counts * share), 1.0).astype(np.int64)
    return torch.from_numpy(np.repeat(ends, np.where(bins.counts > 0, often, 0)).astype(np.float32))
