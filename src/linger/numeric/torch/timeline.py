# SPDX-License-Identifier: Apache-2.0
"""Batches of padded sequences in torch (lengths, both directions, their gradients), and the arithmetic of one time step.

A step runs on numpy arrays or on torch tensors, with the same results. It does little work, so the overhead of each call
decides: numpy's calls cost a third of torch's, and its arrays share the memory of the tensors. Torch runs what is on another
device, and what is so large that it would use several threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from linger.numeric.torch.quantize import Scale, largest_magnitude


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
    """Gradients of x and of the input's weights, None where not needed, from those of the gates [D, T·B, rows]."""
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


Array = Any
"""An array of numpy or a tensor, whichever the arithmetic takes."""

LARGEST_STEP = 1 << 15
"""Elements of a step from which on torch shares the work among threads; numpy never does."""

LARGEST_PRODUCT = 1 << 18
"""Multiplications up to which OpenBLAS, which numpy has, stays in one thread; its others would wait between the steps."""

MOST_BLOCKS = 4
"""Products of at most so many blocks of that size are numpy's; torch does larger ones, with its own threads."""


class _NumpySteps:
    """Steps on arrays of numpy. Numbers are not NaN: the caller has looked."""

    add: ClassVar[Any] = staticmethod(np.add)
    multiply: ClassVar[Any] = staticmethod(np.multiply)
    subtract: ClassVar[Any] = staticmethod(np.subtract)
    floor: ClassVar[Any] = staticmethod(np.floor)
    round: ClassVar[Any] = staticmethod(np.rint)

    def __init__(self, weight: Tensor, state: Tensor) -> None:
        """For states [D, B, K] and a weight [D, K, N] that each step multiplies them with."""
        self._weight, array = weight.detach(), weight.detach().numpy()
        self._sums, self._room = (np.empty((*state.shape[:2], weight.shape[2]), array.dtype) for _ in range(2))
        count = max(1, -(-state[0].numel() * weight.shape[2] // LARGEST_PRODUCT))
        ends = [weight.shape[1] * block // count for block in range(count + 1)]
        self._blocks = [(slice(a, b), array[:, a:b]) for a, b in pairwise(ends)] if count <= MOST_BLOCKS else []
        self._matrix = array[0] if len(self._blocks) == len(array) == 1 else None

    @staticmethod
    def view(tensor: Tensor) -> Array:
        """The memory of a tensor."""
        return tensor.numpy()

    def numbers(self, zero: Tensor, *values: float) -> Iterable[Array]:
        """Constants; `zero` is what a device adds to them."""
        del zero
        return [np.array(value, self._sums.dtype) for value in values]

    def product(self, state: Array, out: Array) -> None:
        """The state's product with the weight; blocks of it are exact, so they add up to the same whole."""
        if self._matrix is not None:
            np.dot(state[0], self._matrix, out[0])
        elif self._blocks:
            (part, block), *others = self._blocks
            np.matmul(state[..., part], block, out)
            for part, block in others:
                np.add(out, np.matmul(state[..., part], block, self._sums), out)
        else:
            torch.bmm(torch.from_numpy(state), self._weight, out=torch.from_numpy(out))

    def add_product(self, total: Array, state: Array) -> None:
        """`product`, added to a total."""
        self.product(state, self._room)
        total += self._room

    @staticmethod
    def multiply_add(addend: Array, a: Array, b: Array, out: Array) -> None:
        """a·b + addend; `out` is not the addend."""
        np.multiply(a, b, out)
        np.add(out, addend, out)

    @staticmethod
    def limit(x: Array, low: Array, high: Array) -> None:
        """Limit numbers in place."""
        np.minimum(np.maximum(x, low, out=x), high, out=x)

    @staticmethod
    def look_up(table: Array, values: Array, places: Array, out: Array) -> None:
        """The entries at values, rounded toward zero to `places`; what lies outside of the table takes its ends."""
        places[...] = values
        table.take(places, None, out, "clip")


class _TorchSteps:
    """The same on tensors; numbers may be NaN, because nobody reads them back from their device."""

    add: ClassVar[Any] = staticmethod(torch.add)
    multiply: ClassVar[Any] = staticmethod(torch.mul)
    subtract: ClassVar[Any] = staticmethod(torch.sub)
    floor: ClassVar[Any] = staticmethod(torch.floor)
    round: ClassVar[Any] = staticmethod(torch.round)

    def __init__(self, weight: Tensor) -> None:
        """For a weight [D, K, N] that each step multiplies states [D, B, K] with."""
        self._weight = weight

    @staticmethod
    def view(tensor: Tensor) -> Array:
        return tensor

    @staticmethod
    def numbers(zero: Tensor, *values: float) -> Iterable[Array]:
        """Constants, which are NaN if `zero` is."""
        return [zero + value for value in values]

    def product(self, state: Tensor, out: Tensor) -> None:
        """The state's product with the weight, which is float32 beside sums of float64 where that is exact."""
        if self._weight.dtype == out.dtype:
            torch.bmm(state, self._weight, out=out)
        else:
            out.copy_(torch.bmm(state.to(self._weight.dtype), self._weight))

    def add_product(self, total: Tensor, state: Tensor) -> None:
        total.baddbmm_(state, self._weight)

    @staticmethod
    def multiply_add(addend: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.addcmul(addend, a, b, out=out)

    @staticmethod
    def limit(x: Tensor, low: Any, high: Any) -> None:
        x.clamp_(low, high)

    @staticmethod
    def look_up(table: Tensor, values: Tensor, places: Tensor, out: Tensor) -> None:
        places.copy_(values).clamp_(0, len(table) - 1)  # NaN becomes one of them, too
        torch.index_select(table, 0, places.view(-1), out=out.view(-1))


Steps = _NumpySteps | _TorchSteps


def steps_for(state: Tensor, weight: Tensor, *, is_on_device: bool = False) -> Steps:
    """The cheaper arithmetic for states [D, B, K] that each step multiplies with a weight [D, K, N]."""
    is_large = state[..., 0].numel() * max(weight.shape[1:]) > LARGEST_STEP
    if is_on_device or is_large or not state.is_cpu:
        return _TorchSteps(weight)
    return _NumpySteps(weight, state)


def quiet() -> AbstractContextManager[None]:
    """Gradients may overflow without a warning, as they do in torch."""
    return np.errstate(over="ignore", invalid="ignore")


def per_step(buffer: Array, steps: int) -> Iterable[Array]:
    """One view per step of a buffer that holds all steps, or only one that each step writes over."""
    return buffer if len(buffer) == steps else [buffer[0]] * steps
