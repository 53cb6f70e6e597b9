# SPDX-License-Identifier: Apache-2.0
"""The tensors of a safetensors file: mapped into memory, read in pieces, and released afterwards."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from linger.analysis.blocks import Values
from linger.analysis.values import NUMPY_TYPES, TensorValues
from linger.errors import UsageError

_TYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
_DROP_AFTER = 16 << 20
"""This many bytes that were read already may stay in memory."""


@dataclass(frozen=True)
class Entry:
    """The place of one tensor in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsFile:
    """One file, mapped into memory; tensors are views of it."""

    def __init__(self, path: Path) -> None:
        entries = _entries(path)
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.entries = {entry.name: entry for entry in entries}

    def values(self, entry: Entry) -> Values:
        """The numbers of one tensor."""
        return _MappedValues(self._map, entry)


class _MappedValues:
    implicit_zeros = 0

    def __init__(self, mapped: mmap.mmap, entry: Entry) -> None:
        self._map, self._entry = mapped, entry
        self._width = entry.dtype.itemsize
        self.size = (entry.stop - entry.start) // self._width
        self._released = entry.start

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Numbers start … stop−1, without a copy where the type is one of numpy's."""
        count = (stop - start) * self._width
        raw = np.frombuffer(self._map, np.uint8, count, self._entry.start + start * self._width)
        direct = _DIRECT.get(self._entry.dtype)
        if direct is not None:
            return raw.view(direct)
        return TensorValues(torch.from_numpy(raw.copy()).view(self._entry.dtype)).read(0, stop - start)

    def release(self, start: int, stop: int) -> None:
        """Give back the memory of what was read; the system keeps the file in its cache."""
        end = self._entry.start + stop * self._width
        begin = self._entry.start + start * self._width
        if begin < self._released:  # a second pass
            self._released = begin
        if (end - self._released >= _DROP_AFTER or stop == self.size) and hasattr(mmap, "MADV_DONTNEED"):
            first = self._released // mmap.PAGESIZE * mmap.PAGESIZE
            self._map.madvise(mmap.MADV_DONTNEED, first, end - first)
            self._released = end


_DIRECT = {dtype: torch.empty(0, dtype=dtype).numpy().dtype for dtype in NUMPY_TYPES}


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that reads numbers as numbers.

    >>> sorted(["layer.10", "layer.2"], key=natural_order)
    ['layer.2', 'layer.10']
    """
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _entries(path: Path) -> tuple[Entry, ...]:
    """The table of contents, after the library has checked the file."""
    try:
        with safe_open(path, framework="np"):
            pass
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: this is not a whole safetensors file ({error}). Copy it again.") from error
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    unknown = sorted({f"{v['dtype']} ({name})" for name, v in header.items() if v["dtype"] not in _TYPES})
    if unknown:
        raise UsageError(f"{path}: unknown element types {', '.join(unknown)}. Convert these tensors first.")
    return tuple(_in_order(header, 8 + length))


def _in_order(header: dict[str, Any], base: int) -> Iterator[Entry]:
    """By name, layer 2 before layer 10: the file does not keep the order of the model."""
    for name, place in sorted(header.items(), key=lambda item: natural_order(item[0])):
        start, stop = place["data_offsets"]
        yield Entry(name, _TYPES[place["dtype"]], tuple(place["shape"]), base + start, base + stop)
