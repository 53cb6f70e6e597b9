# SPDX-License-Identifier: Apache-2.0
"""The data of a job: samples or batches with their labels, divided into what may be seen and what is judged by."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linger.analysis.batches import (
    Batch,
    BoundBatch,
    Forward,
    as_tensors,
    can_be_labels,
    evaluating,
    fresh,
    joined_rows,
    keywords_of,
    read_arguments,
    rows_of_batch,
    run_batch,
    tensors_of,
    values_of,
)
from linger.errors import LingerError, UsageError, listing
from linger.simulation import ExampleCall, default_names

HELD_OUT = 5
"""One sample of so many is held out, and one at least."""

LABELS = ("labels", "label", "y", "targets", "target")
"""Names of an array that holds labels, not an argument of the model."""

_SEED = 18
"""Which samples are held out is the same for every run, so that runs with other settings can be compared."""


@dataclass(frozen=True)
class Piece:
    """One sample, or one batch as the user made it."""

    arguments: Batch  # of one forward pass; a `BoundBatch` has some of them by name
    labels: Tensor | None = None  # the right decisions; None where nobody knows them
    group: str | None = None  # what it is a part of, such as a recording; parts of one group are held out together


@dataclass(frozen=True)
class Samples:
    """Data for a model: `what` they are for people, as `48 images of photos`, and what a reader should know about them."""

    pieces: tuple[Piece, ...] = field(repr=False)  # samples, each a batch of one; or batches as the user made them
    are_rows: bool  # whether the pieces are samples, so that they can be put together as one likes
    what: str = ""
    are_labels_sure: bool = True  # somebody said that the labels are labels; else they stand where labels usually do
    notes: tuple[str, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether the right decisions are known, all of them."""
        return bool(self.pieces) and all(piece.labels is not None for piece in self.pieces)

    @property
    def unit(self) -> str:
        """What a piece is called."""
        return "sample" if self.are_rows else "batch"

    def __len__(self) -> int:
        return len(self.pieces)

    def batches(self, size: int) -> list[Piece]:
        """The pieces in batches of at most `size` samples; batches of the user's own stay as they are."""
        if not self.are_rows:
            return list(self.pieces)
        return [_joined(self.pieces[i : i + size]) for i in range(0, len(self.pieces), size)]

    def divided(self) -> tuple[Samples, Samples]:
        """What steps may see, and one piece in five, which they may not, chosen at random by a fixed seed.

        Pieces of one group stay together. A single piece serves for both, and a note says so.
        """
        if len(self.pieces) < 2:
            note = f"The data are one {self.unit}, so the figures are about data that tuning has seen."
            return self, replace(self, notes=(*self.notes, note))
        chosen = self._chosen()
        seen = tuple(piece for i, piece in enumerate(self.pieces) if i not in chosen)
        return replace(self, pieces=seen), replace(self, pieces=tuple(self.pieces[i] for i in sorted(chosen)))

    def _chosen(self) -> set[int]:
        """The places of the pieces that are held out."""
        groups: dict[int | str, list[int]] = {}
        for i, piece in enumerate(self.pieces):
            groups.setdefault(i if piece.group is None else piece.group, []).append(i)
        count, members = max(1, len(self) // HELD_OUT), list(groups.values())
        if len(groups) == 1:  # the end of the only group, with one neighbor that is seen
            return set(range(len(self) - count, len(self)))
        chosen: set[int] = set()
        for place in torch.randperm(len(groups), generator=torch.Generator().manual_seed(_SEED)).tolist():
            if len(chosen) < count and len(chosen) + len(members[place]) <= 2 * count:
                chosen |= set(members[place])
        return chosen or set(sorted(members, key=len)[0])


def of_arrays(arguments: Sequence[Tensor], labels: Tensor | None, what: str) -> Samples:
    """Samples along the first axis of every argument, at least one and as many of each; a `BoundBatch` has some of them by name."""
    batch = arguments if isinstance(arguments, BoundBatch) else tuple(arguments)
    sizes = [len(a) if a.dim() else 0 for a in values_of(batch)]
    if len(set(sizes)) != 1 or sizes == [0]:
        raise UsageError(
            f"{what}: the arrays hold {listing(map(str, sizes))} samples along their first axis. Give every argument of the "
            "model with the same number of samples, at least one."
        )
    if labels is not None and (not labels.dim() or len(labels) != sizes[0]):
        raise UsageError(
            f"{what}: {len(labels) if labels.dim() else 'one number as'} labels for {sizes[0]} samples. Give a label for each."
        )
    return Samples(rows_of(Piece(batch, labels)), are_rows=True, what=what)


def of_user(data: object, model: nn.Module, what: str, *, batch: int, limit: int | None) -> Samples:
    """What a user's callable returned: a tensor, a tuple, a torch Dataset, or anything that gives batches.

    A batch is a tensor, or a tuple (or list) of a model's arguments; one more than the model needs, of whole numbers, one for
    each sample, is the labels.
    """
    from torch.utils.data import DataLoader, Dataset, IterableDataset

    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        data = DataLoader(data, batch_size=batch)
    data = as_tensors(data, Forward.of(model), what) if isinstance(data, (np.ndarray, Mapping)) else data
    has_names = isinstance(data, dict) and next(tensors_of(data), None) is not None
    if has_names or isinstance(data, (Tensor, tuple)):
        piece = _piece(data, model, what, is_item=False)
        if _has_rows(piece.arguments):
            return limited(replace(of_arrays(piece.arguments, piece.labels, what), are_labels_sure=False), limit)
        return Samples((piece,), are_rows=False, what=what, are_labels_sure=False)
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise UsageError(
            f"{what}: {type(data).__name__} is no data. Give a tensor, a tuple of arguments, a Dataset, or an iterable of batches."
        )
    pieces = tuple(_piece(item, model, what, is_item=True) for item in islice(_told(data, what), limit))
    if not pieces:
        raise UsageError(f"{what}: it gave no batch. Return at least one batch of typical inputs.")
    return Samples(pieces, are_rows=False, what=what, are_labels_sure=False)


def _has_rows(arguments: Batch) -> bool:
    """Whether all arguments are tensors with a common first axis."""
    sizes = {len(a) if isinstance(a, Tensor) and a.dim() else 0 for a in values_of(arguments)}
    return len(sizes) == 1 and sizes != {0}


def without_labels(samples: Samples) -> Samples:
    """The same data; nobody knows the right decisions."""
    return replace(samples, pieces=tuple(replace(piece, labels=None) for piece in samples.pieces))


def limited(samples: Samples, limit: int | None) -> Samples:
    """At most so many samples, evenly from all of them: sorted data keep all of their classes."""
    return replace(samples, pieces=tuple(samples.pieces[i] for i in spread(len(samples), limit)))


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` places of `count`, evenly.

    >>> spread(10, 3), spread(2, None)
    ([0, 3, 6], [0, 1])
    """
    if limit is None or limit >= count:
        return list(range(count))
    return [i * count // limit for i in range(limit)]


def rows_of(piece: Piece) -> tuple[Piece, ...]:
    """Every sample of a batch."""
    rows = [slice(i, i + 1) for i in range(len(values_of(piece.arguments)[0]))]
    labels = piece.labels
    return tuple(Piece(rows_of_batch(piece.arguments, i), None if labels is None else labels[i]) for i in rows)


def seen_before(seen: Samples, kept: Samples) -> tuple[int, int]:
    """How many samples of `kept` are also among the `seen` ones, bit for bit, and how many there are."""
    known = set(_digests(seen))
    repeated = [digest in known for digest in _digests(kept)]
    return sum(repeated), len(repeated)


def _digests(samples: Samples) -> Iterator[bytes]:
    """One for each sample; for a batch as a whole where its arguments have no common first axis."""
    for piece in samples.pieces:
        for row in rows_of(piece) if _has_rows(piece.arguments) else (piece,):
            digest = hashlib.blake2b(digest_size=16)
            for tensor in values_of(row.arguments):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            yield digest.digest()


def checked_arguments(samples: Samples, what: str) -> None:
    """Refuse arguments that cannot be inputs of a file: what is no tensor, NaN and infinity, in all pieces."""
    given = [values_of(p.arguments) for p in samples.pieces]
    kinds = sorted({type(a).__name__ for arguments in given for a in arguments if not isinstance(a, Tensor)})
    if kinds:
        raise UsageError(
            f"{what}: among the arguments is {listing(kinds)}. The inputs of a file are tensors: give tensors, and let a "
            "module around your model build what it needs from them."
        )
    wrong = [str(i) for i, arguments in enumerate(given) if not all(bool(a.isfinite().all()) for a in arguments)]
    if wrong:
        raise UsageError(
            f"{what}: {samples.unit} {listing(wrong, limit=8)} holds NaN or infinity. Leave such data out."
        )


def _joined(pieces: Sequence[Piece]) -> Piece:
    """Samples as one batch."""
    labels = [piece.labels for piece in pieces if piece.labels is not None]
    arguments = joined_rows([piece.arguments for piece in pieces])
    return Piece(arguments, torch.cat(labels) if len(labels) == len(pieces) else None)


def require_alike(*data: Samples) -> None:
    """Refuse data of which some give arguments that others leave out: a file has one list of inputs."""
    calls = {(len(p.arguments), tuple(keywords_of(p.arguments))): p for samples in data for p in samples.pieces}
    if len(calls) > 1:
        texts = (", ".join((f"{count} by position", *names)) for count, names in calls)
        raise UsageError(
            f"data: the batches do not give the same arguments ({'; '.join(texts)}), and a file has one list of inputs. Give every "
            "batch, those of the test data too, with the same arguments."
        )


def _told(data: Iterable[Any], what: str) -> Iterator[Any]:
    """The items of a user's iterable, whose errors are told."""
    try:
        yield from data
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{what}: it fails while it gives batches ({type(error).__name__}: {error}).") from error


def _piece(item: Any, model: nn.Module, what: str, *, is_item: bool) -> Piece:
    """One batch, with labels where the last of its parts can be nothing else, or is called so."""
    forward = Forward.of(model)
    inputs, labels = _apart(as_tensors(item, forward, what), forward)
    if isinstance(inputs, (tuple, list)) and not inputs:
        raise UsageError(f"{what}: it gave an empty batch. Return tensors.")
    batch = forward.bound(*read_arguments(forward, inputs, where=what, is_item=is_item))
    named = {name: _as_given(part) for name, part in batch.keywords.items()}
    return Piece(BoundBatch(map(_as_given, batch), named), labels)


def _apart(item: Any, forward: Forward) -> tuple[Any, Tensor | None]:
    """The inputs of a batch, and its labels."""
    if isinstance(item, dict):
        named = {name: item[name] for name in LABELS if name in item and name not in forward.names}
        labels = next(iter(named.values()), None)
        rest = {name: part for name, part in item.items() if name not in named}
        return rest, labels.detach() if isinstance(labels, Tensor) and not labels.is_floating_point() else None
    if isinstance(item, (tuple, list)) and len(item) > max(1, forward.needed) and can_be_labels(item):
        return item[:-1], item[-1].detach()
    return item, None


def _as_given(part: Any) -> Any:
    """A tensor without its history; real numbers of 64 bits as the 32 bits that models have."""
    if not isinstance(part, Tensor):
        return part
    return part.detach().float() if part.dtype == torch.float64 else part.detach()


def positional_arguments(model: nn.Module, *, needed_only: bool = False) -> list[str]:
    """The names of the arguments that forward takes by position; or of those that it cannot do without."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and (not needed_only or p.default is inspect.Parameter.empty)]


BATCH = "batch"
Axes = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Edges:
    """Inputs and outputs of a model by their names in the file, and the axes whose sizes are left open, maybe that of samples."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axes: Axes
    is_batch_open: bool


def edges_of(model: nn.Module, batches: Sequence[Batch], *, can_open: bool = True) -> Edges:
    """Names and open sizes of a float model for batches of tensors.

    Args:
        model: The float model.
        batches: All of the data; sizes that differ between batches are left open.
        can_open: False: every size is that of the first batch.
    """
    first = batches[0]
    inputs = default_names(model, ExampleCall(tuple(first), keywords_of(first)))
    shapes = _output_shapes(model, first)
    outputs = tuple(map(output_name, range(len(shapes))))
    if not can_open:
        return Edges(inputs, outputs, {}, is_batch_open=False)
    sizes = _shapes(values_of(first))
    variants = [(first, other) for other in batches[1:] if _shapes(values_of(other)) != sizes]
    rows = _rows_apart(model, first)
    axes: dict[str, dict[int, str]] = {}
    for one, other in ([rows] if rows is not None else []) + variants[:1]:
        is_rows = rows is not None and one is rows[0]
        _open(axes, inputs, _shapes(values_of(one)), _shapes(values_of(other)), is_rows=is_rows)
        _open(axes, outputs, _output_shapes(model, one), _output_shapes(model, other), is_rows=is_rows)
    for _, other in variants[1:]:
        _open(axes, inputs, sizes, _shapes(values_of(other)))
    return Edges(inputs, outputs, axes, is_batch_open=rows is not None)


def _open(
    axes: dict[str, dict[int, str]],
    names: Sequence[str],
    one: list[list[int]],
    other: list[list[int]],
    *,
    is_rows: bool = False,
) -> None:
    """Add the axes whose sizes differ; in pairs of one and two samples, all of them count samples."""
    for name, first, second in zip(names, one, other, strict=False):
        differing = [i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
        for axis in differing:
            label = BATCH if is_rows or axis == 0 else f"{name}_{axis}"
            axes.setdefault(name, {}).setdefault(axis, label)


def _rows_apart(model: nn.Module, batch: Batch) -> tuple[Batch, Batch] | None:
    """The first sample, and two samples, where a model takes any number of them; else None."""
    if not _has_rows(batch):
        return None
    one = rows_of_batch(batch, slice(1))
    two = joined_rows([one, one])
    try:
        shapes = [_output_shapes(model, part) for part in (one, two)]
    except LingerError:
        return None
    return (one, two) if all(a != b for a, b in zip(*shapes, strict=True)) else None


def _output_shapes(model: nn.Module, batch: Batch) -> list[list[int]]:
    with torch.no_grad(), evaluating(model):
        return _shapes(tuple(tensors_of(run_batch(model, fresh(batch)))))


def _shapes(tensors: Batch) -> list[list[int]]:
    return [list(t.shape) for t in values_of(tensors)]


def output_name(place: int) -> str:
    """How an output is called that has no other name."""
    return f"output_{place}" if place else "output"
