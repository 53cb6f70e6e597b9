# SPDX-License-Identifier: Apache-2.0
"""Recordings: the tensors of one forward pass as arrays, which the torch side hands to the deployment side.

In a file, a recording has the entries `inputs/…`, `integers/…` and `outputs/…`, one file per batch. Behind `inputs/` and
`outputs/` stands a number (the order of the file) or a name, behind `integers/` the name of a tensor. A file without any
of these prefixes is plain: tensors by name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from linger.errors import UsageError, counted, listing
from linger.files import write_atomically, write_folder
from linger.graph.core.nodes import required_inputs
from linger.verification.array_files import SUFFIX, Array, natural_order, npz_content, read_arrays

INPUTS, INTEGERS, OUTPUTS = "inputs/", "integers/", "outputs/"

_ACCEPTED = (
    "Give a quantized torch model, a Recording, arrays by name, an iterable of either, the path of an .npz file or of a "
    "folder of them, or None to hold the file against itself"
)


@dataclass(repr=False)
class Recording:
    """Inputs and outputs in order, integer tensors by name in the order of execution.

    Attributes:
        inputs: The inputs.
        outputs: The outputs; empty where they were not kept.
        integers: The tensors in between, by name; there may be floats among them.
        input_names: Names of the inputs; empty: they are in the order of the file.
        output_names: Names of the outputs; empty: all of them, in the order of the file.
        floats: The real numbers from which a quantized tensor was computed, by the name of that tensor, where known.
        is_complete: Whether every integer tensor of the file must be there; then a missing one counts as a difference.
    """

    inputs: list[Array] = field(default_factory=list)
    outputs: list[Array] = field(default_factory=list)
    integers: dict[str, Array] = field(default_factory=dict)
    input_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    is_complete: bool = True
    floats: dict[str, Array] = field(default_factory=dict)

    def __repr__(self) -> str:
        inputs, outputs = counted(len(self.inputs), "input"), counted(len(self.outputs), "output")
        return f"Recording({inputs}, {counted(len(self.integers), 'tensor')}, {outputs})"


def save_recordings(recordings: Recording | Iterable[Recording], path: str | os.PathLike[str]) -> list[Path]:
    """Write recordings, to be compared with a file later, where torch need not be installed.

    Args:
        recordings: One, or one per batch; `linger.record(model, inputs)` makes them.
        path: A name that ends in .npz for one recording, else a folder that does not exist yet or is empty: it gets
            `batch_0000.npz`, `batch_0001.npz` …, all of them or none.

    Returns:
        The files.

    Raises:
        UsageError: The place is taken, there is nothing to write, or an array holds Python objects.
    """
    target = Path(path)
    given = iter([recordings] if isinstance(recordings, Recording) else recordings)
    if target.suffix == SUFFIX:
        first, more = next(given, None), next(given, None)
        if first is None or more is not None:
            count = "none" if first is None else "several"
            raise UsageError(f"{target}: one file holds one recording, {count} were given. Give the name of a folder.")
        write_atomically(target, _content(first))
        return [target]
    return _save_folder(given, target)


def _save_folder(recordings: Iterator[Recording], target: Path) -> list[Path]:
    names: list[str] = []

    def fill(folder: Path) -> None:
        for number, recording in enumerate(recordings):
            names.append(f"batch_{number:04d}{SUFFIX}")
            write_atomically(folder / names[-1], _content(recording))
        if not names:
            raise UsageError(f"{target}: there are no recordings to write. Give at least one.")

    write_folder(target, fill)
    return [target / name for name in names]


def load_recordings(path: str | os.PathLike[str]) -> Iterator[Recording]:
    """The recordings of an .npz file or of every .npz file of a folder, batch_2 before batch_10; read one by one.

    Raises:
        UsageError: There is no such file, or it holds something else.
    """
    place = Path(path)
    if place.is_dir():
        files = sorted((f for f in place.iterdir() if f.suffix == SUFFIX), key=natural_order)
        if not files:
            raise UsageError(f"{place}: there is no {SUFFIX} file in this folder. linger.save_recordings writes them.")
    elif place.suffix != SUFFIX and place.exists():
        raise UsageError(f"{place}: recordings are {SUFFIX} files, or a folder of them.")
    else:
        files = [place]
        read_arrays(place, names_only=True)
    return (_recording(read_arrays(file), file) for file in files)


def _content(recording: Recording) -> bytes:
    arrays = {f"{INPUTS}{key}": a for key, a in _keyed(recording.inputs, recording.input_names)}
    arrays |= {f"{INTEGERS}{name}": a for name, a in recording.integers.items()}
    arrays |= {f"{OUTPUTS}{key}": a for key, a in _keyed(recording.outputs, recording.output_names)}
    return npz_content(arrays)


def _keyed(arrays: list[Array], names: tuple[str, ...]) -> Iterable[tuple[str, Array]]:
    return zip(names or map(str, range(len(arrays))), arrays, strict=True)


def _recording(arrays: Mapping[str, Array], path: Path) -> Recording:
    parts: dict[str, dict[str, Array]] = {INPUTS: {}, INTEGERS: {}, OUTPUTS: {}}
    strays = []
    for key, array in arrays.items():
        prefix = next((p for p in parts if key.startswith(p)), None)
        if prefix is None:
            strays.append(key)
        else:
            parts[prefix][key.removeprefix(prefix)] = array
    if strays and len(strays) < len(arrays):
        raise UsageError(
            f"{path}: {listing(strays)} stands under none of {INPUTS}, {INTEGERS}, {OUTPUTS}, though other entries do. "
            "Give every entry its prefix, or none."
        )
    if strays:
        return Recording(integers=dict(arrays), is_complete=False)
    inputs, input_names = _in_order(parts[INPUTS])
    outputs, output_names = _in_order(parts[OUTPUTS])
    return Recording(inputs, outputs, parts[INTEGERS], input_names, output_names)


def _in_order(arrays: Mapping[str, Array]) -> tuple[list[Array], tuple[str, ...]]:
    """Arrays by number in that order, without names; otherwise with their names."""
    if set(arrays) == {str(i) for i in range(len(arrays))}:
        return [arrays[str(i)] for i in range(len(arrays))], ()
    return list(arrays.values()), tuple(arrays)


@dataclass(frozen=True)
class FileInterface:
    """Names of a file's inputs and outputs, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, model: ir.Model) -> FileInterface:
        """The names of a model; inputs with a default content are left out."""
        inputs, outputs = required_inputs(model), model.graph.outputs
        return cls(tuple(v.name or "" for v in inputs), tuple(v.name or "" for v in outputs))


def as_recordings(source: object, inputs: object, interface: FileInterface) -> Iterator[Recording]:
    """One recording per batch, its arrays sorted into inputs, integers and outputs.

    Args:
        source: A recording, arrays by name, a path, or an iterable of recordings or arrays by name; None: inputs alone.
        inputs: Inputs for recordings that have none, or alone: an array, a tuple or mapping of arrays (one batch), an
            .npz file or a folder of them, or an iterable of such (batches). None: the recordings have theirs.
        interface: Names of the file's inputs and outputs.

    Raises:
        UsageError: What was given is none of these, or does not fit together.
    """
    if source is None:
        yield from _batches(inputs, interface)
        return
    recordings = (_placed(one, interface) for one in _each(source))
    if inputs is None:
        yield from recordings
        return
    batches = list(_batches(inputs, interface))
    count = 0
    for count, recording in enumerate(recordings, start=1):
        if recording.inputs:
            raise UsageError("verify: the recordings have their own inputs. Leave `inputs` out.")
        if count <= len(batches):
            fed = batches[count - 1]
            yield replace(recording, inputs=fed.inputs, input_names=fed.input_names)
    if count != len(batches):
        raise UsageError(
            f"verify: there are {count} recordings and {len(batches)} batches of inputs. Give one for each."
        )


def _each(source: object) -> Iterator[Recording]:
    if isinstance(source, (Recording, Mapping)):
        yield _as_recording(source)
    elif isinstance(source, (str, os.PathLike)):
        yield from load_recordings(source)
    elif isinstance(source, Iterable) and not isinstance(source, (bytes, np.ndarray)):
        for one in source:
            yield from _each(one) if isinstance(one, (str, os.PathLike)) else [_as_recording(one)]
    else:
        raise UsageError(f"verify: a {type(source).__name__} is nothing to hold against a file. {_ACCEPTED}.")


def _as_recording(one: object) -> Recording:
    if isinstance(one, Recording):
        return one
    if isinstance(one, Mapping):
        return Recording(integers={str(name): np.asarray(a) for name, a in one.items()}, is_complete=False)
    raise UsageError(f"verify: there is a {type(one).__name__} among the recordings. {_ACCEPTED}.")


def _placed(recording: Recording, interface: FileInterface) -> Recording:
    """Sort arrays by name into inputs of the file, its float outputs, and the tensors in between, unless it has these apart."""
    if recording.is_complete:
        return recording
    rest = dict(recording.integers)
    if not recording.inputs:
        inputs = {name: rest.pop(name) for name in interface.inputs if name in rest}
        recording = replace(recording, inputs=list(inputs.values()), input_names=tuple(inputs))
    if not recording.outputs:
        outputs = {n: rest.pop(n) for n in interface.outputs if n in rest and rest[n].dtype.kind not in "iu"}
        recording = replace(recording, outputs=list(outputs.values()), output_names=tuple(outputs))
    return replace(recording, integers=rest)


def _batches(inputs: object, interface: FileInterface) -> Iterator[Recording]:
    if isinstance(inputs, (np.ndarray, tuple, Mapping, str, os.PathLike)) or _is_tensor(inputs):
        yield from _one_batch(inputs, interface)
    elif isinstance(inputs, Iterable) and not isinstance(inputs, bytes):
        for batch in inputs:
            yield from _one_batch(batch, interface)
    else:
        raise UsageError(
            f"verify: a {type(inputs).__name__} is no input. Give an array, a tuple or mapping of arrays (one batch), an "
            ".npz file, or an iterable of these."
        )


def _one_batch(batch: object, interface: FileInterface) -> Iterator[Recording]:
    if isinstance(batch, (str, os.PathLike)):
        for recording in load_recordings(batch):
            yield _only_inputs(recording, Path(batch), interface)
    else:
        from linger.runtime.session import pass_of  # with ONNX Runtime, which commands that look at a file do without

        arrays = pass_of(batch, interface.inputs)
        if isinstance(arrays, dict):
            yield Recording([*arrays.values()], input_names=tuple(arrays))
        else:
            yield Recording(arrays)


def _only_inputs(recording: Recording, path: Path, interface: FileInterface) -> Recording:
    """The inputs in a file: those of a recording; in a plain file by name, or in order where the names differ."""
    if recording.is_complete:
        return Recording(recording.inputs, input_names=recording.input_names)
    found: dict[str, Array] = recording.integers
    if all(name in found for name in interface.inputs):
        return Recording([found[name] for name in interface.inputs], input_names=interface.inputs)
    if len(found) == len(interface.inputs):
        return Recording(list(found.values()))
    raise UsageError(
        f"{path}: it holds {listing(found) or 'nothing'}; the model's inputs are {listing(interface.inputs)}."
    )


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
