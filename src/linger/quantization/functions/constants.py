# SPDX-License-Identifier: Apache-2.0
"""What is no quantized tensor as an operand of an integer op.

Numbers, parameters and buffers (x + 0.5, x + self.position, x * self.gamma, cat with a class token) are constants of 8 bits
at the finest scale that holds them, and learn through their rounding. Only tensors that share memory with the model's state
count. Any other float tensor (an input of the model, the result of a float function) is quantized with a range of its own. The
slopes of F.prelu are integers of 16 bits at a scale of their own.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from typing import cast

import torch
from torch import Tensor, nn

from linger.dialect import Op, Refusal
from linger.errors import UsageError
from linger.numeric.fixed import limits, round_half_up, scale_for
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import (
    ZEROS,
    Scale,
    fake_quantize,
    largest_magnitude,
    max_abs,
    round_weight,
    scale_for_range,
)
from linger.quantization.core.distributed.fsdp import is_sharded
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import kept
from linger.quantization.core.runtime import Frame, Runtime
from linger.quantization.functions.functional_layer import FLOAT_OPERAND, KEY_PREFIX, FunctionalLayer, functional_layer

CONSTANT_BITS = 8
PARAMETER_BITS = 16

_SHARDS = -1
"""Stands, among addresses of memory, for whether parameters were sharded when these were looked up."""


class Kind(Enum):
    """What a tensor of the model's state is for."""

    BUFFER = "buffer"
    FROZEN = "frozen parameter"
    LEARNED = "learned parameter"


def kind_of(value: object, runtime: Runtime) -> Kind | None:
    """The kind of a tensor that is a parameter or buffer of the running model, or a view of one; None for any other.

    Whether it learns is read from the parameter: where gradients are off, its views require none.
    """
    if not isinstance(value, Tensor) or isinstance(value, QTensor) or not value.is_floating_point():
        return None
    if not runtime.frames:
        return None
    known = runtime.current.state_memory
    if known is None:
        root = runtime.frames[0].module
        known = runtime.current.state_memory = {**_kinds_in(root), _SHARDS: any(map(is_sharded, root.parameters()))}
    kind: Kind | None = known.get(_memory(value))
    if kind is None and known[_SHARDS]:  # the module at work has its parameters in memory since then
        kind = _kinds_in(runtime.frames[-1].module).get(_memory(value))
    return kind


def _kinds_in(module: nn.Module) -> dict[int, Kind]:
    """The kind of every parameter and buffer by its memory."""
    parameters = {_memory(p): Kind.LEARNED if p.requires_grad else Kind.FROZEN for p in module.parameters()}
    return dict.fromkeys(map(_memory, module.buffers()), Kind.BUFFER) | parameters


def is_state(value: object, runtime: Runtime) -> bool:
    """Whether a tensor is a parameter or a buffer of the running model, or a view of one."""
    return kind_of(value, runtime) is not None


def is_fixed(value: object, runtime: Runtime) -> bool:
    """Whether a tensor is part of the model's state, or was computed from nothing else in this watched pass."""
    known = runtime.current.derived.get(id(value))
    return is_state(value, runtime) or (known is not None and known() is value)


def note_derived(arguments: Sequence[Tensor], results: Sequence[Tensor], runtime: Runtime) -> bool:
    """Remember what is computed from the model's state alone; returns whether it is."""
    if not arguments or not all(is_fixed(t, runtime) for t in arguments):
        return False
    runtime.current.derived.update({id(t): weakref.ref(t) for t in results})
    return True


def number_constant(value: float, runtime: Runtime) -> QTensor:
    """The number at the finest scale that holds it; constants cannot saturate."""
    scale = scale_for(abs(value), CONSTANT_BITS)
    low, high = limits(CONSTANT_BITS)
    integer = min(max(round_half_up(Fraction(value) * Fraction(scale)), low), high)
    if runtime.emitter is not None:
        content = torch.tensor(integer, dtype=integer_type(CONSTANT_BITS))
    else:
        content = torch.tensor(integer / scale, dtype=torch.float32)
    return QTensor(content, scale, CONSTANT_BITS, runtime, is_nonnegative=value >= 0)


def as_constant(value: Tensor, runtime: Runtime, *, is_negated: bool = False) -> QTensor | None:
    """A parameter or buffer, or minus it, as a constant operand; None for others, and where the module stays float."""
    frame = runtime.frame
    if frame is None or _stays_float(frame, runtime) or not is_state(value, runtime):
        return None
    name = runtime.unique_name(frame.path, "constant")
    now = runtime.now
    if now.is_traced:
        content, scale = _recalled(name, runtime)
        return QTensor(_expanded(content, value), scale, CONSTANT_BITS, runtime)
    base = _unexpanded(value, is_negated=is_negated)
    stays_there = frame.module.training or now.calibration is not None
    largest = largest_magnitude(base) if stays_there else max_abs(base)
    if not isinstance(largest, Tensor) and not math.isfinite(largest):
        return None
    scale = scale_for_range(largest, CONSTANT_BITS)
    rounded = fake_quantize(base.float(), scale, CONSTANT_BITS, can_saturate=False)
    with kept():
        runtime.last_pass[name] = (scale, (rounded.detach() * scale).to(integer_type(CONSTANT_BITS)))
    rounded = base.float() if now.is_real else rounded
    result = QTensor(_expanded(rounded, value), scale, CONSTANT_BITS, runtime)
    result.is_constant = True
    return result


# float tensors that meet integers
def quantize_floats(
    op: Op, given: Sequence[object], operands: Sequence[QTensor | None], runtime: Runtime
) -> tuple[list[QTensor], FunctionalLayer] | Refusal:
    """The operands of an op, with the float tensors among them quantized, and the layer that holds the range of its result.

    These calls are numbered by themselves: a summand that is a mask in another pass is none there, and other functions keep
    their numbers. A pass that changes ranges makes what is missing; where one that does not finds no range, the op stays float.
    """
    frame, reals = runtime.frame, {p: unwrap(given[p]) for p, operand in enumerate(operands) if operand is None}
    wrong = [given[place] for place, value in reals.items() if not is_parameter(value)]
    if wrong:
        kind = wrong[0].dtype if isinstance(wrong[0], Tensor) else type(wrong[0]).__name__
        return Refusal(f"an operand is of type {kind}; only float tensors are quantized by themselves")
    if frame is None or _stays_float(frame, runtime):
        return Refusal("this layer stays float, as init was asked")
    number = frame.next_index(FLOAT_OPERAND)
    keys, result_key = {p: f"{FLOAT_OPERAND}{number}_{p}" for p in reals}, f"{op.state_name}_float{number}"
    reason = _why_float(op, reals, operands, frame, {result_key, *keys.values()}, runtime)
    if reason:
        return Refusal(reason)
    quantized = list(operands)
    for place, real in reals.items():
        quantized[place] = _quantized(real, keys[place], op.name, runtime)
    layer = functional_layer(frame, result_key, runtime.path, reals[min(reals)].device, runtime)
    return cast("list[QTensor]", quantized), layer


def _stays_float(frame: Frame, runtime: Runtime) -> bool:
    return runtime.products is not None and frame.path in runtime.products.float_paths


def _quantized(real: Tensor, key: str, reader: str, runtime: Runtime) -> QTensor:
    frame = runtime.frame
    assert frame is not None  # checked by the caller
    layer = functional_layer(frame, key, runtime.path, real.device, runtime)
    bits = CONSTANT_BITS if runtime.products is None else runtime.products.widths_in(frame.module).data
    range_ = layer.ranges["x"]
    if not real.numel() and range_.observes(runtime.now) and range_.running.read() == 0.0:
        range_.running.write(ZEROS)  # nothing was in it: as if it had been zeros
    reason = f"{reader} reads a float tensor, which is quantized with a range of its own"
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - interceptors of the model's functions see none here
        return range_.quantize(real, bits, runtime, frame.path, reason=reason)


def _why_float(
    op: Op,
    reals: Mapping[int, Tensor],
    operands: Sequence[QTensor | None],
    frame: Frame,
    keys: Collection[str],
    runtime: Runtime,
) -> str:
    """Why float tensors that meet integers stay float; empty if they do not."""
    now = runtime.now
    if now.is_traced or not (frame.module.training or now.calibration is not None):
        known = frame.module._modules  # noqa: SLF001 - as functional_layer
        is_known = now.is_real or all(f"{KEY_PREFIX}{key}" in known for key in keys)
        return "" if is_known else "a float operand has no range; calibrate the model, and it is quantized"
    if runtime.keeps_float_operands and now.calibration is None:
        return "a checkpoint of an older linger has no range for its float operand; calibrate the model"
    return _what_is_lost(op, reals.values(), operands)


def _what_is_lost(op: Op, reals: Collection[Tensor], operands: Sequence[QTensor | None]) -> str:
    """Why float tensors cannot be quantized beside these operands; empty if they can. Those on a device are not read."""
    ends = [max_abs(real) for real in reals if real.is_cpu]
    if not all(map(math.isfinite, ends)):
        return "a float operand holds NaN or infinity"
    end = max(ends, default=0.0)
    known = [o for o in operands if o is not None and not isinstance(o.scale, Tensor)]
    reach = max([limits(o.bits)[1] / o.scale for o in known], default=math.inf)
    if op.limit in (min, max) and end > limits(CONSTANT_BITS)[1] * reach:
        return f"beside a float operand of {end:g} nothing is left of the other, which ends at ±{reach:g}"
    return ""


def _recalled(name: str, runtime: Runtime) -> tuple[Tensor, Scale]:
    """The integers (or real values) and scale that the pass before a trace kept: a trace must not record the rounding."""
    scale, integers = runtime.recall(name)
    return integers if runtime.emitter is not None else integers.float() * (1.0 / scale), scale


def _memory(t: Tensor) -> int:
    return int(t.untyped_storage()._cdata)  # noqa: SLF001 - a storage's identity


def _unexpanded(t: Tensor, *, is_negated: bool) -> Tensor:
    """The tensor, or minus it, without the repetitions of expand(), which a file must neither hold nor fix in number."""
    for axis, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        if stride == 0 and size > 1:
            t = t.narrow(axis, 0, 1)
    t = t.detach() if not torch.is_grad_enabled() else t
    return -t if is_negated else t


def _expanded(values: Tensor, like: Tensor) -> Tensor:
    return values if values.shape == like.shape else values.expand(like.shape)


# learned parameters of a function
def is_parameter(value: object) -> bool:
    """Whether an operand is an ordinary float tensor."""
    return isinstance(value, Tensor) and not isinstance(value, QTensor) and value.is_floating_point()


def quantize_parameter(value: Tensor, runtime: Runtime, name: str, *, stays_there: bool) -> QTensor:
    """The parameter of an op, rounded with straight-through gradient; `stays_there` as for `round_weight`.

    Raises:
        UsageError: The parameter holds NaN or infinity; or a trace comes before any pass.
    """
    if runtime.now.is_traced:
        content, scale = _recalled(name, runtime)
        return QTensor(content, scale, PARAMETER_BITS, runtime)

    def choose_scale(largest: Scale) -> Scale:
        if not isinstance(largest, Tensor) and not math.isfinite(largest):
            raise UsageError(f"{name}: the slopes hold NaN or infinity, so no scale can be chosen.")
        return scale_for_range(largest, PARAMETER_BITS)

    rounded, scale = round_weight(value.float(), None, choose_scale, stays_there=stays_there)
    with kept():
        runtime.last_pass[name] = (scale, rounded.detach().to(integer_type(PARAMETER_BITS)).clone())
    return QTensor(rounded * (1.0 / scale), scale, PARAMETER_BITS, runtime)
