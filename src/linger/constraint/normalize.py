# SPDX-License-Identifier: Apache-2.0
"""normalize_layers, normalize_module, disable_normalize: limits for the layers of a float model.

LSTM and GRU whose weights, biases and output sequence stay within limits.

A layer whose channels have limits of their own, as `linger.equalize` makes it where ReLU6 follows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.rnn import PackedSequence

from linger.analysis.trace import computes_like
from linger.constraint.conv_bn import (
    ConvBN,
    NormalizeBatchNorm1d,
    NormalizeBatchNorm2d,
    NormalizeBatchNorm3d,
    NormalizeConv1d,
    NormalizeConv2d,
    NormalizeConvBN1d,
    NormalizeConvBN2d,
    NormalizeConvTranspose2d,
    NormalizeConvTransposeBN2d,
    NormalizeEmbedding,
    NormalizeLayerNorm,
    NormalizeLinear,
    counts_as,
    freeze_batch_norms,
    joined_limits,
    parts_of_pairs,
)
from linger.constraint.limits import (
    LIMITS,
    Limits,
    Normalized,
    Types,
    checked_limits,
    checked_types,
    clamp,
    limits_of,
    refuse_quantized,
)
from linger.constraint.tracing import replace_everywhere
from linger.settings import chosen_switches

_Layer = TypeVar("_Layer", bound="_LimitedRecurrent")
_Sequence = TypeVar("_Sequence", Tensor, PackedSequence)
_States = tuple[Tensor, Tensor]


class _LimitedRecurrent(Normalized):
    """What both kinds share. torch's forward reads its parameters through `_flat_weights`: here they are limited.

    The returned state is what torch computes with the limited parameters; only the output sequence is limited.
    """

    _flat_weights_names: list[str]

    @property
    def _flat_weights(self) -> list[Tensor | None]:
        limits = {True: self.normalize_bias, False: self.normalize_weight}
        names = self._flat_weights_names
        return [clamp(getattr(self, name, None), limits[name.startswith("bias")]) for name in names]

    @_flat_weights.setter
    def _flat_weights(self, tensors: object) -> None:
        """Ignored: torch assigns the parameters, and they are read by their names."""

    def _weights_have_changed(self) -> bool:
        """Always False: the parameters are read again in every pass."""
        return False

    def flatten_parameters(self) -> None:
        """Limited parameters are new tensors in every pass, so there is no point in joining them in memory."""
        if self.normalize_weight is None and self.normalize_bias is None:
            super().flatten_parameters()  # type: ignore[misc]  # the torch layer's

    @classmethod
    def from_layer(cls: type[_Layer], layer: nn.Module, chosen: Limits) -> _Layer:
        """As for every Normalize* layer, without torch's own list of parameters."""
        limited = super().from_layer(layer, chosen)
        limited.__dict__.pop("_flat_weights", None)
        return limited

    def _limit_sequence(self, output: _Sequence) -> _Sequence:
        if isinstance(output, PackedSequence):
            return output._replace(data=clamp(output.data, self.normalize_data))
        return clamp(output, self.normalize_data)


class NormalizeFastLSTM(_LimitedRecurrent, nn.LSTM):
    """An LSTM within limits."""

    def forward(self, input: _Sequence, hx: _States | None = None) -> tuple[_Sequence, _States]:  # noqa: A002 - torch's name
        """(limited output, (h, c)) of the LSTM with limited parameters."""
        output, state = nn.LSTM.forward(self, input, hx)
        return self._limit_sequence(output), state


class NormalizeFastGRU(_LimitedRecurrent, nn.GRU):
    """A GRU within limits."""

    def forward(self, input: _Sequence, hx: Tensor | None = None) -> tuple[_Sequence, Tensor]:  # noqa: A002 - torch's name
        """(limited output, h) of the GRU with limited parameters."""
        output, state = nn.GRU.forward(self, input, hx)
        return self._limit_sequence(output), state


logger = logging.getLogger(__name__)

NORMALIZED: dict[type[nn.Module], type[Normalized]] = {
    nn.Conv1d: NormalizeConv1d,
    nn.Conv2d: NormalizeConv2d,
    nn.ConvTranspose2d: NormalizeConvTranspose2d,
    nn.Linear: NormalizeLinear,
    nn.BatchNorm1d: NormalizeBatchNorm1d,
    nn.BatchNorm2d: NormalizeBatchNorm2d,
    nn.BatchNorm3d: NormalizeBatchNorm3d,
    nn.LSTM: NormalizeFastLSTM,
    nn.GRU: NormalizeFastGRU,
    nn.Embedding: NormalizeEmbedding,
    nn.LayerNorm: NormalizeLayerNorm,
}
"""Torch layer → the same layer within limits."""

_PAIRS = (NormalizeConvBN1d, NormalizeConvBN2d, NormalizeConvTransposeBN2d)
DEFAULT_TYPES: Types = (nn.Conv2d, nn.Linear, nn.ConvTranspose2d, nn.Conv1d, nn.BatchNorm2d, nn.GRU, nn.LSTM, *_PAIRS)
_READING_WEIGHTS_THEMSELVES = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules that compute with their children's weights without calling the children."""


def normalize_layers(
    model: nn.Module,
    *,
    normalize_modules: Sequence[type[nn.Module]] | None = DEFAULT_TYPES,
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = None,
    normalize_output_value: float | None = 8,
) -> nn.Module:
    """Keep weights, biases and outputs of a model's layers within limits, and return the model.

    A layer gets the limits that `normalize_module` or `disable_normalize` marked it with, else, if its type is one of
    `normalize_modules`, the ones given here. Parameters stay the same objects under the same names. A layer that has
    limits keeps them: a second call reaches only the layers that have none yet.

    Args:
        model: The float model, before or after `trace_layers`. Changed in place.
        normalize_modules: Layer types, subclasses included; a fused pair counts as its convolution too.
        normalize_weight_value: Largest magnitude of a weight (folded, where a batch norm is fused); None: no limit.
        normalize_bias_value: Largest magnitude of a bias, likewise.
        normalize_output_value: Largest magnitude of an output.

    Raises:
        UsageError: A value is no limit, a type is not supported, or the model is quantized already.
    """
    where = "normalize_layers"
    refuse_quantized(model, where)
    default = _checked_limits(where, normalize_weight_value, normalize_bias_value, normalize_output_value)
    types = _checked_types(f"{where}: normalize_modules", normalize_modules)
    replacements: dict[nn.Module, nn.Module] = {}
    inside_pairs = parts_of_pairs(model)
    for path, layer in model.named_modules():
        limits = _limits_for(layer, types, default)
        if layer in inside_pairs or not limits.is_any or limits_of(layer).is_any:
            continue
        if isinstance(layer, Normalized):
            layer.limit_to(limits)
        elif reason := _reason_to_stay(layer, model):
            logger.warning("%s (%s) stays without limits: %s", path, type(layer).__name__, reason)
        else:
            replacements[layer] = NORMALIZED[_kind(layer)].from_layer(layer, limits)
    root = replacements.get(model, model)
    replace_everywhere(root, replacements)
    freeze_batch_norms(root, is_frozen=chosen_switches().freezes_batch_norm)
    logger.info("normalize_layers: %d layers replaced", len(replacements))
    return root


def normalize_module(
    module: nn.Module,
    type_modules: Sequence[type[nn.Module]] | None = DEFAULT_TYPES,
    normalize_weight_value: float | None = 8,
    normalize_bias_value: float | None = 8,
    normalize_output_value: float | None = None,
) -> nn.Module:
    """Choose the limits of a module and of what is inside it, for a later `normalize_layers`.

    Layers that have limits already get the new ones at once.

    Args:
        module: A layer or a whole part of the model.
        type_modules: Only layers of these types, subclasses included.
        normalize_weight_value: Largest magnitude of a weight; None: no limit.
        normalize_bias_value: Largest magnitude of a bias.
        normalize_output_value: Largest magnitude of an output.

    Returns:
        The module, so that the call can be used inline.

    Raises:
        UsageError: A value is no limit, a type is not supported, or the model is quantized already.
    """
    where = "normalize_module"
    refuse_quantized(module, where)
    limits = _checked_limits(where, normalize_weight_value, normalize_bias_value, normalize_output_value)
    types = _checked_types(f"{where}: type_modules", type_modules)
    _mark((part for part in module.modules() if counts_as(part, types)), limits)
    return module


def disable_normalize(module: nn.Module) -> nn.Module:
    """Leave a module and everything inside it without limits; those that are set already are removed.

    Returns:
        The module, so that the call can be used inline.

    Raises:
        UsageError: The model is quantized already.
    """
    refuse_quantized(module, "disable_normalize")
    _mark(module.modules(), Limits())
    return module


def _mark(parts: Iterable[nn.Module], limits: Limits) -> None:
    for part in parts:
        LIMITS.put(part, limits)
        if isinstance(part, Normalized) and limits_of(part).is_any:
            part.limit_to(limits)


def _checked_limits(where: str, weight: float | None, bias: float | None, output: float | None) -> Limits:
    names = (f"normalize_{part}_value" for part in ("weight", "bias", "output"))
    return checked_limits(where, **dict(zip(names, (weight, bias, output), strict=True)))


def _checked_types(where: str, types: Sequence[type[nn.Module]] | None) -> Types:
    if types is None:
        return DEFAULT_TYPES
    return checked_types(where, types, (*NORMALIZED, ConvBN), (*NORMALIZED, *_PAIRS), "cannot be normalized")


def _limits_for(layer: nn.Module, types: Types, default: Limits) -> Limits:
    """The marked limits of a layer, else the default for its type; a fused pair has what its parts would have had."""
    own = LIMITS.of(layer)
    if own is not None:
        return own
    if isinstance(layer, ConvBN):
        of_parts = (*types, type(layer.conv), type(layer.bn)) if isinstance(layer, types) else types
        return joined_limits(*(_limits_for(part, of_parts, default) for part in (layer.conv, layer.bn)))
    return default if isinstance(layer, types) else Limits()


def _kind(layer: nn.Module) -> type[nn.Module]:
    """The torch layer that a layer is, or derives from."""
    return next(kind for kind in type(layer).__mro__ if kind in NORMALIZED)


def _reason_to_stay(layer: nn.Module, model: nn.Module) -> str:
    """Why a torch layer cannot be kept within limits; empty if it can."""
    if not computes_like(layer, _kind(layer)):
        return "it overrides forward"
    if is_parametrized(layer):
        return "its weight is computed by a parametrization"
    if any(is_lazy(parameter) for parameter in layer.parameters()):
        return "its parameters have no shape yet; run the model once first"
    for reader in model.modules():
        if isinstance(reader, _READING_WEIGHTS_THEMSELVES) and layer in reader.children():
            return f"{type(reader).__name__} reads its weights itself"
    return ""


class ChannelLimits(nn.Module):
    """A layer whose output is limited to 0 … `limit`, channel by channel.

    Its state is that of the layer, under `layer.`, and the buffer `limit`, whose axes of size 1 let it be repeated over
    the output. The integers are those of Clip to the largest limit and of iqMin with the limits, constants of 8 bits.
    """

    limit: Tensor

    def __init__(self, layer: nn.Module, limit: Tensor, largest: float) -> None:
        super().__init__()
        self.layer = layer
        self.largest = largest
        self.register_buffer("limit", limit)
        self.training = layer.training

    def forward(self, x: Tensor) -> Tensor:
        """min(max(layer(x), 0), limit); the first step, with one limit for all channels, tells the range to the layer."""
        return torch.minimum(F.hardtanh(self.layer(x), 0.0, self.largest), self.limit)

    def extra_repr(self) -> str:
        """The limit that all channels share."""
        return f"largest={self.largest:g}"


def limit_channels(model: nn.Module, limits: Mapping[str, tuple[float, tuple[int, ...]]]) -> dict[nn.Module, nn.Module]:
    """Put `ChannelLimits` around modules of a model, all channels at the largest limit until a checkpoint says more.

    Args:
        model: A float model.
        limits: The largest limit and the shape of the limits, by the path of the module.

    Returns:
        The modules by what is around them, so that `replace_everywhere` can undo it. One that has limits already stays.
    """
    around: dict[nn.Module, nn.Module] = {}
    for path, (largest, shape) in limits.items():
        layer = model.get_submodule(path)
        if not isinstance(layer, ChannelLimits):
            like = next(layer.parameters(), torch.zeros(()))
            around[layer] = ChannelLimits(layer, torch.full(shape, largest).to(like), largest)
    replace_everywhere(model, around)
    return {outer: layer for layer, outer in around.items()}
