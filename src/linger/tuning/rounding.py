# SPDX-License-Identifier: Apache-2.0
"""round_weights: integer weights by what they do to a layer's output, not by what is nearest to each weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.attributes import evaluating
from linger.analysis.batches import Batch, fresh, run_batch
from linger.constraint.conv_bn import ConvBN
from linger.dialect import Op
from linger.errors import UsageError
from linger.progress import progress
from linger.quantization.core.frozen import Frozen
from linger.quantization.core.runtime import runtime_of
from linger.quantization.diagnosis.signal_noise import decibels
from linger.quantization.layers.layer import QuantLayer
from linger.tuning.folded_weights import grid_of, put_integers
from linger.tuning.held_out import split_data
from linger.tuning.integer_fit import Moments, fit_integers
from linger.tuning.measure import OutputError, error_db
from linger.tuning.patches import input_rows, output_rows, positions
from linger.tuning.remedy import Change, Remedy, checked_data, require_pair, undone_on_error

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
        model: A quantised and calibrated model; it is changed in place.
        reference: The float model, a copy taken before `linger.init`.
        data: Batches of typical inputs.
        positions: Outputs per layer and channel that are looked at, drawn among all of them.
        seed: Decides which.

    Returns:
        The figures, on all of the data, and a row for each layer that changed.

    Raises:
        UsageError: The data are empty, not finite or a single input; the model is not quantised or calibrated; the reference
            is another model. The model is then as it was.
    """
    where = "round_weights"
    require_pair(where, model, reference)
    if positions < 1:
        raise UsageError(f"{where}: positions is {positions}; at least one output must be looked at.")
    batches = checked_data(where, data)
    learned, held = split_data(where, batches)
    error, held_error = OutputError(reference, batches), OutputError(reference, held)
    before, held_before = error(model), held_error(model)
    state = {key: value.detach().clone() for key, value in model.state_dict().items()}
    with undone_on_error(where, model), torch.no_grad(), evaluating(model), evaluating(reference):
        bench = _Bench(model, reference, learned, held, positions, seed)
        changes = [c for layer in progress(bench.layers, "rounding weights") if (c := bench.improve(layer)) is not None]
    after = error(model)
    if held_error(model) >= held_before or after >= before:
        model.load_state_dict(state)
        after, changes = before, []
    return Remedy(where, error_db(before), error_db(after), tuple(changes))


_SIGNAL_AXES = 3


class _Enough(BaseException):
    """The call that was waited for has happened; the rest of the pass need not run. No code of a model catches it."""


@dataclass(frozen=True)
class _Call:
    """One product of a quantised pass: its op, its parameters and the scale of its input, and that input at some positions."""

    op: Op
    frozen: Frozen
    scale_x: float
    rows: Tensor
    picks: Tensor
    shape: tuple[int, ...]


class _Bench:
    """Runs both models side by side and changes one layer after the other."""

    def __init__(
        self,
        model: nn.Module,
        reference: nn.Module,
        learned: Sequence[Batch],
        held: Sequence[Batch],
        positions: int,
        seed: int,
    ) -> None:
        self._model, self._reference = model, reference
        self._parts = (learned, held)
        self._positions, self._seed = positions, seed
        self._calls: Counter[str] = Counter()
        layers = {layer.path: layer for layer in model.modules() if isinstance(layer, QuantLayer)}

        def note(name: str, op: Op, operands: Any, *_: Any) -> None:
            path = name.rpartition(".")[0]
            if path in layers and len(operands) > 1 and isinstance(operands[1], Frozen) and _is_product(op):
                self._calls[path] += 1

        with self._observed(note):
            run_batch(model, fresh(learned[0]))
        uses = Counter(id(p) for m in model.modules() for p in m._parameters.values() if p is not None)  # noqa: SLF001 - parameters() names each once
        self.layers = [layers[path] for path in self._calls if self._is_free(layers[path], uses)]

    @staticmethod
    def _is_free(layer: QuantLayer, uses: Mapping[int, int]) -> bool:
        """Whether a layer's weight is its own, and its sums are not too long."""
        taps = layer.weight.numel() // layer.weight.shape[1 if layer.transposed_groups else 0]
        own = [p for p in (layer.weight, layer.bias) if p is not None]
        return taps <= _MOST_TAPS and all(p.is_leaf and uses[id(p)] == 1 for p in own)

    @contextmanager
    def _observed(self, observer: Callable[..., None]) -> Iterator[None]:
        runtime = runtime_of(self._model)
        assert runtime is not None  # checked at the beginning
        runtime.observers.append(observer)
        try:
            yield
        finally:
            runtime.observers.remove(observer)

    # one layer
    def improve(self, layer: QuantLayer) -> Change | None:
        """Give a layer other integers if the held-out data agree."""
        learned, held = (self._moments(layer, batches, i) for i, batches in enumerate(self._parts))
        if learned is None or held is None:
            return None
        (fitting, call), (judging, _) = learned, held
        grid = grid_of(layer, call.frozen, call.rows.shape[1])
        found = fit_integers(grid, fitting, judging)
        if not bool(found.is_new.any()) or not put_integers(layer, call.frozen, call.scale_x, found):
            return None
        share = float((found.integers != grid.integers).double().mean())
        what = f"{100 * share:.0f} % of its weights rounded otherwise; its error in dB"
        signal = float(judging.yy.sum())
        return Change(layer.path, what, decibels(signal, found.before), decibels(signal, found.after))

    def _moments(self, layer: QuantLayer, batches: Sequence[Batch], part: int) -> tuple[Moments, _Call] | None:
        """Second moments of a layer's inputs and of the float layer's outputs, over some batches; None if these differ in shape."""
        total: Moments | None = None
        call: _Call | None = None
        for number, batch in enumerate(batches):
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + 2 * number + part)
            calls = self._inputs(layer, batch, max(1, self._positions // len(batches)), generator)
            outputs = self._outputs(layer, batch, len(calls))
            if [c.shape for c in calls] != [positions(c.op, y) for c, y in zip(calls, outputs, strict=False)]:
                return None
            for call, y in zip(calls, outputs, strict=True):
                groups = call.rows.shape[1]
                wanted = output_rows(call.op, y, call.picks).float().cpu().reshape(len(call.picks), groups, -1)
                total = total or Moments(groups, wanted.shape[2], call.rows.shape[2])
                total.add(call.rows, wanted)
        return None if total is None or call is None else (total, call)

    def _inputs(self, layer: QuantLayer, batch: Batch, count: int, generator: torch.Generator) -> list[_Call]:
        """What a layer multiplies in one pass."""
        found: list[_Call] = []

        def note(name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
            if name.rpartition(".")[0] != layer.path or not _is_product(op):
                return
            shape = positions(op, result.content)
            picks = torch.randperm(int(torch.Size(shape).numel()), generator=generator)[:count]
            rows = input_rows(op, operands[0].content, attributes, picks, shape)
            found.append(_Call(op, operands[1], attributes["scale_x"], rows.float().cpu(), picks, shape))
            if len(found) == self._calls[layer.path]:
                raise _Enough

        with self._observed(note):
            _run_until(self._model, batch)
        return found

    def _outputs(self, layer: QuantLayer, batch: Batch, count: int) -> list[Tensor]:
        """What the float layer gives in one pass, as the quantised one would: its batch norm included."""
        found: list[Tensor] = []
        products: list[Tensor] = []
        module = self._reference.get_submodule(layer.path)
        has_norm = layer.bn is not None and not isinstance(module, ConvBN)
        # a transposed signal is a picture of one row
        is_row = layer.transposed_groups is not None and layer.weight.dim() == _SIGNAL_AXES

        def add(output: Tensor) -> None:
            found.append(output.unsqueeze(-2) if is_row else output)
            if len(found) == count:
                raise _Enough

        def note(_module: nn.Module, _args: object, output: Tensor) -> None:
            if has_norm:
                products.append(output)
            else:
                add(output)

        def note_norm(_module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if any(args[0] is product for product in products):
                add(output)

        with ExitStack() as stack:
            stack.callback(module.register_forward_hook(note).remove)
            for norm in self._reference.modules():
                if has_norm and isinstance(norm, _BatchNorm):
                    stack.callback(norm.register_forward_hook(note_norm).remove)
            _run_until(self._reference, batch)
        return found


def _run_until(model: nn.Module, batch: Batch) -> None:
    with suppress(_Enough):
        run_batch(model, fresh(batch))


def _is_product(op: Op) -> bool:
    return bool(op.window_axes) or op.weight_axes == 2
