# SPDX-License-Identifier: Apache-2.0
"""Inputs beyond the format in which the device reads them: what is lost is said, and a softmax keeps its decision.

Softmax and log-softmax read Q25 (±64), GELU and SiLU Q27 (±16). Sigmoid and tanh end at ±16 too, where both have reached
the last integer of their output, so nothing is lost beyond. The scale of a quantised tensor tells how far it can go; only
where that is too far are its numbers looked at.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from linger.dialect import Op
from linger.quantization.core.calibrate import current_calibration
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Runtime, is_exporting
from linger.quantization.core.statistics import QuantizedBase, over_all_processes
from linger.quantization.functions.functional_layer import Beyond, FunctionalLayer
from linger.targets import find_target

SUBTRACTION = "iqSubMax"

_NARROW = 8
"""Up to this width the scale of a tensor is that of its range; a wider one may be coarser than its range asks for."""

_VISIBLE = 11.0
"""What is so far below the largest number of its row has a softmax below half a step of Q15: e^-11 < 2^-16 < e^-11.1."""


def judge_input(op: Op, x: QTensor, layer: FunctionalLayer, runtime: Runtime, name: str) -> None:
    """See whether the input of an op leaves the device's format, remember it, and say it once.

    Calibration and evaluation look at the numbers; training knows the range from its statistics and reads nothing of a
    tensor of 8 bits. On another device than the CPU even its scale would have to be read, so training there decides nothing.
    Calibration and training also decide whether the largest number of each row is to be subtracted first.
    """
    if runtime.emitter is not None or is_exporting() or op.input_end is None or x.scale is None:
        return
    if isinstance(x.scale, Tensor) and layer.training and current_calibration() is None:
        return  # training on a device does not look at numbers there: calibration and evaluation do
    reach = 2.0 ** (x.own_bits - 1) / x.scale_on_host
    is_possible = reach > op.input_end
    calibration = current_calibration()
    is_training = layer.training and calibration is None
    found = None
    if is_possible and is_training and x.own_bits <= _NARROW:
        found = Beyond(-reach, reach, op.input_end, is_seen=False)
    elif is_possible and (is_training or not layer.subtracts_max):
        found = _look(op, x)
    can_subtract = op.last_axis is not None and _has_subtraction(runtime)
    if is_training or (calibration is not None and found is not None):
        layer.subtract_max(is_wanted=can_subtract and found is not None)
    if found is None:
        return
    is_news, layer.beyond = layer.beyond is None, found.joined(layer.beyond)
    sentence = f"{name}: {layer.beyond}. {_remedy(op, layer, runtime, can_subtract=can_subtract)}"
    if calibration is not None:
        calibration.say(name, sentence)
    elif is_news:
        warnings.warn(sentence, stacklevel=2)


def loss_of(layer: QuantizedBase) -> str:
    """What coverage says of an op whose input left the device's format; empty where it did not."""
    if not isinstance(layer, FunctionalLayer):
        return ""
    if layer.subtracts_max:
        return "its input goes beyond the device's format: the largest number of each row is subtracted first"
    return "" if layer.beyond is None else f"{layer.beyond}: numbers are lost"


def _look(op: Op, x: QTensor) -> Beyond | None:
    """The range of an input if numbers are lost: one look at the tensor.

    A row that stays below +64 loses nothing as long as its largest number is far enough above −64.
    """
    end, values = op.input_end, x.content.detach()
    assert end is not None  # the caller asked
    if not values.numel():
        return None
    is_by_rows, is_masked = op.last_axis is not None, x.own_bits != x.bits
    tops = values.amax(-1) if is_by_rows else values
    lowest, low, high = torch.stack([values.amin(), tops.amin(), tops.amax()]).tolist()
    is_too_low = is_by_rows and not is_masked and low < _VISIBLE - end
    is_lost = over_all_processes(float(high > end or is_too_low), values)
    return Beyond(low if is_masked else lowest, high, end) if is_lost else None


def _has_subtraction(runtime: Runtime) -> bool:
    """Whether the subtraction may be computed: a chip without the op is simulated as it is."""
    return runtime.target is None or SUBTRACTION in find_target(runtime.target).ops


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
