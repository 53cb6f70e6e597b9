# SPDX-License-Identifier: Apache-2.0
"""Learned rounding of a convolution or linear layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.batches import Batch
from linger.analysis.trace import Trace
from linger.constraint.conv_bn import ConvBN
from linger.dialect import Op
from linger.quantization.core.quantized import Frozen
from linger.quantization.layers.layer import QuantLayer
from linger.tuning.learned_rounding.folded_weights import grid_of, put_integers
from linger.tuning.learned_rounding.integer_fit import Moments, change_of, fit_integers
from linger.tuning.learned_rounding.patches import input_rows, output_rows, positions
from linger.tuning.learned_rounding.side_by_side import Enough, Pair, run_until
from linger.tuning.remedy import Change

_SIGNAL_AXES = 3
_MATRIX_AXES = 2


def is_product(op: Op) -> bool:
    """Whether an op is a convolution or a product of matrices."""
    return bool(op.window_axes) or op.weight_axes == _MATRIX_AXES


@dataclass(frozen=True)
class _Call:
    """One product of a quantized pass: its op, its parameters and the scale of its input, and that input at some positions."""

    op: Op
    frozen: Frozen
    scale_x: float
    rows: Tensor
    picks: Tensor
    shape: tuple[int, ...]


def improve_product(pair: Pair, layer: QuantLayer, count: int) -> list[Change]:
    """Give a layer that is called `count` times in a pass other integers, if the held-out data agree."""
    learned, held = (_moments(pair, layer, batches, count) for batches in (pair.learned, pair.held))
    if learned is None or held is None:
        return []
    (fitting, call), (judging, _) = learned, held
    grid = grid_of(layer, call.frozen, call.rows.shape[1])
    found = fit_integers(grid, fitting, judging)
    if not bool(found.is_new.any()) or not put_integers(layer, call.frozen, call.scale_x, found):
        return []
    return [change_of(layer.path, grid, found, judging)]


def _moments(pair: Pair, layer: QuantLayer, batches: Sequence[Batch], count: int) -> tuple[Moments, _Call] | None:
    """Second moments of a layer's inputs and of the float layer's outputs; None if the two differ in shape."""
    total: Moments | None = None
    call: _Call | None = None
    for batch, size, generator in pair.draws(batches):
        calls = _inputs(pair, layer, batch, count, size, generator)
        outputs = _outputs(pair, layer, batch, len(calls))
        if [c.shape for c in calls] != [positions(c.op, y) for c, y in zip(calls, outputs, strict=False)]:
            return None
        for call, y in zip(calls, outputs, strict=True):
            groups = call.rows.shape[1]
            wanted = output_rows(call.op, y, call.picks).float().cpu().reshape(len(call.picks), groups, -1)
            total = total or Moments(groups, wanted.shape[2], call.rows.shape[2])
            total.add(call.rows, wanted)
    return None if total is None or call is None else (total, call)


def _inputs(
    pair: Pair, layer: QuantLayer, batch: Batch, count: int, size: int, generator: torch.Generator
) -> list[_Call]:
    """What a layer multiplies in one pass."""
    found: list[_Call] = []

    def note(name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
        if name.rpartition(".")[0] != layer.path or not is_product(op):
            return
        shape = positions(op, result.content)
        picks = torch.randperm(int(torch.Size(shape).numel()), generator=generator)[:size]
        rows = input_rows(op, operands[0].content, attributes, picks, shape)
        found.append(_Call(op, operands[1], attributes["scale_x"], rows.float().cpu(), picks, shape))
        if len(found) == count:
            raise Enough

    with Trace(pair.model) as trace:
        pair.observe(trace, note)
        run_until(trace, batch)
    return found


def _outputs(pair: Pair, layer: QuantLayer, batch: Batch, count: int) -> list[Tensor]:
    """What the float layer gives in one pass, as the quantized one would: its batch norm included."""
    found: list[Tensor] = []
    products: list[Tensor] = []
    module = pair.reference.get_submodule(layer.path)
    has_norm = layer.bn is not None and not isinstance(module, ConvBN)
    # a transposed signal is a image of one row
    is_row = layer.transposed_groups is not None and layer.weight.dim() == _SIGNAL_AXES

    def add(output: Tensor) -> None:
        found.append(output.unsqueeze(-2) if is_row else output)
        if len(found) == count:
            raise Enough

    def note(_module: nn.Module, _args: object, _kwargs: object, output: Tensor) -> None:
        if has_norm:
            products.append(output)
        else:
            add(output)

    def note_norm(_module: nn.Module, args: tuple[Tensor, ...], _kwargs: object, output: Tensor) -> None:
        if any(args[0] is product for product in products):
            add(output)

    with Trace(pair.reference) as trace:
        trace.after([module], note)
        trace.after((m for m in pair.reference.modules() if has_norm and isinstance(m, _BatchNorm)), note_norm)
        run_until(trace, batch)
    return found
