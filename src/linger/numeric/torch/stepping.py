# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of one step of a recurrent loop, on arrays of numpy or on tensors of torch, with the same numbers.

A step does little work, so what each call costs decides. Numpy's calls cost a third of torch's, and its arrays share the
memory of the tensors. Torch does what is on another device, and what is so large that it would use several threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

Array = Any
"""An array of numpy or a tensor, whichever the arithmetic takes."""

LARGEST_STEP = 1 << 15
"""Elements of a step from which on torch shares the work among threads; numpy never does."""

LARGEST_PRODUCT = 1 << 18
"""Multiplications up to which OpenBLAS, which numpy has, stays in one thread; its others would wait between the steps."""

MOST_BLOCKS = 4
"""Products of at most so many blocks of that size are numpy's; torch does larger ones, with its own threads."""


class NumpySteps:
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
        """The entries at values, rounded towards zero to `places`; what lies outside of the table takes its ends."""
        places[...] = values
        table.take(places, None, out, "clip")


class TorchSteps:
    """Steps on tensors; numbers may be NaN, because nobody reads them back from their device."""

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
        """The tensor itself."""
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
        """`product`, added to a total."""
        total.baddbmm_(state, self._weight)

    @staticmethod
    def multiply_add(addend: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
        """a·b + addend; `out` is not the addend."""
        torch.addcmul(addend, a, b, out=out)

    @staticmethod
    def limit(x: Tensor, low: Any, high: Any) -> None:
        """Limit numbers in place."""
        x.clamp_(low, high)

    @staticmethod
    def look_up(table: Tensor, values: Tensor, places: Tensor, out: Tensor) -> None:
        """The entries at values, rounded towards zero to `places`; what lies outside of the table takes its ends."""
        places.copy_(values).clamp_(0, len(table) - 1)  # NaN becomes one of them, too
        torch.index_select(table, 0, places.view(-1), out=out.view(-1))


Steps = NumpySteps | TorchSteps


def steps_for(state: Tensor, weight: Tensor, *, is_on_device: bool = False) -> Steps:
    """The cheaper arithmetic for states [D, B, K] that each step multiplies with a weight [D, K, N]."""
    is_large = state[..., 0].numel() * max(weight.shape[1:]) > LARGEST_STEP
    if is_on_device or is_large or not state.is_cpu:
        return TorchSteps(weight)
    return NumpySteps(weight, state)


def quiet() -> AbstractContextManager[None]:
    """Gradients may overflow without a warning, as they do in torch."""
    return np.errstate(over="ignore", invalid="ignore")


def per_step(buffer: Array, steps: int) -> Iterable[Array]:
    """One view per step of a buffer that holds all steps, or only one that each step writes over."""
    return buffer if len(buffer) == steps else [buffer[0]] * steps
