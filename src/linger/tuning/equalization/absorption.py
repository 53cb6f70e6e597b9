# SPDX-License-Identifier: Apache-2.0
"""High biases absorbed: what a channel never falls below moves from its own bias into the biases of those who read it.

ReLU passes x − c as it passes x while x ≥ c ≥ 0. A channel that is always above c can thus give c away, and its tensor needs
less range. c is three standard deviations below the least number seen, and six below the mean: on the data the function
stays. Where other data fall below c, ReLU cuts off what it did not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from linger.tuning.equalization.flow import PINNED, Channels, Layer, Numbers
from linger.tuning.equalization.weights import Array, state_of

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
