# SPDX-License-Identifier: Apache-2.0
"""correct_biases, bias correction: rounding must not shift what a layer returns on average.

Rounded weights shift the mean of a channel by (w_q − w)·mean(x), for every input alike; the bias takes that back. Layers are
corrected in the order in which they run, each on what the corrected layers before it deliver.

Of a recurrent layer the mean is that of what its gates sum up, W_ih·x + b_ih + W_hh·h + b_hh. The sums are computed here from what went
in and came out, not inside the cell; the biases then take back their shift. In a GRU the third gate is
W_in·x + b_in + r·(W_hn·h + b_hn), with r from the first.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from linger.analysis.batches import Batch, Function, evaluating
from linger.analysis.trace import Trace
from linger.constraint.conv_bn import layer_of
from linger.constraint.limits import clamp, limits_of
from linger.dialect import Op, find_op
from linger.numeric.torch.quantize import fake_quantize
from linger.ops.fast.fast_path import accumulate, product_fast_path
from linger.progress import progress
from linger.quantization.core.packing import unpack
from linger.quantization.core.qtensor import QTensor, unwrap
from linger.quantization.core.quantized import Frozen, QuantizedBase, round_bias
from linger.quantization.core.runtime import Operands, runtime_of
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import BatchNormLayer, TransposedSignalLayer
from linger.quantization.layers.recurrent import QuantCell, QuantRecurrent
from linger.quantization.layers.recurrent_operands import ordered
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_pair, undone_on_error

Call = tuple[int, int]
"""Number of the batch, and which call of a layer in that pass, both from 0."""


@dataclass(frozen=True)
class ChannelMeans:
    """The mean of each channel of a tensor, over `count` positions; `power` is the mean square of all channels."""

    mean: Tensor
    count: int
    power: float

    @classmethod
    def of(cls, y: Tensor, axis: int) -> ChannelMeans:
        """Those of a tensor whose channels are on this axis."""
        rows = y.detach().transpose(axis, -1).reshape(-1, y.shape[axis]).double()
        return cls(rows.mean(0), rows.shape[0], float(rows.square().mean()))


_GATES_OF_GRU = 3
_CELLS = (nn.RNNCellBase, QuantCell)
_WITHOUT_BATCH = 2
"""Axes of a sequence that is no batch."""


def _gate_sums(x: Tensor, h: Tensor, weights: Sequence[Any]) -> Tensor:
    """The sums of all gates of one direction, from inputs […, in], the states before them […, hidden] and its four parameters."""
    w_ih, w_hh, b_ih, b_hh = weights
    given, own = F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)
    size = w_hh.shape[1]
    if len(w_hh) != _GATES_OF_GRU * size:
        return given + own
    both = given[..., : 2 * size] + own[..., : 2 * size]
    reset = both[..., :size].sigmoid()
    return torch.cat([both, given[..., 2 * size :] + reset * own[..., 2 * size :]], -1)


@dataclass(frozen=True)
class Start:
    """How a call of a recurrent layer begins: [time, batch, …] with lengths if they differ, and states if there are any."""

    x: Tensor
    lengths: Tensor | None
    h: Tensor | None = None  # [layers · directions, batch, hidden]
    c: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Start:
        """Read the arguments of a call, in any of the forms that torch takes."""
        given = dict(zip(("input", "hx"), args, strict=False)) | dict(kwargs)
        x, states = given["input"], _states_of(given.get("hx"))
        if isinstance(x, PackedSequence):
            padded, lengths = unpack(x)
            return cls(unwrap(padded), lengths, *(ordered(s, x.sorted_indices) for s in states))
        x = unwrap(x)
        if isinstance(module, _CELLS):
            rows = (t.reshape(1, -1, t.shape[-1]) for t in (x, *states))  # one step, maybe without a batch
            return cls(next(rows), None, *rows)
        is_batch_first = bool(module.batch_first)
        if x.dim() == _WITHOUT_BATCH:
            x, states = x.unsqueeze(0 if is_batch_first else 1), [s.unsqueeze(1) for s in states]
        return cls(x.transpose(0, 1) if is_batch_first else x, None, *states)

    def states_before(self, out: Tensor, row: int, *, is_backward: bool) -> Tensor:
        """The state before each step [time, batch, hidden] of one direction, from what that direction returned."""
        first = torch.zeros_like(out[0]) if self.h is None else self.h[row].to(out)
        if not is_backward:
            return torch.cat([first[None], out[:-1]])
        before = torch.cat([out[1:], first[None]])
        if self.lengths is None:
            return before
        before[self.lengths.to(out.device) - 1, torch.arange(out.shape[1], device=out.device)] = first
        return before

    def means(self, sums: Tensor) -> ChannelMeans:
        """Of the sums [time, batch, gates], over the steps that sequences have."""
        if self.lengths is None:
            return ChannelMeans.of(sums, -1)
        is_inside = torch.arange(len(sums), device=sums.device)[:, None] < self.lengths.to(sums.device)[None]
        return ChannelMeans.of(sums[is_inside], -1)


def _states_of(hx: Tensor | tuple[Tensor, ...] | None) -> list[Tensor]:
    """No states, h, or h and c."""
    return [] if hx is None else [unwrap(s) for s in (hx if isinstance(hx, tuple) else (hx,))]


def float_gates(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, ChannelMeans]]:
    """The keys of the input's biases of a layer in real numbers, and the means of the sums that they are part of."""
    start = Start.of(module, args, kwargs)
    if isinstance(module, _CELLS):
        before = start.states_before(start.x.new_zeros(1, start.x.shape[1], module.hidden_size), 0, is_backward=False)
        yield "bias_ih", start.means(_gate_sums(start.x, before, _weights_of(module, "")))
        return
    x, count = start.x, 2 if module.bidirectional else 1
    for layer in range(module.num_layers):
        ends = [f"_l{layer}{back}" for back in ("", "_reverse")[:count]]
        out = _run_one_layer(module, ends, x, start, layer * count)
        for back, (end, part) in enumerate(zip(ends, out.chunk(count, -1), strict=True)):
            before = start.states_before(part, layer * count + back, is_backward=bool(back))
            yield f"bias_ih{end}", start.means(_gate_sums(x, before, _weights_of(module, end)))
        x = out


def _weights_of(module: nn.Module, end: str) -> list[Tensor | None]:
    """The parameters of one direction, biases only where it has some."""
    return [getattr(module, f"{role}{end}", None) for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]


def _run_one_layer(module: Any, ends: list[str], x: Tensor, start: Start, row: int) -> Tensor:
    """The output [time, batch, directions · hidden] of one layer of a float stack."""
    is_gru = len(getattr(module, f"weight_hh{ends[0]}")) == _GATES_OF_GRU * module.hidden_size
    kind = nn.GRU if is_gru else nn.LSTM
    one = kind(x.shape[-1], module.hidden_size, bias=module.bias, bidirectional=len(ends) > 1, device=x.device)
    for end, name in zip(ends, ("_l0", "_l0_reverse"), strict=False):
        for role in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if module.bias else 2]:
            one.get_parameter(role + name).copy_(getattr(module, role + end))
    states = [None if s is None else s[row : row + len(ends)].contiguous() for s in (start.h, start.c)]
    hx: Any = None if states[0] is None else tuple(states) if kind is nn.LSTM else states[0]
    if start.lengths is None:
        out: Tensor = one(x, hx)[0]
        return out
    packed, _ = one(pack_padded_sequence(x, start.lengths.cpu()), hx)
    return pad_packed_sequence(packed, total_length=len(x))[0]


def quantized_gates(
    module: QuantRecurrent, start: Start, number: int, x: QTensor, out: QTensor, attributes: Mapping[str, Any]
) -> tuple[str, ChannelMeans]:
    """The same of one node of a quantized layer: the `number`th of its call, its input and output, and its attributes."""
    count = len(module.suffixes[0])
    layer, back = divmod(number, count)
    rounded = module.rounded_weights(layer, attributes["scale_i"], attributes["scale_h"])
    weights = [None if both is None else both[back].float() for both in rounded.weights]
    values, states = x.content.float(), out.content.float()
    if attributes["batch_first"]:
        values, states = values.transpose(0, 1), states.transpose(0, 1)
    h = None if start.h is None else fake_quantize(start.h.float(), out.scale, out.bits)
    before = replace(start, h=h).states_before(states, number, is_backward=bool(back))
    return f"bias_ih{module.suffixes[layer][back]}", start.means(_gate_sums(values, before, weights))


Means = dict[str, dict[Call, ChannelMeans]]
"""By the path of a layer, or the key of the bias that a function or a recurrent layer adds."""


def channel_axis(module: nn.Module) -> int:
    """The axis of the channels in what a layer returns."""
    layer = layer_of(module)
    if isinstance(layer, TransposedSignalLayer):
        return -2
    if isinstance(layer, _ConvNd):
        return -1 - len(layer.kernel_size)
    if isinstance(layer, QuantLayer) and not isinstance(layer, BatchNormLayer):
        return product_fast_path(find_op(layer.op_name)).channel_axis
    return -1 if isinstance(layer, (nn.Linear, nn.LayerNorm)) else 1


INPUTS = ("query", "key", "value")
"""The inputs of an attention layer, each of which has a projection."""


def projections(module: Any) -> Iterator[tuple[str, Tensor, Tensor | None]]:
    """The inputs of an attention layer by name, with weight and bias of their projections; biases are views."""
    if module.in_proj_weight is None:
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    else:
        weights = module.in_proj_weight.chunk(3)
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    yield from zip(INPUTS, weights, biases, strict=True)


class _Recorder:
    """Asks a trace of a float model what its layers return, and the products that its own forwards compute."""

    def __init__(self, reference: nn.Module, has_norm: Mapping[str, bool], biases: Sequence[str]) -> None:
        self.means: Means = {}
        self.trace = Trace(reference, self._run)
        self._has_norm = has_norm
        named = dict(reference.named_parameters())
        self._biases = {id(named[name]): name for name in biases if name in named}
        self._returned: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def _add(self, key: str, y: Tensor, axis: int) -> None:
        call = self.trace.next_call(key.lstrip("."))
        if y.numel():
            self.means.setdefault(key.lstrip("."), {})[call] = ChannelMeans.of(y, axis)

    def leave_recurrent(self, path: str, module: nn.Module, args: Batch, kwargs: dict[str, Any], _: object) -> None:
        """A recurrent layer has returned."""
        for name, means in float_gates(module, args, kwargs):
            key = f"{path}.{name}".lstrip(".")
            self.means.setdefault(key, {})[self.trace.next_call(key)] = means

    def leave_attention(self, path: str, module: nn.Module, args: Batch, kwargs: dict[str, Any], output: Any) -> None:
        """An attention layer has returned: the projection of its output is what it returns, those of its inputs follow."""
        self._add(f"{path}.out_proj", unwrap(output[0]), -1)
        given = dict(zip(INPUTS, args, strict=False)) | kwargs
        for name, weight, bias in projections(module):
            if bias is not None:
                self._add(f"{path}.in_proj_bias, {name}", F.linear(unwrap(given[name]), weight, bias), -1)

    def leave_layer(self, path: str, module: nn.Module, _args: object, _kwargs: object, output: object) -> None:
        """A layer has returned; one that the quantized model has fused counts at its batch norm."""
        if not isinstance(output, Tensor):
            return
        if isinstance(module, QuantLayer):  # its batch norm is part of it
            self._add(path, unwrap(output), channel_axis(module))
        elif self._has_norm[path] and layer_of(module) is module:
            self._returned[id(output)] = (weakref.ref(output), path)
        else:
            self._add(path, output, channel_axis(module))

    def leave_batch_norm(self, module: nn.Module, args: Batch, _kwargs: object, output: Tensor) -> None:
        """A batch norm has returned, maybe that of a convolution."""
        known = self._returned.get(id(args[0])) if args else None
        if known is not None and known[0]() is args[0]:
            self._add(known[1], output, channel_axis(module))

    def _run(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        result = func(*args, **kwargs)
        if func in PRODUCTS:
            bias = args[2] if len(args) > 2 else kwargs.get("bias")
            key = self._biases.get(id(bias))
            if key is not None:
                self._add(key, unwrap(result), product_axis(func))
        return result


def product_axis(func: Function) -> int:
    """The axis of the channels in what a product returns."""
    kind = PRODUCTS[func][0]
    return -1 if kind is nn.Linear else -2 if kind is nn.Conv1d else -3


def float_means(
    reference: nn.Module,
    batches: Sequence[Batch],
    layers: Mapping[str, bool],
    recurrent: Sequence[str],
    attention: Sequence[str],
    biases: Sequence[str],
) -> Means:
    """Run a float model, fused or not, or a quantized one in real numbers (`real_copy`), and collect the means.

    Paths tell layers that are products, with whether the quantized model has a batch norm folded into each, recurrent ones, and
    those of attention, whose projections are products without a layer; keys the biases that functions may add.
    """
    recorder = _Recorder(reference, layers, biases)
    hooks = (layers, recorder.leave_layer), (recurrent, recorder.leave_recurrent), (attention, recorder.leave_attention)
    with evaluating(reference), recorder.trace as trace:
        for paths, leave in hooks:
            for module, path in {reference.get_submodule(path): path for path in paths}.items():
                trace.after([module], partial(leave, path))
        trace.after((m for m in reference.modules() if isinstance(m, _BatchNorm)), recorder.leave_batch_norm)
        for batch in batches:
            trace.run(batch)
    return recorder.means


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
