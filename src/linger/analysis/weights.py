# SPDX-License-Identifier: Apache-2.0
"""wb_analyse: the distribution of every tensor of a checkpoint, and of convolution weights after batch norm folding.

A checkpoint does not record the order of execution. So a convolution and a batch norm are paired only if their names follow a
common convention, the convolution comes first in the file, and their shapes fit.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from linger.analysis.checkpoint import Source, Stored, TensorValues, dtype_text, shape_text, stored_tensors
from linger.analysis.magnitudes import Values, measure
from linger.analysis.result import Analysis, Row
from linger.errors import UsageError
from linger.progress import progress

_MOST_THREADS = 8
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def wb_analyse(path: Source, save_log_path: str | os.PathLike[str] | None = "./wb_analyse.log") -> Analysis:
    """Mean, maximum and 0.99 order statistic of the magnitudes of every weight and bias, exactly.

    The log is the documented table; a row of `!` follows a tensor whose Versu = Max/Dynamic exceeds 10 (or that holds NaN
    or infinities): such a range is set by a few outliers and costs bits. Running statistics are left out. Files are
    mapped and read in pieces; nothing in them is executed. A second table below has the weights that result from folding batch
    norms into the convolutions that their names pair them with, with an eps of 1e-5. Weights of layers with limits
    (`normalize_layers`) are shown clamped, as the layer uses them, if the model or the metadata of its state_dict has the limits.

    Args:
        path: A path (`.pt`, `.pth`, `.safetensors`, a sharded `*.index.json`), a state_dict, a checkpoint that
            holds one, or a module.
        save_log_path: Where the log goes; None: nowhere.

    Returns:
        The rows, with `to_json`, `to_csv`, and a table on a rich terminal.

    Raises:
        UsageError: The checkpoint cannot be read, would run code, or holds no tensor; the log cannot be written.
    """
    stored = stored_tensors(path)
    pairs = folded_weights(stored)
    effective = {pair.conv.name: pair.conv for pair in pairs}
    tensors = [effective.get(t.name, t) for t in stored if not is_running_statistic(t.name)]
    log = None if save_log_path is None else Path(save_log_path)
    if log is not None and isinstance(path, (str, os.PathLike)) and Path(path).resolve() == log.resolve():
        raise UsageError(f"{path}: the log would replace the checkpoint. Choose another save_log_path.")
    rows = in_threads(_row, [*tensors, *(pair.weight for pair in pairs)], "analyse")
    analysis = Analysis(tuple(rows[: len(tensors)]), title="weights and biases", folded=tuple(rows[len(tensors) :]))
    if log is not None:
        analysis.save_log(log)
    return analysis


def is_running_statistic(name: str) -> bool:
    """Whether a key names a running statistic, which is no parameter.

    >>> is_running_statistic("bn.running_mean"), is_running_statistic("running_man.weight")
    (True, False)
    """
    return name.rpartition(".")[2].startswith("running_")


def in_threads(work: Callable[[Item], Outcome], items: Iterable[Item], title: str) -> list[Outcome]:
    """Apply `work` to every item in a thread pool, results in order; numpy releases the GIL while it computes."""
    pending = list(items)
    with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
        return list(progress(pool.map(work, pending), title, total=len(pending)))


def _row(tensor: Stored) -> Row:
    shape, dtype = shape_text(tensor.shape), dtype_text(tensor.dtype)
    return Row.of(tensor.name, measure(tensor.open()), shape=shape, dtype=dtype, note=tensor.note)


_NORM = re.compile(r"batch_?norm|bn|norm")
_TRANSPOSED = re.compile(r"deconv|transpose|up", re.IGNORECASE)
_RANKS = (3, 4)
"""Numbers of axes of convolution weights that linger folds a batch norm into."""

_EPS = 1e-5
"""Torch's default; a checkpoint does not hold it."""


@dataclass(frozen=True)
class _Folded:
    """The weight of a convolution with its batch norm folded in: what will be quantized."""

    conv: Stored
    bn: str
    weight: Stored


def folded_weights(stored: Sequence[Stored]) -> list[_Folded]:
    """Pairs of convolution and batch norm, by name: `conv1` and `bn1`, `conv` and `bn`, neighbors in a Sequential (`0` and `1`).

    If one pair of a naming pattern does not fit, all pairs of that pattern are dropped: the batch norm may come before the convolution.
    """
    table = {tensor.name: tensor for tensor in stored}
    positions = {name: position for position, name in enumerate(table)}
    keys = [tensor.name for tensor in stored if tensor.dtype.is_floating_point]
    has_order = keys != sorted(keys)  # some formats sort the names, so their order says nothing
    pairs: list[tuple[str, str]] = []
    misfits: set[tuple[str, str]] = set()
    for conv, bn in _named_pairs(table):
        is_before = not has_order or positions[f"{conv}.weight"] < positions[f"{bn}.running_var"]
        if is_before and _fits(table, conv, bn):
            pairs.append((conv, bn))
        else:
            misfits.add(_naming_pattern(conv, bn))
    return [_fold(table, *pair) for pair in pairs if _naming_pattern(*pair) not in misfits]


def _named_pairs(table: Collection[str]) -> Iterator[tuple[str, str]]:
    """Names of convolutions and the batch norms that belong to them by common naming conventions."""
    for name in table:
        bn = name.removesuffix(".running_var")
        parent, dot, leaf = bn.rpartition(".")
        conv = str(int(leaf) - 1) if leaf.isdecimal() else _NORM.sub("conv", leaf, count=1)
        if bn != name and conv != leaf and f"{parent}{dot}{conv}.weight" in table:
            yield f"{parent}{dot}{conv}", bn


def _naming_pattern(conv: str, bn: str) -> tuple[str, str]:
    """The naming pattern of a pair. Neighbors in a Sequential always run in order, so each pair is a pattern of its own."""
    leaf = bn.rpartition(".")[2]
    return (conv, bn) if leaf.isdecimal() else (conv.rpartition(".")[2], leaf)


def _fits(table: dict[str, Stored], conv: str, bn: str) -> bool:
    weight, channels = table[f"{conv}.weight"], table[f"{bn}.running_var"].shape
    vectors = [table[name] for part in ("running_mean", "running_var", "weight") if (name := f"{bn}.{part}") in table]
    has_all_channels = all(vector.shape == channels and not vector.note for vector in vectors)
    is_kernel = weight.dtype.is_floating_point and len(weight.shape) in _RANKS and weight.shape[:1] == channels
    is_ambiguous = is_kernel and weight.shape[0] == weight.shape[1] and bool(_TRANSPOSED.search(conv))
    return all((has_all_channels, is_kernel, not is_ambiguous)) and weight.open().size == math.prod(weight.shape) > 0


def _fold(table: dict[str, Stored], conv: str, bn: str) -> _Folded:
    weight, gamma, var = (table.get(name) for name in (f"{conv}.weight", f"{bn}.weight", f"{bn}.running_var"))
    assert weight is not None and var is not None  # noqa: PT018 - `_fits` has checked both

    def factor() -> Tensor:
        slope = torch.rsqrt(_tensor(var) + _EPS)
        scale = slope if gamma is None else slope * _tensor(gamma)
        return scale.reshape(-1, *[1] * (len(weight.shape) - 1))

    limit = math.inf if weight.pair_limit is None else weight.pair_limit

    def fold() -> Values:
        return TensorValues((_tensor(weight) * factor()).clamp(-limit, limit))

    def open_limited() -> Values:
        values, bound = _tensor(weight), limit / factor().abs()
        return TensorValues(torch.where(values.abs() > bound, bound * values.sign(), values))

    effective = weight
    if weight.pair_limit is not None:
        note = f"within the limit of ±{limit:g} of its layer, as the layer uses it"
        effective = replace(weight, open=open_limited, note=note)
    return _Folded(effective, bn, Stored(f"{weight.name} with {bn}", weight.shape, torch.float32, fold))


def _tensor(stored: Stored) -> Tensor:
    values = stored.open()
    return torch.tensor(values.read(0, values.size), dtype=torch.float32).reshape(stored.shape)
