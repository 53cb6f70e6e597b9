# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences in torch: lengths, both directions, and the gradients of putting them together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from linger.numeric.torch.quantize import largest_magnitude
from linger.numeric.torch.scale import Scale


@dataclass(frozen=True)
class Timeline:
    """T steps of B sequences, each with its own length.

    Padding comes last, so it cannot touch the valid steps: the loop runs over all steps, and only inputs and outputs are
    masked. The second direction sees each sequence reversed inside its own length.
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
        elif final is not None and self.last is not None:
            result[self.last[0], :, self.last[1]] += final.transpose(0, 1)
        return result

    def final(self, states: Tensor) -> Tensor:
        """The state [D, B, H] after the last valid step, of states [T, D, B, H]."""
        if self.last is None:
            return states[-1].clone()
        return states[self.last[0], :, self.last[1]].transpose(0, 1)

    def max_abs(self, x: Tensor) -> Scale:
        """Largest |x| over the valid steps of [T, D, B, F], left where x is."""
        return largest_magnitude(self.mask(x))


def input_gradients(
    d_rows: Tensor, x: Tensor, w_ih: Tensor, timeline: Timeline, *, wants: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of x and of the input's weights, where they are wanted, from those of the gates [D, T·B, rows]."""
    d_x = timeline.sum_directions(over_time(torch.bmm(d_rows, w_ih), timeline)) if wants[0] else None
    items = timeline.by_direction(x, len(w_ih)).flatten(1, 2) if wants[1] else None
    return [d_x, None if items is None else torch.bmm(d_rows.transpose(1, 2), items)]


def state_gradient(d_rows: Tensor, h: Tensor, scale_h: Scale) -> Tensor:
    """The gradient of the state's weights, from those of the gates, by the states [T + 1, D, B, H] at scale_h."""
    return torch.bmm(d_rows.transpose(1, 2), by_items(h[:-1])).mul_(1.0 / scale_h)


def over_time(x: Tensor, timeline: Timeline) -> Tensor:
    """[D, T·B, F] to [D, T, B, F]."""
    return x.reshape(x.shape[0], timeline.steps, timeline.batch, x.shape[-1])


def by_items(x: Tensor) -> Tensor:
    """[T, D, B, F] to [D, T·B, F], ready for one product over all steps."""
    return x.transpose(0, 1).flatten(1, 2)
