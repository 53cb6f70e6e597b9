# SPDX-License-Identifier: Apache-2.0
"""advise: what the weights of a checkpoint and the outputs of a model's layers lose in fixed point, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, reduce
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from linger.analysis.advice import FOLDED, Advice, Item, Subject, make_item, measure_loss
from linger.analysis.batches import Batch, Function, as_batches
from linger.analysis.checkpoint import Source, TensorValues, stored_tensors
from linger.analysis.magnitudes import Values, measure
from linger.analysis.trace import Trace, computes_like, unaffected
from linger.analysis.weights import folded_weights, in_threads, is_running_statistic
from linger.constraint.conv_bn import ConvBN, layer_of, parts_of_pairs
from linger.constraint.limits import clamp, limits_of
from linger.dialect import Op, ops
from linger.errors import UsageError
from linger.progress import progress

_SAMPLE = 1 << 18
"""At most this many values of a layer's output are kept, spread evenly over the passes."""

_FOLDED_MARK = "._linger_ignore_parameter"
"""How the key ends that a checkpoint has in place of a batch norm that `trace_layers` folded."""

_LIMITABLE = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm2d, nn.GRU, nn.LSTM)
_LIMITABLE_BY_NAME = {nn.Embedding: "torch.nn.Embedding", nn.LayerNorm: "torch.nn.LayerNorm"}
_OVER_SIGNALS = (nn.Conv1d, nn.ConvTranspose1d, nn.BatchNorm1d, nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d)
_WIDENABLE = (nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


class _Measured(NamedTuple):
    """A tensor that can be read, what it is, and the name of the batch norm that will be folded into it, if one will."""

    subject: Subject
    open: Callable[[], Values]
    channels: int | None = None
    bn: str = ""


def advise(source: Source, inputs: object = None) -> Advice:
    """What each tensor loses as 4, 8 and 16-bit integers, the most worrying first, with a sentence and a line to paste.

    Args:
        source: A path, a state_dict, a checkpoint, or a module. Of a module after `trace_layers` the folded weights are
            judged, which is what will be quantized. A checkpoint gets an item more for each convolution that a batch norm
            follows by its name (role `folded`); lines to paste are for the model after `trace_layers`.
        inputs: Typical inputs of the module (as for `linger.verify`): layer outputs are judged too. Their noise is that
            of at most 262 144 values per layer, spread evenly; their maximum is exact.

    Raises:
        UsageError: The checkpoint cannot be read; inputs without a module.
    """
    beyond: list[Item] = []
    judged = in_threads(judge, tensors_of(source, inputs, beyond), "advise")
    return Advice.of([*beyond, *judged])


def tensors_of(
    source: Source, inputs: object = None, beyond: list[Item] | None = None, *, where: str = "advise"
) -> list[_Measured]:
    """The weights of a checkpoint or module, and the outputs of its layers if there are inputs.

    Functions whose input leaves the device's format are added to `beyond`.
    """
    if isinstance(source, nn.Module):
        outputs = [] if inputs is None else _outputs_of(source, inputs, [] if beyond is None else beyond, where)
        return [*_weights_of(source), *outputs]
    if inputs is not None:
        raise UsageError(f"{where}: inputs need a module to run. Pass the model instead of its checkpoint.")
    return list(_weights_in(source))


def judge(measured: _Measured) -> Item:
    """What one tensor loses, with its sentence."""
    values = measured.open()
    magnitudes = measure(values)
    item = make_item(measured.subject, magnitudes, measure_loss(values, magnitudes, measured.channels))
    if measured.bn and item.role != FOLDED:
        text = f"before {measured.bn} is folded in, which is what counts: {item.advice}"
        return replace(item, advice=text, line="", alternative="")
    return item


def _weights_in(source: Source) -> Iterator[_Measured]:
    stored = stored_tensors(source)
    pairs = {pair.conv.name: pair for pair in folded_weights(stored)}
    names = {tensor.name for tensor in stored}
    is_traced = any(name.endswith(_FOLDED_MARK) for name in names)  # other models may have parts called conv and bn
    for tensor in (t for t in stored if t.dtype.is_floating_point and not is_running_statistic(t.name)):
        module = tensor.name.rpartition(".")[0]
        pair = module.removesuffix(".conv")
        # in a traced checkpoint the fused layer is the parent
        place = pair if all((is_traced, pair != module, f"{pair}.bn.weight" in names)) else module
        (role, channels), folded = _role(tensor.shape), pairs.get(tensor.name)
        if folded is None:
            yield _Measured(Subject(tensor.name, place, role), tensor.open, channels)
        else:
            yield _Measured(Subject(tensor.name, place, role), folded.conv.open, channels, folded.bn)
            yield _Measured(Subject(folded.weight.name, place, FOLDED), folded.weight.open, channels, folded.bn)


def _role(shape: tuple[int, ...]) -> tuple[str, int | None]:
    """A parameter's role, and its channels if it is a weight."""
    return ("weight", shape[0]) if len(shape) > 1 else ("other", None)


@torch.no_grad()
def _weights_of(model: nn.Module) -> list[_Measured]:
    """Every layer's parameters as they will be quantized: folded, and within its limits."""
    weights, inside_pairs = [], parts_of_pairs(model)
    for path, module in (named for named in model.named_modules() if named[1] not in inside_pairs):
        tensors: dict[str, Tensor] = dict(module.named_parameters(recurse=False))
        if isinstance(module, ConvBN):
            tensors = dict(zip(("weight", "bias"), module.folded(), strict=True))
        limits = limits_of(module)
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                (role, channels), limit = _role(tuple(tensor.shape)), limits.bias if "bias" in name else limits.weight
                subject = _subject(f"{path}.{name}".lstrip("."), path, module, role)
                weights.append(_of_tensor(subject, clamp(tensor, limit), channels))
    return weights


def _of_tensor(subject: Subject, tensor: Tensor, channels: int | None = None) -> _Measured:
    return _Measured(subject, lambda: TensorValues(tensor), channels)


def _subject(name: str, path: str, module: nn.Module, role: str) -> Subject:
    layer = layer_of(module)
    kinds = [kind for kind in (*_LIMITABLE, *_LIMITABLE_BY_NAME) if isinstance(layer, kind)]
    # a normalized layer overrides forward, and is what a limit is for
    if not type(layer).__module__.startswith("linger."):
        kinds = [kind for kind in kinds if computes_like(layer, kind)]
    by_name = next((text for kind, text in _LIMITABLE_BY_NAME.items() if kind in kinds), "")
    return Subject(name, path, role, bool(kinds), any(kind in kinds for kind in _WIDENABLE), by_name)


def _outputs_of(model: nn.Module, inputs: object, beyond: list[Item], where: str) -> list[_Measured]:
    """Samples of every leaf's output over all inputs; the model is as before afterwards."""
    inside_pairs = parts_of_pairs(model)
    samples = {
        path: _Sample(module)
        for path, module in model.named_modules()
        if module not in inside_pairs and (isinstance(module, ConvBN) or not any(module.children()))
    }
    functions = _FunctionInputs(model)
    with unaffected(model), functions.trace as trace:
        for sample in samples.values():
            trace.after([sample.module], sample.take)
        trace.follow_modules()
        for batch in progress(as_batches(model, inputs, where), "run"):
            trace.run(batch)
    beyond += functions.items()
    outputs = [
        _of_tensor(_subject(path or "model", path, sample.module, "output"), *sample.joined())
        for path, sample in samples.items()
        if sample.columns
    ]
    if not outputs:
        raise UsageError(f"{where}: no layer returned a tensor for these inputs. Give at least one batch.")
    return outputs


class _Sample:
    """Evenly spread positions of a layer's output, all channels of each, and always those of the largest magnitude."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.columns: list[Tensor] = []
        self._step = 1

    def take(self, module: nn.Module, args: object, kwargs: object, output: Any) -> None:
        """Forward hook."""
        del module, args, kwargs
        first = output[0] if isinstance(self.module, nn.RNNBase) else output
        first = first.data if isinstance(first, PackedSequence) else first
        for leaf in tree_leaves(first):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                self._add(_real(leaf))

    def _add(self, x: Tensor) -> None:
        """Take columns of a matrix with a row per channel: axis 1 of images and signals, the last axis of anything else."""
        axis = 1 if x.dim() > 3 or isinstance(layer_of(self.module), _OVER_SIGNALS) else -1
        rows = (x.reshape(1, -1) if x.dim() < 2 else x.movedim(axis, 0).reshape(x.shape[axis], -1)).cpu()
        largest = int(rows.abs().argmax()) % rows.shape[1]
        self.columns.append(torch.cat([rows[:, largest : largest + 1], rows[:, :: self._step]], 1))
        while sum(c.numel() for c in self.columns) > _SAMPLE and any(c.shape[1] > 2 for c in self.columns):
            self._step *= 2
            self.columns = [torch.cat([c[:, :1], c[:, 1::2]], 1) for c in self.columns]

    def joined(self) -> tuple[Tensor, int | None]:
        """All values, channel after channel, and the number of channels (None where outputs differ in it)."""
        if len({c.shape[0] for c in self.columns}) == 1:
            return torch.cat(self.columns, 1), self.columns[0].shape[0]
        return torch.cat([c.reshape(-1) for c in self.columns]), None


def _real(tensor: Tensor) -> Tensor:
    """Real numbers outside every model: computing with a quantized tensor would add an op to the model that made it."""
    return tensor.detach().dequantize().float()


@cache
def _functions_with_short_formats() -> dict[Function, Op]:
    """The torch functions whose input has a format on the device that ends early: softmax at ±64, GELU and SiLU at ±16."""
    short = [(op, path) for op in ops().values() if op.input_end is not None for path in op.functions]
    return {cast(Function, reduce(getattr, path.split(".")[1:], torch)): op for op, path in short}


class _FunctionInputs:
    """The range of the inputs of these functions for each module that runs them in a trace."""

    def __init__(self, model: nn.Module) -> None:
        self.trace = Trace(model, self._run)
        self._ranges: dict[tuple[str, str], tuple[Op, float, float]] = {}

    def _run(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        """Run the function; look at its input if its format ends early."""
        op = _functions_with_short_formats().get(func)
        x = args[0] if args else kwargs.get("input")
        if op is not None and isinstance(x, Tensor) and x.numel():
            values = _real(x)
            rows = values.amax(-1) if op.last_axis is not None and x.dim() else values  # masked scores do not count
            key = (self.trace.path, func.__name__)
            _, low, high = self._ranges.get(key, (op, 0.0, 0.0))
            self._ranges[key] = (op, min(low, float(rows.min())), max(high, float(rows.max())))
        return func(*args, **kwargs)

    def items(self) -> Iterator[Item]:
        """One item for each function whose input left the device's format."""
        for (path, name), (op, low, high) in self._ranges.items():
            end, largest = op.input_end, max(high, -low)
            if end is None or (high if op.last_axis is None else largest) <= end:
                continue
            remedy = f"limit the layer before it to ±{end:g} and train on, or keep the function in float"
            if op.last_axis is not None:
                remedy = (
                    "calibration then subtracts the largest number of each row first, which keeps every decision but no chip "
                    f"has; limit the layer before it to ±{end:g} and train on to do without"
                )
            text = (
                f"its input reaches {largest:.3g}, and the device reads it in a format that ends at ±{end:g}: {remedy}."
            )
            full = f"{path}.{name}".lstrip(".")
            yield Item(full, path, "input", largest, largest, 1.0, is_beyond_format=True, advice=text)
