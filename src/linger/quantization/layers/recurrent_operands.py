# SPDX-License-Identifier: Apache-2.0
"""What a recurrent layer works on, whichever cell runs: sequences, states, and rounded parameters of both directions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.constraint.limits import Limits, clamp
from linger.dialect import Op
from linger.errors import UsageError
from linger.numeric.fixed import BIAS_BITS, limits
from linger.numeric.torch.gates import Formats, GatePlan, Weights
from linger.numeric.torch.kernel import beside, integer_type
from linger.numeric.torch.quantize import (
    Rows,
    Scale,
    channel_scales,
    largest_magnitude,
    largest_of,
    max_abs,
    smallest,
    weight_scale,
)
from linger.numeric.torch.timeline import Timeline
from linger.ops.fast.fast_path import recurrent_fast_path
from linger.quantization.core.qtensor import QTensor
from linger.quantization.core.quantized import integer_bound, kept

_USUAL_BITS = 8
_SEQUENCE_AXES = 3

ROLES = ("w_ih", "w_hh", "b_ih", "b_hh")
"""Inputs of a node that hold parameters."""


@dataclass(frozen=True)
class Sequences:
    """What a layer's nodes work on: [time, batch, …] or [batch, time, …], with lengths if they differ."""

    x: QTensor
    lengths: Tensor | None
    is_batch_first: bool

    def turned(self, tensor: Tensor) -> Tensor:
        """A tensor of the caller's order with time first, or one with time first in the caller's order."""
        return tensor.transpose(0, 1) if self.is_batch_first else tensor


def check_shapes(
    where: str,
    x: Tensor,
    states: Sequence[Tensor] | None,
    *,
    sizes: tuple[int, int, int],
    is_batch_first: bool,
    state_names: Sequence[str],
) -> None:
    """Refuse sequences and states that do not fit the layer; `sizes` are input size, states per sequence, hidden size.

    Raises:
        UsageError: All that is wrong.
    """
    width, rows, hidden = sizes
    batch_axis, order = (0, "batch, time") if is_batch_first else (1, "time, batch")
    shape = list(x.shape)  # once: a quantized tensor is asked through torch
    if len(shape) != _SEQUENCE_AXES or shape[-1] != width:
        wrong = [f"the input has shape {shape}; expected [{order}, {width}]"]
    elif states is not None and len(states) != len(state_names):
        wrong = [f"{len(states)} states are given; expected {' and '.join(state_names)}"]
    else:
        expected = [rows, shape[batch_axis], hidden]
        shapes = zip(state_names, map(attrgetter("shape"), states or ()), strict=False)
        wrong = [f"the state {n} has shape {list(s)}; expected {expected}" for n, s in shapes if list(s) != expected]
    if wrong:
        raise UsageError(f"{where}: {'; '.join(wrong)}. Give the shapes that the float layer takes.")


def range_suffix(layer: int, back: int) -> str:
    """Keys of the first layer have none: such checkpoints are the documented ones."""
    return (f"_l{layer}" if layer else "") + ("_reverse" if back else "")


def each(states: Tensor | tuple[Tensor, ...], change: Callable[[Tensor], Tensor]) -> Tensor | tuple[Tensor, ...]:
    """Both states of an LSTM, or the one of a GRU, changed alike."""
    return tuple(change(s) for s in states) if isinstance(states, tuple) else change(states)


def have_one_scale(outs: Sequence[QTensor]) -> bool:
    """Whether the outputs of a stack share their scale; this much must be read from a device, for it decides what follows."""
    scales = [out.scale for out in outs]
    if len(scales) > 1 and any(isinstance(s, Tensor) for s in scales):
        return bool(smallest(scales) == largest_of(scales))
    return len(set(scales)) == 1


def ordered(state: Tensor, order: Tensor | None) -> Tensor:
    """A state with its sequences in another order."""
    return state if order is None else state.index_select(1, order)


def joining(parts: Sequence[QTensor]) -> dict[str, Any]:
    """Attributes of the iqCat that joins both directions."""
    attributes = {f"scale_x_{i}": part.scale for i, part in enumerate(parts)} | {"scale_o": parts[0].scale, "dim": 2}
    return attributes if parts[0].bits == _USUAL_BITS else attributes | {"o_bits": parts[0].bits}


def full_lengths(sequences: Sequences) -> Tensor:
    """All steps of every sequence, as lengths."""
    shape = sequences.x.content.shape
    rows, steps = (shape[0], shape[1]) if sequences.is_batch_first else (shape[1], shape[0])
    return torch.zeros(rows, dtype=torch.int64, device=sequences.x.content.device) + steps


def at_end(out: Tensor, sequences: Sequences, back: int) -> Tensor:
    """The state after the last step [batch, hidden], from the output sequence."""
    time_first = sequences.turned(out)
    if back:
        return time_first[0]
    if sequences.lengths is None:
        return time_first[-1]
    rows = torch.arange(sequences.lengths.shape[0], device=out.device)
    return time_first[beside(sequences.lengths, out) - 1, rows]


# parameters
def within(limits: Limits, bits: int, w_ih: Tensor, w_hh: Tensor, *biases: Tensor | None) -> Weights:
    """The real parameters of one direction within the limits of the constraint stage; biases may be missing."""
    bound = integer_bound(limits.weight, bits)
    return Weights(clamp(w_ih, bound), clamp(w_hh, bound), *(clamp(bias, limits.bias) for bias in biases))


# in real numbers
def run_real(
    op: Op, sequences: Sequences, states: Sequence[Tensor] | None, directions: Sequence[Weights]
) -> tuple[Tensor, ...]:
    """One layer in real numbers: output sequence, zero beyond each length, and the last states."""
    x = sequences.turned(sequences.x.content.float())
    timeline = Timeline.of(x, sequences.lengths)
    w_ih, w_hh = (torch.stack([getattr(d, name) for d in directions]) for name in ("w_ih", "w_hh"))
    parts = timeline.by_direction(x, len(directions)) @ w_ih.transpose(1, 2).unsqueeze(1)
    b_ih, b_hh = (_stacked([getattr(d, name) for d in directions]) for name in ("b_ih", "b_hh"))
    parts = parts if b_ih is None else parts + b_ih[:, None, None]
    start = x.new_zeros(len(directions), timeline.batch, w_hh.shape[2])
    steps = [tuple(states or [start] * (len(op.outputs) - 1))]
    offset = w_hh.new_zeros(()) if b_hh is None else b_hh.unsqueeze(1)
    for part in parts.unbind(1):
        steps.append(_real_step(part, torch.baddbmm(offset, steps[-1][0], w_hh.transpose(1, 2)), *steps[-1]))
    kinds = [torch.stack(kind) for kind in zip(*steps[1:], strict=True)]
    return sequences.turned(timeline.outputs(kinds[0])), *map(timeline.final, kinds)


def _real_step(part: Tensor, sums: Tensor, h: Tensor, c: Tensor | None = None) -> tuple[Tensor, ...]:
    """The states after one step; the gates of an LSTM, which has c, are i, f, g, o, those of a GRU r, z, n."""
    if c is not None:
        i, f, g, o = (part + sums).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    (x_r, x_z, x_n), (h_r, h_z, h_n) = part.chunk(3, -1), sums.chunk(3, -1)
    z, n = torch.sigmoid(x_z + h_z), torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return ((1.0 - z) * n + z * h,)


@dataclass(frozen=True)
class RoundedWeights:
    """Rounded parameters of all directions, stacked: real carriers that the fast cells take, integers for the file."""

    weights: Weights
    scale_iw: tuple[Scale, ...]
    scale_hw: tuple[Scale, ...]
    largest: tuple[tuple[Scale, Scale], ...]
    _plans: dict[Formats, GatePlan] = field(default_factory=dict)

    def plan(self, op: Op, formats: Formats) -> GatePlan:
        """What the loop of an op has to know about these parameters; it is found once."""
        if formats not in self._plans:
            with kept():
                self._plans[formats] = recurrent_fast_path(op).plan(self.weights, formats)
        return self._plans[formats]

    def integers(self, direction: int, scale_i: float, scale_h: float, bits: int) -> dict[str, Tensor]:
        """The inputs of a node by role; a missing bias is zeros."""
        w_ih, w_hh, b_ih, b_hh = self.weights
        kinds = ((w_ih, b_ih, self.scale_iw[direction], scale_i), (w_hh, b_hh, self.scale_hw[direction], scale_h))
        weights, biases = [], []
        for w, b, scale_w, scale_x in kinds:
            weights.append((w[direction].detach() * _by_rows(scale_w)).to(integer_type(bits)))
            offset = w.new_zeros(w.shape[1]) if b is None else b[direction].detach() * (scale_x * scale_w)
            biases.append(offset.to(integer_type(BIAS_BITS)))
        return dict(zip(ROLES, (*weights, *biases), strict=True))


def _by_rows(scale: Scale) -> Scale:
    """The scale of a matrix, or those of its rows, as the matrix is multiplied with."""
    return scale[:, None] if isinstance(scale, Tensor) and scale.dim() else scale


@dataclass(frozen=True)
class _Rounding:
    """How parameters of one kind, the input's or the state's, are rounded, one entry per direction."""

    scale_x: Scale
    bits: int
    where: str
    chosen: Sequence[Scale | None]
    stays_there: bool
    rows: Rows = None
    scales: list[Scale] = field(default_factory=list)
    """What was chosen for each direction."""
    largest: list[Scale] = field(default_factory=list)
    """The largest weight of each direction."""

    def round(self, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> tuple[Tensor, Tensor | None]:
        """Weights and biases of all directions as real carriers, stacked.

        The scale leaves room for the bias, so that never saturates; it is float64, because float32 cannot hold 32 bits.
        """
        wide = [_at_least_float32(w) for w in weights]
        stacked = torch.empty((len(wide), *wide[0].shape), dtype=wide[0].dtype, device=wide[0].device)
        for out, weight, bias, own in zip(stacked, wide, biases, self.chosen, strict=True):
            find_largest = self.rows[0] if self.rows else largest_magnitude if self.stays_there else max_abs
            self.largest.append(find_largest(weight))
            find = channel_scales if self.rows else weight_scale
            self.scales.append(find(self.largest[-1], self.bits, bias, self.scale_x, self.where, chosen=own))
            scale = _by_rows(self.scales[-1]).to(out.dtype) if self.rows else self.scales[-1]
            torch.mul(weight, scale, out=out).add_(0.5).floor_()
            if own is not None:
                out.clamp_(*limits(self.bits))
            out.mul_(1.0 / scale)
        return stacked, self._rounded(biases)

    def _rounded(self, biases: Sequence[Tensor | None]) -> Tensor | None:
        present = [b.double() * (self.scale_x * s) for b, s in zip(biases, self.scales, strict=True) if b is not None]
        if len(present) < len(biases):
            return None
        for bias, scale in zip(present, self.scales, strict=True):
            bias.add_(0.5).floor_().mul_(1.0 / (self.scale_x * scale))
        return torch.stack(present)

    def is_held(self, direction: int, weight: Tensor) -> Tensor | None:
        """Where a weight has a gradient; None: everywhere, because its scale holds every weight."""
        if self.chosen[direction] is None:
            return None
        low, high = limits(self.bits)
        whole = (_at_least_float32(weight) * _by_rows(self.scales[direction])).add_(0.5).floor_()
        return cast(Tensor, (whole >= low) & (whole <= high))


def _at_least_float32(weight: Tensor) -> Tensor:
    """A weight in a type in which ⌊w·scale + ½⌋ is not rounded itself."""
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


class _RoundParameters(torch.autograd.Function):
    """All parameters of a layer in one node of the graph, since each node costs as much as rounding a small weight."""

    @staticmethod
    def forward(ctx: Any, inputs: _Rounding, states: _Rounding, *parameters: Any) -> Any:
        w_ih, w_hh, b_ih, b_hh = (parameters[role :: len(ROLES)] for role in range(len(ROLES)))
        (input_w, input_b), (state_w, state_b) = inputs.round(w_ih, b_ih), states.round(w_hh, b_hh)
        held: list[Tensor | None] = []
        for k, (a, b) in enumerate(zip(w_ih, w_hh, strict=True)):
            held += [inputs.is_held(k, a), states.is_held(k, b), None, None]
        ctx.types = [None if t is None else t.dtype for t in parameters]
        ctx.save_for_backward(*held)
        ctx.set_materialize_grads(False)
        return input_w, state_w, input_b, state_b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        result: list[Tensor | None] = [None, None]
        for place, (dtype, held) in enumerate(zip(ctx.types, ctx.saved_tensors, strict=True)):
            direction, role = divmod(place, len(ROLES))
            whole = gradients[role]
            own = None if whole is None or dtype is None else whole[direction].to(dtype)
            result.append(own if own is None or held is None else own * held)
        return tuple(result)


def round_parameters(
    directions: Sequence[Weights],
    scale_i: Scale,
    scale_h: Scale,
    bits: int,
    where: str,
    chosen: Sequence[tuple[Scale | None, Scale | None]] | None = None,
    *,
    stays_there: bool = False,
    rows: Rows = None,
) -> RoundedWeights:
    """Round the parameters of a layer, straight through; scales are lowered where a bias would not fit its 32 bits.

    `chosen` are the ranges of each direction's weights, None where the largest magnitude is the range; `stays_there` and `rows` as for
    `round_weight`.

    Raises:
        UsageError: The weights hold NaN or infinity.
    """
    ranges = zip(*(chosen or [(None, None)] * len(directions)), strict=True)
    inputs, states = (
        _Rounding(scale, bits, where, own, stays_there, rows)
        for scale, own in zip((scale_i, scale_h), ranges, strict=True)
    )
    weights = Weights(*_RoundParameters.apply(inputs, states, *chain(*directions)))
    largest = tuple(zip(inputs.largest, states.largest, strict=True))
    return RoundedWeights(weights, tuple(inputs.scales), tuple(states.scales), largest)


def _stacked(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.stack(present) if len(present) == len(parts) else None
