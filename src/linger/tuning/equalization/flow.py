# SPDX-License-Identifier: Apache-2.0
"""Which channels must share a factor: a number for every channel, and numbers that are the same (a union-find).

Each weight has one number per output channel (a row) and one per input channel (a column). A tensor of the model has
labels: a tensor of its shape that holds, for every element, the number of the channel whose factor the element carries. A
tensor without labels carries none. Multiplying rows by their factors and dividing columns by theirs then changes no output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

Numbers = NDArray[np.int64]

PINNED = 0
"""The channel whose factor is 1: whatever is joined with it stays as it is."""

ANY = -1
"""The label of an element that is always zero, as in padding: every factor suits it."""


class Form(NamedTuple):
    """How a weight lies in memory: [outputs, inputs/groups, …], or [inputs, outputs/groups, …] if transposed."""

    groups: int = 1
    is_transposed: bool = False

    def rows(self, shape: torch.Size) -> int:
        """Output channels of a weight of this shape."""
        return shape[1] * self.groups if self.is_transposed else shape[0]

    def columns(self, shape: torch.Size) -> int:
        """Input channels of a weight of this shape."""
        return shape[0] if self.is_transposed else shape[1] * self.groups


@dataclass
class Norm:
    """A batch norm by the names of its state."""

    weight: str
    bias: str | None
    mean: str
    var: str
    eps: float


@dataclass
class Layer:
    """A weight, or a batch norm.

    Attributes:
        name: The name of the weight, or of the batch norm's.
        rows, columns: Numbers of its output and its input channels.
        weight: Name of the weight; None for a batch norm alone.
        form: How the weight lies in memory.
        biases: Names of what is added to the weight's product.
        norm: The batch norm, where the layer is one.
        reader: The batch norm that reads a weight's product; then the weight's own rows have no factors. The layer itself,
            if there are several.
        is_padded: Whether zeros are added around its input.
        input_power: Mean square of every input channel, from what was watched.
        output_power: Mean square of all outputs.
        lowest, mean, deviation: The least output of each channel, and the least mean and largest standard deviation of a pass.
    """

    name: str
    rows: Numbers
    columns: Numbers
    weight: str | None = None
    form: Form = field(default_factory=Form)
    biases: set[str] = field(default_factory=set)
    norm: Norm | None = None
    reader: Layer | None = None
    is_padded: bool = False
    input_power: NDArray[np.float64] | None = None
    output_power: float = 0.0
    lowest: NDArray[np.float64] | None = None
    mean: NDArray[np.float64] | None = None
    deviation: NDArray[np.float64] | None = None


class Channels:
    """All channels of a model, joined while the model is watched."""

    def __init__(self) -> None:
        self._parents = [PINNED]
        self._labels = WeakTensorKeyDictionary()
        self._largest: dict[int, float] = {}
        self.with_origin: set[int] = set()  # numbers of channels that a constant cannot be added to

    def new(self, count: int) -> Numbers:
        """Numbers of channels that nothing is known of yet."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def find(self, number: int) -> int:
        """The number that stands for all that were joined with this one."""
        root = number
        while self._parents[root] != root:
            root = self._parents[root]
        while self._parents[number] != root:
            self._parents[number], number = root, self._parents[number]
        return root

    def roots(self, numbers: Numbers) -> Numbers:
        """`find` of each."""
        return np.array([self.find(int(n)) for n in numbers], dtype=np.int64)

    def join(self, first: Numbers, second: Numbers) -> None:
        """Let channels have one factor, pair by pair."""
        for a, b in {(int(a), int(b)) for a, b in zip(first, second, strict=True)}:
            if ANY not in (a, b):
                low, high = sorted((self.find(a), self.find(b)))
                self._parents[high] = low  # so the pinned one stays the root

    def pin(self, numbers: Numbers) -> None:
        """Let channels keep the factor 1."""
        self.join(numbers, np.full_like(numbers, PINNED))

    # tensors
    def labels(self, tensor: Tensor) -> Tensor | None:
        """The labels of a tensor; None if it carries no factors."""
        found: Tensor | None = self._labels.get(tensor)
        return found

    def label(self, tensor: Tensor, labels: Tensor) -> None:
        """Give a tensor its labels, repeated to its shape."""
        self._labels[tensor] = labels.expand(tensor.shape)

    def label_axis(self, tensor: Tensor, axis: int, numbers: Numbers) -> None:
        """Give every index along an axis its number."""
        sizes = [1] * tensor.dim()
        sizes[axis] = -1
        self.label(tensor, torch.from_numpy(numbers).double().reshape(sizes))

    def pin_tensor(self, tensor: Tensor) -> None:
        """Let all channels of a tensor keep the factor 1."""
        labels = self.labels(tensor)
        if labels is not None:
            self.pin(as_numbers(compact(labels).unique()))

    def keep_origin(self, tensor: Tensor) -> None:
        """Note that a function of a tensor is another one when a constant is added to a channel."""
        labels = self.labels(tensor)
        if labels is not None:
            self.with_origin.update(as_numbers(compact(labels).unique()).tolist())
            self.with_origin.discard(ANY)

    def along(self, labels: Tensor, axis: int) -> Numbers:
        """One number per index of an axis; what else an index holds is joined with it."""
        axis %= labels.dim()
        others = [d for d in range(labels.dim()) if d != axis]
        numbers = as_numbers(self.collapse(labels, others).reshape(-1))
        return np.broadcast_to(numbers, (labels.shape[axis],))

    def collapse(self, labels: Tensor, axes: list[int]) -> Tensor:
        """Labels in which some axes have the size 1, because all along them was joined."""
        small = compact(labels)
        if not axes or small.numel() == 0:
            return small
        highest = small.amax(axes, keepdim=True)
        lowest = torch.where(small < 0, torch.inf, small).amin(axes, keepdim=True)
        if not bool(((highest == lowest) | (highest < 0)).all()):
            repeated = highest.expand(small.shape)
            pairs = torch.stack([small.reshape(-1), repeated.reshape(-1)]).unique(dim=1)
            self.join(as_numbers(pairs[0]), as_numbers(pairs[1]))
        kept = [1 if d in axes else labels.shape[d] for d in range(labels.dim())]
        return highest.expand(kept)

    def join_labels(self, first: Tensor, second: Tensor) -> Tensor:
        """Join two tensors of labels, element by element, each repeated as a sum would; returns those of the sum."""
        a, b = torch.broadcast_tensors(compact(first), compact(second))
        pairs = torch.stack([a.reshape(-1), b.reshape(-1)]).unique(dim=1)
        self.join(as_numbers(pairs[0]), as_numbers(pairs[1]))
        return torch.where(a < 0, b, a)

    # magnitudes
    def observe(self, tensor: Tensor, axis: int, numbers: Numbers) -> None:
        """Note the largest magnitude of each index along an axis, as one of that channel."""
        others = [d for d in range(tensor.dim()) if d != axis % tensor.dim()]
        if tensor.numel() == 0:
            return
        found = tensor.detach().abs().amax(others) if others else tensor.detach().abs()
        for number, value in zip(numbers.tolist(), found.tolist(), strict=True):
            self._largest[number] = max(value, self._largest.get(number, 0.0))

    def largest(self) -> dict[int, float]:
        """The largest magnitude that each channel was seen with, by the number that stands for it."""
        found: dict[int, float] = {}
        for number, value in self._largest.items():
            root = PINNED if number == ANY else self.find(number)
            found[root] = max(value, found.get(root, 0.0))
        return found


def compact(labels: Tensor) -> Tensor:
    """Labels without the repetitions of expand(): the size of such axes is 1."""
    for axis, (size, stride) in enumerate(zip(labels.shape, labels.stride(), strict=True)):
        if stride == 0 and size > 1:
            labels = labels.narrow(axis, 0, 1)
    return labels


def as_numbers(labels: Tensor) -> Numbers:
    """Labels as numbers of channels."""
    found: Numbers = labels.to(torch.int64).numpy()
    return found
