# SPDX-License-Identifier: Apache-2.0
"""round_weights, learned rounding: integer weights by what they do to a layer's output, not by the nearest integer.

A convolution's inputs are rows of sums here (im2col), its weights are as the device has them: a batch norm is folded in, and they
lie on a grid; the way back into the layer goes through the batch norm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from linger.analysis.batches import Batch, evaluating, joined_rows, rows_of_batch, values_of
from linger.analysis.trace import Trace
from linger.constraint.conv_bn import ConvBN, fold
from linger.constraint.limits import clamp
from linger.dialect import Op, find_op
from linger.errors import UsageError
from linger.numeric.fixed import limits
from linger.numeric.torch.quantize import per_weight
from linger.progress import progress
from linger.quantization.core.quantized import Frozen, QuantizedBase, integer_bound
from linger.quantization.layers.layer import QuantLayer
from linger.quantization.layers.recurrent import QuantRecurrent
from linger.tuning.held_out import joins, row_count, split_data
from linger.tuning.learned_rounding.integer_fit import Enough, Fit, Grid, Moments, Pair, change_of, fit_integers
from linger.tuning.learned_rounding.recurrent_rounding import improve_recurrent
from linger.tuning.remedy import (
    Change,
    OutputError,
    Remedy,
    checked_data,
    error_db,
    require_pair,
    state_of,
    undone_on_error,
)

_MATRIX_AXES = _IMAGE_AXES = 2
_SIGNAL_AXES = 3
_NEGLIGIBLE = 1e-8
"""A batch norm's factor below which a weight has no effect."""


def is_product(op: Op) -> bool:
    """Whether an op is a convolution or a product of matrices."""
    return bool(op.window_axes) or op.weight_axes == _MATRIX_AXES


def positions(op: Op, y: Tensor) -> tuple[int, ...]:
    """The shape of an output without its channels."""
    shape = list(y.shape)
    del shape[-1 - op.window_axes]
    return tuple(shape)


def output_rows(op: Op, y: Tensor, picks: Tensor) -> Tensor:
    """The channels of an output at some positions (numbers within `positions`), [picks, channels]."""
    return y.movedim(-1 - op.window_axes, -1)[torch.unravel_index(picks.to(y.device), positions(op, y))]


def input_rows(op: Op, x: Tensor, geometry: Mapping[str, Any], picks: Tensor, shape: Sequence[int]) -> Tensor:
    """The inputs of an output's sums at some positions of its `shape` (without channels), [picks, groups, taps].

    Taps are in the order of `to_rows`.
    """
    axes, picks = op.window_axes, picks.to(x.device)
    if not axes:
        return x.reshape(-1, 1, x.shape[-1])[picks]
    strides, dilations, kernel = (_image(geometry[n], 1) for n in ("strides", "dilations", "kernel_shape"))
    begin, end = _image(geometry["pads"][:axes], 0), _image(geometry["pads"][axes:], 0)
    if x.dim() == axes + 1:
        x, shape = x.unsqueeze(0), (1, *shape)
    if axes < _IMAGE_AXES:
        x, shape = x.unsqueeze(-2), (shape[0], 1, shape[1])
    if op.is_transposed:
        # a plain convolution, with a turned kernel, of the image with zeros between its pixels
        height, width = ((n - 1) * s + 1 for n, s in zip(x.shape[2:], strides, strict=True))
        wide = x.new_zeros(*x.shape[:2], height, width)
        wide[..., :: strides[0], :: strides[1]] = x
        reach = [d * (n - 1) for d, n in zip(dilations, kernel, strict=True)]
        more = _image(geometry["output_padding"], 0)
        begin = [r - b for r, b in zip(reach, begin, strict=True)]
        end = [r - e + m for r, e, m in zip(reach, end, more, strict=True)]
        x, strides = wide, [1, 1]
    x = F.pad(x, (begin[1], end[1], begin[0], end[0]))
    batch, row, column = torch.unravel_index(picks, tuple(shape))
    rows = row[:, None] * strides[0] + torch.arange(kernel[0], device=x.device) * dilations[0]
    columns = column[:, None] * strides[1] + torch.arange(kernel[1], device=x.device) * dilations[1]
    windows = x.movedim(1, -1)[batch[:, None, None], rows[:, :, None], columns[:, None, :]]
    return windows.movedim(-1, 1).reshape(len(picks), geometry["group"], -1)


def _image(numbers: Sequence[int], missing: int) -> list[int]:
    return [*[missing] * (_IMAGE_AXES - len(numbers)), *numbers]


def to_rows(weight: Tensor, groups: int, *, is_transposed: bool) -> Tensor:
    """A weight as one matrix per group, [groups, channels, taps]."""
    if not is_transposed:
        return weight.reshape(groups, weight.shape[0] // groups, -1)
    turned = weight.flip(tuple(range(2, weight.dim())))
    parts = turned.reshape(groups, -1, *weight.shape[1:]).transpose(1, 2)
    return parts.reshape(groups, weight.shape[1], -1)


def from_rows(rows: Tensor, like: Tensor, *, is_transposed: bool) -> Tensor:
    """The weight of the shape of `like` that has these matrices."""
    if not is_transposed:
        return rows.reshape(like.shape)
    parts = rows.reshape(len(rows), like.shape[1], -1, *like.shape[2:]).transpose(1, 2)
    return parts.reshape(like.shape).flip(tuple(range(2, like.dim())))


def affine_of(layer: QuantLayer) -> tuple[Tensor, Tensor]:
    """Factor and offset per channel of a layer's batch norm, on a product without bias."""
    assert layer.bn is not None
    assert layer.bias is not None  # take_batch_norm made it
    factor, offset = fold(torch.ones_like(layer.bias)[:, None], torch.zeros_like(layer.bias), layer.bn)
    return factor.squeeze(1), offset


def folded_weight(layer: QuantLayer) -> Tensor:
    """A layer's weight with its batch norm folded in, not rounded."""
    weight = layer.weight.detach()
    if layer.bn is None:
        return weight
    return weight * per_weight(affine_of(layer)[0].detach(), weight, layer.transposed_groups)


def grid_of(layer: QuantLayer, frozen: Frozen, groups: int) -> Grid:
    """The folded weights of a layer as rows, and the grid that they are rounded to."""
    weight = folded_weight(layer)
    is_transposed = layer.transposed_groups is not None
    integers = frozen.weight_integers.reshape(weight.shape)
    rows, now = (to_rows(t, groups, is_transposed=is_transposed).double().cpu() for t in (weight, integers))
    factor = finer_by(frozen, rows)
    largest, limit = limits(layer.widths.parameter)[1], integer_bound(layer.limited_to.weight, layer.widths.parameter)
    bound = largest if limit is None or frozen.exponents else min(largest, int(limit * frozen.scale_w))
    bias = rows.new_zeros(rows.shape[:2]) if frozen.bias is None else frozen.bias.double().cpu().reshape(groups, -1)
    ones = torch.ones(rows.shape[2], dtype=torch.float64)
    return Grid(rows * factor[:, :, None], now, bias * factor, ones / frozen.scale_w, ones * bound)


def finer_by(frozen: Frozen, rows: Tensor) -> Tensor:
    """By how much the scale of each row's channel is finer than the tensor's, [groups, channels].

    Times that, weights, biases and outputs of a channel lie on the grid of the tensor, and all channels are fitted alike.
    """
    exponents = frozen.exponents or (0,) * rows.shape[:2].numel()
    return torch.tensor(exponents, dtype=torch.float64).exp2().reshape(rows.shape[:2])


def put_integers(layer: QuantLayer, frozen: Frozen, scale_x: float, fit: Fit) -> bool:
    """Write new integers and biases into a layer; where it would not round to these integers, it stays as it was."""
    device, scale, before, chosen = (
        layer.weight.device,
        frozen.scale_w,
        state_of(layer),
        layer.ranges["w"].chosen_range(),
    )
    is_new, bias = fit.is_new.flatten().to(device), fit.bias.flatten().to(device)
    factor, offset = torch.ones_like(bias), torch.zeros_like(bias)
    if layer.bn is not None:
        factor, offset = (t.double() for t in affine_of(layer))
        is_new = is_new & (factor.abs() > _NEGLIGIBLE)
        factor = factor.masked_fill(~is_new, 1.0)
    integers = from_rows(fit.integers.to(device), layer.weight, is_transposed=layer.transposed_groups is not None)
    is_new_weight = per_weight(is_new, integers, layer.transposed_groups)
    integers = torch.where(is_new_weight, integers, frozen.weight_integers.reshape(integers.shape))
    scales = scale * finer_by(frozen, fit.integers).flatten().to(device)
    weight = integers / per_weight(scales * factor, integers, layer.transposed_groups)
    layer.weight.copy_(torch.where(is_new_weight, weight.to(layer.weight), layer.weight))
    limited = clamp(bias, layer.limited_to.bias)
    assert limited is not None  # as the bias
    bias = (limited - offset) / factor
    if layer.bias is None:
        layer.shift_output(torch.where(is_new, bias, 0.0))  # it gets a bias
    else:
        layer.bias.copy_(torch.where(is_new, bias.to(layer.bias), layer.bias))
    reach = limits(layer.widths.parameter)[1] / scales
    layer.ranges["w"].choose_range(tuple(reach.tolist()) if layer.ranges["w"].rows else float(reach[0]))
    again = layer.freeze(scale_x)
    is_same = again.weight_integers.reshape(integers.shape) == integers
    is_kept = (again.scale_w, again.exponents) == (scale, frozen.exponents) and bool(is_same.all())
    if not is_kept:
        layer.load_state_dict(before)
        layer.ranges["w"].choose_range(chosen)
    return is_kept


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
    return _improved(layer, learned[1], learned[0], held[0])


def _improved(layer: QuantLayer, call: _Call, fitting: Moments, judging: Moments) -> list[Change]:
    grid = grid_of(layer, call.frozen, call.rows.shape[1])
    factor = finer_by(call.frozen, grid.integers)
    judging = judging.times(factor)
    fit = fit_integers(grid, fitting.times(factor), judging)
    fit = replace(fit, bias=fit.bias / factor)
    if not bool(fit.is_new.any()) or not put_integers(layer, call.frozen, call.scale_x, fit):
        return []
    return [change_of(layer.path, grid, fit, judging)]


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
            total = _counted(total, call, output_rows(call.op, y, call.picks))
    return None if total is None or call is None else (total, call)


def _counted(total: Moments | None, call: _Call, outputs: Tensor) -> Moments:
    outputs = outputs.float().cpu().reshape(len(call.picks), call.rows.shape[1], -1)
    total = total or Moments(outputs.shape[1], outputs.shape[2], call.rows.shape[2])
    total.add(call.rows, outputs)
    return total


def _inputs(
    pair: Pair, layer: QuantLayer, batch: Batch, count: int, size: int, generator: torch.Generator
) -> list[_Call]:
    """What a layer multiplies in one pass."""
    calls: list[_Call] = []

    def note(name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
        if name.rpartition(".")[0] != layer.path or not is_product(op):
            return
        shape = positions(op, result.content)
        picks = torch.randperm(int(torch.Size(shape).numel()), generator=generator)[:size]
        rows = input_rows(op, operands[0].content, attributes, picks, shape)
        calls.append(_Call(op, operands[1], attributes["scale_x"], rows.float().cpu(), picks, shape))
        if len(calls) == count:
            raise Enough

    pair.observe(note, batch)
    return calls


def _outputs(pair: Pair, layer: QuantLayer, batch: Batch, count: int) -> list[Tensor]:
    """What the float layer gives in one pass."""
    outputs: list[Tensor] = []
    _watch_outputs(pair, {layer: count}, batch, lambda _, output: outputs.append(output))
    return outputs


def _watch_outputs(
    pair: Pair, counts: Mapping[QuantLayer, int], batch: Batch, take: Callable[[QuantLayer, Tensor], None]
) -> None:
    """Hand over what float layers give in one pass, as the quantized ones would: their batch norms included; so many outputs of each."""
    left = Counter(counts)
    products: list[tuple[Tensor, QuantLayer]] = []

    def add(layer: QuantLayer, output: Tensor) -> None:
        # a transposed signal is an image of one row
        is_row = layer.transposed_groups is not None and layer.weight.dim() == _SIGNAL_AXES
        take(layer, output.unsqueeze(-2) if is_row else output)
        left[layer] -= 1
        if not any(left.values()):
            raise Enough

    def note(layer: QuantLayer, module: nn.Module, _args: object, _kwargs: object, output: Tensor) -> None:
        if layer.bn is not None and not isinstance(module, ConvBN):
            products.append((output, layer))
        else:
            add(layer, output)

    def note_norm(_module: nn.Module, args: tuple[Tensor, ...], _kwargs: object, output: Tensor) -> None:
        for layer in [layer for product, layer in products if args[0] is product]:
            products[:] = [one for one in products if one[0] is not args[0]]
            add(layer, output)

    with Trace(pair.reference) as trace, suppress(Enough):
        for layer in counts:
            trace.after([pair.reference.get_submodule(layer.path)], partial(note, layer))
        trace.after((m for m in pair.reference.modules() if isinstance(m, _BatchNorm)), note_norm)
        trace.run(batch)


_LARGEST = 2**27
"""Numbers of the largest output of a layer where all samples still pass at once, half a gigabyte."""

_KEPT = 2**26
"""Numbers of float outputs that are kept at a time, a quarter of a gigabyte."""


class _Whole:
    """All samples as one batch, those to learn from first: so one pass is enough to round one layer after the other.

    Attributes:
        sizes: For layers that this can be done with, the numbers of an output of one sample, and its channels.
    """

    def __init__(self, pair: Pair, layers: Mapping[QuantizedBase, int]) -> None:
        self._pair = pair
        self.sizes: dict[QuantizedBase, tuple[int, int]] = {}
        batches = [*pair.learned, *pair.held]
        counts = [row_count(batch) for batch in batches]
        self._learned, self._rows = sum(counts[: len(pair.learned)]), sum(counts)
        kinds = (
            {tuple((part.shape[1:], part.dtype) for part in values_of(b)) for b in batches} if all(counts) else set()
        )
        once = {layer: 1 for layer, count in layers.items() if isinstance(layer, QuantLayer) and count == 1}
        if len(kinds) != 1 or not once:
            return
        with suppress(UsageError):  # a model may not take a single row
            sizes = _sizes_of(pair, once, rows_of_batch(batches[0], slice(1)))
            self._batch = joined_rows(batches)
            is_small = max((numbers for numbers, _ in sizes.values()), default=0) * self._rows <= _LARGEST
            self.sizes = sizes if is_small and joins(pair.reference, batches) else {}

    def runs(self, layers: Mapping[QuantizedBase, int]) -> Iterator[list[QuantizedBase]]:
        """Layers that follow each other, and of whose outputs as many are kept as there is room for; others alone."""
        run: list[QuantizedBase] = []
        kept = 0
        for layer in layers:
            numbers, channels = self.sizes.get(layer, (_KEPT, _KEPT))
            size = min(numbers * self._rows, 2 * self._pair.positions * channels)
            if run and kept + size > _KEPT:
                yield run
                run, kept = [], 0
            run, kept = [*run, layer], kept + size
        if run:
            yield run

    def improve(self, run: Sequence[QuantLayer]) -> list[Change]:
        """Give layers other integers in one pass, each as soon as its inputs are known; what follows gets its new outputs."""
        pair = self._pair
        wanted: dict[QuantLayer, list[tuple[Tensor, Tensor]]] = {}
        noted: dict[str, tuple[Op, Any, Mapping[str, Any], tuple[int, ...]]] = {}
        paths = {layer.path for layer in run}
        changes: list[Change] = []
        generator = torch.Generator().manual_seed(pair.seed)

        def take(layer: QuantLayer, y: Tensor) -> None:
            op = find_op(layer.op_name)
            each = math.prod(positions(op, y)) // self._rows
            parts = (0, self._learned, pair.positions), (self._learned, self._rows - self._learned, pair.positions // 2)
            drawn = [torch.randperm(n * each, generator=generator)[: max(1, most)] + at * each for at, n, most in parts]
            wanted[layer] = [(picks, output_rows(op, y, picks).float()) for picks in drawn]

        def note(name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
            path = name.rpartition(".")[0]
            if path in paths and is_product(op):
                noted[path] = (op, operands, attributes, positions(op, result.content))

        def leave(layer: QuantLayer, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> object:
            found = improved(layer) if layer in wanted and layer.path in noted else []
            changes.extend(found)
            if layer is run[-1]:
                raise Enough
            return layer.forward(*args, **kwargs) if found else output

        def improved(layer: QuantLayer) -> list[Change]:
            op, operands, attributes, shape = noted.pop(layer.path)
            calls, moments = [], []
            for picks, outputs in wanted.pop(layer):
                rows = input_rows(op, operands[0].content, attributes, picks, shape).float().cpu()
                calls.append(_Call(op, operands[1], attributes["scale_x"], rows, picks, shape))
                moments.append(_counted(None, calls[-1], outputs))
            return _improved(layer, calls[0], *moments)

        _watch_outputs(pair, dict.fromkeys(run, 1), self._batch, take)
        pair.observe(note, self._batch, after=dict.fromkeys(run, leave))
        return changes


def _sizes_of(pair: Pair, counts: Mapping[QuantLayer, int], sample: Batch) -> dict[QuantizedBase, tuple[int, int]]:
    """The numbers and the channels of the outputs of float layers that keep samples apart."""
    sizes: dict[QuantizedBase, tuple[int, int]] = {}

    def take(layer: QuantLayer, y: Tensor) -> None:
        if len(y) == 1:
            sizes[layer] = y.numel(), y.numel() // math.prod(positions(find_op(layer.op_name), y))

    _watch_outputs(pair, counts, sample, take)
    return sizes


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
        whole = _Whole(pair, layers)
        for run in progress(list(whole.runs(layers)), "rounding weights"):
            products = [layer for layer in run if isinstance(layer, QuantLayer)]
            if run[0] in whole.sizes:
                changes += whole.improve(products)
            elif products:
                changes += improve_product(pair, products[0], layers[run[0]])
            elif isinstance(run[0], QuantRecurrent):
                changes += improve_recurrent(pair, run[0])
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
