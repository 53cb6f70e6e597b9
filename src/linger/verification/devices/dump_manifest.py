# SPDX-License-Identifier: Apache-2.0
"""manifest.json and manifest.csv: which file holds which tensor, and how raw bytes become an array."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from linger.errors import UsageError
from linger.records.reading import As, parse_json, read_with_problems, refuse_fields
from linger.verification.array_files import Array

NAMES = ("manifest.json", "manifest.csv")
_KNOWN = ("dtype", "shape", "byte_order", "layout", "channel_align", "nibbles", "scale", "batch", "key")
_DEFAULTS = ("byte_order", "layout", "channel_align", "nibbles")
"""Entries that a manifest may give once for all its tensors."""

_INTEGERS = tuple(f"{sign}int{bits}" for bits in (4, 8, 16, 32, 64) for sign in ("", "u"))
TYPES = (*_INTEGERS, "bool", "float16", "float32", "float64")
_SHORT = {
    **{f"{sign}{bits}": f"{name}{bits}" for sign, name in (("i", "int"), ("u", "uint")) for bits in (4, 8, 16, 32, 64)},
    **{f"s{bits}": f"int{bits}" for bits in (4, 8, 16, 32, 64)},
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "float": "float32",
    "double": "float64",
}
_BLOCKED = re.compile(r"^NC(\d+)HW\1$")
_NIBBLE = 4


def parse_shape(given: Any) -> tuple[int, ...] | None:
    """Sizes from a list, or from a text such as 1x8x4x4 or 1,8,4,4.

    Raises:
        UsageError: Something else.
    """
    if given is None:
        return None
    parts = re.split(r"[x×,\s]+", given.strip("[]() ")) if isinstance(given, str) else given
    try:
        return tuple(int(n) for n in parts if n != "")
    except (TypeError, ValueError):
        raise UsageError(f"shape {given!r}: sizes look like 1x8x4x4.") from None


def _whole(given: Any) -> int:
    """A whole number; tables have it as text."""
    if isinstance(given, bool) or int(given) != float(given):
        raise ValueError
    return int(given)


def _scale(given: Any) -> float:
    if isinstance(given, bool) or not 0 < float(given) < math.inf:
        raise ValueError
    return float(given)


def _first_nibble(given: object) -> bool:
    return ("high", "low").index(str(given)) == 1


def _inside(given: object) -> str:
    if not isinstance(given, str):
        raise ValueError(f"{given!r} is no name of a file")
    if Path(given).is_absolute() or ".." in Path(given).parts:
        raise ValueError(f"{given!r} lies outside the folder of the manifest")
    return given


Whole = Annotated[int, As(_whole, "a whole number")]
Shape = Annotated[tuple[int, ...] | None, As(parse_shape)]
Scale = Annotated[float, As(_scale, "a positive number")]


@dataclass(frozen=True)
class _RawLayout:
    """How a tensor is stored in a file of raw bytes.

    Attributes:
        dtype: One of `TYPES`, or short: i8, u8, f32 …
        shape: The sizes as the model has them (channels second); None: the array is flat.
        byte_order: "little" or "big".
        layout: "NCHW" (as the model), "NHWC" (channels last, for any number of axes), or blocks such as "NC8HW8".
        channel_align: Channels are padded to a multiple of this.
        low_nibble_first: Whether the first of two 4-bit numbers in a byte is in the low half.
    """

    dtype: str
    shape: Shape = None
    byte_order: str = "little"
    layout: Annotated[str, As(lambda given: str(given).upper())] = "NCHW"
    channel_align: Whole = 1
    low_nibble_first: Annotated[bool, As(_first_nibble, "'low' or 'high', which of two in a byte is the first")] = True

    def __post_init__(self) -> None:
        needs_channels = self.layout != "NCHW" or self.channel_align > 1
        is_layout = self.layout in ("NCHW", "NHWC") or self._block is not None
        complaints = {
            f"dtype {self.dtype!r} is not known; known are {', '.join(TYPES)}.": self.element not in TYPES,
            f"byte_order {self.byte_order!r} is neither 'little' nor 'big'.": self.byte_order not in ("little", "big"),
            f"layout {self.layout!r} is neither NCHW, NHWC nor blocks such as NC8HW8.": not is_layout,
            f"channel_align {self.channel_align} is less than 1.": self.channel_align < 1,
            f"shape {list(self.shape or ())} has a negative size.": min(self.shape or (0,)) < 0,
            f"layout {self.layout} with channel_align {self.channel_align} needs a shape with channels.": (
                needs_channels and len(self.shape or ()) < 2  # batch and channels
            ),
        }
        wrong = [text for text, is_wrong in complaints.items() if is_wrong]
        if wrong:
            raise UsageError(" ".join(wrong))

    @property
    def element(self) -> str:
        """The type's full name."""
        return _SHORT.get(self.dtype.lower(), self.dtype.lower())

    @property
    def _block(self) -> int | None:
        match = _BLOCKED.match(self.layout)
        return int(match[1]) if match and int(match[1]) else None

    @property
    def stored_shape(self) -> tuple[int, ...] | None:
        """The sizes in the order of the file, padding included."""
        if self.shape is None:
            return None
        if len(self.shape) < 2:  # no channels
            return self.shape
        batch, channels, *rest = self.shape
        step = math.lcm(self.channel_align, self._block or 1)
        padded = -(-channels // step) * step
        if self._block is not None:
            return (batch, padded // self._block, *rest, self._block)
        return (batch, *rest, padded) if self.layout == "NHWC" else (batch, padded, *rest)

    @property
    def byte_count(self) -> int | None:
        """How many bytes the file must have."""
        if self.stored_shape is None:
            return None
        count = math.prod(self.stored_shape)
        return -(-count // 2) if self.element.endswith("int4") else count * self._numpy.itemsize

    @property
    def _numpy(self) -> np.dtype[Any]:
        return np.dtype(self.element).newbyteorder("<" if self.byte_order == "little" else ">")

    def decode(self, content: bytes) -> Array:
        """The array in the model's order, padding cut off; 4-bit numbers as int8 or uint8.

        Raises:
            UsageError: The content is too short or too long.
        """
        if self.byte_count is not None and len(content) != self.byte_count:
            much = "short" if len(content) < self.byte_count else "long"
            stored = "x".join(map(str, self.stored_shape or ()))
            raise UsageError(
                f"it is too {much}: {len(content)} bytes, expected {self.byte_count} for {self.element} {stored or 'scalar'}."
            )
        if self.element.endswith("int4"):
            flat = self._unpack(content)
        else:
            if len(content) % self._numpy.itemsize:
                raise UsageError(f"it is too short: {len(content)} bytes are no whole number of {self.element}.")
            flat = np.frombuffer(content, self._numpy).astype(self._numpy.newbyteorder("="))
        return flat if self.stored_shape is None else self._arrange(flat)

    def _arrange(self, flat: Array) -> Array:
        assert self.stored_shape is not None  # the caller has looked
        assert self.shape is not None
        stored = flat[: math.prod(self.stored_shape)].reshape(self.stored_shape)
        if self._block is not None:
            moved = np.moveaxis(stored, -1, 2)
            stored = moved.reshape(moved.shape[0], -1, *moved.shape[3:])
        elif self.layout == "NHWC":
            stored = np.moveaxis(stored, -1, 1)
        is_padded = len(self.shape) > 1 and stored.shape[1] != self.shape[1]
        return np.ascontiguousarray(stored[:, : self.shape[1]] if is_padded else stored).reshape(self.shape)

    def _unpack(self, content: bytes) -> Array:
        both = np.frombuffer(content, np.uint8)
        low, high = both & 15, both >> _NIBBLE
        pair = (low, high) if self.low_nibble_first else (high, low)
        nibbles = np.stack(pair, axis=-1).reshape(-1)
        return nibbles if self.element == "uint4" else ((nibbles ^ 8).astype(np.int8) - 8)


@dataclass(frozen=True)
class ManifestEntry:
    """One tensor of a manifest.

    Attributes:
        files: The files that may hold it, the preferred one first, relative to the manifest's folder.
        layout: How it is stored in a raw file; None where the manifest gives no type (.npz, .npy and text need none).
        shape: The sizes as the model has them, if given.
        key: Its name inside an .npz file, if that differs.
    """

    name: str
    files: tuple[Annotated[str, As(_inside)], ...]
    layout: _RawLayout | None = None
    shape: Shape = None
    scale: Scale | None = None
    batch: Whole = 0
    key: str | None = None

    def __post_init__(self) -> None:
        refuse_fields({"file is missing": not self.files})


def read_manifest(path: Path) -> tuple[list[ManifestEntry], list[str]]:
    """The entries of a manifest, and a sentence for each that is wrong.

    Raises:
        UsageError: The file as a whole is no manifest.
    """
    drafts = _json_drafts(path) if path.suffix == ".json" else _csv_drafts(path)
    entries, problems = [], []
    for number, draft in enumerate(drafts, start=1):
        wrong, entry = read_with_problems(ManifestEntry, _sorted(draft))
        where = f"tensor {draft['name']!r}" if "name" in draft else f"tensor number {number}"
        problems += [f"{path.name}, {where}: {'; '.join(wrong)}."] if wrong else []
        entries += [] if entry is None else [entry]
    if not entries and not problems:
        raise UsageError(f"{path}: the manifest names no tensor.")
    return entries, problems


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the manifest cannot be read ({error}).") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(_text(path))
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path}: this is no JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a manifest is an object with a list 'tensors', or one that maps names to files.")
    return content


def _json_drafts(path: Path) -> list[dict[str, Any]]:
    content = _json_object(path)
    defaults = {key: content.pop(key) for key in _DEFAULTS if key in content}
    tensors = content.get("tensors", content)
    if isinstance(tensors, dict):
        tensors = [_named_tensor(name, said) for name, said in tensors.items()]
    if not isinstance(tensors, list) or not all(isinstance(t, dict) for t in tensors):
        raise UsageError(f"{path}: 'tensors' must be a list of objects with name and file.")
    return [defaults | _said(tensor) for tensor in tensors]


def _named_tensor(name: str, said: object) -> dict[str, Any]:
    """A tensor from an object that maps names to files, or to objects with a file."""
    return {"name": name, **(said if isinstance(said, dict) else {"file": said})}


def _csv_drafts(path: Path) -> list[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(_text(path)), skipinitialspace=True)
    columns = [(c or "").strip() for c in rows.fieldnames or ()]
    if "name" not in columns or "file" not in columns:
        raise UsageError(
            f"{path}: the first line must name the columns, with name and file among them; others are {', '.join(_KNOWN)}."
        )
    return [_said({str(k).strip(): v.strip() for k, v in row.items() if isinstance(v, str)}) for row in rows]


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that are not left empty."""
    return {key: value for key, value in values.items() if value not in (None, "")}


def _sorted(draft: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of one tensor as `ManifestEntry` has them."""
    own, raw = (
        {key: draft[key] for key in keys if key in draft}
        for keys in (
            ("name", "shape", "scale", "batch", "key"),
            ("dtype", "shape", "byte_order", "layout", "channel_align"),
        )
    )
    raw |= {"low_nibble_first": draft["nibbles"]} if "nibbles" in draft else {}
    several = draft.get("files")
    own["files"] = list(several.values()) if isinstance(several, dict) else [draft["file"]] if "file" in draft else []
    return own | ({"layout": raw} if "dtype" in draft else {})
