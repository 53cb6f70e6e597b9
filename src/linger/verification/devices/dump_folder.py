# SPDX-License-Identifier: Apache-2.0
"""Read a folder of tensors that a device, another tool or linger.Dumper wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from linger.errors import UsageError, listing
from linger.verification.array_files import Array, load_arrays, natural_order, read_text
from linger.verification.devices.dump_manifest import NAMES, ManifestEntry, read_manifest

ARRAY_SUFFIXES = (".npz", ".npy")
TEXT_SUFFIXES = (".txt", ".text", ".csv")
RAW_SUFFIXES = (".bin", ".raw")
DUMP_SUFFIXES = (*ARRAY_SUFFIXES, *TEXT_SUFFIXES)
"""Endings of single files that can be compared without a manifest."""

_BATCH = re.compile(r"^(?:batch[_-]?)?(\d+)$", re.I)
_BATCH_FILE = re.compile(r"^batch[_-]?(\d+)$", re.I)
_OP_TEXT = re.compile(r"^(?P<name>.+)\.(?P<part>q_outputs|outputs|(?:q_)?(?:input\d*|weights|bias))$")
_LAYER_TEXT = re.compile(r"^(?P<name>.+)_(?P<part>input|output)_float$")
_LAYER_KEYS = re.compile(r"^(input|output)(_\d+)?$")
_QUIET = frozenset({"readme.txt", "vectors.h"})


@dataclass(frozen=True)
class DumpTensor:
    """One tensor as it was dumped.

    Attributes:
        name: What the dump calls it.
        array: Its numbers; flat where the dump does not give the sizes.
        source: The file, for messages.
        scale: The scale that the dump gives.
        has_shape: Whether the sizes are given.
        decimals: Digits after the point, of a text that has the same number of them everywhere.
        is_text: Whether it was read from a text, which does not give an element type.
        op_input: The real numbers that the op read, where linger.Dumper kept them.
    """

    name: str
    array: Array
    source: str
    scale: float | None = None
    has_shape: bool = True
    decimals: int | None = None
    is_text: bool = False
    op_input: Array | None = None


@dataclass
class Dumps:
    """Everything that was read: tensors by batch, and a sentence for each file that cannot be used."""

    tensors: dict[int, list[DumpTensor]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def add(self, batch: int, tensor: DumpTensor) -> None:
        """Keep a tensor."""
        self.tensors.setdefault(batch, []).append(tensor)


def read_dumps(path: Path) -> Dumps:
    """The tensors of a folder (or of one file), as far as they can be read.

    A manifest, where there is one, says which files count. Without it, every .npz, .npy and text file does.
    Sub-folders and .npz files called `batch_0`, `batch_1` … are batches.

    Raises:
        UsageError: There is nothing at all, or two manifests.
    """
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or folder. Give a folder with the dumps of a device.")
    found = Dumps()
    if path.is_file() and path.name not in NAMES:
        _read_file(path, 0, found)
        return found
    folder = path if path.is_dir() else path.parent
    manifest = _manifest_in(folder)
    if manifest is not None:
        _read_listed(manifest, found)
    else:
        _read_folder(folder, 0, found, is_top=True)
    if not found.tensors and not found.problems:
        raise UsageError(
            f"{folder}: there is no dump in it. Expected are {listing(DUMP_SUFFIXES)} files or a manifest."
        )
    return found


def _manifest_in(folder: Path) -> Path | None:
    manifests = [name for name in NAMES if (folder / name).is_file()]
    if len(manifests) > 1:
        raise UsageError(f"{folder}: there are two manifests, {listing(manifests)}. Remove one.")
    return folder / manifests[0] if manifests else None


def _read_listed(manifest: Path, found: Dumps) -> None:
    entries, problems = read_manifest(manifest)
    found.problems += problems
    seen: dict[tuple[int, str], str] = {}
    archives: dict[Path, dict[str, Array]] = {}
    for entry in entries:
        where = seen.setdefault((entry.batch, entry.name), entry.files[0])
        if where != entry.files[0]:
            found.problems.append(f"{manifest.name}: {entry.name} has two files, {where} and {entry.files[0]}.")
            continue
        try:
            found.add(entry.batch, _listed_tensor(manifest.parent, entry, archives))
        except UsageError as error:
            found.problems.append(str(error))


def _listed_tensor(folder: Path, entry: ManifestEntry, archives: dict[Path, dict[str, Array]]) -> DumpTensor:
    path = next((folder / f for f in entry.files if (folder / f).is_file()), None)
    if path is None:
        raise UsageError(f"{folder / entry.files[0]}: the file of {entry.name} is missing.")
    if path.suffix == ".npz":
        if path not in archives:
            archives[path] = load_arrays(path, "with the tensors")
        return _listed_array(path, entry, archives[path])
    if path.suffix == ".npy":
        return DumpTensor(entry.name, load_arrays(path, "")[path.stem], str(path), entry.scale)
    if path.suffix in TEXT_SUFFIXES:
        return _listed_text(path, entry)
    if entry.layout is None:
        raise UsageError(f"{path}: raw bytes need a dtype in the manifest ({entry.name}).")
    try:
        array = entry.layout.decode(path.read_bytes())
    except (UsageError, OSError) as error:
        raise UsageError(f"{path} ({entry.name}): {error}") from error
    return DumpTensor(entry.name, array, str(path), entry.scale, has_shape=entry.layout.shape is not None)


def _listed_array(path: Path, entry: ManifestEntry, arrays: dict[str, Array]) -> DumpTensor:
    key = entry.key or entry.name
    if key not in arrays:
        raise UsageError(f"{path}: it does not hold {key}, but {listing(arrays, limit=5) or 'nothing'}.")
    return DumpTensor(entry.name, arrays[key], str(path), entry.scale)


def _listed_text(path: Path, entry: ManifestEntry) -> DumpTensor:
    text = read_text(path)
    array, has_shape = text.array, text.has_shape
    if entry.shape is not None and not has_shape:
        if array.size != np.prod(entry.shape, dtype=np.int64):
            raise UsageError(
                f"{path} ({entry.name}): it has {array.size} numbers; the manifest says {'x'.join(map(str, entry.shape))}."
            )
        array, has_shape = array.reshape(entry.shape), True
    return DumpTensor(entry.name, array, str(path), entry.scale, has_shape, text.decimals, is_text=True)


def _read_folder(folder: Path, batch: int, found: Dumps, *, is_top: bool = False) -> None:
    for path in sorted(folder.iterdir(), key=natural_order):
        if path.name.startswith(".") or path.name.lower() in _QUIET:
            continue
        if path.is_dir():
            match = _BATCH.match(path.name)
            if match and is_top:
                _read_folder(path, int(match[1]), found)
            else:
                found.unread.append(path.name)
        elif path.is_file():
            _read_file(path, batch, found)
        else:
            found.unread.append(path.name)  # a pipe or a socket: reading might never end


def _read_file(path: Path, batch: int, found: Dumps) -> None:
    try:
        if path.suffix in ARRAY_SUFFIXES:
            match = _BATCH_FILE.match(path.stem)
            for tensor in _from_arrays(path):
                found.add(int(match[1]) if match else batch, tensor)
        elif path.suffix in TEXT_SUFFIXES:
            found.add(batch, _from_text(path, path.stem))
        elif path.suffix in RAW_SUFFIXES:
            found.problems.append(f"{path}: raw bytes need a manifest.json or manifest.csv that says what they are.")
        else:
            _read_dumper_text(path, batch, found)
    except UsageError as error:
        found.problems.append(str(error))


def _from_arrays(path: Path) -> Iterator[DumpTensor]:
    arrays = load_arrays(path, "with tensors", with_texts=True)
    if "q_outputs" in arrays:  # one op, by linger.Dumper.enable_dump_quanted
        scale = arrays.get("scale_o", np.zeros(0))
        known = float(scale.reshape(())[()]) if scale.size == 1 else None
        yield DumpTensor(path.stem, arrays["q_outputs"], str(path), known, op_input=arrays.get("input"))
    elif path.stem.startswith("root") and arrays and all(map(_LAYER_KEYS.match, arrays)):
        if "output" in arrays:  # one layer, by linger.Dumper.enable_dump_model
            yield DumpTensor(path.stem, arrays["output"], str(path))
    elif [*arrays] == ["arr_0"]:  # an array without a name
        yield DumpTensor(path.stem, arrays["arr_0"], str(path))
    else:
        for name, array in load_arrays(path, "with tensors").items():
            yield DumpTensor(name, array, f"{path} ({name})" if path.suffix == ".npz" else str(path))


def _from_text(path: Path, name: str) -> DumpTensor:
    text = read_text(path)
    return DumpTensor(name, text.array, str(path), has_shape=text.has_shape, decimals=text.decimals, is_text=True)


def _read_dumper_text(path: Path, batch: int, found: Dumps) -> None:
    """Read a text of linger.Dumper: the integers that an op returned, unless an .npz file has all of the op."""
    op, layer = _OP_TEXT.match(path.name), _LAYER_TEXT.match(path.name)
    match = op or layer
    if match is None:
        found.unread.append(path.name)
        return
    if path.with_name(f"{match['name']}.npz").exists():
        return
    is_best = match["part"] in ("q_outputs", "output") or (
        match["part"] == "outputs" and not path.with_name(f"{match['name']}.q_outputs").exists()
    )
    if is_best:
        found.add(batch, _from_text(path, match["name"]))
    elif match["part"] != "outputs":
        found.unread.append(path.name)
