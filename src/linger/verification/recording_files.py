# SPDX-License-Identifier: Apache-2.0
"""Recordings in .npz files: one file per batch, entries `inputs/…`, `integers/…` and `outputs/…`.

Behind `inputs/` and `outputs/` stands a number (the order of the file) or a name, behind `integers/` the name of a
tensor. A file without any of these prefixes is plain: tensors by name.
"""

from __future__ import annotations

import io
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing
from linger.files import write_atomically, write_folder
from linger.verification.recording import Recording

INPUTS, INTEGERS, OUTPUTS = "inputs/", "integers/", "outputs/"
SUFFIX = ".npz"

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What numpy raises on files that are damaged or something else."""

_DIGITS = re.compile(r"(\d+)")


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
        files = sorted((f for f in place.iterdir() if f.suffix == SUFFIX), key=_natural)
        if not files:
            raise UsageError(f"{place}: there is no {SUFFIX} file in this folder. linger.save_recordings writes them.")
    elif place.suffix != SUFFIX and place.exists():
        raise UsageError(f"{place}: recordings are {SUFFIX} files, or a folder of them.")
    else:
        files = [place]
        read_arrays(place, names_only=True)
    return (_recording(read_arrays(file), file) for file in files)


def read_arrays(path: Path, *, names_only: bool = False) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file by name; pickled objects are never loaded.

    Raises:
        UsageError: There is no such file, or it is not a readable .npz file.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file. Give an {SUFFIX} file.")
    try:
        with path.open("rb") as opened:
            return arrays_in(opened, names_only=names_only)
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise UsageError(f"{path}: this is not a readable {SUFFIX} file ({reason}).") from error


def arrays_in(opened: IO[bytes], *, names_only: bool = False) -> dict[str, NDArray[Any]]:
    """Every array of an .npz file by name; a damaged one raises one of UNREADABLE."""
    with np.load(opened, allow_pickle=False) as file:
        if names_only:
            return dict.fromkeys(file.files, np.zeros(0))
        found = {name: file[name] for name in file.files}
    strange = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ValueError(f"no arrays: {listing(strange)}")
    return found


def npz_content(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of an .npz file, always the same for the same arrays.

    Raises:
        UsageError: Arrays of Python objects, all of them named.
    """
    wrong = [name for name, array in arrays.items() if np.asarray(array).dtype.hasobject]
    if wrong:
        raise UsageError(f"{listing(wrong)}: arrays of Python objects are not written. Give numbers.")
    buffer = io.BytesIO()
    write_npz(buffer, arrays.items())
    return buffer.getvalue()


def write_npz(file: IO[bytes] | Path, arrays: Iterable[tuple[str, NDArray[Any]]]) -> None:
    """What numpy.savez writes, but for any name (it refuses `file`) and without the time of day."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def _content(recording: Recording) -> bytes:
    arrays = {f"{INPUTS}{key}": a for key, a in _keyed(recording.inputs, recording.input_names)}
    arrays |= {f"{INTEGERS}{name}": a for name, a in recording.integers.items()}
    arrays |= {f"{OUTPUTS}{key}": a for key, a in _keyed(recording.outputs, recording.output_names)}
    return npz_content(arrays)


def _keyed(arrays: list[NDArray[Any]], names: tuple[str, ...]) -> Iterable[tuple[str, NDArray[Any]]]:
    return zip(names or map(str, range(len(arrays))), arrays, strict=True)


def _recording(arrays: Mapping[str, NDArray[Any]], path: Path) -> Recording:
    parts: dict[str, dict[str, NDArray[Any]]] = {INPUTS: {}, INTEGERS: {}, OUTPUTS: {}}
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


def _in_order(arrays: Mapping[str, NDArray[Any]]) -> tuple[list[NDArray[Any]], tuple[str, ...]]:
    """Arrays by number in that order, without names; otherwise with their names."""
    if set(arrays) == {str(i) for i in range(len(arrays))}:
        return [arrays[str(i)] for i in range(len(arrays))], ()
    return list(arrays.values()), tuple(arrays)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts numbers inside a name as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in _DIGITS.split(path.name)]
