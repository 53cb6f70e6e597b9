# SPDX-License-Identifier: Apache-2.0
"""What the fast recurrent cells share: the table of both curves and exact projections to Q11.

Integers travel in float tensors. A product with weights that are scaled by powers of two arrives in Q11 by itself, so
rounding is one floor. float32 is used only where a static bound proves that it holds every partial sum; else float64.
Scales that stay on a device (see `linger.numeric.torch.scale`) are not read: the state is then float64, whatever they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from linger.numeric.fixed import FLOAT32_EXACT, limits
from linger.numeric.tables import SIGMOID, TANH
from linger.numeric.torch.pieces import evaluate_pieces
from linger.numeric.torch.quantize import max_abs
from linger.numeric.torch.scale import Scale
from linger.numeric.torch.timeline import Timeline, over_time

Q7 = 2.0**7
Q11 = 2.0**11
REACH = 1 << 15
"""Gates are saturated to 16 bits, so a curve has 2·REACH inputs."""

SIGMOID_START = 2 * REACH
"""Where the second curve begins in the table of both."""

LARGEST_FACTOR = 2.0**17
"""Whole numbers below this times 127, plus 64, stay below 2^24."""

_FLOAT64_EXACT = 2.0**53
LARGEST_INDEX = 4 * REACH
"""Length of the table of both curves."""


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
    """Tanh q/128 times tanh_scale, then sigmoid q/128: 2 · 65 536 entries.

    One table, so that all gates take one look-up; the scale spares the cell a multiplication.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        every = _every_input()
        both = [evaluate_pieces(every, TANH, Q7, 8) * tanh_scale, evaluate_pieces(every, SIGMOID, Q7, 8)]
        return torch.cat(both).to(dtype=dtype, device=device)


def curves_at(tanh_scale: Scale, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`curves` for any scale; one on a device gets a new table each time."""
    if not isinstance(tanh_scale, Tensor):
        return curves(tanh_scale, dtype, device)
    both = curves(1.0, dtype, device)
    return torch.cat([both[:SIGMOID_START] * tanh_scale, both[SIGMOID_START:]])


@cache
def slopes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The derivatives of the real tanh and sigmoid, at the places where `curves` has their values."""
    with torch.inference_mode(mode=False), torch.no_grad():
        tanh, sigmoid = torch.tanh(_every_input()), torch.sigmoid(_every_input())
        return torch.cat([1 - tanh * tanh, sigmoid * (1 - sigmoid)]).to(dtype=dtype, device=device)


def _every_input() -> Tensor:
    return torch.arange(-REACH, REACH, dtype=torch.float64) / Q11


@dataclass(frozen=True)
class GateRows:
    """For each row of the gates: what is added to Q11 to get an index into `curves`, and the ends of its curve."""

    offset: Tensor
    low: Tensor
    high: Tensor


@cache
def gate_rows(kinds: str, hidden: int, dtype: torch.dtype, device: torch.device) -> GateRows:
    """Rows of gates that are each `t` (tanh) or `s` (sigmoid), as in "sst"."""
    with torch.inference_mode(mode=False), torch.no_grad():
        starts = [SIGMOID_START if kind == "s" else 0 for kind in kinds]
        low = torch.tensor(starts, dtype=dtype, device=device).repeat_interleave(hidden)
        return GateRows(offset=low + REACH, low=low, high=low + (2 * REACH - 1))


@dataclass(frozen=True)
class Projection:
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
    w: Tensor, b: Tensor | None, *, scale: float, scales_w: Sequence[float], bits: int, carried_scale: float = 1.0
) -> Projection:
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
    """
    steps = [scale * scale_w for scale_w in scales_w]
    halves = [0.5 * (step > Q11) for step in steps]
    top = 2.0 ** (bits - 1) / scale
    biases = [0.0] * len(w) if b is None else [max_abs(one) for one in b]
    bounds = [w.shape[2] * max_abs(one) * top + bias for one, bias in zip(w, biases, strict=True)]
    needed = _largest_sum(bounds, halves, steps)
    if needed >= FLOAT32_EXACT or max(bounds) * Q11 >= LARGEST_FACTOR:  # the quick estimate is too large
        bounds = _bounds(w, b, top=top)
        needed = _largest_sum(bounds, halves, steps)
    assert needed < _FLOAT64_EXACT, "sums of products of 16 bits do not come near 2^53"
    dtype = torch.float32 if needed < FLOAT32_EXACT else torch.float64
    half = torch.tensor(halves, dtype=dtype, device=w.device)
    return Projection(
        weight=_weight_to_q11(w.detach().to(dtype), carried_scale),
        addend=_addend(half, b, w.shape[1]),
        largest=max(bounds) * Q11 + 1.0,
        largest_addend=max(biases) * Q11 + 0.5,
        finest=max(*steps, Q11) / Q11,
    )


def _largest_sum(bounds: Sequence[float], halves: Sequence[float], steps: Sequence[float]) -> float:
    """The largest sum in steps, with the half that rounding adds, over all directions."""
    return max((bound + half / Q11) * step for bound, half, step in zip(bounds, halves, steps, strict=True))


def _weight_to_q11(w: Tensor, carried_scale: Scale) -> Tensor:
    """Weights [D, rows, K] as [D, K, rows], for items that are carried times a scale."""
    scaled: Tensor = w * (Q11 / carried_scale)
    return scaled.transpose(1, 2)


def _addend(half: Tensor, b: Tensor | None, rows: int) -> Tensor:
    """[D, 1, rows] in Q11: the half of each direction, and the bias [D, rows]."""
    addend = half.reshape(-1, 1, 1).expand(-1, 1, rows)
    return addend if b is None else addend + b.detach().to(half.dtype).unsqueeze(1) * Q11


def _bounds(w: Tensor, b: Tensor | None, *, top: float) -> list[float]:
    """Largest |x·wᵀ + b| of each direction for |x| ≤ top, by the sums of the rows."""
    rows = w.detach().double().abs().sum(2).mul_(top)
    if b is not None:
        rows += b.detach().double().abs()
    return [max_abs(one) for one in rows]


@dataclass(frozen=True)
class Gates:
    """What the loop over time needs to find the gates of a step from the hidden state of the step before."""

    parts: Tensor
    """[D, T, B, rows]: the input's part in Q11 plus the offset into the curves."""
    weight: Tensor
    """[D, H, rows], for the hidden state as whole numbers; float32 beside parts of float64 where that is exact."""
    addend: Tensor
    """[D, 1, rows], before the floor."""
    rows: GateRows
    is_one_floor: bool
    """Whether the addend may join the parts: then one floor does for the sum, as ⌊n + x⌋ = n + ⌊x⌋ for whole n."""
    is_on_device: bool = False
    """Whether no number was read back, so that NaN may be anywhere."""

    def half(self, state: Tensor) -> Tensor:
        """The ½ that rounding adds. A look-up cannot give NaN, so where NaN may be, the half is made NaN if there is one."""
        half = torch.tensor(0.5, dtype=self.parts.dtype, device=self.parts.device)
        return half + 0.0 * (self.parts.sum() + self.weight.sum() + state.sum()) if self.is_on_device else half

    def product(self, state: Tensor, out: Tensor) -> None:
        """The products of whole numbers with the weights."""
        if self.weight.dtype == out.dtype:
            torch.bmm(state, self.weight, out=out)
        else:
            out.copy_(torch.bmm(state.to(self.weight.dtype), self.weight))

    def look_up(self, table: Tensor, values: Tensor, places: Tensor, out: Tensor) -> None:
        """The entries at values ≥ 0, whose floors are written to `places`."""
        places.copy_(values)
        if self.is_on_device:
            places.clamp_(0, len(table) - 1)  # whatever NaN has become
        torch.index_select(table, 0, places, out=out)


def prepare_gates(
    x: Tensor,
    weights: Weights,
    timeline: Timeline,
    formats: Formats,
    kinds: str,
    *,
    is_hidden_multiplied: bool = False,
    is_state_exact: bool = True,
) -> Gates:
    """Project all inputs and choose the precision of the loop.

    Two whole numbers that float32 holds add up exactly below 2^24, and above it every rounding stays above, where the gate
    saturates all the same. So each part must fit for itself, not their sum.

    Args:
        x: [T, B, I].
        weights: Of both products.
        timeline: Of x.
        formats: Scales and widths.
        kinds: Of the gates, as `gate_rows` takes them.
        is_hidden_multiplied: The tanh gate multiplies the hidden state's part by numbers of 7 bits.
        is_state_exact: Whether float32 holds what the cell makes of the gates.
    """
    if formats.is_on_device:
        return _prepare_on_device(x, weights, timeline, formats, kinds)
    scale_h = formats.scale_h
    w_ih, w_hh, b_ih, b_hh = weights
    inputs = plan_projection(w_ih, b_ih, scale=formats.scale_i, scales_w=formats.scale_iw, bits=formats.data_bits)
    states = plan_projection(
        w_hh, b_hh, scale=scale_h, scales_w=formats.scale_hw, bits=formats.o_bits, carried_scale=scale_h
    )
    largest_part = inputs.largest + LARGEST_INDEX
    is_float32 = is_state_exact and states.weight.dtype == torch.float32 and largest_part < FLOAT32_EXACT
    is_one_floor = (largest_part + states.largest_addend) * states.finest < FLOAT32_EXACT
    if is_hidden_multiplied:
        is_float32 = is_float32 and states.largest < LARGEST_FACTOR
        # the product has steps of 1/2^7; the gate is a tanh, whose curve ends where that of sigmoid starts
        is_one_floor = is_one_floor and (inputs.largest + SIGMOID_START) * Q7 < FLOAT32_EXACT
    dtype = torch.float32 if is_float32 else torch.float64
    rows = gate_rows(kinds, w_hh.shape[2], dtype, x.device)
    total = torch.baddbmm(inputs.addend, _items(x, timeline, inputs.weight), inputs.weight)
    return Gates(
        parts=over_time(total.floor_().to(dtype).add_(rows.offset), timeline),
        weight=states.weight.to(dtype).contiguous(),
        addend=states.addend.to(dtype),
        rows=rows,
        is_one_floor=is_one_floor,
    )


def _items(x: Tensor, timeline: Timeline, weight: Tensor) -> Tensor:
    """What each direction sees, [D, T·B, I], in the type of its weights."""
    return timeline.by_direction(x, len(weight)).flatten(1, 2).to(weight.dtype)


def _prepare_on_device(x: Tensor, weights: Weights, timeline: Timeline, formats: Formats, kinds: str) -> Gates:
    """`prepare_gates` where the scales are on a device: one floor for each part, in float64."""
    w_ih, w_hh, b_ih, b_hh = weights
    rows = gate_rows(kinds, w_hh.shape[2], torch.float64, x.device)
    weight, addend = _project_on_device(w_ih, b_ih, formats.scale_i, formats.scale_iw, 1.0, formats.data_bits, formats)
    total = torch.bmm(_items(x, timeline, weight), weight).double().add_(addend)
    parts = over_time(total.floor_().add_(rows.offset), timeline)
    scale_h = formats.scale_h
    weight, addend = _project_on_device(w_hh, b_hh, scale_h, formats.scale_hw, scale_h, formats.o_bits, formats)
    return Gates(parts, weight.contiguous(), addend, rows, is_one_floor=False, is_on_device=True)


def _project_on_device(
    w: Tensor,
    b: Tensor | None,
    scale: Scale,
    scales_w: Sequence[Scale],
    carried_scale: Scale,
    bits: int,
    formats: Formats,
) -> tuple[Tensor, Tensor]:
    """Weight and addend as of `Projection`, in types that are chosen without reading a scale.

    A sum of K products of whole numbers stays below K·2^(bits−1)·2^(parameter_bits−1), which float32 holds up to 2^24.
    A bias of 32 bits and the half, ½·scale·scale_w/2^11 < 2^48 steps, need float64.
    """
    largest = w.shape[2] * 2.0 ** (bits + formats.parameter_bits - 2)
    dtype = torch.float32 if largest < FLOAT32_EXACT else torch.float64
    steps = torch.stack([torch.as_tensor(scale * one, dtype=torch.float64, device=w.device) for one in scales_w])
    return _weight_to_q11(w.detach().to(dtype), carried_scale), _addend((steps > Q11).double().mul_(0.5), b, w.shape[1])


def add_scaled(half: Tensor, x: Tensor, factor: Scale, out: Tensor) -> Tensor:
    """half + x·factor, for a factor on a device too."""
    if isinstance(factor, Tensor):
        return torch.mul(x, factor, out=out).add_(half)
    return torch.add(half, x, alpha=factor, out=out)


def start_state(state: Tensor, given: Tensor | None, scale: Scale) -> None:
    """Write the initial state, zeros if there is none, as whole numbers."""
    if given is None:
        state.zero_()
    else:
        torch.mul(given.detach().to(state.dtype), scale, out=state)


def per_step(buffer: Tensor, steps: int) -> Sequence[Tensor]:
    """One view per step of a buffer that holds all steps, or only one that each step writes over."""
    return buffer.unbind(0) if len(buffer) == steps else [buffer[0]] * steps


def is_limit_needed(largest: float, scale: Scale, bits: int) -> bool:
    """Whether real values up to `largest` can leave the range of whole numbers at a scale; on a device they may."""
    return isinstance(scale, Tensor) or math.floor(largest * scale + 0.5) > limits(bits)[1]
