# SPDX-License-Identifier: Apache-2.0
"""Bias correction: rounding must not shift what a layer returns on average.

Rounded weights shift the mean of a channel by (w_q − w)·mean(x), for every input alike; the bias takes that back. Layers are
corrected in the order in which they run, each on what the corrected layers before it deliver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from linger.analysis.attributes import evaluating
from linger.analysis.batches import Batch, Function, Keywords, fresh, run_batch
from linger.constraint.limits import clamp, limits_of
from linger.dialect import Op
from linger.numeric.torch.quantize import fake_quantize
from linger.ops.fast.twin import product_twin
from linger.progress import progress
from linger.quantization.core.frozen import Frozen, round_bias
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.runtime import Operands, runtime_of
from linger.quantization.core.statistics import QuantizedBase, accumulate
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.layers.layer import QuantLayer
from linger.tuning.float_means import Call, ChannelMeans, Found, float_means
from linger.tuning.measure import OutputError, error_db
from linger.tuning.remedy import Change, Remedy, checked_data, require_pair, undone_on_error

_WHERE = "correct_biases"


def correct_biases(model: nn.Module, reference: nn.Module, data: object) -> Remedy:
    """Correct the biases of a quantised model so that each layer returns, on average, what the float model's does.

    For every layer in the order of execution, the mean over all positions of the float output minus the quantised one is
    added to the bias, channel by channel, while the layers before are corrected already. Compared is the sum that a layer
    computes, before it is rounded and limited: a ReLU or ReLU6 behind it does not count. A layer that runs several times, in
    several batches or in one, gets the mean over all its runs; the data then pass twice, so that all runs see the same
    corrections. A product without a bias gets one. With a folded batch norm β is corrected. Functions in a user's own
    forward (F.linear, F.conv2d) are corrected where their bias is a parameter.

    The correction is undone where the error at the outputs rises on the data.

    Args:
        model: Quantised and calibrated; changed in place.
        reference: The float model that was quantised, before or after `trace_layers`. Where layers were equalised, the
            equalised one.
        data: Typical inputs: a tensor, a tuple of arguments, or an iterable of either.

    Returns:
        Before and after on these data, and of each layer the largest change of its bias in standard deviations of the
        layer's float output.

    Raises:
        UsageError: The data are empty or not finite, the model is not calibrated, or the reference is not its float model.
            The model is as it was.
    """
    batches = checked_data(_WHERE, data)
    require_pair(_WHERE, model, reference)
    with undone_on_error(_WHERE, model):
        error = OutputError(reference, batches)
        before = error(model)
        saved = {key: value.detach().clone() for key, value in model.state_dict().items()}
        changes = _correct(model, reference, batches)
        after = error(model)
        if after > before:
            model.load_state_dict(saved)
            undone = Change("all layers", "undone: the error rises (dB)", error_db(before), error_db(after))
            return Remedy(_WHERE, error_db(before), error_db(before), (undone,))
    return Remedy(_WHERE, error_db(before), error_db(after), tuple(changes))


@dataclass
class _Shift:
    """What must be added to the output of one layer, by its calls."""

    needs: dict[Call, tuple[Tensor, int]] = field(default_factory=dict)

    def add(self, call: Call, expected: ChannelMeans, found: ChannelMeans) -> Tensor:
        """Let one call count; returns the mean over all calls that are known by now."""
        self.needs[call] = (expected.mean - found.mean, found.count)
        return self.mean

    @property
    def mean(self) -> Tensor:
        """The mean over the calls, each with the weight of its positions."""
        total = sum(count for _, count in self.needs.values())
        return torch.stack([need * (count / total) for need, count in self.needs.values()]).sum(0)


def _correct(model: nn.Module, reference: nn.Module, batches: Sequence[Batch]) -> list[Change]:
    products = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, QuantLayer)]
    layers = {path: layer.bn is not None for path, layer in products if layer.can_shift}
    sweep = _Sweep(model, reference, float_means(reference, batches, layers, _function_biases(model)))
    sweep.run(batches)
    if any(len(shift.needs) > 1 for shift in sweep.shifts.values()):
        sweep.run(batches)  # every run of a layer now sees the corrections of all others
    return sweep.apply()


def _function_biases(model: nn.Module) -> list[str]:
    """Keys of the parameters that may be the bias of a function in a user's own forward."""
    owned = {id(p) for layer in model.modules() if isinstance(layer, QuantizedBase) for p in layer.parameters()}
    return [name for name, p in model.named_parameters() if p.dim() == 1 and id(p) not in owned]


class _Sweep(TorchFunctionMode):
    """Passes of the quantised model in which every layer returns what it will return when it is corrected."""

    def __init__(self, model: nn.Module, reference: nn.Module, expected: Found) -> None:
        super().__init__()
        self.shifts: dict[str, _Shift] = {}
        self._model, self._expected = model, expected
        self._modules = dict(model.named_modules())
        self._limits = {path: limits_of(module).output for path, module in reference.named_modules()}
        self._named = dict(model.named_parameters())
        self._biases = {id(p): name for name, p in self._named.items() if name in expected}
        self._function_bias: str | None = None
        self._counts: Counter[str] = Counter()
        self._batch = 0

    def run(self, batches: Sequence[Batch]) -> None:
        """All batches, one after the other."""
        runtime = runtime_of(self._model)
        assert runtime is not None  # require_pair has asked
        with ExitStack() as stack:
            stack.enter_context(evaluating(self._model))
            stack.enter_context(torch.no_grad())
            runtime.observers.append(self._observe)
            stack.callback(runtime.observers.remove, self._observe)
            stack.enter_context(self)
            for self._batch, batch in enumerate(progress(batches, _WHERE)):
                self._counts.clear()
                run_batch(self._model, fresh(batch))

    def __torch_function__(self, func: Function, types: object, args: Batch = (), kwargs: Keywords = None) -> object:
        kwargs = kwargs or {}
        if func not in PRODUCTS:
            return func(*args, **kwargs)
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        outer, self._function_bias = self._function_bias, self._biases.get(id(bias))
        try:
            return func(*args, **kwargs)
        finally:
            self._function_bias = outer

    def _observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], result: QTensor) -> None:
        """An op was computed: if it is a product, let it return what it would with a corrected bias."""
        frozen = operands[-1]
        if not isinstance(frozen, Frozen) or op.inputs[0] == "w" or op.normalises:
            return
        path = name.rpartition(".")[0]
        key = path if isinstance(self._modules.get(path), QuantizedBase) else self._function_bias
        if key is None:
            return
        call = (self._batch, self._counts[key])
        self._counts[key] += 1
        expected = self._expected.get(key, {}).get(call)
        if expected is None:
            return
        x = operands[0]
        assert isinstance(x, QTensor)  # the first operand of a product
        axis = product_twin(op).channel_axis
        product = accumulate(op, attributes, x.content, frozen.weight, None)
        bias = self._real_bias(key, product.new_zeros(product.shape[axis])).double()
        shape = [-1 if i == product.dim() + axis else 1 for i in range(product.dim())]
        y = product + bias.to(product.dtype).reshape(shape)
        found = ChannelMeans.of(clamp(y, self._limits.get(path)), axis)
        shift = self.shifts.setdefault(key, _Shift()).add(call, expected, found)
        rounded = round_bias(bias + shift, x.scale * frozen.scale_w)
        shifted = product + rounded.to(product.dtype).reshape(shape)
        result.content.copy_(fake_quantize(shifted, result.scale, result.bits))
        result.accept_write()

    def _real_bias(self, key: str, zeros: Tensor) -> Tensor:
        """What a layer or function adds, before it is rounded; zeros where it has no bias."""
        layer = self._modules.get(key)
        bias = layer.real_bias if isinstance(layer, QuantLayer) else self._named[key].detach()
        return zeros if bias is None else bias

    def apply(self) -> list[Change]:
        """Add what was found to the biases of the model."""
        changes: list[Change] = []
        for key, shift in self.shifts.items():
            largest = float(shift.mean.abs().max())
            layer = self._modules.get(key)
            with torch.no_grad():
                if isinstance(layer, QuantLayer):
                    layer.shift_output(shift.mean)
                else:
                    self._named[key].add_(shift.mean.to(self._named[key]))
            changes.append(Change(key, "bias, largest shift in σ of the output", None, largest / self._spread(key)))
        return changes

    def _spread(self, key: str) -> float:
        """The standard deviation of a layer's float output, over all channels and positions; 1 where it is constant."""
        calls = self._expected[key].values()
        total = sum(call.count for call in calls)
        mean = sum(float(call.mean.mean()) * call.count for call in calls) / total
        variance = sum(call.power * call.count for call in calls) / total - mean**2
        return variance**0.5 if variance > 0 else 1.0
