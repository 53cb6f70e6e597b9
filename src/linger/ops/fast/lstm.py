# SPDX-License-Identifier: Apache-2.0
"""Fast path of LSTMInt: the integers of the cell in float tensors, with straight-through gradients.

Rounding passes gradients on, so does saturation of the output; the curves have the slopes of the real functions at the
saturated input. Only the products with W_hh have to wait for the step before, so everything else is done for all steps
at once: the input's part of the gates, the slopes, the gradients of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from linger.numeric.fixed import limits
from linger.numeric.torch.gates import (
    LARGEST_INDEX,
    Q11,
    REACH,
    CellFunctions,
    Formats,
    GatePlan,
    Weights,
    curves,
    is_limit_needed,
    plan_gates,
    run_layer,
    slopes,
    start_state,
)
from linger.numeric.torch.quantize import Scale
from linger.numeric.torch.timeline import (
    Timeline,
    by_items,
    input_gradients,
    per_step,
    quiet,
    state_gradient,
    steps_for,
)

_LARGEST_PRODUCT = 127 * 128 / 2.0**14  # of o and tanh(c)
_CELL = 2.0**12
"""Cells, which are in Q7, are carried in these steps: the whole part of their sum then tells both roundings of it."""
_INNER_REACH = 1 << 16
"""Of the table of tanh(c), in the cell's steps: ±16, where its input saturates."""


class Result(NamedTuple):
    """What an LSTM gives, as real values."""

    out: Tensor
    """[T, B, D·H], zero beyond each length."""
    h: Tensor
    """[D, B, H], multiples of 1/scale_h."""
    c: Tensor
    """[D, B, H], multiples of 1/128."""
    reach: Scale | None
    """Largest |o·tanh(c)| over the valid steps, before rounding and saturation."""


class _Trace(NamedTuple):
    """What the loop finds in each step; all but h for one step only, where nobody asks for the others."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    values: Tensor
    """[T + 1, 5, D, B, H]: o, i, f as real numbers, g in the cell's steps, and the cell that the step starts with."""
    places: Tensor
    """[T, 4, D, B, H], of o, i, f, g into the curves."""
    inner_places: Tensor
    """[T, D, B, H], of tanh(c) into its table."""
    inner: Tensor
    """[T, D, B, H]: tanh(c) at scale_h."""


def plan(weights: Weights, formats: Formats) -> GatePlan:
    """What `run` finds out about parameters before the first step. The gates are o, i, f, g, so that i, f meet g, c."""
    return plan_gates(weights, formats, "ssst", turned=1)


def run(
    x: Tensor,
    lengths: Tensor | None,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    formats: Formats,
    *,
    wants_reach: bool,
    known: GatePlan | None = None,
) -> Result:
    """Run one layer as `run_layer` says, whose states are h0 and c0; c0 has multiples of 1/128 inside 16 bits, rows are i, f, g, o."""
    tensors, is_kept = (x, h0, c0, w_ih, w_hh, b_ih, b_hh), wants_reach or lengths is not None
    cell = CellFunctions(plan, _loop, _result, _gradients)
    return Result(*run_layer(cell, tensors, lengths, formats, is_kept=is_kept, wants_reach=wants_reach, known=known))


def _loop(
    x: Tensor, states: Sequence[Tensor | None], gates: GatePlan, timeline: Timeline, formats: Formats, *, is_kept: bool
) -> _Trace:
    """All steps, without gradients.

    From their look-up on the gates lie one after the other, because strided arrays cost numpy more than their arithmetic.
    With N = f·c + i·g in steps of 2^-14 the cell is ⌊N/2^7⌉ and tanh's input ⌊N/2^3⌉. The sum is N/4 here, plus 1/8 and the
    table's middle, which float32 holds: |N/4| < 2^20 as |c| ≤ 2^15 and f, i ≤ 127, g ≤ 128. Its whole part gives the input;
    2^28 more leaves steps of 32, the cell's, and the 1/8 makes halves round up. |c'| ≤ 127/128·2^15 + 127 < 2^15: it does
    not saturate.
    """
    parts = gates.parts(x, timeline)
    directions, _, batch, rows = parts.shape
    trace = _new_trace(timeline, parts.new_empty(directions, batch, rows // 4), is_kept=is_kept)
    start_state(trace.h[0], states[0], formats.scale_h)
    start_state(trace.values[0, 4], states[1], _CELL)
    steps, zero = gates.steps(trace.h[0]), gates.zero(parts, trace.h[0])
    view, add, multiply = steps.view, steps.add, steps.multiply
    coarse = 1.5 * 32.0 / torch.finfo(parts.dtype).eps  # between 2^28 and 2^29 in float32
    middle, up, down = steps.numbers(zero, _INNER_REACH + 0.125, coarse, coarse + _INNER_REACH)
    lowest, highest = steps.numbers(zero, *limits(formats.o_bits))
    is_saturating = is_limit_needed(_LARGEST_PRODUCT, formats.scale_h, formats.o_bits)
    table = view(curves(_CELL, parts.dtype, parts.device))
    inner_table = view(_inner_table(formats.scale_h, zero))
    room = parts.new_empty(directions, batch, rows)
    sums, by_gate = view(room), view(room.view(directions, batch, 4, rows // 4).permute(2, 0, 1, 3))
    addend, (low, high) = view(gates.states.addend), map(view, gates.ends(room))
    pair = view(torch.empty_like(trace.values[0, :2]))
    i_g, f_c = pair
    h, *hs = view(trace.h)
    for part, next_h, gate, i_f, g_c, o, next_c, places, inner_places, inner in zip(
        view(parts.transpose(0, 1)), hs, *(per_step(view(t), timeline.steps) for t in _parts_of(trace)), strict=True
    ):
        steps.product(h, sums)
        if not gates.is_one_floor:
            steps.floor(add(sums, addend, out=sums), out=sums)
        add(sums, part, out=sums)
        if gates.is_limited:  # limits at whole numbers may come before the floor, which the look-up is
            steps.limit(sums, low, high)
        steps.look_up(table, by_gate, places, gate)
        multiply(i_f, g_c, out=pair)
        add(add(i_g, f_c, out=i_g), middle, out=i_g)
        steps.look_up(inner_table, i_g, inner_places, inner)
        steps.subtract(add(i_g, up, out=f_c), down, out=next_c)
        steps.round(multiply(o, inner, out=next_h), out=next_h)
        if is_saturating:
            steps.limit(next_h, lowest, highest)
        h = next_h
    trace.h.add_(0.0)  # of −0, which rounding makes, this makes 0
    if is_kept:
        trace.places.clamp_(0, LARGEST_INDEX - 1)
        trace.inner_places.clamp_(0, 2 * _INNER_REACH - 1)
        trace.inner.sub_(_tie(formats.scale_h))
    return trace


def _new_trace(timeline: Timeline, state: Tensor, *, is_kept: bool) -> _Trace:
    """Room for the steps of states [D, B, H]."""
    stored, shape = timeline.steps if is_kept else 1, state.shape
    places = partial(torch.empty, dtype=torch.int32, device=state.device)
    return _Trace(
        h=state.new_empty(timeline.steps + 1, *shape),
        values=state.new_empty(stored + is_kept, 5, *shape),
        places=places(stored, 4, *shape),
        inner_places=places(stored, *shape),
        inner=state.new_empty(stored, *shape),
    )


def _parts_of(trace: _Trace) -> tuple[Tensor, ...]:
    """What a step works on: the gates; i, f; g, c; o; the next cell; and what follows in the trace."""
    stored = trace.inner.shape[0]
    now = trace.values[:stored]
    return now[:, :4], now[:, 1:3], now[:, 3:], now[:, 0], trace.values[-stored:, 4], *trace[2:]


def _inner_table(scale_h: Scale, like: Tensor) -> Tensor:
    """Tanh at scale_h plus `_tie` for all inputs up to ±16 in steps of the cell, two of which are one in Q11."""
    if isinstance(scale_h, Tensor):
        table: Tensor = _tanh(1.0, like.dtype, like.device) * scale_h
        return table.add_(_tie(scale_h) + like)
    return _known_inner_table(scale_h, like.dtype, like.device)


def _tie(scale_h: Scale) -> Scale:
    """What makes o·tanh(c)·scale_h, a multiple of scale_h/2^14, round up where it ends in ½: less than such a multiple.

    o ≤ 127/128 takes less than a quarter of it. Where nothing is rounded it is zero.
    """
    return scale_h * 2.0**-16 * (scale_h <= 2.0**14)


@cache
def _known_inner_table(scale_h: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(mode=False), torch.no_grad():
        table: Tensor = _tanh(scale_h, dtype, device) + _tie(scale_h)
        return table


def _tanh(scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return curves(scale, dtype, device)[_inner_inputs(device) + REACH]


def _inner_inputs(device: torch.device) -> Tensor:
    """The places of the table of tanh(c) in Q11, rounded half up and saturated to 16 bits."""
    every = torch.arange(-_INNER_REACH, _INNER_REACH, device=device)
    return every.add_(1).div_(2, rounding_mode="floor").clamp_(-REACH, REACH - 1)


@cache
def _inner_slopes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """How tanh(c) follows the cell, in the cell's steps, at the places of the table of tanh(c)."""
    with torch.inference_mode(mode=False), torch.no_grad():
        tanh = torch.tanh(_inner_inputs(device).double() / Q11)
        return ((1 - tanh * tanh) / _CELL).to(dtype)


def _result(trace: _Trace, timeline: Timeline, formats: Formats, dtype: torch.dtype, *, wants_reach: bool) -> Result:
    h = trace.h[1:].to(dtype) * (1.0 / formats.scale_h)
    c = timeline.final(trace.values[-trace.inner.shape[0] :, 4]).to(dtype)
    reach = None
    if wants_reach:
        reach = timeline.max_abs(trace.values[:-1, 0] * trace.inner) / formats.scale_h
    return Result(timeline.outputs(h), timeline.final(h), c.mul_(1.0 / _CELL), reach)


def _gradients(
    trace: _Trace,
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    timeline: Timeline,
    scale_h: Scale,
    gradients: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Of x, h0, c0, w_ih, w_hh, b_ih, b_hh, from those of the result."""
    w_ih, w_hh = weights
    d_gates, slope = _slopes(trace, scale_h)
    f, final_c = trace.values[:-1, 2], gradients[2]
    if final_c is not None and timeline.valid is not None:
        # the gradient of the final cell goes back through the padding unchanged
        padding = ~timeline.valid.view(timeline.steps, 1, -1, 1)
        d_gates.masked_fill_(padding.unsqueeze(1), 0.0)
        f = f.masked_fill(padding, 1.0)
    d_h = timeline.output_gradients(gradients[0], gradients[1], trace.h[1:])
    d_c = torch.zeros_like(trace.h[0]) if final_c is None else final_c.to(x.dtype) * (1.0 / _CELL)
    with quiet():
        rows, d_h0 = _walk_back(d_gates, d_h, d_c, slope, f, w_hh, wants_start=wants[1])
    d_c0 = d_c.mul_(_CELL) if wants[2] else None
    d_rows = by_items(rows)
    d_b_ih = d_b_hh = d_rows.sum(1) if wants[5] or wants[6] else None
    d_x, d_w_ih = input_gradients(d_rows, x, w_ih, timeline, wants=(wants[0], wants[3]))
    d_w_hh = state_gradient(d_rows, trace.h, scale_h) if wants[4] else None
    return d_x, d_h0, d_c0, d_w_ih, d_w_hh, d_b_ih, d_b_hh


def _slopes(trace: _Trace, scale_h: Scale) -> tuple[Tensor, Tensor]:
    """How the cell (of o: the hidden state) follows each gate [T, 4, D, B, H], and h the cell [T, D, B, H]."""
    dtype, device = trace.h.dtype, trace.h.device
    o, i, _, g, c = trace.values[:-1].unbind(1)
    result = slopes(dtype, device).index_select(0, trace.places.flatten()).view(trace.places.shape)
    of_o, of_i, of_f, of_g = result.unbind(1)
    of_i.mul_(g)
    of_f.mul_(c)
    of_g.mul_(i).mul_(_CELL)
    of_o.mul_(trace.inner).mul_(1.0 / scale_h)
    return result, _inner_slopes(dtype, device).index_select(0, trace.inner_places.flatten()).view(o.shape).mul_(o)


def _walk_back(
    d_gates: Tensor, d_h: Tensor, d_c: Tensor, slope: Tensor, f: Tensor, w_hh: Tensor, *, wants_start: bool
) -> tuple[Tensor, Tensor | None]:
    """From the last step to the first: the gradients of the gates [T, D, B, 4·H]; `d_c` becomes that of the initial cell.

    Returns them and the gradient of the initial hidden state.
    """
    directions, batch, hidden = d_c.shape
    rows = d_gates.new_empty(len(d_gates), directions, batch, 4 * hidden)
    by_gate = rows.view(*rows.shape[:3], 4, hidden).permute(0, 3, 1, 2, 4)
    steps = steps_for(rows[0], w_hh)
    view, multiply = steps.view, steps.multiply
    of_output, of_cell = d_gates[:, 0], d_gates[:, 1:]
    total, before = view(torch.empty_like(d_c)), view(d_c)
    after = None
    for d_state, row, slope_of, keeps, cell, output, d_cell, d_output in zip(
        *(reversed(list(view(t))) for t in (d_h, rows, slope, f, of_cell, of_output, by_gate[:, :3], by_gate[:, 3])),
        strict=True,
    ):
        if after is not None:
            steps.add_product(d_state, after)
        steps.multiply_add(before, d_state, slope_of, total)
        multiply(cell, total, out=d_cell)
        multiply(output, d_state, out=d_output)
        multiply(total, keeps, out=before)
        after = row
    return rows, torch.bmm(rows[0], w_hh) if wants_start else None
