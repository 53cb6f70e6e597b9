# SPDX-License-Identifier: Apache-2.0
"""Convolutions and batch norms that belong together by their names in a checkpoint, and the weights that come of folding them.

A checkpoint does not say what runs after what. So only the usual names count, in the usual order and with shapes that fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from linger.analysis.blocks import Values
from linger.analysis.checkpoint import Stored
from linger.analysis.values import TensorValues

_NORM = re.compile(r"batch_?norm|bn|norm")
_TRANSPOSED = re.compile(r"deconv|transpose|up", re.IGNORECASE)
_RANKS = (3, 4)
"""Axes of the weights of convolutions that linger folds a batch norm into."""

_EPS = 1e-5
"""Torch's default; a checkpoint does not hold it."""


@dataclass(frozen=True)
class Folded:
    """The weight of a convolution with its batch norm folded in: what will be quantized."""

    conv: Stored
    bn: str
    weight: Stored


def folded_weights(stored: Sequence[Stored]) -> list[Folded]:
    """The pairs that the names give: `conv1` and `bn1`, `conv` and `bn`, neighbors in a Sequential (`0` and `1`).

    A spelling is dropped throughout where a pair of it does not fit: the batch norm may stand before the convolution.
    """
    table = {tensor.name: tensor for tensor in stored}
    places = {name: place for place, name in enumerate(table)}
    keys = [tensor.name for tensor in stored if tensor.dtype.is_floating_point]
    has_order = keys != sorted(keys)  # some formats sort the names
    pairs: list[tuple[str, str]] = []
    misfits: set[tuple[str, str]] = set()
    for bn in (name.removesuffix(".running_var") for name in table if name.endswith(".running_var")):
        conv = _partner(bn)
        if f"{conv}.weight" not in table:
            continue
        is_before = not has_order or places[f"{conv}.weight"] < places[f"{bn}.running_var"]
        if is_before and _fits(table, conv, bn):
            pairs.append((conv, bn))
        else:
            misfits.add(_spelling(conv, bn))
    return [_folded(table, *pair) for pair in pairs if _spelling(*pair) not in misfits]


def _partner(bn: str) -> str:
    """The name that a batch norm's convolution has by convention."""
    parent, dot, leaf = bn.rpartition(".")
    conv = str(int(leaf) - 1) if leaf.isdecimal() else _NORM.sub("conv", leaf, count=1)
    return f"{parent}{dot}{conv}" if conv != leaf else ""


def _spelling(conv: str, bn: str) -> tuple[str, str]:
    """What two pairs of the same kind share; neighbors in a Sequential run in the order of their numbers."""
    leaf = bn.rpartition(".")[2]
    return (conv, bn) if leaf.isdecimal() else (conv.rpartition(".")[2], leaf)


def _fits(table: dict[str, Stored], conv: str, bn: str) -> bool:
    weight, channels = table[f"{conv}.weight"], table[f"{bn}.running_var"].shape
    vectors = [table[name] for part in ("running_mean", "running_var", "weight") if (name := f"{bn}.{part}") in table]
    is_whole = all(vector.shape == channels and not vector.note for vector in vectors)
    is_kernel = weight.dtype.is_floating_point and len(weight.shape) in _RANKS and weight.shape[:1] == channels
    is_ambiguous = is_kernel and weight.shape[0] == weight.shape[1] and bool(_TRANSPOSED.search(conv))
    return is_whole and is_kernel and not is_ambiguous and weight.open().size == math.prod(weight.shape) > 0


def _folded(table: dict[str, Stored], conv: str, bn: str) -> Folded:
    weight, gamma, var = (table.get(name) for name in (f"{conv}.weight", f"{bn}.weight", f"{bn}.running_var"))
    assert weight is not None and var is not None  # noqa: PT018 - `_fits` has seen both

    def factor() -> Tensor:
        slope = torch.rsqrt(_tensor(var) + _EPS)
        scale = slope if gamma is None else slope * _tensor(gamma)
        return scale.reshape(-1, *[1] * (len(weight.shape) - 1))

    def fold() -> Values:
        made, limit = _tensor(weight) * factor(), weight.pair_limit
        return TensorValues(made if limit is None else made.clamp(-limit, limit))

    name = f"{weight.name} with {bn}"
    return Folded(_within(weight, factor), bn, Stored(name, weight.shape, torch.float32, fold))


def _within(weight: Stored, factor: Callable[[], Tensor]) -> Stored:
    """A convolution's weight that keeps the limit of the pair, as the pair computes with it."""
    limit = weight.pair_limit
    if limit is None:
        return weight

    def open_limited() -> Values:
        own, reach = _tensor(weight), limit / factor().abs()
        return TensorValues(torch.where(own.abs() > reach, reach * own.sign(), own))

    note = f"within the limit of ±{limit:g} of its layer, as that computes with it"
    return replace(weight, open=open_limited, note=note)


def _tensor(stored: Stored) -> Tensor:
    values = stored.open()
    return torch.tensor(values.read(0, values.size), dtype=torch.float32).reshape(stored.shape)
