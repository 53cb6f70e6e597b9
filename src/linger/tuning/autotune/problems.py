# SPDX-License-Identifier: Apache-2.0
"""Which tensors of a tuned model cost most, and why."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from linger.analysis.advice import FAIR_DB, Item
from linger.analysis.batches import Batch
from linger.constraint.advising import advise
from linger.quantization.core.quantized import ranges_of
from linger.quantization.core.stored import Kind
from linger.quantization.diagnosis.layer_comparison import LayerRow, compare_layers
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.autotune.result import Problem

_COUNT = 3
_OUTLIER_BITS, _SPREAD_BITS = 2.0, 4.0
"""As `linger.advise` uses them."""

_USUAL_BITS = 8


def problems_of(model: nn.Module, reference: nn.Module, batch: Batch) -> tuple[Problem, ...]:
    """The layers that make the largest errors themselves, each with the tensor that loses most."""
    layers = dict(model.named_modules())
    rows = [row for row in compare_layers(reference, model, [batch]).rows if row.born_db < FAIR_DB]
    rows = [row for row in rows if isinstance(layers.get(row.name), (QuantLayer, QuantRecurrent))]
    items = advise(reference, [batch]).items
    worst = sorted({row.name: row for row in reversed(rows)}.values(), key=lambda row: row.born_db)
    found = (_problem(row, layers[row.name], items) for row in worst)
    return tuple(problem for problem in found if problem is not None)[:_COUNT]


def _problem(row: LayerRow, layer: nn.Module, items: Sequence[Item]) -> Problem | None:
    assert isinstance(layer, (QuantLayer, QuantRecurrent))  # as the caller chose it
    widths = {"weight": layer.widths.parameter, "output": layer.widths.output}
    own = [item for item in items if item.module == row.name and item.role in widths and _loses(item)]
    if not own:
        return None
    worst = min(own, key=lambda item: (widths[item.role], item.sqnr_8))  # of the narrowest, what loses most
    bits = widths[worst.role]
    if bits > _USUAL_BITS:  # what the weights and the output cost at 8 bits is not the cause
        return Problem(row.name, "layer", bits, row.born_db, "inside the layer", "Its tensors are wide already.")
    return Problem(worst.name, worst.role, bits, row.born_db, _cause(worst), worst.advice)


def _loses(item: Item) -> bool:
    return item.sqnr_8 is not None and (item.sqnr_8 < FAIR_DB or item.limit is not None or item.needs_width)


def _cause(item: Item) -> str:
    if (item.channel_bits or 0.0) >= _SPREAD_BITS:
        return "channel spread"
    return "outlier" if (item.outlier_bits or 0.0) >= _OUTLIER_BITS else "narrow width"


def wide_shares(model: nn.Module) -> tuple[float, float]:
    """The share of weight tensors, and of other tensors, with more than 8 bits."""
    ranges = list(ranges_of(model).values())
    weights = [r for r in ranges if r.kind is Kind.WEIGHT]
    others = [r for r in ranges if r.kind is not Kind.WEIGHT]
    return tuple(sum(r.bits > _USUAL_BITS for r in part) / max(1, len(part)) for part in (weights, others))  # type: ignore[return-value]  # two parts
