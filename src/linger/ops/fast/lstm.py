# SPDX-License-Identifier: Apache-2.0
"""Fast twin of LSTMInt: the integers of the cell in float tensors, with straight-through gradients.

Rounding passes gradients on, so does saturation of the output; the curves have the slopes of the real functions at the
saturated input. Only the products with W_hh have to wait for the step before, so everything else is done for all steps
at once: the input's part of the gates, the slopes, the gradients of the weights.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.numeric.fixed import limits
from linger.numeric.torch.gates import (
    Q7,
    Q11,
    REACH,
    Formats,
    Weights,
    curves,
    is_limit_needed,
    per_step,
    prepare_gates,
    slopes,
    start_state,
)
from linger.numeric.torch.scale import Scale
from linger.numeric.torch.timeline import Timeline, by_items, input_gradients, state_gradients

_GATES = "ssts"  # i, f, g, o
_LARGEST_PRODUCT = 127 * 128 / 2.0**14  # of o and tanh(c)
_INNER_REACH = 1 << 19  # 16 times the largest cell


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
    """The tensors that the loop returns."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    c: Tensor
    """[T + 1, D, B, H], Q7."""
    places: Tensor
    """[T, D·B·4·H], into the curves; one row only where nobody asks for it."""


class _Values(NamedTuple):
    """What the loop looked up, found again for all steps at once."""

    gates: Tensor
    """[T, D, B, 4, H]: i, f, o as real numbers, g in Q7."""
    inner_places: Tensor
    """[T, D, B, H], into the wide table."""
    inner: Tensor
    """[T, D, B, H]: tanh(c) in Q7."""


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
) -> Result:
    """Run one layer in one or both directions, bit for bit as the integers do.

    Args:
        x: [T, B, I], multiples of 1/scale_i.
        lengths: [B], each from 1 to T, in any order.
        h0: [D, B, H], multiples of 1/scale_h inside o_bits; zeros if None.
        c0: [D, B, H], multiples of 1/128 inside 16 bits; zeros if None.
        w_ih: [D, 4·H, I], multiples of 1/scale_iw; rows i, f, g, o.
        w_hh: [D, 4·H, H], multiples of 1/scale_hw.
        b_ih: [D, 4·H], multiples of 1/(scale_i·scale_iw).
        b_hh: [D, 4·H], multiples of 1/(scale_h·scale_hw).
        formats: Scales and widths.
        wants_reach: Also return how far the hidden state reached.
    """
    tensors = (x, h0, c0, w_ih, w_hh, b_ih, b_hh)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return Result(*_LSTM.apply(*tensors, lengths, formats, wants_reach))
    timeline = Timeline.of(x, lengths)
    trace = _loop(x, h0, c0, Weights(w_ih, w_hh, b_ih, b_hh), timeline, formats, is_kept=wants_reach)
    values = _look_up(trace) if wants_reach else None
    return _result(trace, values, timeline, formats, x.dtype)


def _loop(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    weights: Weights,
    timeline: Timeline,
    formats: Formats,
    *,
    is_kept: bool,
) -> _Trace:
    """All steps, without gradients. Views cost as much as arithmetic here, so few are taken, and none in the loop."""
    scale_h, steps, batch = formats.scale_h, timeline.steps, timeline.batch
    directions, _, hidden = weights.w_hh.shape
    gates = prepare_gates(x, weights, timeline, formats, _GATES)
    addend, rows, dtype = gates.addend, gates.rows, gates.parts.dtype
    parts = gates.parts.add_(addend.unsqueeze(1)) if gates.is_one_floor else gates.parts
    table, inner_table = curves(Q7, dtype, x.device), _wide_tanh(dtype, x.device)
    inner_offset = torch.tensor(_INNER_REACH - 7.5, dtype=dtype, device=x.device)

    def buffer(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device=x.device)

    trace = _Trace(
        h=buffer(steps + 1, directions, batch, hidden),
        c=buffer(steps + 1, directions, batch, hidden),
        places=buffer(steps if is_kept else 1, directions * batch * 4 * hidden, kind=torch.int32),
    )
    start_state(trace.h[0], h0, scale_h)
    start_state(trace.c[0], c0, Q7)
    half = gates.half(trace.h[0])
    sums, looked_up = buffer(directions, batch, 4 * hidden), buffer(directions * batch * 4 * hidden)
    i, f, g, o = looked_up.view(directions, batch, 4, hidden).unbind(2)
    total, place, inner = (buffer(directions, batch, hidden) for _ in range(3))
    inner_places = buffer(total.numel(), kind=torch.int32)
    flat_sums, flat_place, flat_inner = sums.flatten(), place.flatten(), inner.flatten()
    (h, *hs), (c, *cs) = trace.h.unbind(0), trace.c.unbind(0)
    low, high = limits(formats.o_bits)
    is_limited = is_limit_needed(_LARGEST_PRODUCT, scale_h, formats.o_bits)
    for part, places, next_h, next_c in zip(parts.unbind(1), per_step(trace.places, steps), hs, cs, strict=True):
        gates.product(h, sums)
        if not gates.is_one_floor:
            sums.add_(addend).floor_()
        # limits at whole numbers may come before the floor, which the cast is
        sums.add_(part).clamp_(rows.low, rows.high)
        gates.look_up(table, flat_sums, places, looked_up)
        # (f·c + i·g)/2^7 + ½ with c and g in Q7. |c| ≤ 2^15 gives |c'| ≤ 127/128·2^15 + 127 + ½ < 2^15: no saturation.
        torch.addcmul(half, f, c, out=total).addcmul_(i, g)
        torch.floor(total, out=next_c)
        # the same sum/2^3 + ½ = 16·(total − ½) + ½
        torch.add(inner_offset, total, alpha=16.0, out=place)
        gates.look_up(inner_table, flat_place, inner_places, flat_inner)
        _add_product(half, o, inner, scale_h / Q7, next_h).floor_()
        if is_limited:
            next_h.clamp_(low, high)
        h, c = next_h, next_c
    return trace


def _add_product(half: Tensor, a: Tensor, b: Tensor, factor: Scale, out: Tensor) -> Tensor:
    """half + a·b·factor, for a factor on a device too."""
    if isinstance(factor, Tensor):
        return torch.mul(a, b, out=out).mul_(factor).add_(half)
    return torch.addcmul(half, a, b, value=factor, out=out)


@cache
def _wide_tanh(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tanh in Q7 for every sum that a cell can have in Q11, so that it needs no limit."""
    with torch.inference_mode(mode=False), torch.no_grad():
        every = torch.arange(-_INNER_REACH, _INNER_REACH, device=device).clamp_(-REACH, REACH - 1)
        return curves(Q7, dtype, device)[every + REACH]


def _look_up(trace: _Trace) -> _Values:
    """The values of all steps: the loop writes over its own, because one look-up is cheaper than views of every step."""
    dtype, device, shape = trace.h.dtype, trace.h.device, trace.h[1:].shape
    gates = curves(Q7, dtype, device).index_select(0, trace.places.flatten()).view(*shape[:3], 4, shape[3])
    i, f, g, _ = gates.unbind(3)
    total = torch.addcmul(torch.tensor(_INNER_REACH + 0.5, dtype=dtype, device=device), f, trace.c[:-1], value=16.0)
    # NaN, which the loop without a look at numbers lets in, has no place
    inner_places = total.addcmul_(i, g, value=16.0).int().clamp_(0, 2 * _INNER_REACH - 1)
    inner = _wide_tanh(dtype, device).index_select(0, inner_places.flatten()).view(shape)
    return _Values(gates, inner_places, inner)


def _result(trace: _Trace, values: _Values | None, timeline: Timeline, formats: Formats, dtype: torch.dtype) -> Result:
    h, c = trace.h[1:].to(dtype) * (1.0 / formats.scale_h), timeline.final(trace.c[1:]).to(dtype)
    reach = None
    if values is not None:
        reach = timeline.max_abs(values.gates[:, :, :, 3] * values.inner) / Q7
    return Result(timeline.outputs(h), timeline.final(h), c.mul_(1.0 / Q7), reach)


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(  # torch's apply takes positional arguments only
        ctx: Any,
        x: Tensor,
        h0: Tensor | None,
        c0: Tensor | None,
        w_ih: Tensor,
        w_hh: Tensor,
        b_ih: Tensor | None,
        b_hh: Tensor | None,
        lengths: Tensor | None,
        formats: Formats,
        wants_reach: bool,
    ) -> Any:
        timeline = Timeline.of(x, lengths)
        trace = _loop(x, h0, c0, Weights(w_ih, w_hh, b_ih, b_hh), timeline, formats, is_kept=True)
        values = _look_up(trace)
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
        x, w_ih, w_hh, h, c, places, gates, inner_places, inner = ctx.saved_tensors
        timeline: Timeline = ctx.timeline
        wants, dtype = ctx.needs_input_grad, x.dtype
        w_ih, w_hh, h = w_ih.to(dtype), w_hh.to(dtype), h.to(dtype)
        trace = _Trace(h, c.to(dtype), places)
        values = _Values(gates.to(dtype), inner_places, inner.to(dtype))
        d_gates, slope = _slopes(trace, values)
        f = values.gates[:, :, :, 1]
        final_c = gradients[2]
        if final_c is not None and timeline.valid is not None:
            # the gradient of the final cell goes back through the padding unchanged
            padding = ~timeline.valid.view(timeline.steps, 1, -1, 1)
            d_gates.masked_fill_(padding.unsqueeze(3), 0.0)
            f = f.masked_fill(padding, 1.0)
        d_h = timeline.output_gradients(gradients[0], gradients[1], h[1:])
        d_c = torch.zeros_like(h[0]) if final_c is None else final_c.to(dtype) * (1.0 / Q7)
        d_h0 = _walk_back(d_gates, d_h, d_c, slope, f, w_hh, wants_start=wants[1])
        d_c0 = d_c.mul_(Q7) if wants[2] else None
        d_rows = by_items(d_gates.flatten(3))
        d_x, d_w_ih, d_b_ih = input_gradients(d_rows, x, w_ih, timeline, wants=(wants[0], wants[3], wants[5]))
        d_w_hh, d_b_hh = state_gradients(d_rows, h, ctx.formats.scale_h, wants=(wants[4], wants[6]))
        return d_x, d_h0, d_c0, d_w_ih, d_w_hh, d_b_ih, d_b_hh, None, None, None


def _slopes(trace: _Trace, values: _Values) -> tuple[Tensor, Tensor]:
    """How the cell's sum (in Q7; of o: the hidden state) follows each gate [T, D, B, 4, H], and h the sum [T, D, B, H]."""
    dtype, device = trace.h.dtype, trace.h.device
    i, _, g, o = values.gates.unbind(3)
    result = slopes(dtype, device).index_select(0, trace.places.flatten()).view(values.gates.shape)
    of_i, of_f, of_g, of_o = result.unbind(3)
    of_i.mul_(g)
    of_f.mul_(trace.c[:-1])
    of_g.mul_(i).mul_(Q7)  # g is looked up in Q7
    of_o.mul_(values.inner).mul_(1.0 / Q7)
    start = torch.tensor(-_INNER_REACH / Q11, dtype=dtype, device=device)
    tanh = torch.add(start, values.inner_places.to(dtype), alpha=1.0 / Q11)
    tanh.clamp_(-REACH / Q11, (REACH - 1) / Q11).tanh_()
    unit = torch.tensor(1.0 / Q7, dtype=dtype, device=device)
    return result, torch.addcmul(unit, tanh, tanh, value=-1.0 / Q7, out=tanh).mul_(o)


def _walk_back(
    d_gates: Tensor, d_h: Tensor, d_c: Tensor, slope: Tensor, f: Tensor, w_hh: Tensor, *, wants_start: bool
) -> Tensor | None:
    """From the last step to the first: slopes in `d_gates` become gradients, `d_c` that of the initial cell (in Q7).

    Returns the gradient of the initial hidden state.
    """
    rows = d_gates.flatten(3).unbind(0)
    of_cell, of_output = d_gates[:, :, :, :3].unbind(0), d_gates[:, :, :, 3].unbind(0)
    d_hs, slopes, fs = d_h.unbind(0), slope.unbind(0), f.unbind(0)
    total = torch.empty_like(d_c)
    spread = total.unsqueeze(2)
    for t in range(len(rows) - 1, -1, -1):
        if t + 1 < len(rows):
            d_hs[t].baddbmm_(rows[t + 1], w_hh)
        torch.addcmul(d_c, d_hs[t], slopes[t], out=total)
        of_cell[t].mul_(spread)
        of_output[t].mul_(d_hs[t])
        torch.mul(total, fs[t], out=d_c)
    return torch.bmm(rows[0], w_hh) if wants_start else None
