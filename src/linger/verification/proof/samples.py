# SPDX-License-Identifier: Apache-2.0
"""Cut a batch into samples for a computation with a batch size of its own, and join the tensors of the samples again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import numpy as np

from linger.errors import LingerError, UsageError, listing
from linger.verification.array_files import Array

Arrays = Mapping[str, Array]
Shapes = Mapping[str, Sequence[object]]
"""The shape of each input by name; sizes that are no numbers are open."""


def cut_to(shapes: Shapes, feeds: Arrays, where: str) -> list[Arrays]:
    """The samples of a batch, each of the sizes that are asked for; an input that has its size already is part of each.

    Args:
        shapes: The sizes of a sample; an input that is not among them is not cut.
        feeds: The inputs of the batch.
        where: What takes the samples, for the message.

    Raises:
        UsageError: The batch is no multiple of a sample.
    """
    found = _places(shapes, feeds)
    counts = {times for _, times in found.values()} - {1}
    if len(found) < len(feeds) or len(counts) > 1:
        takes, given = _listed(shapes), _listed({name: np.shape(array) for name, array in feeds.items()})
        raise UsageError(f"verify: {where} takes {takes}; the batch has {given}, which is no multiple of it.")
    count = counts.pop() if counts else 1
    if count <= 1:
        return [feeds] * count
    parts = {name: _split(feeds[name], axis, times, count) for name, (axis, times) in found.items()}
    return [{name: part[number] for name, part in parts.items()} for number in range(count)]


def _places(shapes: Shapes, feeds: Arrays) -> dict[str, tuple[int, int]]:
    """The axis and the number of parts of each input that is a multiple of its sample."""
    places = {name: _multiple(shapes.get(name), np.shape(array)) for name, array in feeds.items()}
    return {name: place for name, place in places.items() if place is not None}


def _listed(shapes: Shapes) -> str:
    return listing(f"{name} {list(shape)}" for name, shape in shapes.items())


def _split(array: Array, axis: int, times: int, count: int) -> list[Array]:
    """The parts of an input; the whole of it for every sample where it has the size of one."""
    return [np.ascontiguousarray(part) for part in np.split(array, times, axis)] if times == count else [array] * count


def _multiple(part: Sequence[object] | None, whole: tuple[int, ...]) -> tuple[int, int] | None:
    """The axis along which `part` repeats to make `whole`, and how often; None where it does not. Open sizes fit all."""
    if part is None:
        return 0, 1
    if len(part) != len(whole):
        return None
    other = [axis for axis, size in enumerate(part) if isinstance(size, int) and size != whole[axis]]
    if not other:
        return 0, 1
    size = cast(int, part[other[0]])
    if len(other) > 1 or size <= 0 or whole[other[0]] % size:
        return None
    return other[0], whole[other[0]] // size


class Join:
    """Joins the tensors of samples to those of a batch.

    Args:
        samples: The inputs of each sample.
        file: Every tensor of the file for the batch.
        compute: Computes the tensors of the file for one sample.
    """

    def __init__(self, samples: Sequence[Arrays], file: Arrays, compute: Callable[[Arrays], Arrays]) -> None:
        self._samples = samples
        self._file = file
        self._compute = compute
        self._computed: list[Arrays] | None = None

    def all(self, answers: Sequence[Arrays]) -> dict[str, Array]:
        """The tensors that every answer and the file have."""
        names = [name for name in answers[0] if name in self._file and all(name in answer for answer in answers)]
        return {name: self._joined(name, [answer[name] for answer in answers]) for name in names}

    def _joined(self, name: str, parts: list[Array]) -> Array:
        whole = self._file[name]
        if len(parts) == 1:
            return parts[0]
        place = _multiple(parts[0].shape, whole.shape)
        are_alike = len({(part.shape, part.dtype) for part in parts}) == 1
        if not are_alike or place is None or place[1] not in (1, len(parts)):
            # they make no tensor of the batch: the comparison reports the type and the shape of one of them
            return next(part for part in parts if (part.shape, part.dtype) != (whole.shape, whole.dtype))
        return _common(parts, whole) if place[1] == 1 else self._in_order(name, parts, place[0])

    def _in_order(self, name: str, parts: list[Array], axis: int) -> Array:
        in_turn = np.concatenate(parts, axis)
        if parts[0].shape[axis] == 1 or np.array_equal(in_turn, self._file[name]):
            return in_turn
        return _interleaved(parts, axis) if self._is_interleaved(name, axis) else in_turn

    def _is_interleaved(self, name: str, axis: int) -> bool:
        """Whether the file has the first rows of all samples first: so after a Transpose and a Reshape of time and batch.

        The file's own tensors of single samples decide that, not those of the witness.
        """
        if self._computed is None:
            try:
                self._computed = [self._compute(sample) for sample in self._samples]
            except LingerError:  # the file takes no single samples
                self._computed = []
        parts = [tensors[name] for tensors in self._computed if name in tensors]
        whole = self._file[name]
        if not parts or np.array_equal(np.concatenate(parts, axis), whole):
            return False
        return np.array_equal(_interleaved(parts, axis), whole)


def _common(parts: list[Array], whole: Array) -> Array:
    """A tensor that depends on no sample: the first that is another one than the file's, if any."""
    return next((part for part in parts if not np.array_equal(part, whole)), parts[0])


def _interleaved(parts: list[Array], axis: int) -> Array:
    stacked = np.stack(parts, axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])
