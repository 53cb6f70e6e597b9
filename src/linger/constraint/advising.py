# SPDX-License-Identifier: Apache-2.0
"""advise: what the weights of a checkpoint and the outputs of a model's layers lose in fixed point, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any, cast

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


@dataclass(frozen=True)
class Measured:
    """A tensor that can be read, and what it is."""

    subject: Subject
    open: Callable[[], Values]
    channels: int | None = None
    bn: str = ""
    """The batch norm that will be folded into this weight, by its name."""


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
) -> list[Measured]:
    """The weights of a checkpoint or module, and the outputs of its layers if there are inputs.

    Functions whose input leaves the device's format are added to `beyond`.
    """
    if isinstance(source, nn.Module):
        kept = [] if beyond is None else beyond
        return [*_weights_of(source), *(_outputs_of(source, inputs, kept, where) if inputs is not None else ())]
    if inputs is not None:
        raise UsageError(f"{where}: inputs need a module to run. Pass the model instead of its checkpoint.")
    return list(_weights_in(source))


def judge(measured: Measured) -> Item:
    """What one tensor loses, with its sentence."""
    values = measured.open()
    found = measure(values)
    item = make_item(measured.subject, found, measure_loss(values, found, measured.channels))
    if measured.bn and item.role != FOLDED:
        text = f"before {measured.bn} is folded in, which is what counts: {item.advice}"
        return replace(item, advice=text, line="", alternative="")
    return item


def _weights_in(source: Source) -> Iterator[Measured]:
    stored = stored_tensors(source)
    pairs = {pair.conv.name: pair for pair in folded_weights(stored)}
    names = {tensor.name for tensor in stored}
    is_traced = any(name.endswith(_FOLDED_MARK) for name in names)  # other models may have parts called conv and bn
    for tensor in stored:
        if tensor.dtype.is_floating_point and not is_running_statistic(tensor.name):
            module = tensor.name.rpartition(".")[0]
            pair = module.removesuffix(".conv")
            # in a traced checkpoint the fused layer is the parent
            is_fused = is_traced and pair != module and f"{pair}.bn.weight" in names
            role, channels = _role(tensor.shape)
            place, folded = pair if is_fused else module, pairs.get(tensor.name)
            bn = folded.bn if folded is not None else ""
            own = tensor if folded is None else folded.conv
            yield Measured(Subject(tensor.name, place, role), own.open, channels, bn)
            if folded is not None:
                yield Measured(Subject(folded.weight.name, place, FOLDED), folded.weight.open, channels, bn)


def _role(shape: tuple[int, ...]) -> tuple[str, int | None]:
    """A parameter's role, and its channels if it is a weight."""
    return ("weight", shape[0]) if len(shape) > 1 else ("other", None)


def _weights_of(model: nn.Module) -> Iterator[Measured]:
    inside_pairs = parts_of_pairs(model)
    for path, module in model.named_modules():
        if module in inside_pairs:
            continue
        for name, tensor in _parameters_of(module).items():
            if tensor.is_floating_point():
                role, channels = _role(tuple(tensor.shape))
                yield _of_tensor(_subject(f"{path}.{name}".lstrip("."), path, module, role), tensor, channels)


@torch.no_grad()
def _parameters_of(module: nn.Module) -> Mapping[str, Tensor]:
    """A layer's parameters as they will be quantized: folded, and within its limits."""
    tensors: Mapping[str, Tensor] = dict(module.named_parameters(recurse=False))
    if isinstance(module, ConvBN):
        tensors = dict(zip(("weight", "bias"), module.folded(), strict=True))
    limits = limits_of(module)
    return {name: clamp(t, limits.bias if "bias" in name else limits.weight) for name, t in tensors.items()}


def _of_tensor(subject: Subject, tensor: Tensor, channels: int | None = None) -> Measured:
    return Measured(subject, lambda: TensorValues(tensor), channels)


def _subject(name: str, path: str, module: nn.Module, role: str) -> Subject:
    layer = layer_of(module)
    kinds = [kind for kind in (*_LIMITABLE, *_LIMITABLE_BY_NAME) if isinstance(layer, kind) and _is_plain(layer, kind)]
    by_name = next((text for kind, text in _LIMITABLE_BY_NAME.items() if kind in kinds), "")
    can_widen = any(kind in kinds for kind in _WIDENABLE)
    return Subject(name, path, role, bool(kinds), can_widen, by_name)


def _is_plain(layer: nn.Module, kind: type[nn.Module]) -> bool:
    # a normalized layer overrides forward, and is what a limit is for
    return computes_like(layer, kind) or type(layer).__module__.startswith("linger.")


def _outputs_of(model: nn.Module, inputs: object, beyond: list[Item], where: str) -> list[Measured]:
    """Samples of every leaf's output over all inputs; the model is as before afterwards."""
    samples = {path: _Sample(module) for path, module in _leaves(model)}
    functions = FunctionInputs(model)
    with unaffected(model), functions.trace as trace:
        for sample in samples.values():
            trace.after([sample.module], sample.take)
        trace.follow_modules()
        for batch in progress(as_batches(model, inputs, where), "run"):
            trace.run(batch)
    beyond += functions.items()
    found = [
        _of_tensor(_subject(path or "model", path, sample.module, "output"), *sample.joined())
        for path, sample in samples.items()
        if sample.kept
    ]
    if not found:
        raise UsageError(f"{where}: no layer returned a tensor for these inputs. Give at least one batch.")
    return found


def _leaves(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    inside_pairs = parts_of_pairs(model)
    for path, module in model.named_modules():
        is_leaf = isinstance(module, ConvBN) or not any(module.children())
        if is_leaf and module not in inside_pairs:
            yield path, module


class _Sample:
    """Evenly spread positions of a layer's output, all channels of each, and always those of the largest magnitude."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kept: list[Tensor] = []
        self._step = 1
        self._count = 0

    def take(self, module: nn.Module, args: object, kwargs: object, output: Any) -> None:
        """Forward hook."""
        del module, args, kwargs
        first = output[0] if isinstance(self.module, nn.RNNBase) else output
        first = first.data if isinstance(first, PackedSequence) else first
        for leaf in tree_leaves(first):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                self._add(_channels_first(_real(leaf), self._is_over_signals).cpu())

    @property
    def _is_over_signals(self) -> bool:
        return isinstance(layer_of(self.module), _OVER_SIGNALS)

    def _add(self, rows: Tensor) -> None:
        """Rows are channels, columns positions."""
        largest = int(rows.abs().argmax()) % rows.shape[1]
        self.kept.append(torch.cat([rows[:, largest : largest + 1], rows[:, :: self._step]], 1))
        self._count += self.kept[-1].numel()
        while self._count > _SAMPLE and any(k.shape[1] > 2 for k in self.kept):
            self._step *= 2
            self.kept = [torch.cat([k[:, :1], k[:, 1::2]], 1) for k in self.kept]
            self._count = sum(k.numel() for k in self.kept)

    def joined(self) -> tuple[Tensor, int | None]:
        """All values, channel after channel, and the number of channels (None where outputs differ in it)."""
        if len({k.shape[0] for k in self.kept}) == 1:
            return torch.cat(self.kept, 1), self.kept[0].shape[0]
        return torch.cat([k.reshape(-1) for k in self.kept]), None


def _real(tensor: Tensor) -> Tensor:
    """Real numbers outside every model: computing with a quantized tensor would add an op to the model that made it."""
    return tensor.detach().dequantize().float()


def _channels_first(x: Tensor, is_signal: bool) -> Tensor:  # noqa: FBT001 - a fact about x
    """A matrix with a row per channel: axis 1 of images and signals, the last axis of anything else."""
    if x.dim() < 2:
        return x.reshape(1, -1)
    axis = 1 if x.dim() > 3 or is_signal else -1
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)


@cache
def _functions_with_short_formats() -> dict[Function, Op]:
    """The torch functions whose input has a format on the device that ends early: softmax at ±64, GELU and SiLU at ±16."""
    short = [(op, path) for op in ops().values() if op.input_end is not None for path in op.functions]
    return {cast(Function, reduce(getattr, path.split(".")[1:], torch)): op for op, path in short}


class FunctionInputs:
    """The range of the inputs of these functions for each module that runs them in a trace."""

    def __init__(self, model: nn.Module) -> None:
        self.trace = Trace(model, self._run)
        self._seen: dict[tuple[str, str], tuple[Op, float, float]] = {}

    def _run(self, func: Function, args: Batch, kwargs: dict[str, Any]) -> object:
        """Run the function; look at its input if its format ends early."""
        op = _functions_with_short_formats().get(func)
        x = args[0] if args else kwargs.get("input")
        if op is not None and isinstance(x, Tensor) and x.numel():
            values = _real(x)
            rows = values.amax(-1) if op.last_axis is not None and x.dim() else values  # masked scores do not count
            key = (self.trace.path, func.__name__)
            _, low, high = self._seen.get(key, (op, 0.0, 0.0))
            self._seen[key] = (op, min(low, float(rows.min())), max(high, float(rows.max())))
        return func(*args, **kwargs)

    def items(self) -> list[Item]:
        """One item for each function whose input left the device's format."""
        return [_beyond_format(key, *seen) for key, seen in self._seen.items() if _leaves_format(*seen)]


def _leaves_format(op: Op, low: float, high: float) -> bool:
    end = op.input_end
    return end is not None and (high > end or (op.last_axis is not None and -low > end))


def _beyond_format(place: tuple[str, str], op: Op, low: float, high: float) -> Item:
    path, name = place
    end = f"±{op.input_end:g}"
    what_to_do = (
        "calibration then subtracts the largest number of each row first, which keeps every decision but no chip has; limit "
        f"the layer before it to {end} and train on to do without"
        if op.last_axis is not None
        else f"limit the layer before it to {end} and train on, or keep the function in float"
    )
    sentence = f"its input reaches {max(high, -low):.3g}, and the device reads it in a format that ends at {end}: {what_to_do}."
    largest = max(high, -low)
    return Item(
        f"{path}.{name}".lstrip("."), path, "input", largest, largest, 1.0, is_beyond_format=True, advice=sentence
    )
