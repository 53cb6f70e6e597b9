# SPDX-License-Identifier: Apache-2.0
"""Witnesses: further computations of a file's network, such as compiled C, that are held against the file.

A witness may have a batch size of its own; exported C takes one sample. A batch is cut into samples of that size, and the tensors
of the samples are joined again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from linger.errors import LingerError, UsageError, counted, listing, printable
from linger.records.table import picked
from linger.verification.array_files import Array

Arrays = Mapping[str, Array]
Shapes = Mapping[str, Sequence[object]]
"""The shape of each input by name; sizes that are no numbers are open."""


def cut_to(shapes: Shapes, feeds: Arrays, where: str) -> list[Arrays]:
    """The samples of a batch, each of the sizes that are asked for; an input that has its size already is part of each.

    An input that is not among `shapes` is not cut.

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
    """Joins the tensors of samples to those of a batch; `compute` gives those that the file has for one sample."""

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
        if place[1] == 1:  # it depends on no sample: the first that is another one than the file's, if any
            return next((part for part in parts if not np.array_equal(part, whole)), parts[0])
        return self._in_order(name, parts, place[0])

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


def _interleaved(parts: list[Array], axis: int) -> Array:
    stacked = np.stack(parts, axis + 1)
    return stacked.reshape(*stacked.shape[:axis], -1, *stacked.shape[axis + 2 :])


_ACCEPTED = "Give what linger.c.build returns, or an object with intermediates(feeds) and run(None, feeds)"
_PLAIN_VALUES = (str, bool, int)


class Witness(Protocol):
    """Another computation of the same network. `linger.c.build` returns one.

    A witness may have more: `get_inputs()` with the name and the shape of each input, by which a batch is cut into samples;
    `intermediates_many(samples)` and `run_many(samples)`, which compute all samples of a batch in one call and return arrays by
    name; `model_sha256`, the SHA-256 of the file that it was made from; `origin`, a mapping of what a certificate keeps of it.
    """

    @property
    def description(self) -> str:
        """What messages call it."""
        ...

    def intermediates(self, feeds: Arrays) -> Arrays:
        """Every tensor by its name in the file."""
        ...

    def run(self, output_names: None, feeds: Arrays) -> Sequence[Array]:
        """The outputs in the order of the file."""
        ...


Witnesses = Witness | Sequence[Witness] | None
"""One witness, several, or none."""


def as_witnesses(given: Witnesses) -> tuple[Witness, ...]:
    """A list of witnesses from one, several or none.

    Raises:
        UsageError: Something is no witness, or computes frame by frame.
    """
    found = () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (cast(Witness, given),)
    wrong = [type(one).__name__ for one in found if not (hasattr(one, "intermediates") and hasattr(one, "run"))]
    if wrong:
        raise UsageError(f"verify: a {listing(wrong)} is no witness. {_ACCEPTED}.")
    frames = [_described(one) for one in found if getattr(one, "is_streaming", False)]
    if frames:
        raise UsageError(
            f"verify: {listing(frames)} computes frame by frame, and the file whole sequences. Compare it with linger.c.prove, or "
            "build a folder that was exported without stream=…."
        )
    return found


def require_same_model(witnesses: Iterable[Witness], sha256: Callable[[], str], where: str) -> None:
    """Refuse witnesses that were made from another file. One that does not know its file is taken.

    `sha256` computes that of the file; it is not called where no witness names one.

    Raises:
        UsageError: Some were; all of them are named.
    """
    said = {_described(one): str(known) for one in witnesses if (known := getattr(one, "model_sha256", None))}
    digest = sha256() if said else ""
    other = [f"{name} (SHA-256 {known[:12]}…)" for name, known in said.items() if known != digest]
    if other:
        raise UsageError(
            f"verify: {listing(other)} was made from another file than {where} (SHA-256 {digest[:12]}…). Export it again from "
            "this file, or give the file that it was made from."
        )


def _described(witness: Witness) -> str:
    return printable(str(getattr(witness, "description", type(witness).__name__)))


@dataclass
class WitnessRow:
    """What one witness was compared on, over all batches.

    Attributes:
        description: What messages call the witness.
        origin: What a certificate keeps of it: compiler, target, fingerprints.
        integers: How many integers were compared.
        differing: How many of them differ.
        others: How many other values were compared: real numbers, and the outputs of a plain run.
        other_differences: How many of those differ.
        missing: Tensors and outputs of the file that the witness does not show.
    """

    description: str
    origin: Mapping[str, Any] = field(default_factory=dict)
    integers: int = 0
    differing: int = 0
    others: int = 0
    other_differences: int = 0
    missing: tuple[str, ...] = ()
    _names: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def tensors(self) -> int:
        """How many integer tensors were compared."""
        return len(self._names)

    @property
    def ok(self) -> bool:
        """Whether the witness agrees in everything, and was asked about something."""
        return self.integers > 0 and not (self.differing or self.other_differences or self.missing)

    def add(self, name: str, differs: NDArray[np.bool_], *, is_integer: bool) -> None:
        """Count one tensor of one batch, by the places where it differs."""
        count = int(np.count_nonzero(differs))
        if is_integer:
            self._names.add(name)
            self.integers += differs.size
            self.differing += count
        else:
            self.others += differs.size
            self.other_differences += count

    def add_missing(self, name: str) -> None:
        """Note a tensor that the witness does not show."""
        if name not in self.missing:
            self.missing = (*self.missing, name)

    def __str__(self) -> str:
        text = f"{self.description}: {self.differing} of {self.integers} integers differ ({counted(self.tensors, 'tensor')})"
        if self.other_differences:
            text += f", {self.other_differences} of {self.others} other values differ"
        return f"{text}, it does not show {listing(self.missing)}" if self.missing else text

    def as_dict(self) -> dict[str, Any]:
        """The row as a certificate has it."""
        counts = picked(self, "tensors integers differing others other_differences")
        return {"description": self.description, "origin": dict(self.origin), **counts, "missing": list(self.missing)}


@dataclass(frozen=True)
class Statement:
    """What a witness computed for a batch: every tensor that the file has, too, and the outputs of a plain run.

    `is_empty` says that the batch has no sample, so that the witness was not asked.
    """

    tensors: Arrays = field(default_factory=dict)
    outputs: Arrays = field(default_factory=dict)
    is_empty: bool = False


class WitnessStand:
    """Asks one witness, batch by batch; its label is what messages call it, and no other one's."""

    def __init__(self, witness: Witness, label: str, outputs: Sequence[str]) -> None:
        self.row = WitnessRow(label, _plain(getattr(witness, "origin", {})))
        self._witness = witness
        self._outputs = tuple(outputs)
        self._shapes: dict[str, tuple[object, ...]] | None = None

    def ask(self, feeds: Arrays, file: Arrays, compute: Callable[[Arrays], Arrays]) -> Statement:
        """Run the witness on a batch.

        Args:
            feeds: The inputs of the batch.
            file: Every tensor of the file for this batch, as numpy computes it.
            compute: Computes the tensors of the file for other inputs; it is called if samples could be joined in two ways.

        Raises:
            UsageError: The inputs are no samples of what the witness takes.
            LingerError: The witness crashed.
        """
        if self._shapes is None:
            known: Iterable[Any] = getattr(self._witness, "get_inputs", list)()
            self._shapes = {str(one.name): tuple(one.shape) for one in known}
        samples = cut_to(self._shapes, feeds, self.row.description)
        if not samples:
            return Statement(is_empty=True)
        tensors = self._call("intermediates", samples, self._witness.intermediates)
        outputs = self._call("run", samples, self._run)
        join = Join(samples, file, compute)
        return Statement(join.all(tensors), join.all(outputs))

    def _run(self, feeds: Arrays) -> Arrays:
        found = list(self._witness.run(None, feeds))
        if len(found) != len(self._outputs):
            raise LingerError(f"it returns {counted(len(found), 'output')}, the file has {len(self._outputs)}.")
        return dict(zip(self._outputs, found, strict=True))

    def _call(
        self, method: str, samples: Sequence[Arrays], ask_one: Callable[[Arrays], Arrays]
    ) -> list[dict[str, Array]]:
        """The answers to all samples, from one call where the witness can do that."""
        ask_all = getattr(self._witness, f"{method}_many", None)
        try:
            found = [ask_one(feed) for feed in samples] if ask_all is None else ask_all(samples)
            answers = [{name: np.asarray(array) for name, array in answer.items()} for answer in found]
        except UsageError as error:
            raise UsageError(f"verify: {self.row.description} cannot be run: {error}") from error
        except Exception as error:  # a witness is foreign code and may raise anything
            text = printable(str(error) or type(error).__name__)
            raise LingerError(f"verify: {self.row.description} failed as a witness: {text}") from error
        if len(answers) != len(samples):
            raise LingerError(
                f"verify: {self.row.description} failed as a witness: it answered {len(answers)} of {len(samples)} samples."
            )
        return answers


def make_stands(
    witnesses: Iterable[Witness], outputs: Sequence[str], *, taken: Iterable[str]
) -> dict[str, WitnessStand]:
    """A stand for each witness by its label: the description, with a number where another computation is called so, too."""
    found: dict[str, WitnessStand] = {}
    reserved = set(taken)
    for witness in witnesses:
        name, number = _described(witness), 1
        label = name
        while label in found or label in reserved:
            number += 1
            label = f"{name} #{number}"
        found[label] = WitnessStand(witness, label, outputs)
    return found


def _plain(origin: object) -> dict[str, Any]:
    """What a JSON file can hold of a witness's origin."""
    items = origin.items() if isinstance(origin, Mapping) else ()
    return {str(key): value if isinstance(value, _PLAIN_VALUES) else str(value) for key, value in items}
