# SPDX-License-Identifier: Apache-2.0
"""The arrays that a device has dumped: the files of a folder, and their values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from linger.errors import UsageError, listing
from linger.graph.core.dialects import makes_unsigned
from linger.graph.core.nodes import required_inputs
from linger.verification.array_files import Array, load_arrays, natural_order, read_text
from linger.verification.devices.comparison_result import times
from linger.verification.devices.dump_manifest import NAMES, ManifestEntry, read_manifest
from linger.verification.feeds import Feed, cut, fitted, given_feeds

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
    manifests = [folder / name for name in NAMES if (folder / name).is_file()]
    if len(manifests) > 1:
        raise UsageError(f"{folder}: there are two manifests, {listing(NAMES)}. Remove one.")
    return manifests[0] if manifests else None


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
        return DumpTensor(entry.name, _entry_of(archives[path], entry, path), str(path), entry.scale)
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


def _entry_of(arrays: dict[str, Array], entry: ManifestEntry, path: Path) -> Array:
    key = entry.key or entry.name
    if key not in arrays:
        raise UsageError(f"{path}: it does not hold {key}, but {listing(arrays, limit=5) or 'nothing'}.")
    return arrays[key]


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


Matched = dict[str, tuple[DumpTensor, str]]
"""The dump of each tensor of the file, and how it was found."""

_FEWEST_DECIMALS = 4
"""With fewer digits, different numbers would count as equal where no scale gives their distance."""


def prepare(dump: DumpTensor, flat: Array, tensor: Array, name: str, scale: float | None) -> tuple[Array, list[str]]:
    """Bring a dump, of which `flat` is the part that belongs to this run, into a form that can be compared with a tensor.

    Returns:
        The array in the tensor's shape, and the assumptions that were made.

    Raises:
        UsageError: It has more or fewer numbers than the tensor.
    """
    if flat.size != tensor.size:
        much = "short" if flat.size < tensor.size else "long"
        raise UsageError(
            f"{dump.source}: it is too {much}: {flat.size} numbers; {name} has {tensor.size} ({times(tensor.shape)})."
        )
    notes = _shape_notes(dump, flat, tensor)
    array = flat.reshape(tensor.shape)
    if array.dtype.kind == "f" and dump.decimals is not None:
        array, note = _without_rounding(array, dump.decimals, tensor, scale)
        notes += note
    if array.dtype.kind == "f" and tensor.dtype.kind in "iu":
        array, note = _as_meant(array, dump, tensor, scale)
        notes += note
    elif dump.is_text and tensor.dtype.kind == "f":
        array, note = _as_meant_for_floats(array, tensor, scale)
        notes += note
    return _narrowed(array, tensor) if dump.is_text else array, notes


def _shape_notes(dump: DumpTensor, flat: Array, tensor: Array) -> list[str]:
    if not dump.has_shape or flat.ndim == 1:
        return []
    if [n for n in flat.shape if n != 1] == [n for n in tensor.shape if n != 1]:
        return []
    text = f"sizes {times(flat.shape)} read one after the other as {times(tensor.shape)}"
    if tensor.ndim > 2 and flat.shape == np.moveaxis(tensor, 1, -1).shape:  # there are axes behind the channels
        text += "; if the channels come last, say layout NHWC in a manifest"
    return [text]


def _without_rounding(array: Array, decimals: int, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """Undo the rounding of printed decimals: where the tensor's number would be printed the same, it replaces the dump's."""
    real = tensor.astype(np.float64)
    if tensor.dtype.kind in "iu":
        if scale is None or np.array_equal(array, np.rint(array)):
            return array, []
        real = real / scale
    half = 0.5 * 10.0**-decimals
    is_coarse = decimals < _FEWEST_DECIMALS if scale is None else half * scale >= 0.5  # half an LSB
    if is_coarse:
        return array, [f"{decimals} decimals are too few to tell neighbors apart"] if scale is not None else []
    # the decimal text and the product below are each rounded once to 53 bits
    is_same = np.abs(array - real) <= half * (1 + 2.0**-40) + np.abs(real) * 2.0**-52
    return np.where(is_same, real, array), [f"printed with {decimals} decimals"]


def _as_meant(array: Array, dump: DumpTensor, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """Decide whether floats for an integer tensor are its integers or its real values; whole numbers may be either."""
    if not np.array_equal(array, np.rint(array)):
        return array, ["read as real values"] if scale is not None else ["the scale is not known"]
    as_integers = array.astype(np.int64)
    if scale is None:
        return as_integers, []
    if dump.scale is not None and not dump.is_text:
        # floats with a scale in the manifest are real values; the scale is that of their integers
        return array, ["read as real values"]
    is_real = np.count_nonzero(array * scale != tensor) < np.count_nonzero(as_integers != tensor)
    return (array, ["read as real values"]) if is_real else (as_integers, [])


def _as_meant_for_floats(array: Array, tensor: Array, scale: float | None) -> tuple[Array, list[str]]:
    """Decide whether a text for a float tensor holds its real values or the integers behind them, whichever fits better."""
    real = array.astype(tensor.dtype)
    if scale is None or not np.array_equal(array, np.rint(array)):
        return real, []
    if np.count_nonzero(array != tensor.astype(np.float64) * scale) < np.count_nonzero(real != tensor):
        return array.astype(np.int64), ["read as integers"]
    return real, []


def _narrowed(array: Array, tensor: Array) -> Array:
    """Convert whole numbers of a text to the tensor's type, if they fit: a text has no type that could differ."""
    cast = array.astype(tensor.dtype) if array.dtype.kind == "i" and tensor.dtype.kind in "iub" else array
    return cast if np.array_equal(cast, array) else array


@dataclass
class FoundInputs:
    """The inputs on which the file is run.

    Attributes:
        feeds: The feeds of every batch of dumps; several where it holds several batches of the file.
        used: Dumps that are used as inputs, so that comparing them would prove nothing.
        problems: A sentence for each thing that is missing or does not fit.
        notes: The conversions that were made.
    """

    feeds: dict[int, list[Feed]] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)


def find_inputs(model: ir.Model, matched: dict[int, Matched], inputs: object = None) -> FoundInputs:
    """The feeds of every batch of dumps; where the caller gave no inputs, they are among the dumps.

    Raises:
        UsageError: Given inputs that do not fit the file.
    """
    found = FoundInputs()
    if inputs is not None:
        _distribute(given_feeds(inputs, model), matched, found)
        return found
    missing: dict[str, None] = {}
    for number, tensors in matched.items():
        feed = {}
        for value in required_inputs(model):
            array = _dumped(value, tensors, found)
            if array is None:
                missing[value.name or ""] = None
            else:
                feed[value.name or ""] = array
        if len(feed) == len(required_inputs(model)):
            try:
                found.feeds[number] = cut(fitted(feed, model, f"batch {number}"), model)
            except UsageError as error:
                found.problems.append(str(error))
    if missing:
        found.problems.append(f"The inputs {listing(missing)} are not among the dumps. Give inputs.")
    return found


def _distribute(given: list[Feed], matched: dict[int, Matched], found: FoundInputs) -> None:
    """Assign given feeds in order: one per batch of dumps, or all of them if there is one batch."""
    if len(matched) == 1:
        found.feeds = {next(iter(matched)): given}
    elif len(given) == len(matched):
        found.feeds = {number: [feed] for number, feed in zip(matched, given, strict=True)}
    elif matched:
        found.problems.append(f"There are dumps of {len(matched)} batches, but inputs of {len(given)}.")


def _dumped(value: ir.Value, tensors: Matched, found: FoundInputs) -> Array | None:
    """The numbers of an input: dumped as they are, or from the integers of the Quant behind it; None: not dumped."""
    name = value.name or ""
    quants = {node.outputs[0].name or "": node for node in value.consumers() if node.op_type == "Quant"}
    if name in tensors:
        found.used.add(name)
        return _shaped(_real(tensors[name][0], value, [*quants.values()], found), value)
    for output in filter(tensors.__contains__, quants):
        dump = tensors[output][0]
        if dump.op_input is not None:  # linger.Dumper keeps the real numbers that a Quant reads
            return dump.op_input
        if len(value.uses()) == 1 and dump.array.dtype.kind in "iu":
            found.used.add(output)
            found.notes[f"The input {name} is made from the dumped integers {output}."] = None
            return _shaped(dump.array / _scale(quants[output]), value)
    return None


def _real(dump: DumpTensor, value: ir.Value, quants: list[ir.Node], found: FoundInputs) -> Array:
    """An input as real numbers: integers are divided by the scale of the Quant behind it, which restores them exactly."""
    scales = {_scale(node) for node in quants}
    kinds = "iu" if all(map(makes_unsigned, quants)) else "i"  # else bytes may be those of an image
    is_quantized = dump.array.dtype.kind in kinds and not dump.is_text
    is_real = value.dtype is not None and value.dtype.is_floating_point()
    if not (is_quantized and is_real and len(scales) == 1 and len(quants) == len(value.uses())):
        return dump.array
    (scale,) = scales
    found.notes[f"The input {value.name} was dumped as {dump.array.dtype}: divided by its scale {scale:g}."] = None
    return np.asarray(dump.array / scale)


def _scale(node: ir.Node) -> float:
    return float(node.attributes["scale_x"].as_float())


def _shaped(array: Array, value: ir.Value) -> Array:
    """Flat numbers in the sizes of an input; the first axis holds several batches where there are more numbers."""
    if value.shape is None or array.ndim == len(value.shape):
        return array
    if len(value.shape) == 0:
        return array.reshape(()) if array.size == 1 else array
    sizes = [d if isinstance(d, int) else -1 for d in value.shape]
    if -1 not in sizes:
        sizes[0] = -1
    try:
        return array.reshape(sizes) if math.prod(sizes) else array
    except ValueError:  # several sizes are open, or the numbers do not fit them
        return array
