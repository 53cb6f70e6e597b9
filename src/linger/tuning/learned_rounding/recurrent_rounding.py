# SPDX-License-Identifier: Apache-2.0
"""Learned rounding of LSTM and GRU: the sums of their gates, over the input and the state of each step together.

A gate of an LSTM is a function of W·x + U·h, so both matrices are fitted as one. In a GRU the state's part of one gate is
multiplied before it is added, so W·x and U·h are fitted each by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from linger.analysis.batches import Batch
from linger.analysis.trace import Trace
from linger.constraint.limits import clamp, limits_of
from linger.dialect import Op, find_op
from linger.numeric.fixed import BIAS_BITS, limits, scale_for
from linger.numeric.torch.quantize import fake_quantize, max_abs
from linger.quantization.core.qtensor import unwrap
from linger.quantization.core.quantized import integer_bound
from linger.quantization.layers.recurrent import QuantCell, QuantRecurrent
from linger.quantization.layers.recurrent_operands import range_suffix
from linger.tuning.learned_rounding.integer_fit import Enough, Fit, Grid, Moments, Pair, change_of, fit_integers
from linger.tuning.remedy import Change

Operands = tuple[Tensor, Tensor]
"""Inputs [time, batch, features] and the states before each step [time, batch, hidden]."""

States = tuple[Tensor, ...]
"""h of a GRU, h and c of an LSTM, as a caller gave them; empty where it gave none."""

_SEQUENCE_AXES = 3


@dataclass(frozen=True)
class _Place:
    """One layer and direction of a recurrent layer."""

    layer: QuantRecurrent
    number: int
    back: int

    @property
    def row(self) -> int:
        """Its row among the states of all layers and directions."""
        return self.number * len(self.layer.suffixes[0]) + self.back

    def parameter(self, name: str, module: nn.Module | None = None) -> Tensor | None:
        """A parameter (weight_ih, bias_hh …) of the quantized or of another layer; None where there is none."""
        owner = self.layer if module is None else module
        return cast("Tensor | None", getattr(owner, name + self.layer.suffixes[self.number][self.back], None))


def improve_recurrent(pair: Pair, layer: QuantRecurrent) -> list[Change]:
    """Give every matrix of a recurrent layer other integers, if the held-out data agree.

    Where rows have scales of their own, what both matrices add to a gate lies on two grids, so each is fitted by itself.
    """
    is_joint = "c" in find_op(layer.op_name).outputs and not any(range_.rows for range_ in layer.ranges.values())
    sides = [("ih", "hh")] if is_joint else [("ih",), ("hh",)]
    places = [_Place(layer, k, back) for k, names in enumerate(layer.suffixes) for back in range(len(names))]
    return [c for place in places for side in sides if (c := _improve(pair, place, side)) is not None]


def _improve(pair: Pair, place: _Place, sides: Sequence[str]) -> Change | None:
    learned, held = (_moments(pair, place, sides, batches) for batches in (pair.learned, pair.held))
    if learned is None or held is None:
        return None
    (fitting, scales), (judging, _) = learned, held
    factor = _finer_by(scales, sides)
    grid, judging = _grid_of(place, sides, scales, factor), judging.times(factor)
    fit = fit_integers(grid, fitting.times(factor), judging)
    fit = replace(fit, bias=fit.bias / factor)
    if not bool(fit.is_new.any()) or not _put(place, sides, scales, fit):
        return None
    suffix = place.layer.suffixes[place.number][place.back]
    names = " and ".join(f"weight_{side}{suffix}" for side in sides)
    return change_of(f"{place.layer.path}.{names}".lstrip("."), grid, fit, judging)


# what goes in and what should come out
def _moments(
    pair: Pair, place: _Place, sides: Sequence[str], batches: Sequence[Batch]
) -> tuple[Moments, Mapping[str, Any]] | None:
    total: Moments | None = None
    scales: Mapping[str, Any] = {}
    module = pair.reference.get_submodule(place.layer.path)
    chosen = [("ih", "hh").index(side) for side in sides]
    for batch, size, generator in pair.draws(batches):
        calls, wanted = _quantized_operands(pair, place, batch), _float_operands(pair, place, batch)
        if [_sizes(q) for q, _ in calls] != [_sizes(f) for f in wanted]:
            return None  # packed sequences, or passes that went different ways
        for (q, own), f in zip(calls, wanted, strict=True):
            picks = torch.randperm(_sizes(q)[0].numel(), generator=generator)[:size]
            x = torch.cat(_picked(q, chosen, picks), dim=1)
            y = _sums(module, place, _picked(f, chosen, picks), sides)
            total = total or Moments(1, y.shape[1], x.shape[1])
            total.add(x.unsqueeze(1).cpu(), y.unsqueeze(1).cpu())
            scales = own
    return None if total is None else (total, scales)


def _picked(operands: Operands, chosen: Sequence[int], picks: Tensor) -> list[Tensor]:
    """Some steps of the input, the state or both."""
    return [operands[i].flatten(0, 1)[picks.to(operands[i].device)].float() for i in chosen]


def _sizes(operands: Operands) -> tuple[torch.Size, ...]:
    return operands[0].shape[:2], operands[1].shape[:2]


def _sums(module: nn.Module, place: _Place, parts: Sequence[Tensor], sides: Sequence[str]) -> Tensor:
    """The float gates before their curves."""
    weight_limit, bias_limit = (getattr(module, name, None) for name in ("normalize_weight", "normalize_bias"))
    total: Tensor | None = None
    for part, side in zip(parts, sides, strict=True):
        weight = clamp(place.parameter(f"weight_{side}", module), weight_limit)
        assert weight is not None  # every recurrent layer has both
        y = F.linear(part.float(), weight, clamp(place.parameter(f"bias_{side}", module), bias_limit))
        total = y if total is None else total + y
    assert total is not None
    return total


def _quantized_operands(pair: Pair, place: _Place, batch: Batch) -> list[tuple[Operands, Mapping[str, Any]]]:
    """Inputs and states of the quantized layer in one pass, with the scales of each call."""
    calls: list[tuple[Operands, Mapping[str, Any]]] = []
    given: list[States] = []
    counted = 0

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _note_arguments(args, kwargs, lambda _x, states: given.append(states))

    def note(name: str, op: Op, operands: Any, attributes: Mapping[str, Any], result: Any) -> None:
        nonlocal counted
        if name.rpartition(".")[0] != place.layer.path or op.name != place.layer.op_name:
            return
        counted += 1
        if (counted - 1) % (len(place.layer.suffixes) * len(place.layer.suffixes[0])) != place.row:
            return
        x, out = (_time_first(t, attributes["batch_first"]) for t in (operands[0].content, result.content))
        start = _start(given[-1], place, out)
        start = fake_quantize(start, attributes["scale_h"], attributes["o_bits"])
        calls.append(((x, _before_each(out, start, place.back)), attributes))

    pair.observe(note, batch, {place.layer: enter})
    return calls


def _float_operands(pair: Pair, place: _Place, batch: Batch) -> list[Operands]:
    """Inputs and states of the float layer in one pass."""
    calls: list[Operands] = []
    module = pair.reference.get_submodule(place.layer.path)

    def enter(owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _note_arguments(args, kwargs, lambda x, states: calls.append(_run_float(owner, place, unwrap(x), states)))

    with Trace(pair.reference) as trace, suppress(Enough):
        trace.before([module], enter)
        trace.run(batch)
    return calls


def _note_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], use: Callable[[Tensor, States], None]) -> None:
    x = args[0] if args else kwargs["input"]
    given = args[1] if len(args) > 1 else kwargs.get("hx")
    if isinstance(x, PackedSequence):
        raise Enough  # what lies beyond the end of a sequence is no input
    states = () if given is None else given if isinstance(given, tuple) else (given,)
    use(x, tuple(unwrap(state) for state in states))


def _run_float(module: nn.Module, place: _Place, x: Tensor, states: States) -> Operands:
    """Inputs and states before each step of one layer and direction, in float.

    The module may also be a quantized one that computes in real numbers.
    """
    if isinstance(module, (nn.RNNCellBase, QuantCell)):
        steps = x.reshape(1, -1, x.shape[-1])
        like = steps.new_zeros(1, steps.shape[1], place.layer.hidden_size)
        return steps, _start(states, place, like).unsqueeze(0)
    assert isinstance(module, (nn.RNNBase, QuantRecurrent))
    if x.dim() < _SEQUENCE_AXES:
        x = x.unsqueeze(0 if module.batch_first else 1)
    x = _time_first(x, module.batch_first)
    for number in range(place.number):
        below = [_Place(place.layer, number, back) for back in range(len(place.layer.suffixes[number]))]
        x = torch.cat([_run_direction(module, one, x, states) for one in below], dim=-1)
    out = _run_direction(module, place, x, states)
    return x, _before_each(out, _start(states, place, out), place.back)


def _run_direction(module: nn.RNNBase | QuantRecurrent, place: _Place, x: Tensor, states: States) -> Tensor:
    """The output sequence of one layer and direction, in the order of time."""
    kind = nn.LSTM if place.layer.op_name.startswith("LSTM") else nn.GRU
    kept = module.limited_to if isinstance(module, QuantRecurrent) else limits_of(module)
    single = kind(x.shape[-1], place.layer.hidden_size, bias=module.bias, device=x.device, dtype=x.dtype)
    for name, parameter in single.named_parameters():
        value = place.parameter(name.removesuffix("_l0"), module)
        assert value is not None  # both have the same
        parameter.copy_(clamp(value, kept.bias if name.startswith("bias") else kept.weight))
    rows = [s.reshape(-1, x.shape[1], place.layer.hidden_size)[place.row].unsqueeze(0).contiguous() for s in states]
    start: Any = None if not rows else tuple(rows) if len(rows) > 1 else rows[0]
    out: Tensor = single(x.flip(0) if place.back else x, start)[0]
    return out.flip(0) if place.back else out


def _time_first(x: Tensor, is_batch_first: object) -> Tensor:
    return x.transpose(0, 1) if is_batch_first else x


def _start(states: States, place: _Place, out: Tensor) -> Tensor:
    """The state before the first step, [batch, hidden]."""
    if not states:
        return out.new_zeros(out.shape[1:])
    return states[0].reshape(-1, *out.shape[1:])[place.row].to(out.dtype)


def _before_each(out: Tensor, start: Tensor, back: int) -> Tensor:
    """The state before each step, from the outputs of all steps."""
    first = start.unsqueeze(0)
    return torch.cat([out[1:], first]) if back else torch.cat([first, out[:-1]])


# weights
_SCALES = {"ih": ("scale_i", "scale_iw", "iw"), "hh": ("scale_h", "scale_hw", "hw")}
"""Of each matrix: the scale of what it multiplies, its own, and the name of its range."""


def _finer_by(scales: Mapping[str, Any], sides: Sequence[str]) -> Tensor:
    """By how much the scale of each row is finer than its matrix's, [1, rows]; times that, all rows are fitted alike."""
    exponents = scales.get(f"exponents_{_SCALES[sides[0]][2]}") or (0,)
    return torch.tensor([exponents], dtype=torch.float64).exp2()


def _grid_of(place: _Place, sides: Sequence[str], scales: Mapping[str, Any], factor: Tensor) -> Grid:
    """The matrices of one layer and direction side by side, and the grid of each."""
    layer, bits = place.layer, place.layer.widths.parameter
    limit, largest = integer_bound(layer.limited_to.weight, bits), limits(bits)[1]
    parts, steps, bounds, bias = [], [], [], None
    for side in sides:
        weight, scale = place.parameter(f"weight_{side}"), scales[_SCALES[side][1]]
        assert weight is not None  # every recurrent layer has both
        ones = torch.ones(weight.shape[1], dtype=torch.float64)
        parts.append(weight.detach().double().cpu())
        steps.append(ones / scale)
        bounds.append(ones * (largest if limit is None or factor.numel() > 1 else min(largest, int(limit * scale))))
        own = place.parameter(f"bias_{side}")
        if own is not None:
            bias = own.detach().double().cpu() if bias is None else bias + own.detach().double().cpu()
    start, step, bound = torch.cat(parts, 1).unsqueeze(0) * factor[:, :, None], torch.cat(steps), torch.cat(bounds)
    integers = (start / step + 0.5).floor().clamp(-bound, bound)
    zeros = start.new_zeros(start.shape[:2])
    return Grid(start, integers, zeros if bias is None else bias.unsqueeze(0) * factor, step, bound, bias is not None)


def _put(place: _Place, sides: Sequence[str], scales: Mapping[str, Any], fit: Fit) -> bool:
    """Write new integers and biases into a layer; where a bias would then not fit its 32 bits, nothing is written."""
    layer, is_new, column = place.layer, fit.is_new[0], 0
    bias, first, factor = fit.bias[0], place.parameter(f"bias_{sides[0]}"), _finer_by(scales, sides)[0]
    if first is not None:
        others = [place.parameter(f"bias_{side}") for side in sides[1:]]
        bias = bias - sum(b.detach().double().cpu() for b in others if b is not None)
        bias = torch.where(is_new, clamp(bias, layer.limited_to.bias), first.detach().double().cpu())
        scale_x, scale_w = (scales[key] for key in _SCALES[sides[0]][:2])
        if scale_for(max_abs(bias * factor) * scale_x, BIAS_BITS) < scale_w:
            return False
        first.copy_(bias)
    for side in sides:
        weight, (_, key, name) = place.parameter(f"weight_{side}"), _SCALES[side]
        assert weight is not None
        integers = fit.integers[0, :, column : column + weight.shape[1]]
        column += weight.shape[1]
        rows = (scales[key] * factor).expand(len(weight))
        weight.copy_(torch.where(is_new[:, None], (integers / rows[:, None]).to(weight), weight))
        reach = (limits(layer.widths.parameter)[1] / rows).tolist()
        range_ = layer.ranges[f"{name}{range_suffix(place.number, place.back)}"]
        range_.choose_range(tuple(reach) if range_.rows else reach[0])
    return True
