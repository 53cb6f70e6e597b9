# SPDX-License-Identifier: Apache-2.0
"""Fast path of GRUInt: the integers of the cell in float tensors, with straight-through gradients.

Rounding passes gradients on, so does saturation of the output; the curves have the slopes of the real functions at the
saturated input. All gradients of a step are multiples of the hidden state's, so the factors are computed for all steps at
once and the way back takes three operations a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.torch.gates import (
    LARGEST_INDEX,
    Q7,
    Q11,
    SIGMOID_START,
    CellFunctions,
    Formats,
    GatePlan,
    Weights,
    curves_at,
    is_limit_needed,
    plan_gates,
    run_layer,
    slopes,
    start_state,
)
from linger.numeric.torch.quantize import Scale
from linger.numeric.torch.timeline import (
    Array,
    Steps,
    Timeline,
    by_items,
    input_gradients,
    per_step,
    quiet,
    state_gradient,
    steps_for,
)

_LARGEST_NEW = 127 / 128  # of n


class Result(NamedTuple):
    """What a GRU gives, as real values."""

    out: Tensor
    """[T, B, D·H], zero beyond each length."""
    h: Tensor
    """[D, B, H], multiples of 1/scale_h."""
    reach: Scale | None
    """Largest |h| over the valid steps, before rounding and saturation."""


class _Trace(NamedTuple):
    """What the loop finds in each step; of all but h one step only, where nobody asks for the others."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    hidden_n: Tensor
    """[T, D, B, H]: the hidden state's part of n, Q11."""
    places: Tensor
    """[T, 2, D, B, H], of r and z into the curves."""
    gates: Tensor
    """[T, 2, D, B, H]: r and z."""
    new_places: Tensor
    """[T, D, B, H], of n into the curves."""
    new: Tensor
    """[T, D, B, H]: n, carried at scale_h."""


def plan(weights: Weights, formats: Formats) -> GatePlan:
    """What `run` finds out about parameters before the first step."""
    is_exact = _is_state_exact(formats)
    return plan_gates(weights, formats, "sst", is_hidden_multiplied=True, is_state_exact=is_exact)  # r, z, n


def run(
    x: Tensor,
    lengths: Tensor | None,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    formats: Formats,
    *,
    wants_reach: bool,
    known: GatePlan | None = None,
) -> Result:
    """Run one layer as `run_layer` says, whose state is h0; rows are r, z, n."""
    tensors, cell = (x, h0, w_ih, w_hh, b_ih, b_hh), CellFunctions(plan, _loop, _result, _gradients)
    return Result(
        *run_layer(cell, tensors, lengths, formats, is_kept=wants_reach, wants_reach=wants_reach, known=known)
    )


def _is_state_exact(formats: Formats) -> bool:
    """Whether float32 holds n·2^7 + z·(h − n) in Q14 with the half that rounding adds, for every state of o_bits.

    Half of 2^24 is allowed, because the difference may be taken from either end: n + z·(h − n) = h − (1 − z)·(h − n).
    """
    if formats.is_on_device:
        return False
    largest = 2.0 ** (formats.o_bits - 1) * Q7 / formats.scale_h + 1.0
    return bool(2 * Q7 * (largest + Q7) + 2.0**13 / min(formats.scale_h, 2.0**13) < FLOAT32_EXACT / 2)


def _loop(
    x: Tensor, states: Sequence[Tensor | None], gates: GatePlan, timeline: Timeline, formats: Formats, *, is_kept: bool
) -> _Trace:
    """All steps, without gradients.

    From their look-up on the gates lie one after the other, because strided arrays cost numpy more than their arithmetic.
    """
    parts, parts_n = _parts(gates, x, timeline)
    directions, _, batch, rows = parts.shape
    trace = _new_trace(timeline, parts.new_empty(directions, batch, rows // 3), is_kept=is_kept)
    start_state(trace.h[0], states[0], formats.scale_h)
    steps, is_one_floor = gates.steps(trace.h[0]), gates.is_one_floor
    view, add, floor, multiply_add = steps.view, steps.add, steps.floor, steps.multiply_add
    half, *edges = steps.numbers(
        gates.zero(parts, trace.h[0]), 0.5, 0, SIGMOID_START - 1, SIGMOID_START, LARGEST_INDEX - 1
    )
    addend, lowest, highest = view(gates.states.addend), *steps.numbers(trace.h.new_zeros(()), *limits(formats.o_bits))
    table = view(curves_at(formats.scale_h, parts.dtype, parts.device))
    room = parts.new_empty(directions, batch, rows)
    by_gate = room.view(directions, batch, 3, rows // 3).permute(2, 0, 1, 3)
    sums, gates_rz, sums_n = view(room), view(by_gate[:2]), view(by_gate[2])
    place, difference, exact = (view(torch.empty_like(trace.h[0])) for _ in range(3))
    to_q7 = _to_q7(steps, formats.scale_h, half, trace.h[0])
    # the state lies between n and the old one, unless Q7 rounded that up
    is_saturating = _is_finer(formats.scale_h) or is_limit_needed(_LARGEST_NEW, formats.scale_h, formats.o_bits)
    h, *hs = view(trace.h)
    buffers = [per_step(view(t), timeline.steps) for t in (*trace[1:], *trace.gates.unbind(1))]
    for part, part_n, next_h, h_n, places, gate, new_places, new, r, z in zip(
        view(parts.transpose(0, 1)), view(parts_n.transpose(0, 1)), hs, *buffers, strict=True
    ):
        steps.product(h, sums)
        if not is_one_floor:
            floor(add(sums, addend, out=sums), out=sums)
        add(sums, part, out=sums)
        floor(sums_n, out=h_n)
        if gates.is_limited:  # limits at whole numbers may come before the floor, which the look-up is
            steps.limit(gates_rz, *edges[2:])
        steps.look_up(table, gates_rz, places, gate)
        multiply_add(part_n if is_one_floor else half, r, h_n, place)
        if not is_one_floor:
            add(floor(place, out=place), part_n, out=place)
        if gates.is_limited:
            steps.limit(place, *edges[:2])
        steps.look_up(table, place, new_places, new)
        steps.subtract(h if to_q7 is None else to_q7(h), new, out=difference)
        multiply_add(new, z, difference, exact)
        floor(add(exact, half, out=exact), out=next_h)
        if is_saturating:
            steps.limit(next_h, lowest, highest)
        h = next_h
    if is_kept:
        for places in (trace.places, trace.new_places):
            places.clamp_(0, LARGEST_INDEX - 1)
    return trace


def _parts(gates: GatePlan, x: Tensor, timeline: Timeline) -> tuple[Tensor, Tensor]:
    """What each step adds to the hidden state's parts of r, z and n [D, T, B, 3·H], and to r times that of n [D, T, B, H]."""
    parts, addend = gates.parts(x, timeline), gates.states.addend.unsqueeze(1)
    of_n, addend_n = (part[..., parts.shape[3] // 3 * 2 :] for part in (parts, addend))
    if not gates.is_one_floor:
        parts_n = of_n.clone()
        of_n.zero_()
        return parts, parts_n
    parts_n = of_n - (addend_n - 0.5)
    of_n.copy_(addend_n)
    return parts, parts_n


def _is_finer(scale_h: Scale) -> bool:
    """Whether the state has steps below those of Q7; on a device it may."""
    return isinstance(scale_h, Tensor) or scale_h > Q7


def _new_trace(timeline: Timeline, state: Tensor, *, is_kept: bool) -> _Trace:
    """Room for the steps of states [D, B, H]."""
    stored, shape = timeline.steps if is_kept else 1, state.shape
    places = partial(torch.empty, dtype=torch.int32, device=state.device)
    return _Trace(
        h=state.new_empty(timeline.steps + 1, *shape),
        hidden_n=state.new_empty(stored, *shape),
        places=places(stored, 2, *shape),
        gates=state.new_empty(stored, 2, *shape),
        new_places=places(stored, *shape),
        new=state.new_empty(stored, *shape),
    )


def _to_q7(steps: Steps, scale_h: Scale, half: Array, like: Tensor) -> Callable[[Array], Array] | None:
    """Rounds whole numbers to Q7, carried at their own scale as n is; None where that changes nothing."""
    if not _is_finer(scale_h):
        return None
    down, up = (torch.as_tensor(f, dtype=like.dtype, device=like.device) for f in (Q7 / scale_h, scale_h / Q7))
    down, up, room = steps.view(down), steps.view(up), steps.view(torch.empty_like(like))

    def rounded(h: Array) -> Array:
        steps.multiply_add(half, h, down, room)
        return steps.multiply(steps.floor(room, out=room), up, out=room)

    return rounded


def _before(trace: _Trace, scale_h: Scale) -> Tensor:
    """The states that the steps start with, rounded to Q7 and carried at scale_h."""
    h = trace.h[:-1]
    return (h * (Q7 / scale_h)).add_(0.5).floor_().mul_(scale_h / Q7) if _is_finer(scale_h) else h


def _result(trace: _Trace, timeline: Timeline, formats: Formats, dtype: torch.dtype, *, wants_reach: bool) -> Result:
    h, reach = trace.h[1:].to(dtype) * (1.0 / formats.scale_h), None
    if wants_reach:
        exact = torch.lerp(trace.new, _before(trace, formats.scale_h), trace.gates[:, 1])
        reach = timeline.max_abs(exact) / formats.scale_h
    return Result(timeline.outputs(h), timeline.final(h), reach)


def _gradients(
    trace: _Trace,
    x: Tensor,
    weights: tuple[Tensor, Tensor],
    timeline: Timeline,
    scale_h: Scale,
    gradients: Sequence[Tensor | None],
    wants: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Of x, h0, w_ih, w_hh, b_ih, b_hh, from those of the result."""
    w_ih, w_hh = weights
    d_gates, slope = _slopes(trace, scale_h)
    d_h = timeline.output_gradients(gradients[0], gradients[1], trace.h[1:])
    with quiet():
        rows, d_h0 = _walk_back(d_gates, d_h, trace.gates[:, 1], w_hh, wants_start=wants[1])
    d_hidden = by_items(rows)
    d_b_hh = d_hidden.sum(1) if wants[5] else None
    d_w_hh = state_gradient(d_hidden, trace.h, scale_h) if wants[3] else None
    # the input's part of n is not multiplied by r; all else is the same for both
    torch.mul(slope, d_h, out=rows[..., 2 * d_h.shape[3] :])
    d_input = by_items(rows)
    d_b_ih = d_input.sum(1) if wants[4] else None
    d_x, d_w_ih = input_gradients(d_input, x, w_ih, timeline, wants=(wants[0], wants[2]))
    return d_x, d_h0, d_w_ih, d_w_hh, d_b_ih, d_b_hh


def _slopes(trace: _Trace, scale_h: Scale) -> tuple[Tensor, Tensor]:
    """How h follows the hidden state's part of r, z and n [T, 3, D, B, H], and the input's part of n [T, D, B, H]."""
    table, (r, z) = slopes(trace.h.dtype, trace.h.device), trace.gates.unbind(1)
    slope = table.index_select(0, trace.new_places.flatten()).view(z.shape)
    slope.addcmul_(slope, z, value=-1.0)  # times 1 − z
    of_gates = table.index_select(0, trace.places.flatten()).view(trace.gates.shape)
    result = slope.new_empty(len(z), 3, *z.shape[1:])
    of_r, of_z, of_n = result.unbind(1)
    torch.mul(of_gates[:, 0], slope, out=of_r).mul_(trace.hidden_n).mul_(1.0 / Q11)
    torch.sub(_before(trace, scale_h), trace.new, out=of_z).mul_(of_gates[:, 1]).mul_(1.0 / scale_h)
    torch.mul(slope, r, out=of_n)
    return result, slope


def _walk_back(
    d_gates: Tensor, d_h: Tensor, z: Tensor, w_hh: Tensor, *, wants_start: bool
) -> tuple[Tensor, Tensor | None]:
    """From the last step to the first: the gradients of the hidden state's parts [T, D, B, 3·H].

    Returns them and the gradient of the initial hidden state; `d_h` gathers what comes from later steps.
    """
    length, directions, batch, hidden = d_h.shape
    rows = d_h.new_empty(length, directions, batch, 3 * hidden)
    by_gate = rows.view(length, directions, batch, 3, hidden).permute(0, 3, 1, 2, 4)
    steps, room = steps_for(rows[0], w_hh), torch.empty_like(d_h[0])
    carried, after = steps.view(room), None
    for d_state, row, slope_of, d_gate, keeps in zip(
        *(reversed(list(steps.view(t))) for t in (d_h, rows, d_gates, by_gate, z)), strict=True
    ):
        if after is not None:
            steps.add(d_state, carried, out=d_state)
            steps.add_product(d_state, after)
        steps.multiply(slope_of, d_state, out=d_gate)
        steps.multiply(d_state, keeps, out=carried)
        after = row
    return rows, torch.bmm(rows[0], w_hh).add_(room) if wants_start else None
