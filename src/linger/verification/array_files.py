# SPDX-License-Identifier: Apache-2.0
"""Arrays in single files: .npz, .npy, and text with one number after another."""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing

Array = NDArray[Any]

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
"""The errors that numpy raises on files that are damaged or of another kind."""

_SHAPE_LINE = re.compile(
    r"^\s*(?:#|//)?\s*(?:shape\s*[:=]?\s*)?[\[(]?\s*(\d+(?:\s*[x×,]\s*\d+)*)\s*[x×,]?\s*[\])]?\s*$", re.I
)
_COMMENT = re.compile(r"^\s*(#|//)")
_SEPARATORS = re.compile(r"[\s,;]+")
_WHOLE = re.compile(r"^[+-]?\d+$")
_SHOWN = 3


@dataclass(frozen=True)
class _TextArray:
    """The numbers of a text file, and how they are written.

    Attributes:
        array: int64 where every number is written as a whole one, else float64; flat where no shape is given.
        has_shape: Whether a header line gave the shape.
        decimals: With how many decimals every number is written; None where they vary or have exponents.
    """

    array: Array
    has_shape: bool
    decimals: int | None


def load_arrays(path: Path, purpose: str, *, with_texts: bool = False) -> dict[str, Array]:
    """The arrays of an .npz file by name, or the array of an .npy file by the name of the file.

    Args:
        path: The file.
        purpose: The content that is expected, for the message about a missing file.
        with_texts: Whether arrays of texts, such as the settings that linger.Dumper keeps, may be among them.

    Raises:
        UsageError: There is no such file, it cannot be read, or it holds something else than numbers.
    """
    if not path.is_file():
        what = "this is a folder" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {what}. Give an .npz file {purpose}.")
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            found = dict(content) if isinstance(content, np.lib.npyio.NpzFile) else {path.stem: content}
    except UNREADABLE as error:
        # numpy takes every file that it does not know for a pickle, and recommends to trust it
        reason = "it holds no arrays of numbers" if "pickle" in str(error) else _first_line(error)
        raise UsageError(f"{path}: this is not a readable .npz or .npy file ({reason}).") from error
    kinds = "iufbU" if with_texts else "iufb"
    wrong = [f"{name} ({array.dtype})" for name, array in found.items() if array.dtype.kind not in kinds]
    if wrong:
        raise UsageError(f"{path}: {', '.join(wrong)}: these are no numbers that a tensor holds.")
    return found


def read_arrays(path: Path, *, names_only: bool = False) -> dict[str, Array]:
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


def arrays_in(opened: IO[bytes], *, names_only: bool = False) -> dict[str, Array]:
    """Every array of an .npz file by name; a damaged one raises one of UNREADABLE."""
    with np.load(opened, allow_pickle=False) as file:
        if names_only:
            return dict.fromkeys(file.files, np.zeros(0))
        found = {name: file[name] for name in file.files}
    strange = [name for name, array in found.items() if not isinstance(array, np.ndarray)]
    if strange:
        raise ValueError(f"no arrays: {listing(strange)}")
    return found


def npz_content(arrays: Mapping[str, Array]) -> bytes:
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


def write_npz(file: IO[bytes] | Path, arrays: Iterable[tuple[str, Array]]) -> None:
    """Write as numpy.savez does, but with any name (it refuses `file`) and without the time of day."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays:
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def natural_order(path: Path) -> list[int | str]:
    """A key that sorts the numbers inside file names as numbers: batch_2 before batch_10."""
    parts = re.split(r"(\d+)", path.name)  # text and digits in turn
    return [int(part) if number % 2 else part for number, part in enumerate(parts)]


def read_text(path: Path) -> _TextArray:
    """The numbers of a text file: one per line, or separated by spaces or commas; `# 1x8x4x4` first gives the shape.

    Raises:
        UsageError: There are words that are no numbers, NaN or infinity, no numbers at all, or not as many as the shape says.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: this is no readable text ({_first_line(error)}).") from error
    shape, body = _header(lines)
    words, places = [], []
    for number, line in body:
        found = [word for word in _SEPARATORS.split(line) if word]
        words += found
        places += [number] * len(found)
    if not words:
        raise UsageError(f"{path}: there is no number in it.")
    flat = _numbers(path, words, places)
    if shape is not None and int(np.prod(shape)) != flat.size:
        raise UsageError(
            f"{path}: the header says {'x'.join(map(str, shape))}, which is {int(np.prod(shape))} numbers; "
            f"there are {flat.size}."
        )
    array = flat if shape is None else flat.reshape(shape)
    return _TextArray(array, shape is not None, None if flat.dtype.kind == "i" else _decimals(words))


def _header(lines: list[str]) -> tuple[tuple[int, ...] | None, list[tuple[int, str]]]:
    """The shape, if the first line gives one, and the other lines with their numbers, comments left out."""
    shape, start = None, 0
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    # `3, 5` and a lone `7` are data, `3x5` and `# 7` are shapes
    if first is not None and (match := _SHAPE_LINE.match(lines[first])) and not re.match(r"^[\d\s,]+$", lines[first]):
        shape = tuple(int(n) for n in re.split(r"\s*[x×,]\s*", match[1]))
        start = first + 1
    body = [(i + 1, line) for i, line in enumerate(lines) if i >= start and not _COMMENT.match(line)]
    return shape, body


def _numbers(path: Path, words: list[str], places: list[int]) -> Array:
    try:
        if all(_WHOLE.match(word) for word in words):
            return np.array([int(word) for word in words], np.int64)
        flat = np.array(words, np.float64)
    except (ValueError, OverflowError):
        flat = None
    if flat is not None and np.isfinite(flat).all():
        return flat
    wrong = [f"{w!r} in line {n}" for w, n in zip(words, places, strict=True) if not _is_finite(w)]
    more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    raise UsageError(f"{path}: {', '.join(wrong[:_SHOWN])}{more}: no numbers that a device computes.")


def _is_finite(word: str) -> bool:
    try:
        return bool(np.isfinite(np.float64(word))) and (not _WHOLE.match(word) or abs(int(word)) < 2**63)
    except ValueError:
        return False


def _decimals(words: list[str]) -> int | None:
    found = {len(word.partition(".")[2]) if "e" not in word.lower() else -1 for word in words}
    return found.pop() if len(found) == 1 and -1 not in found else None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
