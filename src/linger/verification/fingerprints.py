# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of arrays and files, the same on every machine; stamps, by which a changed file is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError

FileStamp = tuple[str, int, int]
"""Name, size, and time of the last change in nanoseconds."""

_CHUNK = 1 << 20


class Fingerprint:
    """The SHA-256 over a series of arrays: element type, shape and little-endian content of each."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, array: NDArray[Any]) -> None:
        """Append an array."""
        array = np.asarray(array)
        self._hash.update(f"{array.dtype.name}{list(array.shape)};".encode())
        if array.dtype.hasobject or array.dtype.kind in "SU":
            self._hash.update("\0".join(map(str, array.reshape(-1).tolist())).encode())
        else:
            little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            self._hash.update(little.reshape(-1).view(np.uint8).data if little.size else b"")

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._hash.hexdigest()


def fingerprint(array: NDArray[Any]) -> str:
    """The SHA-256 of one array.

    >>> import numpy as np
    >>> fingerprint(np.array([1, 2], np.int8)) == fingerprint(np.array([1, 2], np.int16))
    False
    """
    made = Fingerprint()
    made.add(array)
    return made.hexdigest()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, read piece by piece.

    Raises:
        UsageError: The file cannot be read.
    """
    made = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                made.update(chunk)
    except OSError as error:
        raise UsageError(f"{path}: the file cannot be read ({error.strerror or error}).") from error
    return made.hexdigest()


def file_stamps(files: Iterable[Path]) -> tuple[FileStamp, ...]:
    """Name, size and time of change of each file, by which a later change is noticed."""
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def are_unchanged(stamps: Iterable[FileStamp]) -> bool:
    """Whether the files still have the sizes and times that they had."""
    known = tuple(stamps)
    try:
        return file_stamps(Path(name) for name, _, _ in known) == known
    except OSError:
        return False
