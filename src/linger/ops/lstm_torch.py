# SPDX-License-Identifier: Apache-2.0
"""Fast twin of LSTMInt: the integers of the cell in float tensors, with straight-through gradients.

Rounding passes gradients on, so does saturation of the output; the curves have the slopes of the real functions at the
saturated input. Only the products with W_hh have to wait for the step before, so everything else is done for all steps
at once: the input's part of the gates, the slopes, the gradients of the weights.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from linger.numeric.fixed import limits
from linger.numeric.torch_gates import (
    Q7,
    REACH,
    Formats,
    Timeline,
    by_items,
    curves,
    fits_float32,
    gate_rows,
    is_limit_needed,
    largest_magnitude,
    per_step,
    plan_projection,
    project_input,
    real_inputs,
    start_state,
)

_GATES = "ssts"  # i, f, g, o
_LARGEST_PRODUCT = 127 * 128 / 2.0**14  # of o and tanh(c)


class Result(NamedTuple):
    """What an LSTM gives, as real values."""

    out: Tensor
    """[T, B, D·H], zero beyond each length."""
    h: Tensor
    """[D, B, H], multiples of 1/scale_h."""
    c: Tensor
    """[D, B, H], multiples of 1/128."""
    reach: float | None
    """Largest |o·tanh(c)| over the valid steps, before rounding and saturation."""


class _Trace(NamedTuple):
    """What the loop leaves behind; [T, …] where it is kept, [1, …] where each step writes over the last."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    c: Tensor
    """[T + 1, D, B, H], Q7."""
    index: Tensor
    """[T, D, B, 4·H], into the curves."""
    gate: Tensor
    """[T, D, B, 4·H]: i, f, o as real numbers, g in Q7."""
    inner_index: Tensor
    """[T, D, B, H]: what tanh(c) was looked up with."""
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
    trace = _loop(*tensors, timeline, formats, is_kept=wants_reach)
    return _result(trace, timeline, formats, x.dtype, wants_reach=wants_reach)


def _loop(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    timeline: Timeline,
    formats: Formats,
    *,
    is_kept: bool,
) -> _Trace:
    """All steps, without gradients."""
    scale_h = formats.scale_h
    inputs = plan_projection(w_ih, b_ih, scale=formats.scale_i, scales_w=formats.scale_iw, bits=formats.data_bits)
    states = plan_projection(
        w_hh, b_hh, scale=scale_h, scales_w=formats.scale_hw, bits=formats.o_bits, carried_scale=scale_h
    )
    dtype = torch.float32 if fits_float32(inputs, states) else torch.float64
    (directions, _, hidden), steps, batch = w_hh.shape, timeline.steps, timeline.batch
    table, rows = curves(Q7, dtype, x.device), gate_rows(_GATES, hidden, dtype, x.device)
    weight, addend = states.weight.to(dtype).contiguous(), states.addend.to(dtype)
    half = torch.tensor(0.5, dtype=dtype, device=x.device)
    inner_offset = torch.tensor(REACH - 7.5, dtype=dtype, device=x.device)

    def buffer(count: int, width: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(count, directions, batch, width, dtype=kind, device=x.device)

    kept = steps if is_kept else 1
    trace = _Trace(
        h=buffer(steps + 1, hidden),
        c=buffer(steps + 1, hidden),
        index=buffer(kept, 4 * hidden, torch.int32),
        gate=buffer(kept, 4 * hidden),
        inner_index=buffer(kept, hidden, torch.int32),
        inner=buffer(kept, hidden),
    )
    start_state(trace.h[0], h0, scale_h)
    start_state(trace.c[0], c0, Q7)
    gates, total, position = buffer(1, 4 * hidden)[0], buffer(1, hidden)[0], buffer(1, hidden)[0]
    i, f, g, o = (per_step(plane, steps) for plane in trace.gate.unflatten(3, (4, hidden)).unbind(3))
    indices, flat_indices = per_step(trace.index, steps), per_step(trace.index.flatten(1), steps)
    flat_gates, flat_inner = per_step(trace.gate.flatten(1), steps), per_step(trace.inner.flatten(1), steps)
    inner_indices, flat_inner_indices = (
        per_step(trace.inner_index, steps),
        per_step(trace.inner_index.flatten(1), steps),
    )
    inner, h, c = per_step(trace.inner, steps), trace.h.unbind(0), trace.c.unbind(0)
    low, high = limits(formats.o_bits)
    is_limited = is_limit_needed(_LARGEST_PRODUCT, scale_h, formats.o_bits)
    for t, part in enumerate(project_input(x, inputs, rows.offset, timeline, dtype).unbind(1)):
        torch.bmm(h[t], weight, out=gates)
        gates.add_(addend).floor_().add_(part).clamp_(rows.low, rows.high)
        indices[t].copy_(gates)
        torch.index_select(table, 0, flat_indices[t], out=flat_gates[t])
        # (f·c + i·g)/2^7 + ½ with c and g in Q7. |c| ≤ 2^15 gives |c'| ≤ 127/128·2^15 + 127 + ½ < 2^15: no saturation.
        torch.addcmul(half, f[t], c[t], out=total).addcmul_(i[t], g[t])
        torch.floor(total, out=c[t + 1])
        # the same sum/2^3 + ½ = 16·(total − ½) + ½; a limit at whole numbers may come before the floor, which the cast is
        torch.add(inner_offset, total, alpha=16.0, out=position).clamp_(0.0, 2.0 * REACH - 1.0)
        inner_indices[t].copy_(position)
        torch.index_select(table, 0, flat_inner_indices[t], out=flat_inner[t])
        torch.addcmul(half, o[t], inner[t], value=scale_h / Q7, out=h[t + 1]).floor_()
        if is_limited:
            h[t + 1].clamp_(low, high)
    return trace


def _result(trace: _Trace, timeline: Timeline, formats: Formats, dtype: torch.dtype, *, wants_reach: bool) -> Result:
    h, c = trace.h[1:].to(dtype) * (1.0 / formats.scale_h), timeline.final(trace.c[1:]).to(dtype)
    reach = None
    if wants_reach:
        o = trace.gate.unflatten(3, (4, -1))[:, :, :, 3]
        reach = largest_magnitude(o * trace.inner, timeline) / Q7
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
        trace = _loop(x, h0, c0, w_ih, w_hh, b_ih, b_hh, timeline, formats, is_kept=True)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, *trace)
        ctx.timeline, ctx.formats = timeline, formats
        ctx.types = [None if t is None else t.dtype for t in (h0, c0, b_ih, b_hh)]
        return tuple(_result(trace, timeline, formats, x.dtype, wants_reach=wants_reach))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w_ih, w_hh, *traced = ctx.saved_tensors
        timeline: Timeline = ctx.timeline
        dtype = x.dtype
        trace = _Trace(*traced)
        trace = trace._replace(**{n: getattr(trace, n).to(dtype) for n in ("h", "c", "gate", "inner")})
        w_ih, w_hh = w_ih.to(dtype), w_hh.to(dtype)
        (directions, _, hidden), steps = w_hh.shape, timeline.steps
        final_c = gradients[2]
        d_gates, slope = _slopes(trace, hidden)
        f = trace.gate.unflatten(3, (4, hidden))[:, :, :, 1]
        if final_c is not None and timeline.valid is not None:
            # the gradient of the final cell goes back through the padding unchanged
            padding = ~timeline.valid.view(steps, 1, -1, 1)
            d_gates.masked_fill_(padding.unsqueeze(3), 0.0)
            slope.masked_fill_(padding, 0.0)
            f = f.masked_fill(padding, 1.0)
        d_h = timeline.output_gradients(gradients[0], gradients[1], trace.h[1:])
        d_c = torch.zeros_like(d_h[0]) if final_c is None else final_c.to(dtype) * (1.0 / Q7)
        d_h0 = _walk_back(d_gates, d_h, d_c, slope, f, w_hh, wants_start=ctx.needs_input_grad[1])
        d_rows = by_items(d_gates.flatten(3))
        wants = ctx.needs_input_grad
        result: list[Tensor | None] = [None] * 10
        if wants[0]:
            d_x = torch.bmm(d_rows, w_ih).view(directions, steps, timeline.batch, -1)
            result[0] = timeline.sum_directions(d_x)
        result[1] = d_h0
        result[2] = d_c.mul_(Q7) if wants[2] else None
        transposed = d_rows.transpose(1, 2)
        if wants[3]:
            result[3] = torch.bmm(transposed, timeline.by_direction(x, directions).flatten(1, 2))
        if wants[4]:
            result[4] = torch.bmm(transposed, by_items(trace.h[:-1])).mul_(1.0 / ctx.formats.scale_h)
        if wants[5] or wants[6]:
            bias = d_rows.sum(1)
            result[5:7] = [bias if wants[5] else None, bias.clone() if wants[6] else None]
        return tuple(result)


def _slopes(trace: _Trace, hidden: int) -> tuple[Tensor, Tensor]:
    """How the cell's sum (in Q7; of o: the hidden state) follows each gate [T, D, B, 4, H], and h the sum [T, D, B, H]."""
    dtype = trace.h.dtype
    offset = gate_rows(_GATES, hidden, dtype, trace.h.device).offset
    before = real_inputs(trace.index, offset, dtype).unflatten(3, (4, hidden))
    i, _, g, o = trace.gate.unflatten(3, (4, hidden)).unbind(3)
    result = torch.sigmoid(before)
    torch.addcmul(result, result, result, value=-1.0, out=result)  # σ' = σ − σ²
    result[:, :, :, 0].mul_(g)
    result[:, :, :, 1].mul_(trace.c[:-1])
    tanh = torch.tanh(before[:, :, :, 2])
    torch.addcmul(before.new_tensor(Q7), tanh, tanh, value=-Q7, out=tanh)  # g in Q7 is 128·tanh
    torch.mul(tanh, i, out=result[:, :, :, 2])
    result[:, :, :, 3].mul_(trace.inner).mul_(1.0 / Q7)
    inner = real_inputs(trace.inner_index, before.new_tensor(float(REACH)), dtype).tanh_()
    torch.addcmul(before.new_tensor(1.0 / Q7), inner, inner, value=-1.0 / Q7, out=inner)
    return result, inner.mul_(o)


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
