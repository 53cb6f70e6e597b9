# SPDX-License-Identifier: Apache-2.0
"""round_weights, learned rounding: integer weights by what they do to a layer's output, not by the nearest integer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import nn

from linger.analysis.batches import evaluating
from linger.dialect import Op
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.quantized import QuantizedBase
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.held_out import split_data
from linger.tuning.learned_rounding.integer_fit import Pair
from linger.tuning.learned_rounding.product_rounding import improve_product, is_product
from linger.tuning.learned_rounding.recurrent_rounding import improve_recurrent
from linger.tuning.remedy import Change, OutputError, Remedy, checked_data, error_db, require_pair, undone_on_error

_MOST_TAPS = 4608
"""A layer whose sums are longer is left alone: its table of second moments would take more than 170 MB."""


def round_weights(
    model: nn.Module, reference: nn.Module, data: object, *, positions: int = 4096, seed: int = 0
) -> Remedy:
    """Choose the integer weights of each layer so that its output comes close to the float model's, without labels.

    Layer by layer in the order of the forward pass: weights are fitted, on the inputs that the layer really gets, to the
    output that the float layer gives on float inputs; rounded so that later weights make up for earlier ones; and the bias
    is set to what is then missing on average. So errors of earlier layers are compensated, too. One batch in four is held
    out (of a single one, the last quarter): a channel keeps its new weights only if its error falls there, and everything
    is undone unless the error at the model's outputs falls, there and on all of the data.

    The weights are put on the grid, and their ranges are chosen (`chosen_w` in the checkpoint) so that the same integers come
    out again. A batch norm stays, and the weights are expressed through it.

    Args:
        model: A quantized and calibrated model; it is changed in place.
        reference: The float model, a copy taken before `linger.init`.
        data: Batches of typical inputs.
        positions: Outputs per layer and channel that are looked at, drawn among all of them.
        seed: Decides which.

    Returns:
        The figures, on all of the data, and a row for each layer that changed.

    Raises:
        UsageError: The data are empty, not finite or a single input; the model is not quantized or calibrated; the reference
            is another model. The model is then as it was.
    """
    where = "round_weights"
    require_pair(where, model, reference)
    if positions < 1:
        raise UsageError(f"{where}: positions is {positions}; at least one output must be looked at.")
    batches = checked_data(where, model, data)
    learned, held = split_data(where, batches)
    error, held_error = OutputError(reference, batches), OutputError(reference, held)
    before, held_before = error(model), held_error(model)
    with undone_on_error(where, model) as state, torch.no_grad(), evaluating(model), evaluating(reference):
        pair = Pair(model, reference, learned, held, positions, seed)
        layers = _layers(pair)
        changes: list[Change] = []
        for layer in progress(layers, "rounding weights"):
            if isinstance(layer, QuantRecurrent):
                changes += improve_recurrent(pair, layer)
            elif isinstance(layer, QuantLayer):
                changes += improve_product(pair, layer, layers[layer])
    after = error(model)
    if held_error(model) >= held_before or after >= before:
        model.load_state_dict(state)
        after, changes = before, []
    return Remedy(where, error_db(before), error_db(after), tuple(changes))


def _layers(pair: Pair) -> dict[QuantizedBase, int]:
    """The layers that can be rounded, in the order of execution, and how often each is called in a pass."""
    calls: Counter[str] = Counter()
    every = [m for m in pair.model.modules() if isinstance(m, (QuantLayer, QuantRecurrent))]
    layers = {m.path: m for m in every if _weights(m)}  # a pool has none

    def note(name: str, op: Op, *_: object) -> None:
        path = name.rpartition(".")[0]
        if path in layers and op.name == layers[path].op_name and is_product(op):
            calls[path] += 1

    pair.observe(note, pair.learned[0])
    tensors = (p for m in pair.model.modules() for p in m._parameters.values() if p is not None)  # noqa: SLF001 - parameters() names each once
    uses = Counter(map(id, tensors))
    return {layers[path]: count for path, count in calls.items() if _is_free(layers[path], uses)}


def _weights(layer: QuantizedBase) -> list[nn.Parameter]:
    return [p for name, p in layer.named_parameters(recurse=False) if name.startswith("weight")]


def _is_free(layer: QuantizedBase, uses: Mapping[int, int]) -> bool:
    """Whether a layer's parameters are its own, and its sums are not too long."""
    is_transposed = isinstance(layer, QuantLayer) and layer.transposed_groups is not None
    taps = max(p.numel() // p.shape[is_transposed] for p in _weights(layer))
    return taps <= _MOST_TAPS and all(p.is_leaf and uses[id(p)] == 1 for p in layer.parameters(recurse=False))
