# SPDX-License-Identifier: Apache-2.0
"""The weights of layers as matrices of magnitudes, and factors put into them: rows multiplied, columns divided.

The function of the model stays. A product takes x·c and gives y·r when its weight is multiplied by r/c and its bias by r.
A batch norm takes x·c when its mean is multiplied by c and its variance by c²; γ makes up for eps, which stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from linger.constraint.normalize import ChannelLimits
from linger.constraint.tracing import replace_everywhere
from linger.tuning.equalization.watching import PINNED, Channels, Clip, Form, Layer, Norm, Numbers, Watch

Factors = Mapping[int, float]
"""Factors by the numbers of channels; a channel that is not there has the factor 1."""

Array = NDArray[np.float64]


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def factors_of(numbers: Numbers, factors: Factors) -> Tensor:
    """The factor of each channel, in double precision."""
    return torch.tensor([factors.get(int(n), 1.0) for n in numbers], dtype=torch.double)


def matrix_of(rows: Tensor, columns: Tensor, form: Form) -> Tensor:
    """rows/columns, in the shape of the first two axes of a weight."""
    groups = form.groups
    if form.is_transposed:
        tops = rows.reshape(groups, -1).repeat_interleave(len(columns) // groups, 0)
        return tops / columns[:, None]
    bottoms = columns.reshape(groups, -1).repeat_interleave(len(rows) // groups, 0)
    return rows[:, None] / bottoms


def put(model: nn.Module, layers: Iterable[Layer], factors: Factors) -> None:
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
            _multiply(state[layer.weight], _as_shape(matrix_of(rows, columns, layer.form), state[layer.weight]))
            for name in layer.biases - done:
                _multiply(state[name], rows)
            done |= layer.biases


def _as_shape(matrix: Tensor, weight: Tensor) -> Tensor:
    return matrix.reshape(*matrix.shape, *[1] * (weight.dim() - 2))


def _multiply(tensor: Tensor, factor: Tensor) -> None:
    """Multiply with one rounding; a factor of 1 changes no bit."""
    tensor.copy_((tensor.double() * factor.to(tensor.device)).to(tensor.dtype))


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
        gain = _gain(layer.norm, state)[:, None]
        return gain, np.square(gain)
    assert layer.weight is not None
    weight = state[layer.weight].detach().double().cpu()
    taps = weight.abs().reshape(*weight.shape[:2], -1)
    largest, energy = (_outputs_first(part, layer.form).numpy() for part in (taps.amax(2), taps.square().sum(2)))
    reader = layer.reader
    if reader is not None and reader.norm is not None:
        gain = _gain(reader.norm, state)[:, None]
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
    found: Array = (gamma.abs() * torch.rsqrt(var + norm.eps)).numpy()
    return found


Offsets = Mapping[int, float]
"""What each channel gives away, by its number."""

_DEVIATIONS = 3.0
"""Below the mean, and once more below the least number seen: other data may be lower."""


def find_offsets(layers: Sequence[Layer], channels: Channels) -> dict[int, float]:
    """What each channel can give away: nothing where other functions than ReLU, pools and moves lie between."""
    shared = _shared_state(layers)
    by_root: dict[int, float] = {}
    for layer in layers:
        if layer.lowest is not None and _can_give(layer, shared):
            by_root |= dict(zip(channels.roots(layer.rows).tolist(), _heights(layer).tolist(), strict=True))
    barred = _barred(layers, channels, shared)
    given = {root: height for root, height in by_root.items() if root not in barred and height > 0}
    return _by_number(layers, channels, given)


def _by_number(layers: Sequence[Layer], channels: Channels, by_root: Mapping[int, float]) -> dict[int, float]:
    numbers = {int(n) for layer in layers for n in (*layer.rows, *layer.columns)}
    return {n: by_root[root] for n in numbers if (root := channels.find(n)) in by_root}


def _barred(layers: Sequence[Layer], channels: Channels, shared: set[str]) -> set[int]:
    """Channels that are pinned, made by several rows, or read by what cannot make up for a constant."""
    barred = {channels.find(n) for n in channels.with_origin} | {PINNED}
    makers: Counter[int] = Counter()
    for layer in layers:
        if layer.lowest is not None:
            makers.update(channels.roots(layer.rows).tolist())
        if not _can_take(layer, shared):
            barred |= set(channels.roots(layer.columns).tolist())
    return barred | {root for root, count in makers.items() if count > 1}


def _heights(layer: Layer) -> Array:
    assert layer.lowest is not None
    assert layer.mean is not None
    assert layer.deviation is not None
    found: Array = np.minimum(layer.lowest, layer.mean - _DEVIATIONS * layer.deviation) - _DEVIATIONS * layer.deviation
    return found


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


def absorb(model: nn.Module, layers: Iterable[Layer], offsets: Offsets) -> None:
    """Move what channels give away into the layers that read them; before any factors are put into the weights."""
    state = state_of(model)
    with torch.no_grad():
        for layer in layers:
            given, taken = _values(layer.rows, offsets), _values(layer.columns, offsets)
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


def _values(numbers: Numbers, offsets: Offsets) -> Tensor:
    return torch.tensor([offsets.get(int(n), 0.0) for n in numbers], dtype=torch.double)


def _add(tensor: Tensor, value: Tensor) -> None:
    tensor.copy_((tensor.double() + value.to(tensor.device)).to(tensor.dtype))


@dataclass(frozen=True)
class Limited:
    """A module whose output always goes into a limit: path, channels, limit and the channels' axis, from the end."""

    path: str
    numbers: Numbers
    limit: float
    axis: int


def limited_modules(watch: Watch, *, has_limits: bool) -> list[Limited]:
    """The modules whose output is limited in every call; the channels of all other limits are pinned.

    Args:
        watch: What was watched.
        has_limits: Whether limits of single channels can be had.
    """
    by_module: dict[str | None, list[Clip]] = defaultdict(list)
    for clip in watch.clips:
        by_module[clip.module].append(clip)
    found = []
    for path, clips in by_module.items():
        if path and has_limits and watch.calls[path] == len(clips) and _is_alike(clips):
            found.append(Limited(path, clips[0].numbers, clips[0].limit, clips[0].axis))
        else:
            for clip in clips:
                watch.channels.pin(clip.numbers)
    return found


def _is_alike(clips: list[Clip]) -> bool:
    """Whether all calls have one limit, and nothing but the limit sees the output."""
    is_sole = all(clip.is_in_place or clip.uses[0] == 1 for clip in clips)
    return is_sole and len({(clip.limit, clip.axis) for clip in clips}) == 1


def put_limits(model: nn.Module, limited: Iterable[Limited], factors: Factors) -> dict[nn.Module, nn.Module]:
    """Give modules whose channels have factors their limits; returns the wrapped layers by what wraps them."""
    made: dict[nn.Module, nn.Module] = {}
    for entry in limited:
        own = factors_of(entry.numbers, factors)
        if bool((own == 1).all()):
            continue
        layer = model.get_submodule(entry.path)
        like = next(layer.parameters())
        limit = (entry.limit * own).to(like).reshape(-1, *[1] * (-entry.axis - 1))
        made[layer] = ChannelLimits(layer, limit, entry.limit)
    replace_everywhere(model, made)
    return {wrapped: layer for layer, wrapped in made.items()}
