# SPDX-License-Identifier: Apache-2.0
"""Comparisons of quantized tensors and what is done with masks: masked_fill, where, x * mask, x + (0 or −∞).

A comparison compares integers and gives ordinary booleans. A masked score becomes the lowest integer of 16 bits at a
scale of at most 2⁹: −64 or less, where the device's softmax saturates, so that its probability is exactly 0 while the
largest score of its row is above −48.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_exporting

from linger.dialect import Refusal, find_op
from linger.numeric.fixed import limits, round_half_up
from linger.numeric.torch.kernel import carrier, integer_type
from linger.numeric.torch.quantize import Scale, fake_quantize, smallest
from linger.quantization.core.qtensor import QTensor, is_quantized, runtime_among, signed
from linger.quantization.core.runtime import OpCall, Runtime, TorchFunction
from linger.quantization.functions.constants import Kind, kind_of, quantize_floats
from linger.quantization.functions.functional import as_operand
from linger.quantization.functions.functional_layer import FunctionalLayer, begin_function, output_bits
from linger.quantization.functions.rewrites import Handler

MASKED = -64.0
"""A summand of this or less means that a score does not count; the device's softmax saturates here."""

_MASK_BITS = 16
_MAX_SHIFT = 30
_PARAMETERS = (Kind.LEARNED, Kind.FROZEN)


# comparisons
_KINDS = {
    "gt": ("gt", "greater", "__gt__"),
    "ge": ("ge", "greater_equal", "__ge__"),
    "lt": ("lt", "less", "__lt__"),
    "le": ("le", "less_equal", "__le__"),
    "eq": ("eq", "__eq__"),
    "ne": ("ne", "not_equal", "__ne__"),
}
_MIRRORED = {"gt": "lt", "ge": "le", "lt": "gt", "le": "ge", "eq": "eq", "ne": "ne"}


def _both(*names: str) -> list[TorchFunction]:
    """Functions and methods of these names, as far as torch has them."""
    return [getattr(place, name) for name in names for place in (torch, Tensor) if hasattr(place, name)]


COMPARISONS = {function: kind for kind, names in _KINDS.items() for function in _both(*names)}


def _compare(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    del call
    if len(args) + len(kwargs) != 2 or "out" in kwargs:
        return NotImplemented
    first, second = (*args, *kwargs.values())
    kind = COMPARISONS[func]
    if not is_quantized(first):
        first, second, kind = second, first, _MIRRORED[kind]
    if isinstance(second, (int, float)) and not isinstance(second, bool) and not math.isnan(second):
        return _with_number(kind, first, float(second))
    if is_quantized(second):
        return _with_tensor(kind, first, second)
    return NotImplemented


def _with_number(kind: str, x: QTensor, value: float) -> Tensor:
    compare = getattr(torch, kind)
    if not x.is_integer:
        return cast(Tensor, compare(x.content, value))
    # torch compares with the number in float32
    steps = Fraction(float(np.float32(value))) * Fraction(x.scale) if math.isfinite(value) else None
    beyond = 1 << x.bits
    if steps is None:
        threshold = beyond if value > 0 else -beyond
    elif kind in ("gt", "le"):
        threshold = math.floor(steps)  # q > s is q > ⌊s⌋
    elif kind in ("ge", "lt"):
        threshold = math.ceil(steps)
    else:
        threshold = int(steps) if steps.denominator == 1 else beyond  # no integer equals a number with a fraction
    integers = x.content.to(torch.int64 if x.bits > _MASK_BITS else torch.int32)
    return cast(Tensor, compare(integers, max(-beyond, min(beyond, threshold))))


def _with_tensor(kind: str, x: QTensor, y: QTensor) -> object:
    compare = getattr(torch, kind)
    if not x.is_integer:
        return compare(x.dequantize().to(y.content.dtype), y.content)
    if not y.is_integer:
        return NotImplemented
    finer = max(x.scale, y.scale)
    shifts = [int(math.log2(finer / q.scale)) for q in (x, y)]
    if max(shifts) > _MAX_SHIFT:
        return NotImplemented
    wide = [q.content.to(torch.int64) for q in (x, y)]
    return compare(*(integers * 2**n if n else integers for integers, n in zip(wide, shifts, strict=True)))


# choices
def select(call: OpCall, x: QTensor, y: QTensor, mask: Tensor, scale: Scale, bits: int) -> QTensor:
    """x where the mask is set, y elsewhere, at one scale and width: one iqWhere."""
    attributes: dict[str, Any] = {"scale_x": x.scale, "scale_y": y.scale, "scale_o": scale}
    if bits != 8:
        attributes["o_bits"] = bits
    call.note()
    if call.is_written:
        return QTensor(call.emit([x.content, y.content, mask], attributes), scale, bits, call.runtime)
    is_real = call.now.is_real
    left, right = (q.content.to(carrier(bits)) if is_real else _at(q, scale, bits) for q in (x, y))
    result = QTensor(torch.where(mask, left, right), scale, bits, call.runtime)
    if not call.now.is_exporting:
        call.record(result, (x, y, mask), attributes)
    return result


def _at(q: QTensor, scale: Scale, bits: int) -> Tensor:
    """The values of a tensor at a scale and width; unchanged where both hold them."""
    values = q.content.to(carrier(bits))
    is_known = not isinstance(scale, Tensor) and not isinstance(q.scale, Tensor)
    if is_known and scale >= q.scale and limits(bits)[1] / scale >= limits(q.bits)[1] / q.scale:
        return values
    return fake_quantize(values, scale, bits)


def fill(x: QTensor, mask: Tensor, value: float) -> QTensor | Refusal:
    """x with `value` where the mask is set, as torch.masked_fill.

    A value that x's format does not hold widens it to 16 bits; −64 and less, down to −∞, may become the lowest integer.
    """
    x = signed(x)
    if isinstance(x.scale, Tensor) and value in (0.0, -math.inf):
        return _fill_there(x, mask, value)
    runtime, scale, bits = x.runtime, x.scale_on_host, x.bits
    integer = _integer_of(value, scale, bits)
    if integer is None:
        bits = max(bits, _MASK_BITS)
        if value <= MASKED:
            scale = min(scale, limits(bits)[0] / MASKED)
        integer = _integer_of(value, scale, bits)
    if integer is None:
        if value > MASKED:
            return Refusal(f"{value} is beyond what 16 bits hold at this tensor's scale; use a value in its range")
        integer = limits(bits)[0]
    if runtime.emitter is not None:
        content = torch.tensor(integer, dtype=integer_type(bits), device=x.content.device)
    elif runtime.now.is_real:
        content = _real_value(value, x.content).to(carrier(bits))
    else:
        content = torch.tensor(integer / scale, dtype=carrier(bits), device=x.content.device)
    return _filled(x, mask, QTensor(content, scale, bits, runtime), is_negative=integer < 0)


def _fill_there(x: QTensor, mask: Tensor, value: float) -> QTensor:
    """`fill` where the scale is on a device, with the two values whose width and integer do not depend on it."""
    runtime, scale, bits = x.runtime, x.scale, x.bits
    if value == 0.0:
        content = torch.zeros((), dtype=carrier(bits), device=x.content.device)
    else:
        bits = max(bits, _MASK_BITS)
        scale = smallest([scale, limits(bits)[0] / MASKED])
        is_real = runtime.now.is_real
        content = (_real_value(value, x.content) if is_real else limits(bits)[0] / scale).to(carrier(bits))
    return _filled(x, mask, QTensor(content, scale, bits, runtime), is_negative=value != 0.0)


def _real_value(value: float, x: Tensor) -> Tensor:
    """The value in a pass in real numbers; one that masks, down to −∞, is 64 below every other number, or −64.

    So it stays a number whose range can be observed, and its softmax is 0 in float32.
    """
    if value > MASKED:
        return torch.tensor(value, device=x.device)
    lowest = x.detach().amin() + MASKED if x.numel() else x.new_tensor(MASKED)
    return lowest.clamp(min=value, max=MASKED)


def _filled(x: QTensor, mask: Tensor, value: QTensor, *, is_negative: bool) -> QTensor:
    """x with one number, of the scale and width of the result, where the mask is set."""
    runtime = x.runtime
    result = select(runtime.begin(find_op("iqWhere"), runtime.path), value, x, mask, value.scale, value.bits)
    result.own_bits = x.own_bits
    result.is_nonnegative = x.is_nonnegative and not is_negative
    return result


def _integer_of(value: float, scale: float, bits: int) -> int | None:
    """The nearest integer, if it has this width."""
    if not math.isfinite(value):
        return None
    low, high = limits(bits)
    nearest = round_half_up(Fraction(value) * Fraction(scale))
    return nearest if low <= nearest <= high else None


def _number(value: object, runtime: Runtime) -> float | None:
    """The operand as a number; None for +∞, NaN, tensors that learn, and parameters that may learn."""
    if isinstance(value, Tensor):
        number = _fixed_number(value, runtime)
    else:
        is_plain = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        number = float(value) if isinstance(value, (int, float)) and is_plain else None
    return None if number == math.inf else number


def _fixed_number(value: Tensor, runtime: Runtime) -> float | None:
    if isinstance(value, QTensor) or value.dim() or is_exporting() or value.requires_grad:
        return None
    return None if kind_of(value, runtime) in _PARAMETERS else float(value)


def _masked_fill(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    del call
    names = ("input", "mask", "value")
    arguments = dict(zip(names, args, strict=False)) | kwargs
    x, mask, value = map(arguments.get, names)
    if not is_quantized(x) or not isinstance(mask, Tensor) or x.runtime.frame is None:
        return NotImplemented
    number = _number(value, x.runtime)
    learned = as_operand(value, x.runtime) if kind_of(value, x.runtime) in _PARAMETERS else None
    if mask.dtype != torch.bool or (learned is None and number is None):
        return Refusal("its value is no number, or its mask no tensor of booleans")
    if learned is not None:
        result: QTensor | Refusal = _choose(learned, x, mask, x.runtime)
    else:
        result = fill(x, mask, cast(float, number))
    return x.overwrite(result) if func.__name__.endswith("_") and isinstance(result, QTensor) else result


def _where(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
    del call
    names = ("input", "condition", "other") if func is Tensor.where else ("condition", "input", "other")
    given = dict(zip(names, args, strict=False)) | kwargs
    mask, x, y = given.get("condition"), given.get("input"), given.get("other")
    if not isinstance(mask, Tensor) or isinstance(mask, QTensor) or mask.dtype != torch.bool or x is None:
        return NotImplemented
    runtime = runtime_among((x, y))
    return Refusal("outside the model") if runtime.frame is None else _chosen(x, y, mask, runtime)


def _chosen(x: object, y: object, mask: Tensor, runtime: Runtime) -> QTensor | Refusal:
    """x where the mask is set, y elsewhere; where one of them is a number, the other keeps its format if it can."""
    for tensor, other in ((x, y), (y, x)):
        number = _number(other, runtime)
        if is_quantized(tensor) and number is not None:
            return fill(tensor, ~mask if tensor is x else mask, number)
    left, right = as_operand(x, runtime), as_operand(y, runtime)
    if left is not None and right is not None:
        return _choose(left, right, mask, runtime)
    quantized = quantize_floats(find_op("iqWhere"), (x, y), (left, right), runtime)
    if isinstance(quantized, Refusal):
        return quantized
    (left, right), layer = quantized
    return _choose(left, right, mask, runtime, layer)


def _choose(x: QTensor, y: QTensor, mask: Tensor, runtime: Runtime, own: FunctionalLayer | None = None) -> QTensor:
    """Two quantized tensors: the result has a range of its own."""
    x, y = signed(x), signed(y)
    call, layer = begin_function(find_op("iqWhere"), runtime, mask.device, own)
    bits = output_bits(call.op, layer, runtime, max(x.bits, y.bits))
    if call.is_learning:
        layer.ranges["o"].observe(torch.where(mask, x.content, y.content), call.name, call.now)
    scale = layer.ranges["o"].scale_in(call, bits, at_most=smallest([x.scale, y.scale]))
    return select(call, x, y, mask, scale, bits)


# masks as operands
def fact(runtime: Runtime, find: Callable[[], bool]) -> bool:
    """A fact about a tensor's values. A trace, which must not read values, gets what the pass before it found."""
    name = runtime.unique_name(runtime.path, "fact")
    if not runtime.now.is_traced:
        runtime.last_pass[name] = find()
    return bool(runtime.recall(name))


def masks_scores(mask: Tensor, *, is_surely: bool) -> bool:
    """Whether a summand of scores is a mask: every number is 0, or −64 and less.

    `is_surely`: all zeros count as a mask too; else such a tensor may be an ordinary summand.
    """
    is_masked = mask <= MASKED
    is_mask = (is_masked | (mask == 0)).all()
    return bool(is_mask if is_surely else is_mask & is_masked.any())


def _with_mask(find: Callable[[Tensor, Runtime], Tensor | None], value: float) -> Handler:
    """The handler of a function of two tensors, one quantized: `find` says where the other masks, which writes `value` there."""

    def handle(func: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any], call: TorchFunction) -> object:
        del call
        operands = (*args, *(kwargs[name] for name in ("input", "other") if name in kwargs))
        if len(operands) != 2 or set(kwargs) - {"input", "other"}:
            return NotImplemented
        x, other = operands if is_quantized(operands[0]) else reversed(operands)
        if (
            not is_quantized(x)
            or not isinstance(other, Tensor)
            or isinstance(other, QTensor)
            or x.runtime.frame is None
        ):
            return NotImplemented
        mask = find(other, x.runtime)
        if mask is None:
            return NotImplemented
        result, name = fill(x, mask, value), func.__name__
        is_in_place = name in ("__iadd__", "__imul__") or (name.endswith("_") and "__" not in name)
        return args[0].overwrite(result) if is_in_place and isinstance(result, QTensor) else result

    return handle


def _zeros_of(factor: Tensor, runtime: Runtime) -> Tensor | None:
    """Where a factor of booleans, or a buffer of zeros and ones, is 0. A parameter is a factor, whatever its present values."""
    if factor.dtype == torch.bool:
        return ~factor
    is_buffer = kind_of(factor, runtime) is Kind.BUFFER
    is_mask = is_buffer and fact(runtime, lambda: bool(((factor == 0) | (factor == 1)).all()))
    return factor == 0 if is_mask else None


def _masked_by(summand: Tensor, runtime: Runtime) -> Tensor | None:
    """Where a mask of 0 and −∞ masks. What learns is a summand, and so is a parameter that masks nothing: it may learn later."""
    if not summand.is_floating_point() or summand.requires_grad:
        return None
    kind = kind_of(summand, runtime)
    is_surely = kind is Kind.BUFFER
    is_mask = kind is not Kind.LEARNED and fact(runtime, lambda: masks_scores(summand, is_surely=is_surely))
    return summand <= MASKED if is_mask else None


MASKS: dict[TorchFunction, Handler] = {
    **dict.fromkeys(COMPARISONS, _compare),
    **dict.fromkeys(_both("masked_fill", "masked_fill_"), _masked_fill),
    **dict.fromkeys(_both("where"), _where),
    **dict.fromkeys(
        _both("mul", "multiply", "mul_", "multiply_", "__mul__", "__rmul__", "__imul__"), _with_mask(_zeros_of, 0.0)
    ),
    **dict.fromkeys(_both("add", "add_", "__add__", "__radd__", "__iadd__"), _with_mask(_masked_by, -math.inf)),
}
