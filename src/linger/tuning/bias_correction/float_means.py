# SPDX-License-Identifier: Apache-2.0
"""What the layers of a float model return on average, channel by channel, call by call."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from linger.analysis.batches import Batch, Function, evaluating
from linger.analysis.trace import Trace
from linger.constraint.conv_bn import layer_of
from linger.dialect import find_op
from linger.ops.fast.twin import product_twin
from linger.quantization.core.qtensor import unwrap
from linger.quantization.functions.products import PRODUCTS
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.norm_layers import BatchNormLayer, TransposedSignalLayer
from linger.tuning.bias_correction.channel_means import Call, ChannelMeans
from linger.tuning.bias_correction.gate_means import float_gates

Found = dict[str, dict[Call, ChannelMeans]]
"""By the path of a layer, or the key of the bias that a function or a recurrent layer adds."""


@dataclass(frozen=True)
class Wanted:
    """What to look at in a float model.

    Attributes:
        layers: Paths of products, and whether the quantized model has a batch norm folded into each.
        recurrent: Paths of recurrent layers.
        attention: Paths of attention layers, whose projections are products without a layer.
        biases: Keys of biases that functions may add (F.linear in a user's own forward).
    """

    layers: Mapping[str, bool]
    recurrent: Sequence[str]
    attention: Sequence[str]
    biases: Sequence[str]


def channel_axis(module: nn.Module) -> int:
    """The axis of the channels in what a layer returns."""
    layer = layer_of(module)
    if isinstance(layer, TransposedSignalLayer):
        return -2
    if isinstance(layer, _ConvNd):
        return -1 - len(layer.kernel_size)
    if isinstance(layer, QuantLayer) and not isinstance(layer, BatchNormLayer):
        return product_twin(find_op(layer.op_name)).channel_axis
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


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


class _Recorder:
    """Asks a trace of a float model what its layers return, and the products that its own forwards compute."""

    def __init__(self, reference: nn.Module, wanted: Wanted) -> None:
        self.found: Found = {}
        self.trace = Trace(reference, self._run)
        self.layers = {reference.get_submodule(path): path for path in wanted.layers}
        self.recurrent = {reference.get_submodule(path): path for path in wanted.recurrent}
        self.attention = {reference.get_submodule(path): path for path in wanted.attention}
        self._has_norm = wanted.layers
        named = dict(reference.named_parameters())
        self._biases = {id(named[name]): name for name in wanted.biases if name in named}
        self._returned: dict[int, tuple[weakref.ref[Tensor], str]] = {}

    def _add(self, key: str, y: Tensor, axis: int) -> None:
        call = self.trace.next_call(key)
        if y.numel():
            self.found.setdefault(key, {})[call] = ChannelMeans.of(y, axis)

    def leave_recurrent(
        self,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: object,  # noqa: ARG002 - a hook's signature
    ) -> None:
        """A recurrent layer has returned."""
        for name, means in float_gates(module, args, kwargs):
            key = f"{self.recurrent[module]}.{name}".lstrip(".")
            self.found.setdefault(key, {})[self.trace.next_call(key)] = means

    def leave_attention(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, ...]
    ) -> None:
        """An attention layer has returned: the projection of its output is what it returns, those of its inputs follow."""
        path = self.attention[module]
        self._add(_inside(path, "out_proj"), unwrap(output[0]), -1)
        given = dict(zip(INPUTS, args, strict=False)) | kwargs
        for name, weight, bias in projections(module):
            if bias is not None:
                self._add(_inside(path, f"in_proj_bias, {name}"), F.linear(unwrap(given[name]), weight, bias), -1)

    def leave_layer(self, module: nn.Module, args: object, kwargs: object, output: object) -> None:  # noqa: ARG002 - a hook's signature
        """A layer has returned; one that the quantized model has fused counts at its batch norm."""
        path = self.layers[module]
        if not isinstance(output, Tensor):
            return
        if isinstance(module, QuantLayer):  # its batch norm is part of it
            self._add(path, unwrap(output), channel_axis(module))
        elif self._has_norm[path] and layer_of(module) is module:
            self._returned[id(output)] = (weakref.ref(output), path)
        else:
            self._add(path, output, channel_axis(module))

    def leave_batch_norm(self, module: nn.Module, args: Batch, kwargs: object, output: Tensor) -> None:  # noqa: ARG002 - a hook's signature
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


def float_means(reference: nn.Module, batches: Sequence[Batch], wanted: Wanted) -> Found:
    """Run a float model, or a quantized one in real numbers (`real_copy`), and collect the means.

    The convolutions of a float model may be fused with their batch norms or not.
    """
    recorder = _Recorder(reference, wanted)
    with evaluating(reference), recorder.trace as trace:
        trace.after(recorder.layers, recorder.leave_layer)
        trace.after(recorder.recurrent, recorder.leave_recurrent)
        trace.after(recorder.attention, recorder.leave_attention)
        trace.after((m for m in reference.modules() if isinstance(m, _BatchNorm)), recorder.leave_batch_norm)
        for batch in batches:
            trace.run(batch)
    return recorder.found
