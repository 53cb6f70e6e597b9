# SPDX-License-Identifier: Apache-2.0
"""What the fast recurrent cells share: the table of both curves, exact projections to Q11, time in both directions.

Integers travel in float tensors. A product with weights that are scaled by powers of two arrives in Q11 by itself, so
rounding is one floor. float32 is used only where a static bound proves that it holds every partial sum; else float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from linger.numeric.fixed import FLOAT32_EXACT
from linger.numeric.tables import SIGMOID, TANH
from linger.numeric.torch_pieces import evaluate_pieces
from linger.numeric.torch_quantize import max_abs

Q7 = 2.0**7
Q11 = 2.0**11
REACH = 1 << 15
"""Gates are saturated to 16 bits, so a curve has 2·REACH inputs."""

SIGMOID_START = 2 * REACH
"""Where the second curve begins in the table of both."""

LARGEST_FACTOR = 2.0**17
"""Whole numbers below this times 127, plus 64, stay below 2^24."""

_FLOAT64_EXACT = 2.0**53
_LARGEST_INDEX = 4 * REACH


@dataclass(frozen=True)
class Formats:
    """Scales and widths of a recurrent layer."""

    scale_i: float
    """Of the input."""
    scale_h: float
    """Of the hidden state, which is the output."""
    scale_iw: tuple[float, ...]
    """Of the input's weights, one per direction."""
    scale_hw: tuple[float, ...]
    """Of the hidden state's weights, one per direction."""
    data_bits: int = 8
    parameter_bits: int = 8
    o_bits: int = 8


@cache
def curves(tanh_scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Tanh q/128 times tanh_scale, then sigmoid q/128: 2 · 65 536 entries.

    One table, so that all gates take one look-up; the scale spares the cell a multiplication.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        every = torch.arange(-REACH, REACH, dtype=torch.float64) / Q11
        both = [evaluate_pieces(every, TANH, Q7, 8) * tanh_scale, evaluate_pieces(every, SIGMOID, Q7, 8)]
        return torch.cat(both).to(dtype=dtype, device=device)


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
    """x·wᵀ + b to Q11: `x @ weight + addend`, rounded by one floor."""

    weight: Tensor
    """[D, K, rows]; takes what x is carried in to Q11."""
    addend: Tensor
    """[D, 1, rows]: the bias and the half that rounding adds."""
    largest: float
    """No result is larger."""

    @property
    def is_float32(self) -> bool:
        """Whether float32 is proven exact."""
        return self.weight.dtype == torch.float32


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
    halves = [0.5 if step > Q11 else 0.0 for step in steps]

    def needed(bounds: Sequence[float]) -> float:
        return max((bound + half / Q11) * step for bound, half, step in zip(bounds, halves, steps, strict=True))

    bounds = _quick_bounds(w, b, top=2.0 ** (bits - 1) / scale)
    if needed(bounds) >= FLOAT32_EXACT or max(bounds) * Q11 >= LARGEST_FACTOR:
        bounds = _bounds(w, b, top=2.0 ** (bits - 1) / scale)
    assert needed(bounds) < _FLOAT64_EXACT, "sums of products of 16 bits do not come near 2^53"
    dtype = torch.float32 if needed(bounds) < FLOAT32_EXACT else torch.float64
    w = w.detach().to(dtype)
    addend = torch.tensor(halves, dtype=dtype, device=w.device).reshape(-1, 1, 1).expand(-1, 1, w.shape[1])
    if b is not None:
        addend = addend + b.detach().to(dtype).unsqueeze(1) * Q11
    weight = (w * (Q11 / carried_scale)).transpose(1, 2)
    return Projection(weight=weight, addend=addend, largest=max(bounds) * Q11 + 1.0)


def _quick_bounds(w: Tensor, b: Tensor | None, *, top: float) -> list[float]:
    """No |x·wᵀ + b| of a direction is larger for |x| ≤ top; may be far too large."""
    biases = [0.0] * len(w) if b is None else [max_abs(one) for one in b]
    return [w.shape[2] * max_abs(one) * top + bias for one, bias in zip(w, biases, strict=True)]


def _bounds(w: Tensor, b: Tensor | None, *, top: float) -> list[float]:
    """The same by the sums of the rows: no smaller bound holds for every x."""
    rows = w.detach().double().abs().sum(2).mul_(top)
    if b is not None:
        rows += b.detach().double().abs()
    return [max_abs(one) for one in rows]


def fits_float32(gate_input: Projection, gate_hidden: Projection) -> bool:
    """Whether the loop over time may run in float32.

    Two whole numbers that float32 holds add up exactly below 2^24, and above it every rounding stays above, where the
    gate saturates all the same.
    """
    return gate_hidden.is_float32 and gate_input.largest + _LARGEST_INDEX < FLOAT32_EXACT


def project_input(x: Tensor, projection: Projection, offset: Tensor, timeline: Timeline, dtype: torch.dtype) -> Tensor:
    """The input's part of the gates of every step, rounded to Q11, plus the offset: [D, T, B, rows]."""
    directions, _, rows = projection.weight.shape
    items = timeline.by_direction(x, directions).flatten(1, 2).to(projection.weight.dtype)
    gates = torch.baddbmm(projection.addend, items, projection.weight).floor_()
    return gates.add_(offset).to(dtype).view(directions, timeline.steps, timeline.batch, rows)


def start_state(state: Tensor, given: Tensor | None, scale: float) -> None:
    """Write the initial state, zeros if there is none, as whole numbers."""
    if given is None:
        state.zero_()
    else:
        torch.mul(given.detach().to(state.dtype), scale, out=state)


@dataclass(frozen=True)
class Timeline:
    """T steps of B sequences, each with its own length.

    Padding comes last, so it cannot touch the valid steps: the loop runs over all of them, and only what enters and what
    leaves is masked. The second direction sees each sequence reversed inside its own length.
    """

    steps: int
    batch: int
    valid: Tensor | None
    """[T, B], where there are lengths."""
    mirrored: Tensor | None
    """[T·B]: the place in the other direction of each step."""
    last: tuple[Tensor, Tensor] | None
    """Step and sequence of each sequence's end."""

    @staticmethod
    def of(x: Tensor, lengths: Tensor | None) -> Timeline:
        """Of a batch [T, B, …] with lengths [B], if any."""
        steps, batch = x.shape[:2]
        if lengths is None:
            return Timeline(steps, batch, None, None, None)
        lengths = lengths.to(x.device)
        step, sequence = torch.arange(steps, device=x.device).unsqueeze(1), torch.arange(batch, device=x.device)
        valid = step < lengths
        mirrored = torch.where(valid, lengths - 1 - step, step) * batch + sequence
        return Timeline(steps, batch, valid, mirrored.flatten(), (lengths - 1, sequence))

    def mirror(self, x: Tensor) -> Tensor:
        """[T, B, F] with each sequence reversed inside its length; twice gives x again."""
        if self.mirrored is None:
            return x.flip(0)
        return x.reshape(-1, x.shape[2]).index_select(0, self.mirrored).view(x.shape)

    def mask(self, x: Tensor) -> Tensor:
        """[T, …, B, F], zero beyond each length."""
        if self.valid is None:
            return x
        shape = (self.steps, *[1] * (x.dim() - 3), self.batch, 1)
        return x * self.valid.view(shape).to(x.dtype)

    def by_direction(self, x: Tensor, directions: int) -> Tensor:
        """[T, B, F] as each direction sees it: [D, T, B, F]."""
        return x.unsqueeze(0) if directions == 1 else torch.stack([x, self.mirror(x)])

    def sum_directions(self, x: Tensor) -> Tensor:
        """[D, T, B, F] to [T, B, F]: the gradient of `by_direction`."""
        return x[0] if len(x) == 1 else x[0] + self.mirror(x[1])

    def outputs(self, states: Tensor) -> Tensor:
        """States [T, D, B, H] as torch lays out the output: [T, B, D·H], zero beyond each length."""
        states = self.mask(states)
        if states.shape[1] == 1:
            return states[:, 0]
        return torch.cat([states[:, 0], self.mirror(states[:, 1])], 2)

    def output_gradients(self, gradient: Tensor | None, final: Tensor | None, like: Tensor) -> Tensor:
        """Gradients of outputs [T, B, D·H] and of final states [D, B, H], as a new tensor of the shape and type of `like`."""
        result = torch.zeros_like(like) if gradient is None else torch.empty_like(like)
        if gradient is not None:
            hidden = like.shape[3]
            result[:, 0] = self.mask(gradient[:, :, :hidden])
            if like.shape[1] == 2:
                result[:, 1] = self.mirror(self.mask(gradient[:, :, hidden:]))
        if final is not None and self.last is None:
            result[-1] += final
        elif final is not None:
            result[self.last[0], :, self.last[1]] += final.transpose(0, 1).to(result.dtype)  # type: ignore[index]
        return result

    def final(self, states: Tensor) -> Tensor:
        """The state [D, B, H] after the last valid step, of states [T, D, B, H]."""
        if self.last is None:
            return states[-1].clone()
        return states[self.last[0], :, self.last[1]].transpose(0, 1)


def per_step(buffer: Tensor, steps: int) -> Sequence[Tensor]:
    """One view per step of a buffer that holds all steps, or only one that each step writes over."""
    return buffer.unbind(0) if len(buffer) == steps else [buffer[0]] * steps


def by_items(x: Tensor) -> Tensor:
    """[T, D, B, F] to [D, T·B, F], ready for one product over all steps."""
    return x.transpose(0, 1).flatten(1, 2)


def real_inputs(index: Tensor, offset: Tensor, dtype: torch.dtype) -> Tensor:
    """The real numbers that indices into `curves` stand for."""
    return (index.to(dtype) - offset.to(dtype)).mul_(1.0 / Q11)


def largest_magnitude(x: Tensor, timeline: Timeline) -> float:
    """Largest |x| over the valid steps of [T, D, B, F]."""
    return max_abs(timeline.mask(x))


def is_limit_needed(largest: float, scale: float, bits: int) -> bool:
    """Whether real values up to `largest` can leave the range of whole numbers at a scale."""
    return math.floor(largest * scale + 0.5) > 2 ** (bits - 1) - 1
