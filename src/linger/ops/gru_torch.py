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
from linger.numeric.torch_gates import (
    LARGEST_FACTOR,
    Q7,
    Q11,
    REACH,
    SIGMOID_START,
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

_GATES = "sst"  # r, z, n
_LARGEST_NEW = 127 / 128  # of n


class Result(NamedTuple):
    """What a GRU gives, as real values."""

    out: Tensor
    """[T, B, D·H], zero beyond each length."""
    h: Tensor
    """[D, B, H], multiples of 1/scale_h."""
    reach: float | None
    """Largest |h| over the valid steps, before rounding and saturation."""


class _Trace(NamedTuple):
    """What the loop leaves behind; [T, …] where it is kept, [1, …] where each step writes over the last."""

    h: Tensor
    """[T + 1, D, B, H], whole numbers."""
    before: Tensor
    """[T, D, B, H]: the state that a step starts with, in Q7 but carried at scale_h."""
    hidden_gate: Tensor
    """[T, D, B, 3·H]: the hidden state's part of the gates, Q11."""
    index: Tensor
    """[T, D, B, 2·H], of r and z into the curves."""
    gate: Tensor
    """[T, D, B, 2·H]: r and z as real numbers."""
    new_index: Tensor
    """[T, D, B, H], of n into the curves."""
    new: Tensor
    """[T, D, B, H]: n, carried at scale_h."""
    exact: Tensor
    """[T, D, B, H]: the state before rounding, at scale_h, plus ½."""


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
    trace = _loop(*tensors, timeline, formats, is_kept=False, wants_reach=wants_reach)
    return _result(trace, timeline, formats, x.dtype, wants_reach=wants_reach)


def _is_state_exact(formats: Formats) -> bool:
    """Whether float32 holds n·2^7 + z·(h − n) in Q14 with the half that rounding adds, for every state of o_bits.

    Half of 2^24 is allowed, because the difference may be taken from either end: n + z·(h − n) = h − (1 − z)·(h − n).
    """
    largest = 2.0 ** (formats.o_bits - 1) * Q7 / formats.scale_h + 1.0
    return 2 * Q7 * (largest + Q7) + 2.0**13 / min(formats.scale_h, 2.0**13) < FLOAT32_EXACT / 2


def _loop(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    timeline: Timeline,
    formats: Formats,
    *,
    is_kept: bool,
    wants_reach: bool,
) -> _Trace:
    """All steps, without gradients."""
    scale_h = formats.scale_h
    inputs = plan_projection(w_ih, b_ih, scale=formats.scale_i, scales_w=formats.scale_iw, bits=formats.data_bits)
    states = plan_projection(
        w_hh, b_hh, scale=scale_h, scales_w=formats.scale_hw, bits=formats.o_bits, carried_scale=scale_h
    )
    is_float32 = fits_float32(inputs, states) and states.largest < LARGEST_FACTOR and _is_state_exact(formats)
    dtype = torch.float32 if is_float32 else torch.float64
    (directions, _, hidden), steps, batch = w_hh.shape, timeline.steps, timeline.batch
    table, rows = curves(scale_h, dtype, x.device), gate_rows(_GATES, hidden, dtype, x.device)
    weight, addend = states.weight.to(dtype).contiguous(), states.addend.to(dtype)
    half = torch.tensor(0.5, dtype=dtype, device=x.device)

    def buffer(count: int, width: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(count, directions, batch, width, dtype=kind, device=x.device)

    kept, is_finer = steps if is_kept else 1, scale_h > Q7
    states_h = buffer(steps + 1, hidden)
    trace = _Trace(
        h=states_h,
        before=buffer(kept, hidden) if is_finer else states_h[:-1],
        hidden_gate=buffer(kept, 3 * hidden),
        index=buffer(kept, 2 * hidden, torch.int32),
        gate=buffer(kept, 2 * hidden),
        new_index=buffer(kept, hidden, torch.int32),
        new=buffer(kept, hidden),
        exact=buffer(steps if wants_reach else 1, hidden),
    )
    start_state(trace.h[0], h0, scale_h)
    reset, sums = buffer(1, hidden)[0], buffer(1, 2 * hidden)[0]
    h, before, exact = trace.h.unbind(0), per_step(trace.before, steps), per_step(trace.exact, steps)
    h_gate, index, flat_index = per_step(trace.hidden_gate, steps), *_whole_and_flat(trace.index, steps)
    h_rz, h_n = (per_step(part, steps) for part in trace.hidden_gate.split([2 * hidden, hidden], 3))
    r, z = (per_step(part, steps) for part in trace.gate.split(hidden, 3))
    flat_gate = per_step(trace.gate.flatten(1), steps)
    new_index, flat_new_index = _whole_and_flat(trace.new_index, steps)
    new, flat_new = _whole_and_flat(trace.new, steps)
    gates = project_input(x, inputs, rows.offset, timeline, dtype)
    x_rz, x_n = (part.unbind(1) for part in gates.split([2 * hidden, hidden], 3))
    low, high = limits(formats.o_bits)
    # the new state lies between n and the old one, unless Q7 rounded that up
    is_limited = is_finer or is_limit_needed(_LARGEST_NEW, scale_h, formats.o_bits)
    for t in range(steps):
        torch.bmm(h[t], weight, out=h_gate[t]).add_(addend).floor_()
        torch.add(h_rz[t], x_rz[t], out=sums).clamp_(SIGMOID_START, SIGMOID_START + 2 * REACH - 1)
        index[t].copy_(sums)
        torch.index_select(table, 0, flat_index[t], out=flat_gate[t])
        torch.addcmul(half, r[t], h_n[t], out=reset).floor_().add_(x_n[t]).clamp_(0, 2 * REACH - 1)
        new_index[t].copy_(reset)
        torch.index_select(table, 0, flat_new_index[t], out=flat_new[t])
        if is_finer:  # h to Q7; carried at scale_h, as n is
            torch.add(half, h[t], alpha=Q7 / scale_h, out=before[t]).floor_().mul_(scale_h / Q7)
        torch.lerp(new[t], before[t], z[t], out=exact[t]).add_(half)
        torch.floor(exact[t], out=h[t + 1])
        if is_limited:
            h[t + 1].clamp_(low, high)
    return trace


def _whole_and_flat(buffer: Tensor, steps: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Views of every step in its shape, and as one row for the look-up."""
    return per_step(buffer, steps), per_step(buffer.flatten(1), steps)


def _result(trace: _Trace, timeline: Timeline, formats: Formats, dtype: torch.dtype, *, wants_reach: bool) -> Result:
    h = trace.h[1:].to(dtype) * (1.0 / formats.scale_h)
    reach = largest_magnitude(trace.exact - 0.5, timeline) / formats.scale_h if wants_reach else None
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
        trace = _loop(x, h0, w_ih, w_hh, b_ih, b_hh, timeline, formats, is_kept=True, wants_reach=wants_reach)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w_ih, w_hh, *trace._replace(exact=None))
        ctx.timeline, ctx.formats = timeline, formats
        return tuple(_result(trace, timeline, formats, x.dtype, wants_reach=wants_reach))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, w_ih, w_hh, *traced = ctx.saved_tensors
        timeline: Timeline = ctx.timeline
        wants, dtype, scale_h = ctx.needs_input_grad, x.dtype, ctx.formats.scale_h
        trace = _Trace(*traced)
        trace = trace._replace(
            **{n: getattr(trace, n).to(dtype) for n in ("h", "before", "hidden_gate", "gate", "new")}
        )
        w_ih, w_hh = w_ih.to(dtype), w_hh.to(dtype)
        directions, _, hidden = w_hh.shape
        d_gates, slope = _slopes(trace, hidden, scale_h)
        d_h = timeline.output_gradients(gradients[0], gradients[1], trace.h[1:])
        d_h0 = _walk_back(d_gates, d_h, trace.gate[:, :, :, hidden:], w_hh, wants_start=wants[1])
        d_hidden = by_items(d_gates.flatten(3))
        d_new = slope.mul_(d_h)
        result: list[Tensor | None] = [None] * 9
        result[1] = d_h0
        if wants[3]:
            result[3] = torch.bmm(d_hidden.transpose(1, 2), by_items(trace.h[:-1])).mul_(1.0 / scale_h)
        if wants[5]:
            result[5] = d_hidden.sum(1)
        # the input's part of n is not multiplied by r; all else is the same for both
        d_gates[:, :, :, 2] = d_new
        d_input = by_items(d_gates.flatten(3))
        if wants[0]:
            d_x = torch.bmm(d_input, w_ih).view(directions, timeline.steps, timeline.batch, -1)
            result[0] = timeline.sum_directions(d_x)
        if wants[2]:
            items = timeline.by_direction(x, directions).flatten(1, 2)
            result[2] = torch.bmm(d_input.transpose(1, 2), items)
        if wants[4]:
            result[4] = d_input.sum(1)
        return tuple(result)


def _slopes(trace: _Trace, hidden: int, scale_h: float) -> tuple[Tensor, Tensor]:
    """How h follows the hidden state's part of r, z and n [T, D, B, 3, H], and the input's part of n [T, D, B, H]."""
    dtype = trace.h.dtype
    offset = gate_rows(_GATES, hidden, dtype, trace.h.device).offset
    before = real_inputs(trace.index, offset[: 2 * hidden], dtype)
    r, z = trace.gate.split(hidden, 3)
    slope = real_inputs(trace.new_index, offset[2 * hidden :], dtype).tanh_()
    torch.addcmul(slope.new_tensor(1.0), slope, slope, value=-1.0, out=slope)  # tanh' = 1 − tanh²
    slope.addcmul_(slope, z, value=-1.0)  # times 1 − z
    result = slope.new_empty(*slope.shape[:3], 3, hidden)
    sigmoid = torch.sigmoid(before)
    torch.addcmul(sigmoid, sigmoid, sigmoid, value=-1.0, out=sigmoid)  # σ' = σ − σ²
    torch.mul(sigmoid[:, :, :, :hidden], slope, out=result[:, :, :, 0])
    result[:, :, :, 0].mul_(trace.hidden_gate[:, :, :, 2 * hidden :]).mul_(1.0 / Q11)
    torch.sub(trace.before, trace.new, out=result[:, :, :, 1])
    result[:, :, :, 1].mul_(sigmoid[:, :, :, hidden:]).mul_(1.0 / scale_h)
    torch.mul(slope, r, out=result[:, :, :, 2])
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
