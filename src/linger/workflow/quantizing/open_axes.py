# SPDX-License-Identifier: Apache-2.0
"""Which sizes a file leaves open: the number of samples, and what differs between a user's own batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from linger.analysis.attributes import evaluating
from linger.analysis.batches import (
    Batch,
    fresh,
    joined_rows,
    keywords_of,
    rows_of_batch,
    run_batch,
    tensors_of,
    values_of,
)
from linger.errors import LingerError
from linger.simulation.example_call import ExampleCall, default_names
from linger.workflow.model_quality import output_name

BATCH = "batch"
Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Edges:
    """Inputs and outputs of a model.

    Attributes:
        inputs, outputs: Their names in the file.
        axes: The axes whose sizes are left open, by name.
        is_batch_open: Whether the number of samples is among them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Axes
    is_batch_open: bool


def edges_of(model: nn.Module, batches: Sequence[Batch], *, can_open: bool = True) -> Edges:
    """Names and open sizes of a float model for batches of tensors.

    Args:
        model: The float model.
        batches: All of the data; sizes that differ between batches are left open.
        can_open: False: every size is that of the first batch.

    Raises:
        UsageError: The model does not accept the first batch.
    """
    first = batches[0]
    inputs = default_names(model, ExampleCall(tuple(first), keywords_of(first)))
    shapes = _output_shapes(model, first)
    outputs = tuple(map(output_name, range(len(shapes))))
    if not can_open:
        return Edges(inputs, outputs, {}, is_batch_open=False)
    sizes = _shapes(values_of(first))
    variants = [(first, other) for other in batches[1:] if _shapes(values_of(other)) != sizes]
    rows = _rows_apart(model, first)
    axes: dict[str, dict[int, str]] = {}
    for one, other in ([rows] if rows is not None else []) + variants[:1]:
        is_rows = rows is not None and one is rows[0]
        _open(axes, inputs, _shapes(values_of(one)), _shapes(values_of(other)), is_rows=is_rows)
        _open(axes, outputs, _output_shapes(model, one), _output_shapes(model, other), is_rows=is_rows)
    for _, other in variants[1:]:
        _open(axes, inputs, sizes, _shapes(values_of(other)))
    return Edges(inputs, outputs, axes, is_batch_open=rows is not None)


def _open(
    axes: dict[str, dict[int, str]],
    names: Sequence[str],
    one: list[list[int]],
    other: list[list[int]],
    *,
    is_rows: bool = False,
) -> None:
    """Add the axes whose sizes differ; in pairs of one and two samples, all of them count samples."""
    for name, first, second in zip(names, one, other, strict=False):
        differing = [i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
        for axis in differing:
            label = BATCH if is_rows or axis == 0 else f"{name}_{axis}"
            axes.setdefault(name, {}).setdefault(axis, label)


def _rows_apart(model: nn.Module, batch: Batch) -> tuple[Batch, Batch] | None:
    """The first sample, and two samples, where a model takes any number of them; else None."""
    counts = {len(a) if a.dim() else 0 for a in values_of(batch)}
    if len(counts) != 1 or counts == {0}:
        return None
    one = rows_of_batch(batch, slice(1))
    two = joined_rows([one, one])
    try:
        shapes = [_output_shapes(model, part) for part in (one, two)]
    except LingerError:
        return None
    return (one, two) if all(a != b for a, b in zip(*shapes, strict=True)) else None


def _output_shapes(model: nn.Module, batch: Batch) -> list[list[int]]:
    with torch.no_grad(), evaluating(model):
        return _shapes(tuple(tensors_of(run_batch(model, fresh(batch)))))


def _shapes(tensors: Batch) -> list[list[int]]:
    return [list(t.shape) for t in values_of(tensors)]
