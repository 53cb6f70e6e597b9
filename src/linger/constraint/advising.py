# SPDX-License-Identifier: Apache-2.0
"""advise: what fixed point does to the weights of a checkpoint and to the outputs of a model, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves

from linger.analysis.advice import Advice, Item, Subject, make_item
from linger.analysis.batches import as_batches
from linger.analysis.blocks import Values
from linger.analysis.checkpoint import Source, stored_tensors
from linger.analysis.fixed_point_loss import measure_loss
from linger.analysis.magnitudes import measure
from linger.analysis.matcher import computes_like, evaluating
from linger.analysis.values import TensorValues
from linger.analysis.weights import in_threads, is_running_statistic
from linger.constraint.conv_bn import ConvBN
from linger.constraint.function_inputs import FunctionInputs
from linger.constraint.limits import Limits, clamp, limits_of
from linger.errors import UsageError
from linger.progress import progress

_SAMPLE = 1 << 18
"""At most so many values of a layer's output are kept, spread evenly over the passes."""

_FOLDED_MARK = "._linger_ignore_parameter"
"""What a checkpoint has in place of a batch norm that `trace_layers` folded."""

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


def advise(source: Source, inputs: Any = None) -> Advice:
    """What each tensor loses as 4, 8 and 16-bit integers, the most worrying first, with a sentence and a line to paste.

    Args:
        source: A path, a state_dict, a checkpoint, or a module. Of a module after `trace_layers` the folded weights are
            judged, which is what will be quantised; a checkpoint is taken as it is.
        inputs: Typical inputs of the module (as for `linger.verify`): layer outputs are judged too. Their noise is that
            of at most 262 144 values per layer, spread evenly; their maximum is exact.

    Raises:
        UsageError: The checkpoint cannot be read; inputs without a module.
    """
    beyond: list[Item] = []
    judged = in_threads(judge, tensors_of(source, inputs, beyond), "advise")
    return Advice.of([*beyond, *judged])


def tensors_of(source: Source, inputs: Any = None, beyond: list[Item] | None = None) -> list[Measured]:
    """The weights of a checkpoint or module, and the outputs of its layers if there are inputs.

    `beyond` gets what is beyond the device's format of a function's input.
    """
    if isinstance(source, nn.Module):
        kept = [] if beyond is None else beyond
        return [*_weights_of(source), *(_outputs_of(source, inputs, kept) if inputs is not None else ())]
    if inputs is not None:
        raise UsageError("advise: inputs need a module to run. Pass the model instead of its checkpoint.")
    return list(_weights_in(source))


def judge(measured: Measured) -> Item:
    """What one tensor loses, with its sentence."""
    values = measured.open()
    found = measure(values)
    return make_item(measured.subject, found, measure_loss(values, found, measured.channels))


def _weights_in(source: Source) -> Iterator[Measured]:
    tensors = [t for t in stored_tensors(source) if t.dtype.is_floating_point and not is_running_statistic(t.name)]
    names = {t.name for t in stored_tensors(source)}
    is_traced = any(name.endswith(_FOLDED_MARK) for name in names)  # other models may have parts called conv and bn
    for tensor in tensors:
        module = tensor.name.rpartition(".")[0]
        if is_traced and module.endswith(".conv") and f"{module.removesuffix('.conv')}.bn.weight" in names:
            module = module.removesuffix(".conv")  # a traced checkpoint: the fused layer is the parent
        is_weight = len(tensor.shape) > 1
        subject = Subject(tensor.name, module, "weight" if is_weight else "other")
        yield Measured(subject, tensor.open, tensor.shape[0] if is_weight else None)


def _weights_of(model: nn.Module) -> Iterator[Measured]:
    inside_fused = {part for m in model.modules() if isinstance(m, ConvBN) for part in (m.conv, m.bn)}
    for path, module in model.named_modules():
        if module in inside_fused:
            continue
        tensors: Mapping[str, Tensor] = dict(module.named_parameters(recurse=False))
        with torch.no_grad():
            if isinstance(module, ConvBN):
                tensors = dict(zip(("weight", "bias"), module.folded(), strict=True))
            tensors = _within_limits(tensors, limits_of(module))
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                is_weight = tensor.dim() > 1
                subject = _subject(f"{path}.{name}".lstrip("."), path, module, "weight" if is_weight else "other")
                yield _of_tensor(subject, tensor, tensor.shape[0] if is_weight else None)


def _within_limits(tensors: Mapping[str, Tensor], limits: Limits) -> Mapping[str, Tensor]:
    """What the layer computes with, which is what will be quantised."""
    if not limits.is_any:
        return tensors
    return {name: clamp(t, limits.bias if "bias" in name else limits.weight) for name, t in tensors.items()}


def _of_tensor(subject: Subject, tensor: Tensor, channels: int | None = None) -> Measured:
    return Measured(subject, lambda: TensorValues(tensor), channels)


def _subject(name: str, path: str, module: nn.Module, role: str) -> Subject:
    layer = module.conv if isinstance(module, ConvBN) else module
    kinds = [kind for kind in (*_LIMITABLE, *_LIMITABLE_BY_NAME) if isinstance(layer, kind) and _is_plain(layer, kind)]
    by_name = next((text for kind, text in _LIMITABLE_BY_NAME.items() if kind in kinds), "")
    can_widen = any(kind in kinds for kind in _WIDENABLE)
    return Subject(name, path, role, bool(kinds), can_widen, by_name)


def _is_plain(layer: Any, kind: type[nn.Module]) -> bool:
    # a normalised layer overrides forward, and is what a limit is for
    return computes_like(layer, kind) or type(layer).__module__.startswith("linger.")


def _outputs_of(model: nn.Module, inputs: Any, beyond: list[Item]) -> list[Measured]:
    """Samples of every leaf's output over all inputs; the model is as before afterwards."""
    samples: dict[str, _Sample] = {}
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(torch.no_grad())
        for path, module in model.named_modules():
            is_leaf = isinstance(module, ConvBN) or not any(module.children())
            is_inside = any(isinstance(m, ConvBN) and module in (m.conv, m.bn) for m in model.modules())
            if is_leaf and not is_inside:
                sample = samples.setdefault(path, _Sample(module))
                stack.callback(module.register_forward_hook(sample.take).remove)
        watch = stack.enter_context(FunctionInputs(model))
        for batch in progress(as_batches(inputs), "run"):
            model(*batch)
    beyond += watch.items()
    found = []
    for path, sample in samples.items():
        if sample.kept:
            subject = _subject(path or "model", path, sample.module, "output")
            found.append(_of_tensor(subject, *sample.joined()))
    if not found:
        raise UsageError("advise: no layer returned a tensor for these inputs. Give at least one batch.")
    return found


class _Sample:
    """Evenly spread positions of a layer's output, all channels of each, and always those of the largest magnitude."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kept: list[Tensor] = []
        self._step = 1
        self._count = 0

    def take(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook."""
        del module, args
        first = output[0] if isinstance(self.module, nn.RNNBase) else output
        first = first.data if isinstance(first, PackedSequence) else first
        for leaf in tree_leaves(first):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                self._add(_channels_first(leaf.detach(), self._is_over_signals).float().cpu())

    @property
    def _is_over_signals(self) -> bool:
        layer = self.module.conv if isinstance(self.module, ConvBN) else self.module
        return isinstance(layer, _OVER_SIGNALS)

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


def _channels_first(x: Tensor, is_signal: bool) -> Tensor:  # noqa: FBT001 - a fact about x
    """A matrix with a row per channel: axis 1 of pictures and signals, the last axis of anything else."""
    if x.dim() < 2:
        return x.reshape(1, -1)
    axis = 1 if x.dim() > 3 or is_signal else -1
    return x.movedim(axis, 0).reshape(x.shape[axis], -1)
