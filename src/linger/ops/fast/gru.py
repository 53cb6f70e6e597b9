# SPDX-License-Identifier: Apache-2.0
"""Fast twin of GRUInt: the integers of the cell in float tensors, with straight-through gradients.

Rounding passes gradients on, so does saturation of the output; the curves have the slopes of the real functions at the
saturated input. All gradients of a step are multiples of the hidden state's, so the factors are found for all steps at
once and the way back takes three operations a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.torch.gates import (
    Q7,
    Q11,
    REACH,
    SIGMOID_START,
    Formats,
    Gates,
    Weights,
    add_scaled,
    curves_at,
    is_limit_needed,
    per_step,
    prepare_gates,
    slopes,
    start_state,
)
from linger.numeric.torch.scale import Scale
from linger.numeric.torch.timeline import Timeline, by_items, input_gradients, state_gradients

_GATES = "sst"  # r, z, n
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
    """The tensors that the loop returns; one row each unless all steps are asked for."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    hidden_n: Tensor
    """[T, D, B, H]: the hidden state's part of n, Q11."""
    places: Tensor
    """[T, D·B·2·H], of r and z into the curves."""
    new_places: Tensor
    """[T, D·B·H], of n into the curves."""


class _Values(NamedTuple):
    """What the loop looked up, found again for all steps at once: [T, D, B, H] each."""

    r: Tensor
    z: Tensor
    new: Tensor
    """n, carried at scale_h."""
    before: Tensor
    """The state that a step starts with, rounded to Q7 and carried at scale_h."""


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
) -> Result:
    """Run one layer in one or both directions, bit for bit as the integers do.

    Args:
        x: [T, B, I], multiples of 1/scale_i.
        lengths: [B], each from 1 to T, in any order.
        h0: [D, B, H], multiples of 1/scale_h inside o_bits; zeros if None.
        w_ih: [D, 3·H, I], multiples of 1/scale_iw; rows r, z, n.
        w_hh: [D, 3·H, H], multiples of 1/scale_hw.
        b_ih: [D, 3·H], multiples of 1/(scale_i·scale_iw).
        b_hh: [D, 3·H], multiples of 1/(scale_h·scale_hw).
        formats: Scales and widths.
        wants_reach: Also return how far the hidden state reached.
    """
    tensors = (x, h0, w_ih, w_hh, b_ih, b_hh)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return Result(*_GRU.apply(*tensors, lengths, formats, wants_reach))
    timeline = Timeline.of(x, lengths)
    trace = _loop(x, h0, Weights(w_ih, w_hh, b_ih, b_hh), timeline, formats, is_kept=wants_reach)
    values = _look_up(trace, formats) if wants_reach else None
    return _result(trace, values, timeline, formats, x.dtype)


def _is_state_exact(formats: Formats) -> bool:
    """Whether float32 holds n·2^7 + z·(h − n) in Q14 with the half that rounding adds, for every state of o_bits.

    Half of 2^24 is allowed, because the difference may be taken from either end: n + z·(h − n) = h − (1 − z)·(h − n).
    """
    if formats.is_on_device:
        return False
    largest = 2.0 ** (formats.o_bits - 1) * Q7 / formats.scale_h + 1.0
    return bool(2 * Q7 * (largest + Q7) + 2.0**13 / min(formats.scale_h, 2.0**13) < FLOAT32_EXACT / 2)


def _loop(
    x: Tensor, h0: Tensor | None, weights: Weights, timeline: Timeline, formats: Formats, *, is_kept: bool
) -> _Trace:
    """All steps, without gradients. Views cost as much as arithmetic here, so few are taken, and none in the loop."""
    scale_h, steps, batch = formats.scale_h, timeline.steps, timeline.batch
    directions, _, hidden = weights.w_hh.shape
    gates = prepare_gates(
        *(x, weights, timeline, formats, _GATES),
        is_hidden_multiplied=True,
        is_state_exact=_is_state_exact(formats),
    )
    dtype, is_one_floor = gates.parts.dtype, gates.is_one_floor
    table = curves_at(scale_h, dtype, x.device)
    (x_rz, x_n), (addend_rz, addend_n) = _parts(gates, hidden)

    def buffer(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=x.device)

    trace = _new_trace(buffer(steps + 1, directions, batch, hidden), is_kept=is_kept)
    start_state(trace.h[0], h0, scale_h)
    half = gates.half(trace.h[0])
    sums, sums_rz = buffer(directions, batch, 3 * hidden), buffer(directions, batch, 2 * hidden)
    hidden_rz, hidden_n = sums.split([2 * hidden, hidden], 2)
    looked_up = buffer(directions * batch * 2 * hidden)
    r, z = looked_up.view(directions, batch, 2, hidden).unbind(2)
    place, new, before, exact = (buffer(directions, batch, hidden) for _ in range(4))
    flat_rz, flat_place, flat_new = sums_rz.flatten(), place.flatten(), new.flatten()
    is_finer = formats.is_on_device or scale_h > Q7
    low, high = limits(formats.o_bits)
    # the new state lies between n and the old one, unless Q7 rounded that up
    is_limited = is_finer or is_limit_needed(_LARGEST_NEW, scale_h, formats.o_bits)
    h, *hs = trace.h.unbind(0)
    each = (per_step(kept, steps) for kept in trace[1:])
    for part_rz, part_n, h_n, places, new_places, next_h in zip(x_rz.unbind(1), x_n.unbind(1), *each, hs, strict=True):
        gates.product(h, sums)
        torch.add(hidden_n, addend_n, out=h_n).floor_()
        # limits at whole numbers may come before the floor, which the cast is
        if is_one_floor:
            torch.add(hidden_rz, part_rz, out=sums_rz)
        else:
            torch.add(hidden_rz, addend_rz, out=sums_rz).floor_().add_(part_rz)
        gates.look_up(table, flat_rz.clamp_(SIGMOID_START, SIGMOID_START + 2 * REACH - 1), places, looked_up)
        if is_one_floor:
            torch.addcmul(part_n, r, h_n, out=place)
        else:
            torch.addcmul(half, r, h_n, out=place).floor_().add_(part_n)
        gates.look_up(table, flat_place.clamp_(0, 2 * REACH - 1), new_places, flat_new)
        torch.lerp(new, _to_q7(h, scale_h, half, before) if is_finer else h, z, out=exact)
        torch.floor(exact.add_(half), out=next_h)
        if is_limited:
            next_h.clamp_(low, high)
        h = next_h
    return trace


def _parts(gates: Gates, hidden: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The input's parts of r with z, and of n, and what the hidden state's are given before the floor."""
    parts, addends = gates.parts.split([2 * hidden, hidden], 3), gates.addend.split([2 * hidden, hidden], 2)
    if gates.is_one_floor:
        parts[0].add_(addends[0].unsqueeze(1))
        parts[1].add_(0.5)
    return parts, addends


def _new_trace(h: Tensor, *, is_kept: bool) -> _Trace:
    kept = len(h) - 1 if is_kept else 1
    return _Trace(
        h=h,
        hidden_n=torch.empty_like(h[:kept]),
        places=torch.empty(kept, 2 * h[0].numel(), dtype=torch.int32, device=h.device),
        new_places=torch.empty(kept, h[0].numel(), dtype=torch.int32, device=h.device),
    )


def _to_q7(h: Tensor, scale_h: Scale, half: Tensor, out: Tensor) -> Tensor:
    """Whole numbers at a scale above 2^7, rounded to Q7 and carried at their own scale, as n is; others unchanged."""
    return add_scaled(half, h, Q7 / scale_h, out).floor_().mul_(scale_h / Q7)


def _look_up(trace: _Trace, formats: Formats) -> _Values:
    """The values of all steps: the loop writes over its own, because one look-up is cheaper than views of every step."""
    h, shape = trace.h[:-1], trace.h[1:].shape
    table = curves_at(formats.scale_h, h.dtype, h.device)
    r, z = table.index_select(0, trace.places.flatten()).view(*shape[:3], 2, shape[3]).unbind(3)
    new = table.index_select(0, trace.new_places.flatten()).view(shape)
    is_finer = formats.is_on_device or formats.scale_h > Q7
    before = _to_q7(h, formats.scale_h, h.new_tensor(0.5), torch.empty_like(h)) if is_finer else h
    return _Values(r, z, new, before)


def _result(trace: _Trace, values: _Values | None, timeline: Timeline, formats: Formats, dtype: torch.dtype) -> Result:
    h = trace.h[1:].to(dtype) * (1.0 / formats.scale_h)
    reach = None
    if values is not None:
        exact = torch.lerp(values.new, values.before, values.z)
        reach = timeline.max_abs(exact) / formats.scale_h
    return Result(timeline.outputs(h), timeline.final(h), reach)


class _GRU(torch.autograd.Function):
    @staticmethod
    def forward(  # torch's apply takes positional arguments only
        ctx: Any,
        x: Tensor,
        h0: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        lengths: Tensor | None,
        formats: Formats,
        wants_reach: bool,
    ) -> Any:
        timeline = Timeline.of(x, lengths)
        trace = _loop(x, h0, Weights(w_ih, w_hh, b_ih, b_hh), timeline, formats, is_kept=True)
        values = _look_up(trace, formats)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, *trace, *values)
        ctx.timeline, ctx.formats = timeline, formats
        result = _result(trace, values if wants_reach else None, timeline, formats, x.dtype)
        if isinstance(result.reach, Tensor):
            ctx.mark_non_differentiable(result.reach)
        return tuple(result)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w_ih, w_hh, h, hidden_n, places, new_places, *looked_up = ctx.saved_tensors
        timeline: Timeline = ctx.timeline
        wants, dtype, scale_h = ctx.needs_input_grad, x.dtype, ctx.formats.scale_h
        w_ih, w_hh, h = w_ih.to(dtype), w_hh.to(dtype), h.to(dtype)
        values = _Values(*(value.to(dtype) for value in looked_up))
        d_gates, slope = _slopes(_Trace(h, hidden_n.to(dtype), places, new_places), values, scale_h)
        d_h = timeline.output_gradients(gradients[0], gradients[1], h[1:])
        d_h0 = _walk_back(d_gates, d_h, values.z, w_hh, wants_start=wants[1])
        d_hidden = by_items(d_gates.flatten(3))
        d_w_hh, d_b_hh = state_gradients(d_hidden, h, scale_h, wants=(wants[3], wants[5]))
        # the input's part of n is not multiplied by r; all else is the same for both
        torch.mul(slope, d_h, out=d_gates[:, :, :, 2])
        d_input = by_items(d_gates.flatten(3))
        d_x, d_w_ih, d_b_ih = input_gradients(d_input, x, w_ih, timeline, wants=(wants[0], wants[2], wants[4]))
        return d_x, d_h0, d_w_ih, d_w_hh, d_b_ih, d_b_hh, None, None, None


def _slopes(trace: _Trace, values: _Values, scale_h: Scale) -> tuple[Tensor, Tensor]:
    """How h follows the hidden state's part of r, z and n [T, D, B, 3, H], and the input's part of n [T, D, B, H]."""
    shape, table = values.z.shape, slopes(trace.h.dtype, trace.h.device)
    slope = table.index_select(0, trace.new_places.flatten()).view(shape)
    slope.addcmul_(slope, values.z, value=-1.0)  # times 1 − z
    of_gates = table.index_select(0, trace.places.flatten()).view(*shape[:3], 2, shape[3])
    result = slope.new_empty(*shape[:3], 3, shape[3])
    of_r, of_z, of_n = result.unbind(3)
    torch.mul(of_gates[:, :, :, 0], slope, out=of_r).mul_(trace.hidden_n).mul_(1.0 / Q11)
    torch.sub(values.before, values.new, out=of_z).mul_(of_gates[:, :, :, 1]).mul_(1.0 / scale_h)
    torch.mul(slope, values.r, out=of_n)
    return result, slope


def _walk_back(d_gates: Tensor, d_h: Tensor, z: Tensor, w_hh: Tensor, *, wants_start: bool) -> Tensor | None:
    """From the last step to the first: slopes in `d_gates` become gradients, `d_h` gathers what comes from later steps.

    Returns the gradient of the initial hidden state.
    """
    rows, planes = d_gates.flatten(3).unbind(0), d_gates.unbind(0)
    d_hs, spread, zs = d_h.unbind(0), d_h.unsqueeze(3).unbind(0), z.unbind(0)
    for t in range(len(rows) - 1, -1, -1):
        if t + 1 < len(rows):
            d_hs[t].addcmul_(d_hs[t + 1], zs[t + 1]).baddbmm_(rows[t + 1], w_hh)
        planes[t].mul_(spread[t])
    return torch.addcmul(torch.bmm(rows[0], w_hh), d_hs[0], zs[0]) if wants_start else None
