# SPDX-License-Identifier: Apache-2.0
"""manifest.json and manifest.csv: which file holds which tensor, and how."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from linger.errors import UsageError
from linger.verification.devices.raw_layout import RawLayout

NAMES = ("manifest.json", "manifest.csv")
_NUMBERS = {"channel_align": int, "batch": int, "scale": float}
_KNOWN = ("dtype", "shape", "byte_order", "layout", "channel_align", "nibbles", "scale", "batch", "key")
_NIBBLES = {"low": True, "high": False}


@dataclass(frozen=True)
class ManifestEntry:
    """One tensor of a manifest.

    Attributes:
        name: The tensor.
        files: Where it may lie, the preferred one first, relative to the manifest's folder.
        layout: How it lies in a raw file; None where the manifest does not say (.npz, .npy, text say themselves).
        shape: The sizes as the model has them, if given.
        scale: Its scale, if given.
        batch: The batch that it belongs to.
        key: Its name inside an .npz file, if that differs.
    """

    name: str
    files: tuple[str, ...]
    layout: RawLayout | None = None
    shape: tuple[int, ...] | None = None
    scale: float | None = None
    batch: int = 0
    key: str | None = None


@dataclass
class _Draft:
    """What a line of a manifest says, before it is understood."""

    values: dict[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        found = self.values.get(key)
        return self.defaults.get(key) if found in (None, "") else found


def read_manifest(path: Path) -> tuple[list[ManifestEntry], list[str]]:
    """The entries of a manifest, and a sentence for each that cannot be understood.

    Raises:
        UsageError: The file as a whole is no manifest.
    """
    drafts = _json_drafts(path) if path.suffix == ".json" else _csv_drafts(path)
    entries, problems = [], []
    for number, draft in enumerate(drafts, start=1):
        name = draft.get("name")
        where = f"{path.name}, tensor {name!r}" if name else f"{path.name}, tensor number {number}"
        try:
            entries.append(_entry(draft))
        except (UsageError, ValueError, TypeError) as error:
            problems.append(f"{where}: {error}")
    if not entries and not problems:
        raise UsageError(f"{path}: the manifest names no tensor.")
    return entries, problems


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: the manifest cannot be read ({error}).") from error


def _json_drafts(path: Path) -> list[_Draft]:
    try:
        content = json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: this is no JSON ({error}).") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: a manifest is an object with a list 'tensors', or one that maps names to files.")
    defaults = {key: content[key] for key in ("byte_order", "layout", "channel_align", "nibbles") if key in content}
    tensors = content.get("tensors", {k: v for k, v in content.items() if k not in defaults})
    if isinstance(tensors, dict):
        tensors = [{"name": name, **(v if isinstance(v, dict) else {"file": v})} for name, v in tensors.items()]
    if not isinstance(tensors, list) or not all(isinstance(t, dict) for t in tensors):
        raise UsageError(f"{path}: 'tensors' must be a list of objects with name and file.")
    return [_Draft(tensor, defaults) for tensor in tensors]


def _csv_drafts(path: Path) -> list[_Draft]:
    rows = csv.DictReader(io.StringIO(_text(path)), skipinitialspace=True)
    columns = [(c or "").strip() for c in rows.fieldnames or ()]
    if "name" not in columns or "file" not in columns:
        raise UsageError(
            f"{path}: the first line must name the columns, with name and file among them; others are {', '.join(_KNOWN)}."
        )
    return [
        _Draft({(k or "").strip(): (v or "").strip() for k, v in row.items() if isinstance(v, str)}) for row in rows
    ]


def _entry(draft: _Draft) -> ManifestEntry:
    name, files = draft.get("name"), _files(draft)
    if not isinstance(name, str) or not name:
        raise UsageError("it has no name.")
    numbers = {key: _number(draft, key) for key in _NUMBERS}
    shape = parse_shape(draft.get("shape"))
    dtype = draft.get("dtype")
    layout = None
    if dtype:
        nibbles = draft.get("nibbles") or "low"
        if nibbles not in _NIBBLES:
            raise UsageError(f"nibbles {nibbles!r}: the first of two is the 'low' or the 'high' one.")
        layout = RawLayout(
            dtype=str(dtype),
            shape=shape,
            byte_order=str(draft.get("byte_order") or "little"),
            layout=str(draft.get("layout") or "NCHW").upper(),
            channel_align=1 if numbers["channel_align"] is None else numbers["channel_align"],
            low_nibble_first=_NIBBLES[nibbles],
        )
    return ManifestEntry(name, files, layout, shape, numbers["scale"], numbers["batch"] or 0, draft.get("key"))


def _files(draft: _Draft) -> tuple[str, ...]:
    one, several = draft.get("file"), draft.get("files")
    found = list(several.values()) if isinstance(several, dict) else [one]
    if not found or not all(isinstance(f, str) and f for f in found):
        raise UsageError("it has no file.")
    outside = [f for f in found if Path(f).is_absolute() or ".." in Path(f).parts]
    if outside:
        raise UsageError(f"{outside[0]!r} lies outside the folder of the manifest.")
    return tuple(found)


def _number(draft: _Draft, key: str) -> Any:
    given = draft.get(key)
    if given is None:
        return None
    try:
        value = _NUMBERS[key](given)
    except (TypeError, ValueError):
        raise UsageError(f"{key} {given!r} is no number.") from None
    if key == "scale" and not (0 < value < float("inf")):
        raise UsageError(f"scale {given!r} is not positive.")
    return value


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
