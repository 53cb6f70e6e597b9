# SPDX-License-Identifier: Apache-2.0
"""correct_biases, bias correction: rounding must not shift what a layer returns on average.

Rounded weights shift the mean of a channel by (w_q − w)·mean(x), for every input alike; the bias takes that back. Layers are
corrected in the order in which they run, each on what the corrected layers before it deliver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from linger.analysis.batches import Batch, Function, evaluating
from linger.analysis.trace import Trace
from linger.constraint.limits import clamp, limits_of
from linger.dialect import Op
from linger.numeric.torch.quantize import fake_quantize
from linger.ops.fast.fast_path import accumulate, product_fast_path
from linger.progress import progress
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import Frozen, QuantizedBase, round_bias
from linger.quantization.core.runtime import Operands, runtime_of
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.bias_correction.means import (
    Call,
    ChannelMeans,
    Means,
    Start,
    float_means,
    projections,
    quantized_gates,
)
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_pair, undone_on_error

_WHERE = "correct_biases"

_MOST_SWEEPS = 4
"""Passes over the data at most: one, another where a layer runs several times, and one for each recurrent layer."""


def correct_biases(model: nn.Module, reference: nn.Module, data: object) -> Remedy:
    """Correct the biases of a quantized model so that each layer returns, on average, what the float model's does.

    For every layer in the order of execution, the mean over all positions of the float output minus the quantized one is
    added to the bias, channel by channel, while the layers before are corrected already. Compared is the sum that a layer
    computes, before it is rounded and limited: a ReLU or ReLU6 behind it does not count. A layer that runs several times, in
    several batches or in one, gets the mean m over all its runs, lowered to m·m²/(m² + s²) where s² is the variance of that
    mean: what differs from batch to batch is no lasting shift. The data then pass twice, so that all runs see the same
    corrections. A product without a bias gets one. With a folded batch norm β is corrected. Functions in a user's own
    forward (F.linear, F.conv2d) are corrected where their bias is a parameter. Of recurrent layers and cells, `bias_ih` is
    corrected by the mean of the sums in the gates; the data pass once more for each of them.

    The correction is undone where the error at the outputs rises on the data.

    Args:
        model: Quantized and calibrated; changed in place.
        reference: The float model that was quantized, before or after `trace_layers`, or a quantized one in real numbers
            (`real_copy`). Where layers were equalized, the equalized one.
        data: Typical inputs in any form of the page "Inputs".

    Returns:
        Before and after on these data, and of each layer the largest change of its bias in standard deviations of the
        layer's float output.

    Raises:
        UsageError: The data are empty or not finite, the model is not calibrated, or the reference is not its float model.
            The model is as it was.
    """
    batches = checked_data(_WHERE, model, data)
    require_pair(_WHERE, model, reference)
    with undone_on_error(_WHERE, model) as saved:
        error = OutputError(reference, batches)
        before = error(model)
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

    def add(self, call: Call, need: Tensor, count: int) -> Tensor:
        """Let one call count; returns the shift by all calls that are known by now."""
        self.needs[call] = (need, count)
        return self.mean

    @property
    def mean(self) -> Tensor:
        """The mean m over the calls, each with the weight of its positions, as far as it is certain: m·m²/(m² + s²).

        s² is the variance of the mean of several calls. A shift that comes and goes with the data is not the rounding's, and
        would be wrong on other data.
        """
        total = sum(count for _, count in self.needs.values())
        needs = torch.stack([need for need, _ in self.needs.values()])
        weights = needs.new_tensor([count / total for _, count in self.needs.values()])
        mean = weights @ needs
        if len(needs) == 1:
            return mean
        uncertainty = weights @ (needs - mean).square() / (len(needs) - 1)
        power = mean.square()
        return mean * (power / (power + uncertainty)).nan_to_num(0.0)


def _correct(model: nn.Module, reference: nn.Module, batches: Sequence[Batch]) -> list[Change]:
    recurrent = _layers(model, QuantRecurrent)
    biased = [path for path, layer in recurrent.items() if layer.bias]
    products = {path: layer.bn is not None for path, layer in _layers(model, QuantLayer).items() if layer.can_shift}
    attention = list(_layers(model, nn.MultiheadAttention))
    means = float_means(reference, batches, products, biased, attention, _function_biases(model))
    sweep = _Sweep(model, reference, means)
    sweep.run(batches)
    more = max([sum(recurrent[path].num_layers for path in biased), int(sweep.is_repeated)])
    for _ in range(min(more, _MOST_SWEEPS - 1)):
        sweep.run(batches)
    left_alone = [Change(path, "left alone: it has no bias") for path in recurrent if path not in biased]
    return sweep.apply() + left_alone


def _layers(model: nn.Module, kind: type[nn.Module]) -> dict[str, Any]:
    return {path: layer for path, layer in model.named_modules() if isinstance(layer, kind)}


def _function_biases(model: nn.Module) -> list[str]:
    """Keys of the parameters that may be the bias of a function in a user's own forward."""
    owned = {id(p) for layer in model.modules() if isinstance(layer, QuantizedBase) for p in layer.parameters()}
    return [name for name, p in model.named_parameters() if p.dim() == 1 and id(p) not in owned]


class _Sweep:
    """Passes of the quantized model in which every layer returns what it will return when it is corrected.

    The bias of a recurrent layer, which acts inside its loop, is corrected after each pass.
    """

    def __init__(self, model: nn.Module, reference: nn.Module, expected: Means) -> None:
        self.shifts: dict[str, _Shift] = {}
        self._trace, self._expected = Trace(model, self._run_function), expected
        self._modules = dict(model.named_modules())
        self._limits = {path: limits_of(module).output for path, module in reference.named_modules()}
        self._named: dict[str, Tensor] = dict(model.named_parameters())
        self._biases = {id(p): name for name, p in self._named.items() if name in expected}
        self._projections: dict[str, list[str]] = {}
        for path, module in self._modules.items():
            if isinstance(module, nn.MultiheadAttention):
                parts = {f"{path}.in_proj_bias, {name}".lstrip("."): bias for name, _, bias in projections(module)}
                self._projections[path] = list(parts)
                self._named |= {key: bias for key, bias in parts.items() if bias is not None}
        self._added: dict[str, Tensor] = {}  # to the biases of recurrent layers, so far
        self._function_bias: str | None = None
        self._starts: dict[str, Start] = {}
        self._nodes: Counter[str] = Counter()

    def run(self, batches: Sequence[Batch]) -> None:
        """All batches, one after the other."""
        model = self._trace.model
        runtime = runtime_of(model)
        assert runtime is not None  # require_pair has asked
        with evaluating(model), self._trace as trace:
            trace.observe(runtime.observers, self._observe)
            trace.before((m for m in self._modules.values() if isinstance(m, QuantRecurrent)), self._enter)
            for batch in progress(batches, _WHERE):
                self._nodes.clear()
                trace.run(batch)
        for key, shift in self.shifts.items():
            if key in self._named and isinstance(self._modules.get(key.rpartition(".")[0]), QuantRecurrent):
                self._add(key, shift.mean - self._added.get(key, 0.0))
                self._added[key] = shift.mean

    @property
    def is_repeated(self) -> bool:
        """Whether a layer runs more than once, in several batches or in one."""
        return any(len(shift.needs) > 1 for shift in self.shifts.values())

    def _run_function(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        if func not in PRODUCTS:
            return func(*args, **kwargs)
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        outer, self._function_bias = self._function_bias, self._biases.get(id(bias))
        try:
            return func(*args, **kwargs)
        finally:
            self._function_bias = outer

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A recurrent layer begins."""
        assert isinstance(module, QuantRecurrent)
        self._starts[module.path] = Start.of(module, args, kwargs)
        self._nodes[module.path] = 0

    def _observe(self, name: str, op: Op, operands: Operands, attributes: Mapping[str, Any], result: QTensor) -> None:
        """An op was computed: if it has a bias, see what the bias must take back."""
        path, x = name.rpartition(".")[0], operands[0]
        module = self._modules.get(path)
        if isinstance(module, QuantRecurrent):
            if op.is_recurrent and isinstance(x, QTensor):
                self._see_gates(module, x, result, attributes)
        elif isinstance(operands[-1], Frozen) and isinstance(x, QTensor) and not op.normalizes:
            key = self._key_of(path, module)
            if key is not None:
                self._see_product(key, op, x, operands[-1], attributes, result)

    def _key_of(self, path: str, module: nn.Module | None) -> str | None:
        """The layer that a product belongs to, or the bias that it adds."""
        if isinstance(module, QuantizedBase):
            return path
        if not isinstance(module, nn.MultiheadAttention):
            return self._function_bias
        self._nodes[path] += 1  # query, key and value come in this order
        return self._projections[path][(self._nodes[path] - 1) % 3]

    def _see_gates(self, module: QuantRecurrent, x: QTensor, out: QTensor, attributes: Mapping[str, Any]) -> None:
        path = module.path
        name, means = quantized_gates(module, self._starts[path], self._nodes[path], x, out, attributes)
        self._nodes[path] += 1
        key = f"{path}.{name}".lstrip(".")
        call = self._trace.next_call(key)
        expected = self._expected.get(key, {}).get(call)
        if expected is not None:
            need = expected.mean - means.mean + self._added.get(key, 0.0)
            self.shifts.setdefault(key, _Shift()).add(call, need, means.count)

    def _see_product(
        self, key: str, op: Op, x: QTensor, frozen: Frozen, attributes: Mapping[str, Any], result: QTensor
    ) -> None:
        """Let a product return what it would with a corrected bias."""
        call = self._trace.next_call(key)
        expected = self._expected.get(key, {}).get(call)
        if expected is None:
            return
        axis = product_fast_path(op).channel_axis
        product = accumulate(op, attributes, x.content, frozen.weight, None)
        layer = self._modules.get(key)
        own = layer.real_bias if isinstance(layer, QuantLayer) else self._named[key].detach()
        bias = (product.new_zeros(product.shape[axis]) if own is None else own).double()
        shape = [-1 if i == product.dim() + axis else 1 for i in range(product.dim())]
        y = product + bias.to(product.dtype).reshape(shape)
        means = ChannelMeans.of(clamp(y, self._limits.get(key)), axis)
        shift = self.shifts.setdefault(key, _Shift()).add(call, expected.mean - means.mean, means.count)
        finer = torch.tensor(frozen.exponents or (0,), dtype=torch.float64, device=bias.device).exp2()
        rounded = round_bias(bias + shift, finer * (x.scale * frozen.scale_w))
        shifted = product + rounded.to(product.dtype).reshape(shape)
        result.content.copy_(fake_quantize(shifted, result.scale, result.signed_bits, is_relu=result.is_unsigned))
        result.accept_write()

    def _add(self, key: str, shift: Tensor) -> None:
        """Add to a layer's bias, or to a parameter."""
        layer = self._modules.get(key)
        with torch.no_grad():
            if isinstance(layer, QuantLayer):
                layer.shift_output(shift)
            else:
                self._named[key].add_(shift.to(self._named[key]))

    def apply(self) -> list[Change]:
        """Add what was found to the biases of the model."""
        changes: list[Change] = []
        for key, shift in self.shifts.items():
            if key not in self._added:
                self._add(key, shift.mean)
            largest = float(shift.mean.abs().max()) / self._spread(key)
            changes.append(Change(key, "bias, largest shift in σ of the output", None, largest))
        return changes

    def _spread(self, key: str) -> float:
        """The standard deviation of a layer's float output, over all channels and positions; 1 where it is constant."""
        calls = self._expected[key].values()
        total = sum(call.count for call in calls)
        mean = sum(float(call.mean.mean()) * call.count for call in calls) / total
        variance = sum(call.power * call.count for call in calls) / total - mean**2
        return variance**0.5 if variance > 0 else 1.0
