# SPDX-License-Identifier: Apache-2.0
"""What equalization puts into a model: factors, limits of single channels, and high biases moved on to the next layers.

Rows are multiplied by factors, columns divided. A product takes x·c and gives y·r when its weight is multiplied by r/c and its
bias by r. A batch norm takes x·c when its mean is multiplied by c and its variance by c²; γ makes up for eps, which stays.

ReLU6 of x·s is not s·ReLU6(x). With factors s ≤ 1 the limit of a channel is 6·s, which a layer of its own puts on the output
of the producing layer; the ReLU6 that follows, wherever it is called, then changes nothing.

High biases are absorbed (Nagel and others, 2019): ReLU passes x − c as it passes x while x ≥ c ≥ 0. A channel that is always above
c can thus give c away, and its tensor needs less range. c is three standard deviations below the least number seen, and six below
the mean: on the data the function stays. Where other data fall below c, ReLU cuts off what it did not before.
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
"""Factors, or what channels give away, by the numbers of channels; one that is not there has the factor 1, and gives nothing."""

_DEVIATIONS = 3.0
"""Below the mean, and once more below the least number seen: other data may be lower."""


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
def put(model: nn.Module, layers: Iterable[Layer], factors: ByChannel) -> None:
    """Put factors into the weights of a model."""
    state = state_of(model)
    done: set[str] = set()
    with torch.no_grad():
        for layer in layers:
            rows, columns = factors_of(layer.rows, factors), factors_of(layer.columns, factors)
            if layer.norm is not None:
                _put_norm(state, layer.norm, rows, columns)
                continue
            assert layer.weight is not None
            weight, groups = state[layer.weight], layer.form.groups
            if layer.form.is_transposed:
                matrix = rows.reshape(groups, -1).repeat_interleave(len(columns) // groups, 0) / columns[:, None]
            else:
                matrix = rows[:, None] / columns.reshape(groups, -1).repeat_interleave(len(rows) // groups, 0)
            _multiply(weight, matrix.reshape(*matrix.shape, *[1] * (weight.dim() - 2)))
            for name in layer.biases - done:
                _multiply(state[name], rows)
            done |= layer.biases


def _put_norm(state: Mapping[str, Tensor], norm: Norm, rows: Tensor, columns: Tensor) -> None:
    var = state[norm.var].double().cpu()
    correction = torch.sqrt((columns.square() * var + norm.eps) / (columns.square() * (var + norm.eps)))
    _multiply(state[norm.weight], rows * correction)
    if norm.bias is not None:
        _multiply(state[norm.bias], rows)
    _multiply(state[norm.mean], columns)
    _multiply(state[norm.var], columns.square())


def magnitudes(layer: Layer, state: Mapping[str, Tensor]) -> tuple[Array, Array]:
    """The largest magnitude, and the sum of squares, of what multiplies each input channel for each output channel.

    [outputs, inputs/groups], a batch norm that reads the product included; a batch norm alone is [channels, 1].
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
    """[outputs, inputs/groups], also of a transposed convolution."""
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
    """Of each module whose output is limited in every call, alike and seen by nothing else, one such limit.

    The channels of all other limits are pinned, of all of them if limits of single channels cannot be had.
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
    """Whether all calls have one limit, and nothing but the limit sees the output."""
    is_sole = all(clip.is_in_place or clip.uses[0] == 1 for clip in clips)
    return is_sole and len({(clip.limit, clip.axis) for clip in clips}) == 1


def put_limits(model: nn.Module, limited: Iterable[Clip], factors: ByChannel) -> None:
    """Give modules whose channels have factors their limits."""
    wrapped: dict[nn.Module, nn.Module] = {}
    for clip in limited:
        own = factors_of(clip.numbers, factors)
        if not bool((own == 1).all()):
            layer = model.get_submodule(clip.module or "")
            limit = (clip.limit * own).to(next(layer.parameters())).reshape(-1, *[1] * (-clip.axis - 1))
            wrapped[layer] = ChannelLimits(layer, limit, clip.limit)
    replace_everywhere(model, wrapped)


# biases
def find_offsets(layers: Sequence[Layer], channels: Channels) -> dict[int, float]:
    """What each channel can give away, by the number that stands for it: nothing where other functions than ReLU, pools and moves lie between.

    Nor where a channel is pinned, made by several rows, or read by what cannot make up for a constant.
    """
    shared = _shared_state(layers)
    barred = set(map(channels.find, channels.with_origin)) | {PINNED}
    heights: dict[int, float] = {}
    makers: Counter[int] = Counter()
    for layer in layers:
        roots, least = channels.roots(layer.rows).tolist(), layer.least_output(_DEVIATIONS)
        if least is not None:
            makers.update(roots)
        if least is not None and _can_give(layer, shared):
            heights |= dict(zip(roots, least.tolist(), strict=True))
        if not _can_take(layer, shared):
            barred |= set(channels.roots(layer.columns).tolist())
    return {r: height for r, height in heights.items() if r not in barred and makers[r] == 1 and height > 0}


def _shared_state(layers: Iterable[Layer]) -> set[str]:
    """Names of biases and batch norms that several layers use."""
    biases = Counter(name for layer in layers for name in layer.biases)
    readers = Counter(layer.reader.name for layer in layers if layer.reader is not None)
    return {name for counts in (biases, readers) for name, count in counts.items() if count > 1}


def _can_give(layer: Layer, shared: set[str]) -> bool:
    if layer.norm is not None:
        return layer.norm.bias is not None
    return len(layer.biases) == 1 and not layer.biases & shared


def _can_take(layer: Layer, shared: set[str]) -> bool:
    """Whether a layer can make up for a constant that its input lacks, at every place of its output."""
    if layer.norm is not None:
        return True
    if layer.is_padded or layer.form.is_transposed:  # less than the whole weight is applied at the borders
        return False
    if layer.reader is not None:
        return layer.reader is not layer and layer.reader.name not in shared
    return len(layer.biases) == 1 and not layer.biases & shared


def absorb(model: nn.Module, layers: Iterable[Layer], offsets: ByChannel) -> None:
    """Move what channels give away into the layers that read them; before any factors are put into the weights."""
    state = state_of(model)
    with torch.no_grad():
        for layer in layers:
            given, taken = (
                torch.tensor([offsets.get(int(n), 0.0) for n in numbers], dtype=torch.double)
                for numbers in (layer.rows, layer.columns)
            )
            if bool(taken.any()):
                _take(layer, state, taken)
            own = {layer.norm.bias} if layer.norm is not None else layer.biases
            if bool(given.any()) and layer.reader is None:
                for name in own - {None}:
                    _add(state[str(name)], -given)


def _take(layer: Layer, state: Mapping[str, Tensor], taken: Tensor) -> None:
    if layer.norm is not None:
        _add(state[layer.norm.mean], -taken)
        return
    assert layer.weight is not None
    weight = state[layer.weight].double().cpu()
    sums = weight.reshape(*weight.shape[:2], -1).sum(2)
    groups = layer.form.groups
    repeated = taken.reshape(groups, -1).repeat_interleave(len(sums) // groups, 0)
    shift = (sums * repeated).sum(1)
    if layer.reader is not None and layer.reader.norm is not None:
        _add(state[layer.reader.norm.mean], -shift)
    for name in layer.biases if layer.reader is None else ():
        _add(state[name], shift)
