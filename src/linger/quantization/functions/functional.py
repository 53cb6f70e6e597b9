# SPDX-License-Identifier: Apache-2.0
"""Ops on quantized tensors that no layer stands for: x + y, cat, relu, pooling, sigmoid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from linger.analysis.multiplications import products_of
from linger.dialect import Interval, Op, find_op
from linger.numeric.tables import Pieces
from linger.numeric.torch.gates import flat_ends
from linger.numeric.torch.kernel import integer_type
from linger.numeric.torch.quantize import Scale, fake_quantize, largest_of, limit_of, may_saturate
from linger.ops.fast.fast_path import ExactFastPath, RealFastPath, functional_fast_path
from linger.quantization.core.qtensor import (
    Operand,
    Origin,
    QTensor,
    Real,
    compute,
    signed,
    simulate,
    to_carrier,
    unwatched,
)
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.core.runtime import OpCall, Pass, Runtime
from linger.quantization.core.stored import EVERYTHING
from linger.quantization.functions.chip_forms import AVERAGE, is_saturation, pooled_twice, saturate
from linger.quantization.functions.constants import as_constant, number_constant, quantize_parameter
from linger.quantization.functions.functional_layer import (
    SUBTRACTION,
    FunctionalLayer,
    begin_function,
    is_unseen,
    judge_input,
    loss_of,
    output_bits,
    own_format,
)
from linger.targets import find_chip

RELU = "Relu"
_PRODUCT = "BmmInt"
_MATRIX_BITS = 16
_LAST = -1
_BYTE = 8


def as_operand(value: object, runtime: Runtime, *, is_negated: bool = False) -> QTensor | None:
    """A QTensor as it is; a Python number, a parameter or a buffer as a constant of 8 bits; None for anything else.

    `is_negated`: the constant is minus the value.
    """
    if isinstance(value, QTensor):
        return value if value.scale is not None else None
    if isinstance(value, Tensor):
        return as_constant(value, runtime, is_negated=is_negated)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return number_constant(-float(value) if is_negated else float(value), runtime)
    return None


def run_functional(
    op: Op,
    operands: Sequence[QTensor],
    settings: Mapping[str, Any],
    runtime: Runtime,
    *,
    layer: QuantizedBase | None = None,
    is_in_place: bool = False,
    parameter: Tensor | None = None,
    real: Real | None = None,
) -> QTensor:
    """Compute an op on quantized operands: observe, simulate or emit, as the pass demands.

    `layer` holds the output's range; without one, the current module's next functional layer does. `parameter` is the
    last operand where it is a float tensor that learns. `real` is what torch's own function gives, for a pass in real numbers.
    """
    op = op.for_platform(runtime.target)
    operands = _taken(op, operands) if runtime.is_unsigned else operands
    if runtime.target is not None and is_saturation(op, settings, runtime.target):
        return saturate(operands[0], settings["high"], runtime, real)
    if op.name == AVERAGE and find_chip(runtime.target) is not None:
        first, settings = pooled_twice(op, settings, operands[0], runtime)
        operands = [first]
    now = runtime.now
    how = (layer, is_in_place, parameter, real if now.is_real else None)
    is_used = any((op.picks, op.used_rule, _has_flat_ends(op, now)))
    if not (is_used and any(o.origins for o in operands)):
        return _run(op, operands, settings, runtime, *how)
    passed = _used_origins(op, operands, settings, now)
    with unwatched(operands):
        result = _run(op, operands, settings, runtime, *how)
    result.origins = passed if result is operands[0] else result.origins + passed
    return result


def _taken(op: Op, operands: Sequence[QTensor]) -> Sequence[QTensor]:
    """The operands as an op takes them: unsigned bytes become signed ones, unless a Requant widens them anyway."""
    is_widened = op.is_pointwise and op.input_bits not in (None, _BYTE)
    return operands if op.takes_unsigned or is_widened else [signed(o) for o in operands]


def _used_origins(op: Op, operands: Sequence[QTensor], settings: Mapping[str, Any], now: Pass) -> tuple[Origin, ...]:
    """The origins of a result that picks its operands' numbers; the operands of any other op are used here."""
    used = EVERYTHING  # the numbers of its operands that the op tells apart
    if _has_flat_ends(op, now):
        more = operands[0].runtime.is_unsigned and op.never_negative  # 0 … 255 end further out
        used = flat_ends(op.pieces, cast(float, op.output_scale) * 2.0**more, _default_bits(op) + more)
    elif op.used_rule is not None:
        ends = [tuple(torch.stack(torch.aminmax(o.content.detach())).tolist()) for o in operands if o.is_constant]
        used = op.used_rule(settings, cast("list[Interval]", ends))
    if op.picks and not settings.get("value"):  # a border of another number than zero must fit, too
        return tuple(origin.limited(*used) for o in operands for origin in o.origins)
    for operand in operands:
        operand.use(*(EVERYTHING if op.picks else used))
    return ()


def _has_flat_ends(op: Op, now: Pass) -> bool:
    """Whether the result of a curve does not change beyond two ends. Its gradient is not zero there, so training uses all."""
    return op.output_scale is not None and isinstance(op.pieces, Pieces) and now.calibration is not None


def _run(
    op: Op,
    operands: Sequence[QTensor],
    settings: Mapping[str, Any],
    runtime: Runtime,
    layer: QuantizedBase | None,
    is_in_place: bool,  # noqa: FBT001 - as `run_functional` has them
    parameter: Tensor | None,
    real: Real | None,
) -> QTensor:
    has_range = (op.limit, op.output_scale) != (None, None)
    if not has_range or (op.keeps_scale_unseen and is_unseen(op, runtime)):
        return _keep_scale(op, operands[0], settings, runtime, is_in_place=is_in_place, real=real)
    if settings.get(op.last_axis or "", _LAST) != _LAST:
        return _along_last_axis(op, operands[0], settings, runtime, layer, real)
    call, layer = begin_function(op, runtime, operands[0].stored.device, layer)
    operands = _in_format(call, operands, layer)
    # a reduction along an axis does not need the room that a mask made
    width = attrgetter("bits" if op.last_axis is None else "own_bits")
    bits = output_bits(op, layer, runtime, max(map(width, operands)))
    if parameter is not None:
        stays_there = any((layer.training, call.now.calibration is not None))
        operands = [*operands, quantize_parameter(parameter, runtime, call.name, stays_there=stays_there)]
    fast = None if call.is_written else functional_fast_path(op)
    output = _observe_output(call, operands, settings, layer, bits, fast, real)
    attributes = dict(settings) | _format_attributes(op, operands, output)
    if fast is None:
        formats = (output.scale, output.bits, output.given)
        result = compute(call, operands, attributes, *formats, is_unsigned=output.is_unsigned)
    else:
        result = _run_fast(call, fast, operands, attributes, layer, output)
    if output.seen is not None:
        result.origins = layer.ranges["o"].origins(call)
    return result


def _run_fast(
    call: OpCall,
    fast: ExactFastPath | RealFastPath,
    operands: Sequence[QTensor],
    attributes: Mapping[str, Any],
    layer: QuantizedBase,
    output: _Output,
) -> QTensor:
    """The op by its fast path; the gradient of a learned range needs the real values."""
    unrounded = None
    if output.real is not None and not output.is_real and layer.ranges["o"].learned is not None:
        # a copy where rounding may write over it
        unrounded = output.real if output.real.requires_grad else output.real.clone()
    values = _fast_values(call, fast, operands, {**_defaults(call.op), **attributes}, output)
    if unrounded is not None:
        how: Any = {"is_relu": output.is_unsigned}
        values = layer.ranges["o"].learn(values, unrounded, output.scale, output.room, call.now, **how)
    macs = 0
    if call.op.name == _PRODUCT and not call.now.is_exporting:  # in a trace the count would fix an open batch size
        macs = products_of(call.op.name, [values.shape, operands[0].content.shape]) or 0
    call.note(reason=loss_of(layer), macs=macs)
    result = QTensor(values, output.scale, output.bits, call.runtime, is_unsigned=output.is_unsigned)
    if call.runtime.is_recorded:
        call.record(result, operands, attributes)
    return result


class _Output(NamedTuple):
    """The format of a result; where it was observed, also its real values and their largest magnitude.

    `is_real`: these values are the result, without rounding.
    """

    scale: Scale
    bits: int
    real: Tensor | None = None
    seen: Scale | None = None
    is_real: bool = False
    is_unsigned: bool = False

    @property
    def room(self) -> int:
        """The width of signed integers that hold the result."""
        return self.bits + self.is_unsigned

    def limited(self, values: Tensor) -> Tensor:
        """Values of `room` bits as the format has them."""
        return values.clamp_min(0.0) if self.is_unsigned else values

    @property
    def given(self) -> Real | None:
        """The result of a pass in real numbers."""
        return None if self.real is None or not self.is_real else lambda: cast(Tensor, self.real)


def _observe_output(
    call: OpCall,
    operands: Sequence[QTensor],
    settings: Mapping[str, Any],
    layer: QuantizedBase,
    bits: int,
    fast: ExactFastPath | RealFastPath | None,
    given: Real | None,
) -> _Output:
    """The format that the device fixes, or that follows from the observed range and the operands' scales."""
    op, is_real = call.op, given is not None
    real = None if given is None else given()
    is_unsigned = call.runtime.is_unsigned and _is_unsigned(call, operands, layer, bits)
    if op.output_scale is not None:
        scale, bits = op.output_scale * 2.0**is_unsigned, _default_bits(op)
        if call.is_learning:  # a scale that was not observed stands in the checkpoint as that of the range ±1
            layer.ranges["o"].set(1.0, scale)
        return _Output(scale, bits, real, is_real=is_real, is_unsigned=is_unsigned)
    seen = None
    if call.is_learning:
        # without a fast path the op only moves its operands: the result's range is the widest of theirs
        real = _real_result(fast, operands, settings) if real is None and fast is not None else real
        values = torch.cat([o.content.detach().reshape(-1) for o in operands]) if real is None else _reached(op, real)
        seen = layer.ranges["o"].observe(values, call.name, call.now)
    return _Output(_output_scale(call, operands, layer, bits), bits, real, seen, is_real, is_unsigned)


def _is_unsigned(call: OpCall, operands: Sequence[QTensor], layer: QuantizedBase, bits: int) -> bool:
    """Whether the result is stored as 0 … 255."""
    is_positive = call.op.never_negative or (call.op.keeps_sign and all(o.is_nonnegative for o in operands))
    return layer.ranges["o"].users.are_unsigned(call, bits, never_negative=is_positive)


def _reached(op: Op, real: Tensor) -> Tensor:
    """A result as far as the device's can reach: that of GELU and SiLU is no larger than their input, which has an end."""
    return real if op.input_end is None or op.last_axis is not None else real.clamp(-op.input_end, op.input_end)


def _output_scale(call: OpCall, operands: Sequence[QTensor], layer: QuantizedBase, bits: int) -> Scale:
    """The scale of the layer's range, as far as the op's format allows it."""
    op, limit = call.op, call.op.limit
    # numbers unless this pass may leave them on a device
    range_ = layer.ranges["o"]
    scales = [o.scale for o in operands] if range_.observes(call.now) else [o.scale_on_host for o in operands]
    if op.finer_limit is not None and isinstance(layer, FunctionalLayer):
        if call.is_learning:
            layer.become_fine()
        limit = op.finer_limit if layer.is_fine else limit
    assert limit is not None  # an op has a limit or a fixed scale, else it keeps its scale
    scale = range_.scale_in(call, bits, at_most=limit_of(limit, scales))
    if op.keeps_scale_unseen:
        # numbers of fewer bits than its input has may need a scale that is coarser by as many
        layer.floor = largest_of(scales) * 2.0 ** min(0, bits - max(o.bits for o in operands))
        scale = largest_of([scale, layer.floor])
        range_.stored_scale.write(scale)
    return scale


def _in_format(call: OpCall, operands: Sequence[QTensor], layer: QuantizedBase) -> Sequence[QTensor]:
    """The operands in the device's range and width; where one exceeds its format, the largest of each row is subtracted first."""
    if call.op.input_end is not None:
        assert isinstance(layer, FunctionalLayer)  # ops with such a format are functions, not layers
        x = operands[0]
        judge_input(call, x, layer)
        if layer.subtracts_max:
            subtraction = call.runtime.begin(find_op(SUBTRACTION), call.path)
            operands = [compute(subtraction, [x], {"dim": _LAST, **own_format(x)}, x.scale, x.bits)]
            operands[0].own_bits = x.own_bits
    bits = call.op.input_bits
    if bits is None:
        return operands
    return [layer.ranges["x"].requantize(o, bits, call.runtime, call.path) for o in operands]


def _along_last_axis(
    op: Op, x: QTensor, settings: Mapping[str, Any], runtime: Runtime, layer: QuantizedBase | None, real: Real | None
) -> QTensor:
    """The op with its axis moved to the end and back."""
    assert op.last_axis is not None  # checked by the caller
    axis = settings[op.last_axis]
    is_last = axis == x.content.dim() - 1
    moved = x if is_last else x.like(x.content.transpose(axis, _LAST))
    turned = real if real is None or is_last else lambda: real().transpose(axis, _LAST)
    result = run_functional(op, [moved], {**settings, op.last_axis: _LAST}, runtime, layer=layer, real=turned)
    return result if is_last else result.like(result.content.transpose(axis, _LAST))


def _default_bits(op: Op) -> int:
    return next(int(a.default) for a in op.attributes if a.name == op.output_bits)


def _real_result(
    fast: ExactFastPath | RealFastPath, operands: Sequence[QTensor], settings: Mapping[str, Any]
) -> Tensor:
    """The op on real values: exact where its fast path is, else the function that the integers approximate."""
    contents = [o.content for o in operands]
    return fast.real_result(contents, [o.scale for o in operands], [o.bits + o.is_unsigned for o in operands], settings)


def _fast_values(
    call: OpCall,
    fast: ExactFastPath | RealFastPath,
    operands: Sequence[QTensor],
    attributes: Mapping[str, Any],
    output: _Output,
) -> Tensor:
    """The device's integers, also in training; their gradient is that of the real function at the same operands."""
    contents, bits, is_unsigned = [o.content for o in operands], output.bits, output.is_unsigned
    if output.is_real:
        return to_carrier(cast(Tensor, output.real), bits)
    room = bits + is_unsigned
    # else it takes them for narrower ones
    if isinstance(fast, ExactFastPath) and max([o.bits + o.is_unsigned for o in operands]) <= room:
        can_saturate = may_saturate(output.seen, output.scale, room)
        values = fast.evaluate(output.real, contents, {**attributes, "o_bits": room}, can_saturate=can_saturate)
        return output.limited(values) if is_unsigned else values
    exact = _exact_values(call, fast, operands, attributes, output)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in contents)):
        return exact
    real = _real_result(fast, operands, attributes) if output.real is None else output.real
    return exact + to_carrier(real - real.detach(), bits)  # the difference is exactly zero


def _exact_values(
    call: OpCall,
    fast: ExactFastPath | RealFastPath,
    operands: Sequence[QTensor],
    attributes: Mapping[str, Any],
    output: _Output,
) -> Tensor:
    """What the body gives: looked up in a table, if there is one and no trace would keep it; else computed."""
    with torch.no_grad():
        if isinstance(fast, RealFastPath) and not call.now.is_exporting:
            values = fast.exact_values([o.content for o in operands], {**attributes, "o_bits": output.room})
            if values is not None:
                return output.limited(values)
        return to_carrier(simulate(call.op, operands, attributes, output.scale, is_exact=True), output.bits)


def _format_attributes(op: Op, operands: Sequence[QTensor], output: _Output) -> dict[str, Any]:
    """Scales and widths, as far as the op has attributes for them."""
    names, usual_bits = _format_names(op, len(operands))
    attributes = {name: o.scale for name, o in zip(names, operands, strict=False)} | {"scale_o": output.scale}
    if "data_bits" in _defaults(op):
        attributes["data_bits"] = max([o.bits for o in operands])
    if output.is_unsigned:
        attributes["o_unsigned"] = 1
    return attributes if output.bits == usual_bits else attributes | {"o_bits": output.bits}


@cache
def _defaults(op: Op) -> dict[str, Any]:
    """Every attribute of an op with its default, None where it has none."""
    return {a.name: a.default for a in op.attributes}


@cache
def _format_names(op: Op, count: int) -> tuple[list[str], int | None]:
    """The scales of so many operands, and the width that needs no attribute; None: each is written."""
    names = [f"scale_x_{i}" for i in range(count)] if op.is_variadic else [f"scale_{name}" for name in op.inputs]
    is_required = any(a.name == "o_bits" and a.is_required for a in op.attributes)
    return names, None if is_required else _default_bits(op)


def _keep_scale(
    op: Op, x: QTensor, settings: Mapping[str, Any], runtime: Runtime, *, is_in_place: bool, real: Real | None
) -> QTensor:
    """Ops whose output has the scale and width of the input: Relu, MaxPool, Clip, AvgPool2dInt."""
    call, is_relu = runtime.begin(op, runtime.path), op.name == RELU
    if x.is_unsigned and settings.get("value", 0.0) < 0.0:  # a border that unsigned numbers do not hold
        x = signed(x)
    constants, attributes, is_positive = _constants(op, x, settings)
    if not op.is_scale_free and op.attributes:
        attributes |= own_format(x)
    if is_relu and is_in_place and not x.is_integer:
        result = _relu_in_place(call, x, attributes)
    else:
        result = compute(call, [x, *constants], attributes, x.scale, x.bits, real, is_unsigned=x.is_unsigned)
    result.is_nonnegative = (x.is_nonnegative or is_relu) and is_positive
    return result


def _constants(op: Op, x: QTensor, settings: Mapping[str, Any]) -> tuple[list[Operand], dict[str, Any], bool]:
    """Operands that an op makes of its settings, the settings that stay attributes, and whether no constant is negative.

    A border, or an upper limit, of a negative number brings back the sign.
    """
    if op.make_constants is None:
        return [], dict(settings), True
    if op.constants_need_scale and isinstance(x.scale, Tensor):  # thresholds, rounded where their scale is
        return [_end_there(settings[end], x) for end in ("low", "high")], {}, settings["high"] >= 0
    integers = _made_constants(op, x, settings)
    return [_integer_constant(i, x) for i in integers], {}, isinstance(integers[-1], tuple) or integers[-1] >= 0


def _relu_in_place(call: OpCall, x: QTensor, attributes: Mapping[str, Any]) -> QTensor:
    call.note()
    content = x.content
    before = [x.like(content.clone()) if call.runtime.observers else x]  # relu_ writes over its operand
    torch.relu_(content)
    x.accept_write()
    if not torch.is_grad_enabled() and not call.runtime.is_recorded:
        return x  # nothing has to know that it was another tensor
    result = x.like(x.content)
    call.record(result, before, attributes)
    return result


def constants_of(op: Op, settings: Mapping[str, Any], x: QTensor) -> Sequence[Any]:
    """The integers that a layer keeps beside its input; of the layers only Clip has any."""
    assert op.make_constants is not None  # checked by the caller
    if isinstance(x.scale, Tensor):
        return [_end_there(settings[end], x).moved_content * x.scale for end in ("low", "high")]
    return _made_constants(op, x, settings)


def _made_constants(op: Op, x: QTensor, settings: Mapping[str, Any]) -> Sequence[Any]:
    """The integers that an op makes of its settings, in the format of x; an unsigned one knows nothing below 0."""
    made = cast("Sequence[Any]", cast(Any, op.make_constants)(scale=x.scale, bits=x.signed_bits, **settings))
    return [max(each, 0) if x.is_unsigned and isinstance(each, int) else each for each in made]


def _end_there(end: float, x: QTensor) -> QTensor:
    """The threshold of a Clip, rounded and limited as `thresholds` of the op does, where the scale is on a device."""
    real = torch.full((), end, dtype=torch.float64, device=x.moved_content.device)
    return x.like(fake_quantize(real, x.scale, x.signed_bits, is_relu=x.is_unsigned).to(x.moved_content.dtype))


def _integer_constant(value: Any, x: QTensor) -> Operand:
    """A number in the type of x, a row of places as it is, a matrix of 16 bits."""
    if isinstance(value, tuple):
        is_matrix = bool(value) and isinstance(value[0], tuple)
        return torch.tensor(value, dtype=integer_type(_MATRIX_BITS), device=x.content.device) if is_matrix else value
    number = value if x.is_integer or value == 0 else value / x.scale_on_host
    return x.like(torch.tensor(number, dtype=x.content.dtype, device=x.content.device))


# sizes of tensors as settings and operands, while a model is traced
_trace: Any = torch._C  # noqa: SLF001 - only torch._C knows what a trace holds; mypy lacks parts of it
_SIZES = frozenset({"aten::size", "aten::numel", "aten::dim"})
_VALUES = frozenset({"prim::Param", "prim::GetAttr"})
_Tree = TypeVar("_Tree")


def with_sizes_read(arguments: _Tree) -> _Tree:
    """Arguments with numbers in the place of tensors that a trace has computed from sizes alone, as ops need them.

    What is computed from values stays a tensor: it is not known before the file runs.
    """
    if not _trace._is_tracing():  # noqa: SLF001 - torch has no public way to ask
        return arguments

    def read(leaf: object) -> object:
        if not isinstance(leaf, Tensor) or isinstance(leaf, QTensor) or leaf.dim() or not _is_from_sizes(leaf):
            return leaf
        return leaf.tolist()

    return cast(_Tree, tree_map(read, arguments))


def _is_from_sizes(tensor: Tensor) -> bool:
    """Whether the trace has computed a tensor from sizes and constants, and from no values."""
    waiting, seen, has_size = [_trace._get_value_trace(tensor).node()], set(), False  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        if node.kind() in _VALUES:
            return False
        if node.kind() in _SIZES:
            has_size = True
            continue
        new = [value.node() for value in node.inputs() if value.unique() not in seen]
        seen |= {value.unique() for value in node.inputs()}
        waiting += new
    return has_size
