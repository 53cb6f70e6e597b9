# SPDX-License-Identifier: Apache-2.0
"""The base of the fast recurrent cells: curves as look-up tables over all 8- or 16-bit inputs, exact projections to Q11.

Integers travel in float tensors. A product with weights that are scaled by powers of two is in Q11 without a further step, so
rounding is one floor. float32 is used only where a static bound proves that it holds every partial sum; else float64.
Scales that stay on a device (see `linger.numeric.torch.quantize`) are not read: the state is then float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.numeric import blocks
from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.tables import ONE, SIGMOID, TANH, LongPieces, Pieces, WidePieces
from linger.numeric.torch.kernel import TorchKernel, carrier
from linger.numeric.torch.quantize import Scale
from linger.numeric.torch.timeline import Steps, Timeline, over_time, steps_for

_BODIES: dict[type, tuple[Callable[..., Tensor], float]] = {
    Pieces: (blocks.piecewise_linear, 2.0**15),
    WidePieces: (blocks.wide_piecewise_linear, blocks.WIDE_CURVE_SCALE),
    LongPieces: (blocks.long_piecewise_linear, ONE),
}
"""The function that evaluates each kind of table, and the scale of its results."""
Q7 = 2.0**7
Q11 = 2.0**11
REACH = 1 << 15
"""Gates are saturated to 16 bits."""

FAR_REACH = 7 << 13
"""Where the curves meet in the table of both, each goes on as far as this, so that most gates need no limit before it."""

SIGMOID_START = REACH + FAR_REACH
"""Where the second curve begins."""

LARGEST_INDEX = 2 * SIGMOID_START
"""Length of the table of both curves."""

LARGEST_FACTOR = 2.0**17
"""Whole numbers below this times 127, plus 64, stay below 2^24."""

_FLOAT64_EXACT = 2.0**53
_REACH_OF_8_BITS = 1 << 7


def look_up(x: Tensor, pieces: Pieces | WidePieces | LongPieces, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    """A curve at real values x with scale_x, as real values, by table look-up. x has the width that the device takes."""
    if isinstance(pieces, Pieces):
        # 16 bits and a half are exact in float32
        index = torch.floor(x.detach() * Q11 + 0.5).clamp_(-REACH, REACH - 1).int().add_(REACH)
        return _table(pieces, Q11, scale_o, bits, REACH, x.device)[index]
    integers, is_wide = x.detach() * scale_x, isinstance(pieces, WidePieces)
    # 32 bits have too many values for a table; and the cache could not look one up by a scale on a device
    if isinstance(scale_x, Tensor) or isinstance(scale_o, Tensor) or (x.dtype == torch.float64 and not is_wide):
        return _curve(integers.double(), pieces, scale_x, scale_o, bits)
    reach = _REACH_OF_8_BITS if is_wide else REACH
    return _table(pieces, scale_x, scale_o, bits, reach, x.device)[integers.int().add_(reach)]


def _curve(integers: Tensor, pieces: Any, scale_x: Scale, scale_o: Scale, bits: int) -> Tensor:
    """The curve of `blocks` for integers at scale_x, requantized and divided by scale_o."""
    k = TorchKernel(device=integers.device)
    evaluate, scale = _BODIES[type(pieces)]
    y = evaluate(k, integers, source=k.scalar(scale_x), pieces=pieces)
    real: Tensor = blocks.requantize(k, y, source=k.scalar(scale), target=k.scalar(scale_o), bits=bits) / scale_o
    return real.to(carrier(bits))


@cache
def _table(pieces: Any, scale_x: float, scale_o: float, bits: int, reach: int, device: torch.device) -> Tensor:
    """A curve at every integer from −reach to reach − 1."""
    with torch.inference_mode(mode=False), torch.no_grad():
        every = torch.arange(-reach, reach, dtype=torch.float64)
        return _curve(every, pieces, scale_x, scale_o, bits).to(device)


@cache
def flat_ends(pieces: Pieces, scale_o: float, bits: int) -> tuple[float, float]:
    """The inputs beyond which a curve is constant, by a search over all 16-bit inputs."""
    values = _table(pieces, Q11, scale_o, bits, REACH, torch.device("cpu"))
    first, last = (torch.nonzero(values != values[end]) for end in (0, -1))
    return (int(first[0]) - 1 - REACH) / Q11, (int(last[-1]) + 1 - REACH) / Q11


@dataclass(frozen=True)
class Formats:
    """Scales and widths of a recurrent layer."""

    scale_i: Scale
    """Of the input."""
    scale_h: Scale
    """Of the hidden state, which is the output."""
    scale_iw: tuple[Scale, ...]
    """Of the input's weights, one per direction."""
    scale_hw: tuple[Scale, ...]
    """Of the hidden state's weights, one per direction."""
    data_bits: int = 8
    parameter_bits: int = 8
    o_bits: int = 8

    @property
    def is_on_device(self) -> bool:
        """Whether the scales stay on a device and are not read back."""
        return isinstance(self.scale_h, Tensor)


class Weights(NamedTuple):
    """The parameters of a recurrent layer as real values, one entry per direction; rows are the gates in the op's order."""

    w_ih: Tensor
    """[D, rows, I], multiples of 1/scale_iw."""
    w_hh: Tensor
    """[D, rows, H], multiples of 1/scale_hw."""
    b_ih: Tensor | None
    """[D, rows], multiples of 1/(scale_i·scale_iw)."""
    b_hh: Tensor | None
    """[D, rows], multiples of 1/(scale_h·scale_hw)."""


@cache
def curves(tanh_scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tanh q/128 times tanh_scale, then sigmoid q/128; a place beyond either end stands for that end.

    One table, so that all gates take one look-up; the scale spares the cell a multiplication.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        x, y = _every_input()
        both = [look_up(x, TANH, 1.0, Q7, 8) * tanh_scale, look_up(y, SIGMOID, 1.0, Q7, 8)]
        return torch.cat(both).to(dtype=dtype, device=device)


def curves_at(tanh_scale: Scale, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`curves` for any scale; one on a device gets a new table each time."""
    if not isinstance(tanh_scale, Tensor):
        return curves(tanh_scale, dtype, device)
    tanh, sigmoid = curves(1.0, dtype, device).chunk(2)
    return torch.cat([tanh * tanh_scale, sigmoid])


@cache
def slopes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The derivatives of the real tanh and sigmoid, at the places where `curves` has their values."""
    with torch.inference_mode(mode=False), torch.no_grad():
        x, y = _every_input()
        tanh, sigmoid = torch.tanh(x), torch.sigmoid(y)
        return torch.cat([1 - tanh * tanh, sigmoid * (1 - sigmoid)]).to(dtype=dtype, device=device)


def _every_input() -> tuple[Tensor, Tensor]:
    """The inputs of tanh and of sigmoid in the table of both, saturated to 16 bits."""
    ranges = (-REACH, FAR_REACH), (-FAR_REACH, REACH)
    x, y = (torch.arange(*ends, dtype=torch.float64).clamp_(-REACH, REACH - 1) / Q11 for ends in ranges)
    return x, y


@dataclass(frozen=True)
class _GateRows:
    """For each row of the gates: the offset from Q11 to an index into `curves`, and the ends of its curve."""

    offset: Tensor
    ends: tuple[Tensor, Tensor]


@cache
def gate_rows(kinds: str, hidden: int, dtype: torch.dtype, device: torch.device) -> _GateRows:
    """Rows of gates that are each `t` (tanh) or `s` (sigmoid), as in "sst"."""
    with torch.inference_mode(mode=False), torch.no_grad():
        is_sigmoid = torch.tensor([kind == "s" for kind in kinds], dtype=dtype, device=device).repeat_interleave(hidden)
        low = is_sigmoid * SIGMOID_START
        return _GateRows(low + REACH + is_sigmoid * (FAR_REACH - REACH), (low, low + (SIGMOID_START - 1)))


@dataclass(frozen=True)
class _Projection:
    """x·wᵀ + b to Q11: `x @ weight + addend`, rounded by one floor; float32 only where that is proven exact."""

    weight: Tensor
    """[D, K, rows]; takes what x is carried in to Q11."""
    addend: Tensor
    """[D, 1, rows]: the bias and the half that rounding adds."""
    largest: float
    """No |result| is larger."""
    largest_addend: float
    finest: float
    """Steps per step of Q11; 1 for left shifts."""


def plan_projection(
    w: Tensor,
    b: Tensor | None,
    *,
    scale: float,
    scales_w: Sequence[float],
    bits: int,
    carried_scale: float = 1.0,
    turned: int = 0,
) -> _Projection:
    """Choose the precision in which the sums are exact.

    Every partial sum, in whatever order, is a whole number of steps 1/(scale·scale_w), and so is the half (where there is
    something to round), so 2^(bits−1)·Σ|w| + |b| + half bounds it. Left shifts need no rounding: their half is zero.

    Args:
        w: Real values [D, rows, K], multiples of 1/scales_w.
        b: Real values [D, rows], multiples of 1/(scale·scales_w).
        scale: Of x.
        scales_w: One per direction.
        bits: Width of x.
        carried_scale: x is carried times this: 1 for real values, `scale` for whole numbers.
        turned: So many of the last rows come first.
    """
    steps = [scale * scale_w for scale_w in scales_w]
    halves = [0.5 * (step > Q11) for step in steps]
    bounds, biases = _bounds(w.detach(), b, top=2.0 ** (bits - 1) / scale)
    needed = max((bound + half / Q11) * step for bound, half, step in zip(bounds, halves, steps, strict=True))
    assert needed < _FLOAT64_EXACT, "sums of products of 16 bits do not come near 2^53"
    dtype = torch.float32 if needed < FLOAT32_EXACT else torch.float64
    half = torch.tensor(halves, dtype=dtype, device=w.device)
    return _Projection(
        weight=_weight_to_q11(w.detach().to(dtype), carried_scale, turned),
        addend=_addend(half, b, w.shape[1], turned),
        largest=max(bounds) * Q11 + 1.0,
        largest_addend=max(biases) * Q11 + 0.5,
        finest=max(*steps, Q11) / Q11,
    )


def _weight_to_q11(w: Tensor, carried_scale: Scale, turned: int) -> Tensor:
    """Weights [D, rows, K] as [D, K, rows], for inputs that are carried times a scale; the last `turned` rows come first."""
    scaled: Tensor = w * (Q11 / carried_scale)
    return scaled.transpose(1, 2).roll(turned, 2) if turned else scaled.transpose(1, 2)


def _addend(half: Tensor, b: Tensor | None, rows: int, turned: int) -> Tensor:
    """[D, 1, rows] in Q11: the half of each direction [D] plus the bias [D, rows]; the last `turned` rows come first."""
    half = half.view(-1, 1, 1)
    if b is None:
        return half.expand(-1, 1, rows)
    return b.detach().unsqueeze(1).roll(turned, 2).to(half.dtype).mul_(Q11).add_(half)


def _bounds(w: Tensor, b: Tensor | None, *, top: float) -> tuple[list[float], list[float]]:
    """Largest |x·wᵀ + b| of each direction for |x| ≤ top, by the sums of the rows, and largest |b|, with one transfer to the host."""
    # a sum of n numbers, none of them negative, is in float32 at most n·2^-24 of itself too small
    rows = w.abs().sum(2).mul_(top * (1.0 + w.shape[2] * 2.0**-23)).double()
    bias = torch.zeros_like(rows) if b is None else b.detach().double().abs()
    bounds, biases = torch.stack([rows.add_(bias), bias]).amax(2).tolist()
    return bounds, biases


@dataclass(frozen=True)
class GatePlan:
    """How the gates of a layer are computed exactly, for parameters and formats that do not change."""

    inputs: _Projection
    states: _Projection
    """Of whole numbers; its weight is float32 beside a loop in float64 where that is exact."""
    rows: _GateRows
    offset: Tensor
    """[D, 1, rows]: into the curves, with the state's addend where one floor does for the sum."""
    is_limited: bool
    """Whether a gate may lie beyond the index where both curves meet."""
    is_one_floor: bool
    """Whether the state's addend may join the input's part: then one floor does for the sum, as ⌊n + x⌋ = n + ⌊x⌋."""
    is_on_device: bool = False
    """Whether no number was read back, so that NaN may be anywhere."""

    @property
    def dtype(self) -> torch.dtype:
        """In which the loop is exact."""
        return self.offset.dtype

    def parts(self, x: Tensor, timeline: Timeline) -> Tensor:
        """The input's part of all gates in Q11 plus `offset` [D, T, B, rows], from inputs [T, B, I]."""
        weight, addend = self.inputs.weight, self.inputs.addend
        items = timeline.by_direction(x.detach(), weight.shape[0]).flatten(1, 2).to(weight.dtype)
        if weight.dtype == addend.dtype:
            total = torch.baddbmm(addend, items, weight)
        else:
            total = torch.bmm(items, weight).to(addend.dtype).add_(addend)
        return over_time(total.floor_().to(self.dtype).add_(self.offset), timeline)

    def zero(self, parts: Tensor, state: Tensor) -> Tensor:
        """0, or NaN where an operand is NaN: added to the result of a look-up, which itself cannot give NaN."""
        zero = torch.zeros((), dtype=parts.dtype, device=parts.device)
        return zero * (parts.sum() + self.states.weight.sum() + state.sum()) if self.is_on_device else zero

    def ends(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The limits of sums [D, B, rows] where they need them, of the same shape, because numpy is faster then."""
        low, high = self.rows.ends
        return (low.expand_as(sums).contiguous(), high.expand_as(sums).contiguous()) if self.is_limited else (low, high)

    def steps(self, state: Tensor) -> Steps:
        """The arithmetic of a loop over states [D, B, H]."""
        return steps_for(state, self.states.weight, is_on_device=self.is_on_device)


def plan_gates(
    weights: Weights,
    formats: Formats,
    kinds: str,
    *,
    turned: int = 0,
    is_hidden_multiplied: bool = False,
    is_state_exact: bool = True,
) -> GatePlan:
    """Choose the precision of the loop.

    Two whole numbers that float32 holds add up exactly below 2^24, and above it every rounding stays above, where the gate
    saturates all the same. So each part must fit for itself, not their sum.

    Args:
        weights: Of both products.
        formats: Scales and widths.
        kinds: Of the gates in the plan's order, as `gate_rows` takes them.
        turned: So many of the last gates come first in the plan.
        is_hidden_multiplied: The tanh gate multiplies the hidden state's part by numbers of 7 bits.
        is_state_exact: Whether float32 holds what the cell makes of the gates.
    """
    if formats.is_on_device:
        return _plan_on_device(weights, formats, kinds, turned)
    w_ih, w_hh, b_ih, b_hh = weights
    scale_i, scale_h, turned = formats.scale_i, formats.scale_h, turned * w_hh.shape[2]
    inputs = plan_projection(
        w_ih, b_ih, scale=scale_i, scales_w=formats.scale_iw, bits=formats.data_bits, turned=turned
    )
    states = plan_projection(
        *(w_hh, b_hh),
        scale=scale_h,
        scales_w=formats.scale_hw,
        bits=formats.o_bits,
        carried_scale=scale_h,
        turned=turned,
    )
    largest_part = inputs.largest + LARGEST_INDEX
    is_float32 = is_state_exact and states.weight.dtype == torch.float32 and largest_part < FLOAT32_EXACT
    is_one_floor = (largest_part + states.largest_addend) * states.finest < FLOAT32_EXACT
    if is_hidden_multiplied:
        is_float32 = is_float32 and states.largest < LARGEST_FACTOR
        # the product has steps of 1/2^7; the gate is a tanh, whose curve ends where that of sigmoid starts
        is_one_floor = is_one_floor and (inputs.largest + SIGMOID_START) * Q7 < FLOAT32_EXACT
    dtype = torch.float32 if is_float32 else torch.float64
    rows, addend = gate_rows(kinds, w_hh.shape[2], dtype, w_hh.device), states.addend.to(dtype)
    return GatePlan(
        inputs=inputs,
        states=replace(states, weight=states.weight.to(dtype).contiguous(), addend=addend),
        rows=rows,
        offset=rows.offset + addend if is_one_floor else rows.offset,
        is_limited=inputs.largest + states.largest >= FAR_REACH,
        is_one_floor=is_one_floor,
    )


def _plan_on_device(weights: Weights, formats: Formats, kinds: str, turned: int) -> GatePlan:
    """`plan_gates` where the scales are on a device: one floor for each part, in float64, and no bound is known."""
    w_ih, w_hh, b_ih, b_hh = weights
    scale_h, rows = formats.scale_h, gate_rows(kinds, w_hh.shape[2], torch.float64, w_hh.device)
    project = partial(_project_on_device, parameter_bits=formats.parameter_bits, turned=turned * w_hh.shape[2])
    return GatePlan(
        inputs=project(w_ih, b_ih, formats.scale_i, formats.scale_iw, 1.0, formats.data_bits),
        states=project(w_hh, b_hh, scale_h, formats.scale_hw, scale_h, formats.o_bits),
        rows=rows,
        offset=rows.offset,
        is_limited=True,
        is_one_floor=False,
        is_on_device=True,
    )


def _project_on_device(
    w: Tensor,
    b: Tensor | None,
    scale: Scale,
    scales_w: Sequence[Scale],
    carried_scale: Scale,
    bits: int,
    *,
    parameter_bits: int,
    turned: int,
) -> _Projection:
    """A projection in types that are chosen without reading a scale.

    A sum of K products of whole numbers stays below K·2^(bits−1)·2^(parameter_bits−1), which float32 holds up to 2^24.
    A bias of 32 bits and the half, ½·scale·scale_w/2^11 < 2^48 steps, need float64.
    """
    largest = w.shape[2] * 2.0 ** (bits + parameter_bits - 2)
    dtype = torch.float32 if largest < FLOAT32_EXACT else torch.float64
    steps = torch.stack([torch.as_tensor(scale * one, dtype=torch.float64, device=w.device) for one in scales_w])
    weight = _weight_to_q11(w.detach().to(dtype), carried_scale, turned).contiguous()
    addend = _addend((steps > Q11).double().mul_(0.5), b, w.shape[1], turned)
    return _Projection(weight, addend, largest=math.inf, largest_addend=math.inf, finest=math.inf)


def start_state(state: Tensor, initial: Tensor | None, scale: Scale) -> None:
    """Write the initial state as integers; zeros if there is none."""
    if initial is None:
        state.zero_()
    else:
        torch.mul(initial.detach().to(state.dtype), scale, out=state)


def is_limit_needed(largest: float, scale: Scale, bits: int) -> bool:
    """Whether real values up to `largest` can leave the integer range at a scale; True for a scale on a device."""
    return isinstance(scale, Tensor) or math.floor(largest * scale + 0.5) > limits(bits)[1]


class CellFunctions(NamedTuple):
    """The functions of a recurrent op's fast path; a trace is a NamedTuple of tensors, the states in `h`."""

    plan: Callable[[Weights, Formats], GatePlan]
    """Plans the gates from the parameters, before the first step."""
    loop: Callable[..., Any]
    """From inputs, initial states, plan, timeline and formats to the trace; `is_kept`: store every step, not the states alone."""
    result: Callable[..., Any]
    """From the trace to a NamedTuple of outputs as real values, final states and the reach."""
    gradients: Callable[..., tuple[Tensor | None, ...]]
    """From the trace to the gradients of x, the states, the weights and the biases."""


def run_layer(
    cell: CellFunctions,
    tensors: Sequence[Any],
    lengths: Tensor | None,
    formats: Formats,
    *,
    is_kept: bool,
    wants_reach: bool,
    known: GatePlan | None,
) -> Any:
    """Run one layer in one or both directions, bit for bit as the integers do.

    Args:
        cell: The functions of the op.
        tensors: x [T, B, I], multiples of 1/scale_i; the initial states [D, B, H], zeros where None; then as `Weights` has them.
        lengths: [B], each from 1 to T, in any order.
        formats: Scales and widths.
        is_kept: The result needs every step.
        wants_reach: Also return how far the hidden state reached.
        known: The plan of these parameters and formats, if it is cached.
    """
    x, *states, w_ih, w_hh, b_ih, b_hh = tensors
    gates = known or cell.plan(Weights(w_ih, w_hh, b_ih, b_hh), formats)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _Layer.apply(cell, *tensors, lengths, formats, gates, wants_reach)
    timeline = Timeline.of(x, lengths)
    trace = cell.loop(x, states, gates, timeline, formats, is_kept=is_kept)
    return cell.result(trace, timeline, formats, x.dtype, wants_reach=wants_reach)


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cell: CellFunctions, x: Tensor, *others: Any) -> Any:
        *states, w_ih, w_hh, _, _, lengths, formats, gates, wants_reach = others  # the plan has the biases
        timeline = Timeline.of(x, lengths)
        trace = cell.loop(x, states, gates, timeline, formats, is_kept=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, *trace)
        ctx.cell, ctx.timeline, ctx.scale_h, ctx.kind = cell, timeline, formats.scale_h, type(trace)
        result = cell.result(trace, timeline, formats, x.dtype, wants_reach=wants_reach)
        if isinstance(result.reach, Tensor):
            ctx.mark_non_differentiable(result.reach)
        return tuple(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w_ih, w_hh, *saved = ctx.saved_tensors
        trace = ctx.kind(*(t.to(x.dtype) if t.is_floating_point() else t for t in saved))
        weights, wants = (w_ih.to(x.dtype), w_hh.to(x.dtype)), ctx.needs_input_grad[1:]
        input_gradients = ctx.cell.gradients(trace, x, weights, ctx.timeline, ctx.scale_h, gradients, wants)
        return None, *input_gradients, None, None, None, None
