# SPDX-License-Identifier: Apache-2.0
"""How equalization changes a model: it scales weights per channel, adds per-channel limits, and absorbs high biases in the next layers.

Each output channel (row of a weight) has a factor r, each input channel (column) a factor c. A layer maps x·c to y·r if its weight
is multiplied by r/c and its bias by r. A batch norm takes x·c if its mean is multiplied by c and its variance by c²; eps does not
change, so γ is corrected for it.

ReLU6 of x·s is not s·ReLU6(x). With a factor s ≤ 1 the limit of a channel is 6·s. A wrapper around the producing layer
(`ChannelLimits`) clips its output to that limit, so the ReLU6 that follows clips nothing more.

High biases are absorbed (Nagel and others, 2019): ReLU(x) − c = ReLU(x − c) while x ≥ c ≥ 0. If a channel is always above c, c can
move from its bias to the layers that read it, and its tensor needs less range. c is at least three standard deviations below the
smallest observed value and six below the mean, so the function does not change on the data. On other data a value may fall below c;
ReLU then clips it, which changes the output.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from linger.constraint.normalize import ChannelLimits
from linger.constraint.tracing import replace_everywhere
from linger.tuning.equalization.watching import PINNED, Array, Channels, Clip, Form, Layer, Norm, Numbers, Watch

ByChannel = Mapping[int, float]
"""Factors or bias offsets by channel number; a channel that is missing has the factor 1 and the offset 0."""

_DEVIATIONS = 3.0
"""Margin of an offset, in standard deviations (see `Layer.least_output`): other data may be lower than the data observed."""


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def factors_of(numbers: Numbers, factors: ByChannel) -> Tensor:
    """The factor of each channel, in double precision."""
    return torch.tensor([factors.get(int(n), 1.0) for n in numbers], dtype=torch.double)


def _multiply(tensor: Tensor, factor: Tensor) -> None:
    """Multiply with one rounding; a factor of 1 changes no bit."""
    tensor.copy_((tensor.double() * factor.to(tensor.device)).to(tensor.dtype))


def _add(tensor: Tensor, value: Tensor) -> None:
    tensor.copy_((tensor.double() + value.to(tensor.device)).to(tensor.dtype))


# factors
def apply_factors(model: nn.Module, layers: Iterable[Layer], factors: ByChannel) -> None:
    """Multiply the weights and biases of a model by the factors of its channels."""
    state = state_of(model)
    scaled_biases: set[str] = set()
    with torch.no_grad():
        for layer in layers:
            rows, columns = factors_of(layer.rows, factors), factors_of(layer.columns, factors)
            if layer.norm is not None:
                _apply_to_norm(state, layer.norm, rows, columns)
                continue
            assert layer.weight is not None
            weight, groups = state[layer.weight], layer.form.groups
            if layer.form.is_transposed:
                matrix = rows.reshape(groups, -1).repeat_interleave(len(columns) // groups, 0) / columns[:, None]
            else:
                matrix = rows[:, None] / columns.reshape(groups, -1).repeat_interleave(len(rows) // groups, 0)
            _multiply(weight, matrix.reshape(*matrix.shape, *[1] * (weight.dim() - 2)))
            for name in layer.biases - scaled_biases:
                _multiply(state[name], rows)
            scaled_biases |= layer.biases


def _apply_to_norm(state: Mapping[str, Tensor], norm: Norm, rows: Tensor, columns: Tensor) -> None:
    var = state[norm.var].double().cpu()
    correction = torch.sqrt((columns.square() * var + norm.eps) / (columns.square() * (var + norm.eps)))
    _multiply(state[norm.weight], rows * correction)
    if norm.bias is not None:
        _multiply(state[norm.bias], rows)
    _multiply(state[norm.mean], columns)
    _multiply(state[norm.var], columns.square())


def magnitudes(layer: Layer, state: Mapping[str, Tensor]) -> tuple[Array, Array]:
    """The largest magnitude and the sum of squares of the weights between each output channel and each input channel.

    The shape is [outputs, inputs/groups], or [channels, 1] for a batch norm alone. A batch norm after the layer is folded in.
    """
    if layer.norm is not None:
        gain = _gain(layer.norm, state)
        return gain, np.square(gain)
    assert layer.weight is not None
    weight = state[layer.weight].detach().double().cpu()
    taps = weight.abs().reshape(*weight.shape[:2], -1)
    largest, energy = (_outputs_first(part, layer.form).numpy() for part in (taps.amax(2), taps.square().sum(2)))
    reader = layer.reader
    if reader is not None and reader.norm is not None:
        gain = _gain(reader.norm, state)
        largest, energy = largest * gain, energy * np.square(gain)
    return largest, energy


def _outputs_first(matrix: Tensor, form: Form) -> Tensor:
    """Reorder a matrix to [outputs, inputs/groups], also for a transposed convolution."""
    if not form.is_transposed:
        return matrix
    parts = matrix.reshape(form.groups, -1, matrix.shape[1])
    return parts.transpose(1, 2).reshape(-1, parts.shape[1])


def _gain(norm: Norm, state: Mapping[str, Tensor]) -> Array:
    gamma, var = state[norm.weight].detach().double().cpu(), state[norm.var].double().cpu()
    gain: Array = (gamma.abs() * torch.rsqrt(var + norm.eps)).numpy()[:, None]
    return gain


# limits
def limited_modules(watch: Watch, *, has_limits: bool) -> list[Clip]:
    """One clip of each module whose output goes, in every call, only to a clip with the same limit.

    The channels of all other clips are pinned to the factor 1; all clips are pinned if `has_limits` is False, because the target
    cannot compute per-channel limits.
    """
    by_module: dict[str | None, list[Clip]] = defaultdict(list)
    for clip in watch.clips:
        by_module[clip.module].append(clip)
    limited = []
    for path, clips in by_module.items():
        if path and has_limits and watch.calls[path] == len(clips) and _is_alike(clips):
            limited.append(clips[0])
        else:
            for clip in clips:
                watch.channels.pin(clip.numbers)
    return limited


def _is_alike(clips: Sequence[Clip]) -> bool:
    """Whether all calls have the same limit, and only the clip reads the output."""
    is_sole = all(clip.is_in_place or clip.uses[0] == 1 for clip in clips)
    return is_sole and len({(clip.limit, clip.axis) for clip in clips}) == 1


def apply_limits(model: nn.Module, limited: Iterable[Clip], factors: ByChannel) -> None:
    """Wrap the modules whose channels have factors other than 1 in `ChannelLimits`."""
    wrapped: dict[nn.Module, nn.Module] = {}
    for clip in limited:
        scales = factors_of(clip.numbers, factors)
        if not bool((scales == 1).all()):
            layer = model.get_submodule(clip.module or "")
            limit = (clip.limit * scales).to(next(layer.parameters())).reshape(-1, *[1] * (-clip.axis - 1))
            wrapped[layer] = ChannelLimits(layer, limit, clip.limit)
    replace_everywhere(model, wrapped)


# biases
def find_offsets(layers: Sequence[Layer], channels: Channels) -> dict[int, float]:
    """The offset that each channel can move from its bias to the layers that read it, by the root of its channel number.

    A channel has none if another function than ReLU, a pool or a move lies between, if it is pinned, if several rows produce it,
    or if a layer that reads it cannot absorb a constant.
    """
    shared = _shared_state(layers)
    excluded = set(map(channels.find, channels.with_origin)) | {PINNED}
    offsets: dict[int, float] = {}
    producers: Counter[int] = Counter()
    for layer in layers:
        roots, least = channels.roots(layer.rows).tolist(), layer.least_output(_DEVIATIONS)
        if least is not None:
            producers.update(roots)
        if least is not None and _can_release(layer, shared):
            offsets |= dict(zip(roots, least.tolist(), strict=True))
        if not _can_absorb(layer, shared):
            excluded |= set(channels.roots(layer.columns).tolist())
    return {r: offset for r, offset in offsets.items() if r not in excluded and producers[r] == 1 and offset > 0}


def _shared_state(layers: Iterable[Layer]) -> set[str]:
    """Names of biases and batch norms that several layers use."""
    biases = Counter(name for layer in layers for name in layer.biases)
    readers = Counter(layer.reader.name for layer in layers if layer.reader is not None)
    return {name for counts in (biases, readers) for name, count in counts.items() if count > 1}


def _can_release(layer: Layer, shared: set[str]) -> bool:
    """Whether an offset can be subtracted from the bias of a layer."""
    if layer.norm is not None:
        return layer.norm.bias is not None
    return len(layer.biases) == 1 and not layer.biases & shared


def _can_absorb(layer: Layer, shared: set[str]) -> bool:
    """Whether a layer can add what an offset subtracted from its input takes from its output, equally at every position."""
    if layer.norm is not None:
        return True
    if layer.is_padded or layer.form.is_transposed:  # at the borders only a part of the weight is applied
        return False
    if layer.reader is not None:
        return layer.reader is not layer and layer.reader.name not in shared
    return len(layer.biases) == 1 and not layer.biases & shared


def absorb(model: nn.Module, layers: Iterable[Layer], offsets: ByChannel) -> None:
    """Move the offsets of channels into the layers that read them; call it before `apply_factors`."""
    state = state_of(model)
    with torch.no_grad():
        for layer in layers:
            released, absorbed = (
                torch.tensor([offsets.get(int(n), 0.0) for n in numbers], dtype=torch.double)
                for numbers in (layer.rows, layer.columns)
            )
            if bool(absorbed.any()):
                _absorb_offset(layer, state, absorbed)
            biases = {layer.norm.bias} if layer.norm is not None else layer.biases
            if bool(released.any()) and layer.reader is None:
                for name in biases - {None}:
                    _add(state[str(name)], -released)


def _absorb_offset(layer: Layer, state: Mapping[str, Tensor], offset: Tensor) -> None:
    if layer.norm is not None:
        _add(state[layer.norm.mean], -offset)
        return
    assert layer.weight is not None
    weight = state[layer.weight].double().cpu()
    sums = weight.reshape(*weight.shape[:2], -1).sum(2)
    groups = layer.form.groups
    repeated = offset.reshape(groups, -1).repeat_interleave(len(sums) // groups, 0)
    shift = (sums * repeated).sum(1)
    if layer.reader is not None and layer.reader.norm is not None:
        _add(state[layer.reader.norm.mean], -shift)
    for name in layer.biases if layer.reader is None else ():
        _add(state[name], shift)
