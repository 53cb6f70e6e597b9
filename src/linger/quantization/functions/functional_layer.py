# SPDX-License-Identifier: Apache-2.0
"""The range and scale of a functional op's output: a child of the module whose forward uses the op.

It also notices inputs beyond the format in which the device reads them. Softmax and log-softmax read Q25 (±64), GELU and
SiLU Q27 (±16). Sigmoid and tanh end at ±16 too, where both have reached the last integer of their output, so nothing is lost
beyond. The scale of a quantized tensor bounds its numbers; they are looked at only where that bound is too large.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from linger.constraint.limits import FUNCTION_BITS
from linger.dialect import Op, ops
from linger.errors import UsageError
from linger.ops.fast.fast_path import functional_fast_path
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import QuantizedBase, add_widths
from linger.quantization.core.runtime import Frame, OpCall, Runtime
from linger.targets import find_target

KEY_PREFIX = "_linger_round_tensor_"
"""State_dict name of every functional layer begins with this."""

INPUT_KEY = "iq_tensor_quant_"
"""What follows the prefix in the name of a range that belongs to a quantized input."""

FLOAT_OPERAND = f"{INPUT_KEY}float_operand_"
"""The beginning of such a name where a function reads a float tensor beside a quantized one."""

_BELOW_MAX = "below_max"
_FINER = "finer"
_SHARED, _BEYOND = "shared", "beyond"
_DECISIONS = (_BELOW_MAX, _FINER, _SHARED)

SUBTRACTION = "iqSubMax"

_NARROW = 8
"""Up to this width the scale of a tensor is that of its range; a wider one may be coarser than its range asks for."""

_VISIBLE = 11.0
"""A number so far below the largest of its row has a softmax of half a step of Q15: e^-11.1 < 2^-16 < e^-11."""


@dataclass(frozen=True)
class Beyond:
    """An input beyond the device's format, which ends at ±`end`: its smallest and largest number, or its running range."""

    low: float
    high: float
    end: float
    is_seen: bool = True

    def __str__(self) -> str:
        seen = f"its input ran from {self.low:g} to {self.high:g}"
        range_ = seen if self.is_seen else f"the running range of its input needs a format of ±{self.high:g}"
        return f"{range_}, and the device's format ends at ±{self.end:g}"

    def joined(self, other: Beyond | None) -> Beyond:
        """Both together; what was seen counts more than a running range."""
        if other is None or self.is_seen != other.is_seen:
            return self if other is None or self.is_seen else other
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))


class FunctionalLayer(QuantizedBase):
    """Range and scale of one functional op's output, kept as a child of the module whose forward uses it.

    `key` is the op's state name and a number. An op that wants its input at a width of its own also has a range for it;
    a product has those of a layer; the quantizer of an input has that input's alone.
    """

    observed_in: object = None
    """The records of the pass that used it last."""
    out_bits: int | None = None
    """The width of the output; None: that of the widest operand, unless `quant_function` says otherwise."""

    def __init__(self, key: str = "", device: torch.device | None = None) -> None:
        op = _ops_by_state_name().get(key.rpartition("_")[0])
        names = _range_names(key, op)
        super().__init__(names, device)
        if "w" in names:
            add_widths(self)
        for decision in _DECISIONS if "o" in names else ():
            self.add_optional(decision, "o")
        self.function_op, self.can_learn_output = "", "w" in names
        self.keeps_unseen = self.may_be_finer = self.has_fixed_output = False
        if op is not None:
            self.function_op, self.keeps_unseen = op.name, op.keeps_scale_unseen
            self.may_be_finer, self.has_fixed_output = op.finer_limit is not None, op.output_scale is not None
            # an op without a fast path only moves numbers that are rounded already
            self.can_learn_output = self.can_learn_output or functional_fast_path(op) is not None
        self.beyond: Beyond | None = None  # what was seen beyond the device's format; no part of a checkpoint

    @property
    def subtracts_max(self) -> bool:
        """Whether the largest number of each row is subtracted from the input of this softmax."""
        return self._has_decided(_BELOW_MAX)

    def subtract_max(self, *, is_wanted: bool) -> None:
        """Set whether it is subtracted; a checkpoint has the buffer only then."""
        self._decide(_BELOW_MAX, is_wanted=is_wanted)

    @property
    def is_fine(self) -> bool:
        """Whether the range was observed since the output may be finer than the input (`Op.finer_limit`)."""
        return self._has_decided(_FINER)

    def become_fine(self) -> None:
        """Allow the finer scale; a checkpoint has the buffer only then, and older ones keep their scales."""
        self._decide(_FINER, is_wanted=True)

    @property
    def is_shared(self) -> bool:
        """Whether several calls of one pass had this range, so that it is not used (`is_unseen`)."""
        return self._has_decided(_SHARED)

    @property
    def is_known(self) -> bool:
        """Whether a pass has seen the range, and no call shares it."""
        return not self.is_shared and self.ranges["o"].running.read() != 0.0

    def is_shared_in(self, runtime: Runtime) -> bool:
        """Whether several calls share the range, the next one of the pass at work included."""
        if self.observed_in is runtime.current.records:
            self.share()
        return self.is_shared

    def share(self) -> None:
        """Stop using the range. Only then is this decision a buffer of the layer, and part of checkpoints."""
        self._decide(_SHARED, is_wanted=True)
        self.forget_range()

    def _decide(self, key: str, *, is_wanted: bool) -> None:
        if is_wanted != self._has_decided(key):
            self.write(key, float(is_wanted))

    def _has_decided(self, key: str) -> bool:
        """Whether a buffer says so; that of an average does where it did in one of the models."""
        return key in self.stored and self.read(key) != 0.0

    @property
    def flags(self) -> tuple[bool, ...]:
        """Subtract the largest number, allow the finer scale, leave a range unused that several calls share."""
        return tuple(map(self._has_decided, _DECISIONS))

    @flags.setter
    def flags(self, decided: tuple[bool, ...]) -> None:
        for key, is_wanted in zip(_DECISIONS, decided, strict=True):
            self._decide(key, is_wanted=is_wanted)
        if self.is_shared:
            self.forget_range()

    def decisions(self) -> dict[str, Any]:
        """What it has decided by its data, for a copy of the model that has seen other data."""
        beyond = None if self.beyond is None else asdict(self.beyond)
        return dict(zip(_DECISIONS, self.flags, strict=True)) | {_BEYOND: beyond}

    def take_decisions(self, decisions: Sequence[Mapping[str, Any]]) -> None:
        """Decide what follows from the decisions of copies of the model, which have seen all data between them."""
        self.flags = tuple(any(each[key] for each in decisions) for key in _DECISIONS)
        self.beyond = None
        for each in decisions:
            if each[_BEYOND] is not None:
                self.beyond = Beyond(**each[_BEYOND]).joined(self.beyond)

    def forget_range(self) -> None:
        """Have no range of the output: several calls of one pass would share it."""
        self.ranges["o"].set(0.0, 0.0)
        self.ranges["o"].users.set(None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        # older checkpoints of products also hold the last scalar operand and the input's range
        for name in ("y", "running_x", "scale_x", "running_y", "scale_y", "scale_local_o"):
            if name not in self._buffers:
                state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _range_names(key: str, op: Op | None) -> tuple[str, ...]:
    if key.startswith(INPUT_KEY):
        return ("x",)
    if op is not None and "w" in op.inputs and key.startswith("function_"):
        return ("x", "w", "o")
    return ("o",) if op is None or op.input_bits is None else ("x", "o")


@cache
def _ops_by_state_name() -> dict[str, Op]:
    return {op.state_name: op for op in ops().values() if op.state_name is not None}


def begin_function(
    op: Op, runtime: Runtime, device: torch.device, layer: QuantizedBase | None = None
) -> tuple[OpCall, QuantizedBase]:
    """Number and name an op of the module at work, and find the layer that holds its ranges, unless one is given."""
    frame = runtime.frame
    assert frame is not None  # outside a model nothing is quantized
    call = runtime.begin(op, frame.path, layer)
    if layer is None:
        holder, counter = _numbering(op, runtime)
        index = holder.next_index(counter)
        layer = functional_layer(frame, f"{op.state_name}_{index}", call.name, device, runtime)
        if op.keeps_scale_unseen:
            layer.observed_in = runtime.current.records
        call.is_learning = not call.is_written and (layer.training or call.now.calibration is not None)
    return call, layer


def output_bits(op: Op, layer: QuantizedBase, runtime: Runtime, usual: int) -> int:
    """The width of a function's output: its own, the one its module is marked with, or the usual one."""
    if not isinstance(layer, FunctionalLayer):
        return usual
    marked = None if runtime.frame is None else FUNCTION_BITS.of(runtime.frame.module)
    if layer.out_bits is None and marked is not None:
        # a sum that stands for a difference has that one's range, and its mark
        layer.out_bits = marked.get(_ops_by_state_name().get(op.state_name or "", op).name)
    return usual if layer.out_bits is None else layer.out_bits


def is_unseen(op: Op, runtime: Runtime) -> bool:
    """Whether the next call of an op has no range, nor gets one in this pass; such a call is counted here.

    So it is with checkpoints of a time when the op had none, and where two calls of one pass would share a range: one of
    them may be far larger than the other, and each has the scale of its input.
    """
    frame = runtime.frame
    assert frame is not None  # as above
    holder, counter = _numbering(op, runtime)
    layer = frame.module._modules.get(f"{KEY_PREFIX}{op.state_name}_{holder.indices[counter]}")  # noqa: SLF001 - as below
    if frame.module.training or runtime.now.calibration is not None:
        has_range = layer is None or (isinstance(layer, FunctionalLayer) and not layer.is_shared_in(runtime))
    else:
        has_range = runtime.now.is_real or (isinstance(layer, FunctionalLayer) and layer.is_known)
    if not has_range:
        holder.next_index(counter)
    return not has_range


def _numbering(op: Op, runtime: Runtime) -> tuple[Frame, str]:
    """Where the calls of an op are counted: those of a module that is called several times, in the module that calls it."""
    frame = runtime.frame
    assert frame is not None  # as above
    if op.keeps_scale_unseen and len(runtime.frames) > 1:
        return runtime.frames[-2], f"{frame.path} {op.name}"
    return frame, op.name if op.has_own_counter else ""


def functional_layer(frame: Frame, key: str, where: str, device: torch.device, runtime: Runtime) -> FunctionalLayer:
    """The module's functional layer of this name, made on first use in a pass that may change the model.

    A pass in real numbers that may not change it gets one for itself.
    """
    child = KEY_PREFIX + key
    known = frame.module._modules.get(child)  # noqa: SLF001 - getattr would hide an AttributeError of the module
    if isinstance(known, FunctionalLayer):
        return known
    layer = FunctionalLayer(key, device).train(frame.module.training)
    layer.holds_ranges = runtime.holds_ranges
    if layer.training or runtime.now.calibration is not None:
        frame.module.add_module(child, layer)
    elif not runtime.now.is_real:
        raise UsageError(f"{layer.missing_scale(where)} An average of models (AveragedModel) is made after that.")
    return layer


def own_format(x: QTensor) -> dict[str, Any]:
    """The attributes of an op whose result has the scale and width of its input."""
    formats = {"data_bits": x.bits, "o_bits": x.bits, "scale_x": x.scale, "scale_o": x.scale}
    return formats | {"o_unsigned": 1} if x.is_unsigned else formats


# inputs beyond the device's format
def judge_input(call: OpCall, x: QTensor, layer: FunctionalLayer) -> None:
    """Check whether the input of an op leaves the device's format, remember it, and warn once.

    Calibration and evaluation look at the numbers; training knows the range from its statistics and reads nothing of a
    tensor of 8 bits. On another device than the CPU even its scale would have to be read, so training there decides nothing.
    Calibration and training also decide whether the largest number of each row is to be subtracted first.
    """
    calibration = call.now.calibration
    is_training = layer.training and calibration is None
    if not _may_look(call, x, layer, is_training=is_training):
        return
    beyond = _beyond(call, x, layer, is_training=is_training)
    can_subtract = call.op.last_axis is not None and _has_subtraction(call.runtime)
    if beyond is None:
        if is_training:
            layer.subtract_max(is_wanted=False)
        return
    if is_training or calibration is not None:
        layer.subtract_max(is_wanted=can_subtract)
    is_news, layer.beyond = layer.beyond is None, beyond.joined(layer.beyond)
    sentence = f"{call.name}: {layer.beyond}. {_remedy(call.op, layer, call.runtime, can_subtract=can_subtract)}"
    if calibration is not None:
        calibration.say(call.name, sentence)
    elif is_news:
        warnings.warn(sentence, stacklevel=2)


def _may_look(call: OpCall, x: QTensor, layer: FunctionalLayer, *, is_training: bool) -> bool:
    """Not in a trace; a float reference loses nothing, and what a schedule has frozen is decided."""
    now, output = call.now, layer.ranges["o"]
    if now.is_traced or output.holds(now) or (now.is_real and not output.observes(now)):
        return False
    return not (is_training and isinstance(x.scale, Tensor))


def _beyond(call: OpCall, x: QTensor, layer: FunctionalLayer, *, is_training: bool) -> Beyond | None:
    """What leaves the device's format: judged by the scale in training with 8 bits, else by the numbers."""
    op = call.op
    assert op.input_end is not None  # checked by the caller
    if call.now.calibration is not None:  # its scale may be that of other data, of which less is used
        return None if layer.subtracts_max else _look(op, x)
    reach = 2.0 ** (x.own_bits - 1) / x.scale_on_host
    if reach <= op.input_end:
        return None
    if is_training and x.own_bits <= _NARROW:
        return Beyond(-reach, reach, op.input_end, is_seen=False)
    return _look(op, x) if is_training or not layer.subtracts_max else None


def loss_of(layer: QuantizedBase) -> str:
    """What coverage says of an op whose input left the device's format; empty where it did not."""
    if not isinstance(layer, FunctionalLayer):
        return ""
    if layer.subtracts_max:
        return "its input goes beyond the device's format: the largest number of each row is subtracted first"
    return "" if layer.beyond is None else f"{layer.beyond}: numbers are lost"


def _look(op: Op, x: QTensor) -> Beyond | None:
    """The range of an input if numbers are lost; the tensor is read once.

    A row that stays below +64 loses nothing as long as all of it, or its largest number by far, is above −64. Whether it does
    is a matter of its numbers alone: the scale, which other data have set, does not count.
    """
    end, values = op.input_end, x.content.detach()
    assert end is not None  # checked by the caller
    if not values.numel():
        return None
    is_by_rows, is_masked = op.last_axis is not None, x.own_bits != x.bits
    tops, bottoms = (values.amax(-1), values.amin(-1)) if is_by_rows else (values, values)
    of_cut = torch.where(bottoms < -end, tops, math.inf)
    lowest, low, high, low_of_cut = torch.stack([values.amin(), tops.amin(), tops.amax(), of_cut.amin()]).tolist()
    is_too_low = is_by_rows and not is_masked and low_of_cut < _VISIBLE - end
    return Beyond(low if is_masked else lowest, high, end) if high > end or is_too_low else None


def _has_subtraction(runtime: Runtime) -> bool:
    """Whether the subtraction may be computed: a chip without the op is simulated as it is."""
    return runtime.target is None or find_target(runtime.target).takes(SUBTRACTION)


def _remedy(op: Op, layer: FunctionalLayer, runtime: Runtime, *, can_subtract: bool) -> str:
    limit = f"linger.normalize_module(layer_before, normalize_output_value={op.input_end:g})"
    if op.last_axis is None:
        return (
            f"What lies beyond counts as ±{op.input_end:g}. Limit the layer before it with {limit} and fine-tune, or keep "
            "this function in float with linger.disable_quant."
        )
    if layer.subtracts_max:
        return (
            f"So the largest number of each row is subtracted before it ({SUBTRACTION}), which changes no probability. "
            f"No chip is known to have that op; to do without it, limit the layer before it with {limit} and fine-tune."
        )
    lost = "Numbers beyond become equal, and decisions are lost."
    if can_subtract:
        return f"{lost} Calibrate the model again: linger then subtracts the largest number of each row before it."
    return (
        f"{lost} {runtime.target} has no op that subtracts the largest number first: limit the layer before it with "
        f"{limit} and fine-tune, or leave the softmax out of the model, whose largest input decides anyway."
    )
