# SPDX-License-Identifier: Apache-2.0
"""Norms over their own input: the device's integers, also in training, with the gradient of the real function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from linger.dialect import Binding, Op, Refusal
from linger.errors import UsageError
from linger.numeric.curves import FRACTION, is_exact
from linger.numeric.torch.kernel import TorchKernel
from linger.numeric.torch.quantize import Scale, round_weight, weight_scale
from linger.ops.fast.fast_path import RealFastPath
from linger.quantization.core.qtensor import QTensor, signed, to_carrier
from linger.quantization.core.quantized import Frozen, QuantizedBase, kept, make_frozen
from linger.quantization.core.runtime import OpCall
from linger.quantization.functions.functional_layer import begin_function, output_bits

SCALE = 2.0**FRACTION
"""Scale of the normalized numbers, which the weight multiplies."""

PARAMETER_BITS = 16
"""Width of a norm's weight."""


def flat_affine(weight: Tensor | None, bias: Tensor | None, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Weight and bias of a norm as vectors of `count` numbers; ones and zeros where there are none."""
    w = torch.ones(count, device=device) if weight is None else weight.reshape(-1)
    return w, torch.zeros_like(w) if bias is None else bias.reshape(-1)


FLOAT_LAYERS = (nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
"""Layers that call these functions themselves; one that was not replaced is meant to stay float."""


def run_norm(
    call: OpCall,
    q: QTensor,
    frozen: Frozen,
    settings: Mapping[str, Any],
    layer: QuantizedBase,
    bits: int,
    *,
    is_relu: bool = False,
) -> QTensor:
    """One norm: observed, simulated or written, as the pass demands. `layer` holds the output's range.

    Raises:
        UsageError: The sums over so many numbers of this width would not be exact.
    """
    op, range_ = call.op, layer.ranges["o"]
    scale_x = q.scale if range_.observes(call.now) else q.scale_on_host
    _refuse_long_lines(q, frozen, settings, call)
    real, at_most = _real_result(call, q, frozen, settings), cast(Any, op.limit)([scale_x, frozen.scale_w])
    if real is not None and call.now.is_real:
        call.note()
        return range_.observe_output(call, real, bits, at_most=at_most, is_relu=is_relu)
    if call.is_learning and real is not None:
        range_.observe(real, call.name, call.now, is_relu=is_relu)
    scale_o = range_.scale_at(bits, call.name, call.now, at_most=at_most)
    widths = {"data_bits": q.bits, "parameter_bits": PARAMETER_BITS, "o_bits": bits}
    scales = {"scale_x": q.scale, "scale_w": frozen.scale_w, "scale_o": scale_o}
    attributes = {**settings, **widths, **scales}
    call.note()
    integers = [frozen.weight_integers, frozen.bias_integers]
    if call.is_written:
        return QTensor(call.emit([q.content, *integers], attributes), scale_o, bits, call.runtime)
    with torch.no_grad():
        kernel = TorchKernel(device=q.content.device)
        exact = op.body(kernel, q.content * q.scale, *integers, **op.complete(attributes)) / scale_o
    values = to_carrier(exact, bits)
    if real is not None:
        if real.requires_grad:
            values = values + to_carrier(real - real.detach(), bits)  # the difference is exactly zero
        values = range_.learn(values, real, scale_o, bits, call.now)
    result = QTensor(values, scale_o, bits, call.runtime)
    if call.is_learning:
        result.origins = range_.origins(call)
    call.record(result, (q, frozen), attributes)
    return result


def _real_result(call: OpCall, q: QTensor, frozen: Frozen, settings: Mapping[str, Any]) -> Tensor | None:
    """The real function at the same operands, where a range or a gradient needs it."""
    parameters = [frozen.weight, cast(Tensor, frozen.bias).to(frozen.weight.dtype)]
    has_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (q.content, *parameters))
    if not call.is_learning and not call.now.is_real and (call.now.is_traced or not has_gradient):
        return None
    contents = [q.content.to(parameters[0].dtype), *parameters]
    return RealFastPath(call.op).real_result(contents, settings=settings)


def call_norm(
    op: Op, binding: Binding, args: Sequence[Any], kwargs: Mapping[str, Any], settings: Mapping[str, Any]
) -> QTensor | Refusal:
    """A norm that is a function call, or why it stays float; its weight and bias are float tensors of the model."""
    given = inspect.signature(binding).bind(*args, **kwargs).arguments
    x, shape = given["x"], given.get("normalized_shape")
    count = int(x.shape[1]) if shape is None else math.prod(shape)
    parameters = (given.get("weight"), given.get("bias"))
    if not isinstance(x, QTensor) or x.scale is None:
        return Refusal("its input is a float tensor; quantize it with linger.quant_tensor")
    if any(isinstance(parameter, QTensor) for parameter in parameters):
        text = "its weight or bias is a quantized tensor; only parameters of the model have an integer form here"
        return Refusal(text)
    if x.runtime.frame is not None and isinstance(x.runtime.frame.module, FLOAT_LAYERS):
        return Refusal("its layer stays float")
    length = _line_length(x, count, settings)
    if not is_exact(length, x.bits):
        return Refusal(_not_exact(length, x.bits))
    return _call(op, x, settings, partial(flat_affine, *parameters, count, x.content.device))


def _call(op: Op, x: QTensor, settings: Mapping[str, Any], parameters: Callable[[], tuple[Tensor, Tensor]]) -> QTensor:
    runtime, x = x.runtime, signed(x)
    call, layer = begin_function(op, runtime, x.content.device)
    bits = output_bits(op, layer, runtime, x.bits)
    if not call.now.is_traced:  # a trace has the integers of the pass before it alone
        weight, bias = parameters()
        stays_there = layer.ranges["o"].observes(call.now)
        with kept():
            runtime.last_pass[call.name] = freeze(weight, bias, call.name, stays_there=stays_there)
        if call.now.is_real:
            frozen = replace(runtime.last_pass[call.name], weight=weight, bias=bias)
            return run_norm(call, x, frozen, settings, layer, bits)
        if torch.is_grad_enabled() and (weight.requires_grad or bias.requires_grad):
            frozen = freeze(weight, bias, call.name, stays_there=stays_there)
            return run_norm(call, x, frozen, settings, layer, bits)
    return run_norm(call, x, runtime.recall(call.name), settings, layer, bits)


def freeze(weight: Tensor, bias: Tensor, where: str, *, stays_there: bool) -> Frozen:
    """A norm's parameters as integers; the weight's scale is lowered where the bias would not fit."""

    def choose_scale(largest: Scale) -> Scale:
        return weight_scale(largest, PARAMETER_BITS, bias, SCALE, where)

    integers, scale_w = round_weight(weight, None, choose_scale, stays_there=stays_there)
    return make_frozen(integers, bias, SCALE, scale_w, PARAMETER_BITS)


def _line_length(q: QTensor, count: int, settings: Mapping[str, Any]) -> int:
    groups = settings.get("groups")
    return count if groups is None else math.prod(q.content.shape[1:]) // groups


def _refuse_long_lines(q: QTensor, frozen: Frozen, settings: Mapping[str, Any], call: OpCall) -> None:
    count = 1 if call.now.is_exporting else _line_length(q, frozen.weight_integers.numel(), settings)
    if not is_exact(count, q.bits):
        raise UsageError(f"{call.name}: {_not_exact(count, q.bits)}.")


def _not_exact(count: int, bits: int) -> str:
    sums = f"the sums over {count} numbers of {bits} bits would not be exact"
    return f"{sums}; use 8 bits here, or normalize fewer numbers"
