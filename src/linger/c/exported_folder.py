# SPDX-License-Identifier: Apache-2.0
"""Read the manifest of an exported C folder and check the folder against it; nothing in it is trusted."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing, printable

FORMAT = "linger-c"
VERSION = 1
MANIFEST = "manifest.json"

C_TYPES: Mapping[str, str] = {
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float32": "float",
    "bool": "uint8_t",
}
"""The C type of each element type of a manifest."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}(?:/[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}){0,4}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 1 << 31
_LARGEST_SCALE = 1e38
_MOST_MANIFEST_BYTES = 1 << 28
_KEYWORDS = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|"
    "_Bool|_Complex|_Imaginary|main"
)


@dataclass(frozen=True)
class Layout:
    """An array as C holds it: its shape in the ONNX file and its element type."""

    shape: tuple[int, ...]
    type: str

    @property
    def count(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """The number of bytes."""
        return self.count * self.dtype.itemsize

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy type of one element; a bool has one byte in C, too."""
        return np.dtype(self.type)

    @property
    def c_type(self) -> str:
        """The C type of one element."""
        return C_TYPES[self.type]


@dataclass(frozen=True)
class Edge:
    """An input or an output of the network.

    Attributes:
        name: The name in the ONNX file; it never reaches the C text.
        c_name: The name of the C parameter.
        real: The array of `run` and `step`.
        integer: The array of `run_q` and `step_q`; the same as `real` at an edge that is not quantised.
        scale: Multiplies a real number to give its integer; None at an edge that is not quantised.
        tensor: The ONNX name of the quantised tensor at this edge; None at an edge that is not quantised.
        order: The axes from the outermost to the innermost as C takes them; None: as they come.
    """

    name: str
    c_name: str
    real: Layout
    integer: Layout
    scale: float | None = None
    tensor: str | None = None
    order: tuple[int, ...] | None = None

    def packed(self, array: NDArray[Any]) -> bytes:
        """The bytes of an array as C takes them."""
        return np.ascontiguousarray(array if self.order is None else array.transpose(self.order)).tobytes()

    def unpacked(self, data: bytes, *, quantized: bool) -> NDArray[Any]:
        """The array of the bytes that C gives."""
        layout = self.layout(quantized=quantized)
        order = tuple(range(len(layout.shape))) if self.order is None else self.order
        memory = np.frombuffer(data, layout.dtype).reshape([layout.shape[axis] for axis in order])
        return memory.transpose(np.argsort(order)).copy() if order else memory.copy()

    def layout(self, *, quantized: bool) -> Layout:
        """The array that the integer or the float interface takes here."""
        return self.integer if quantized else self.real


@dataclass(frozen=True)
class ProofTensor:
    """A tensor that a proof build shows, and how to bring its bytes back into the order of the ONNX file."""

    id: int
    name: str
    layout: Layout
    order: tuple[int, ...]
    permutation: NDArray[np.int64] | None = None

    def restored(self, data: bytes) -> NDArray[Any]:
        """The tensor of the ONNX file from the bytes in memory."""
        memory = np.frombuffer(data, self.layout.dtype)
        if self.permutation is not None:
            flat = np.empty_like(memory)
            flat[self.permutation] = memory
            return flat.reshape(self.layout.shape)
        shape = self.layout.shape
        array = memory.reshape([shape[axis] for axis in self.order])
        return array.transpose(np.argsort(self.order)).copy()


@dataclass(frozen=True)
class StreamOptions:
    """How the step of a streaming network was made of the file.

    Attributes:
        frames: Frames of one step; 0: the file is one step itself.
        time: The axis that is time for each input, by name; None: found from the layers.
        pairs: States that the file has itself, inputs by outputs; None: found.
    """

    frames: int
    time: Mapping[str, int] | None = None
    pairs: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Cut:
    """Which part of a file a program is.

    Attributes:
        inputs: Tensors of the file that it takes.
        outputs: Tensors of the file that it gives.
        outside: The nodes of the file that stay outside, as text.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True)
class ExportedFolder:
    """What a manifest says about its folder, after all of it has been checked."""

    path: Path
    name: str
    has_caller_arena: bool
    arena_bytes: int
    header: str
    sources: tuple[str, ...]
    files: Mapping[str, str]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    is_streaming: bool
    tensors: Mapping[int, ProofTensor]
    weights: str | None = None
    """The file with the weights, where they are not compiled: every call is given its bytes."""
    stream: StreamOptions | None = None
    """How the step of a streaming network was made; None for a network that runs as a whole."""
    cut: Cut | None = None
    """Which part of the file it is; None for all of it."""
    model_sha256: str | None = None
    manifest_sha256: str = ""

    def entry(self, *, quantized: bool) -> str:
        """The C function that computes: run, run_q, step or step_q."""
        return f"{self.name}_{'step' if self.is_streaming else 'run'}{'_q' if quantized else ''}"


def read_folder(folder: str | os.PathLike[str], *, check_files: bool = True) -> ExportedFolder:
    """Read and check a folder that `linger.c.export` has written.

    Args:
        folder: The folder.
        check_files: Whether the content of every file must be what the manifest says; False after an edit by hand.

    Raises:
        UsageError: The folder or its manifest is missing or damaged, or a file was changed; all that is wrong is named.
    """
    path = Path(folder)
    checker = _Checker()
    found = _read(path, checker)
    if found is not None and not checker.problems:
        _check_files(found, checker, digests=check_files)
    if found is None or checker.problems:
        problems = listing(dict.fromkeys(checker.problems), limit=10)
        raise UsageError(f"{printable(str(path))}: this is no sound folder of exported C: {problems}. Export it again.")
    return found


class _Checker:
    """Collects what is wrong, so that one error can name it all."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def need(self, where: str, value: Any, kind: type, expected: str) -> Any:
        """The value if it has this type; else None, and a problem. A bool is no number here."""
        if isinstance(value, kind) and not (kind is not bool and isinstance(value, bool)):
            return value
        self.problems.append(f"{where} is not {expected}")
        return None

    def need_that(self, where: str, is_right: bool, expected: str) -> None:  # noqa: FBT001 - the condition
        if not is_right:
            self.problems.append(f"{where} is not {expected}")


def _read(path: Path, checker: _Checker) -> ExportedFolder | None:
    data, digest = _load(path, checker)
    if data is None:
        return None
    if data.get("format") != FORMAT or data.get("version") != VERSION:
        checker.problems.append(f"{MANIFEST} has not the format {FORMAT!r}, version {VERSION}")
        return None
    name = _identifier("name", data.get("name"), checker)
    arena_bytes = _size("arena_bytes", data.get("arena_bytes"), checker)
    checker.need_that("arena", data.get("arena") in ("static", "caller"), "'static' or 'caller'")
    inputs = _each("inputs", data.get("inputs"), _edge, checker)
    outputs = _each("outputs", data.get("outputs"), _edge, checker)
    tensors = _each("tensors", data.get("tensors"), _proof_tensor, checker)
    states = checker.need("states", data.get("states"), list, "a list")
    sources = _each("sources", data.get("sources"), _source, checker)
    files = _files(data.get("files"), checker)
    found = ExportedFolder(
        path=path,
        name=name,
        has_caller_arena=data.get("arena") == "caller",
        arena_bytes=arena_bytes,
        header=next((file for file in files if Path(file).name == f"{name}.h"), f"{name}.h"),
        sources=sources,
        files=files,
        inputs=inputs,
        outputs=outputs,
        is_streaming=bool(states),
        tensors={t.id: t for t in tensors},
        weights=_weights(data.get("weights"), files, checker),
        stream=_stream(data.get("stream"), checker),
        cut=_cut(data.get("cut"), checker),
        model_sha256=_model_sha256(data.get("model"), checker),
        manifest_sha256=digest,
    )
    checker.need_that("tensors", len(found.tensors) == len(tensors), "a list of different ids")
    _check_names(found, checker)
    return found


def _check_names(found: ExportedFolder, checker: _Checker) -> None:
    """Lists that must not be empty, and names that must differ from each other."""
    checker.need_that("sources", len(found.sources) > 0, "a list of at least one file")
    checker.need_that("outputs", len(found.outputs) > 0, "a list of at least one output")
    _require_unique("input names", [e.name for e in found.inputs], checker)
    _require_unique("output names", [e.name for e in found.outputs], checker)
    _require_unique("C parameter names", [e.c_name for e in (*found.inputs, *found.outputs)], checker)
    _require_unique("tensor names", [t.name for t in found.tensors.values()], checker)
    _require_unique("sources", found.sources, checker)


def _load(path: Path, checker: _Checker) -> tuple[dict[str, Any] | None, str]:
    """The manifest and the SHA-256 of its bytes."""
    try:
        if not path.is_dir():
            raise UsageError(
                f"{printable(str(path))}: there is no such folder. Give one that linger.c.export has written."
            )
        file = path / MANIFEST
        if file.stat().st_size > _MOST_MANIFEST_BYTES:
            checker.problems.append(f"{MANIFEST} is larger than any that is written")
            return None, ""
        content = file.read_bytes()
        data = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        checker.problems.append(f"{MANIFEST} cannot be read ({reason})")
        return None, ""
    found = checker.need(MANIFEST, data, dict, "an object") if data != {} else {}
    return found, hashlib.sha256(content).hexdigest()


def _model_sha256(model: Any, checker: _Checker) -> str | None:
    """The SHA-256 of the ONNX file that the folder was made from; None where the manifest names none."""
    digest = model.get("sha256") if isinstance(model, dict) else None
    is_right = digest is None or (isinstance(digest, str) and _SHA256.fullmatch(digest) is not None)
    checker.need_that("model.sha256", is_right, "a SHA-256")
    return digest if is_right else None


def _each(where: str, items: Any, read: Callable[[str, Any, _Checker], Any], checker: _Checker) -> tuple[Any, ...]:
    found = checker.need(where, items, list, "a list")
    read_items = (read(f"{where}[{number}]", item, checker) for number, item in enumerate(found or []))
    return tuple(item for item in read_items if item is not None)


def _edge(where: str, item: Any, checker: _Checker) -> Edge | None:
    item = checker.need(where, item, dict, "an object")
    if item is None:
        return None
    name = checker.need(f"{where}.name", item.get("name"), str, "a text")
    c_name = _identifier(f"{where}.c_name", item.get("c_name"), checker)
    real = _layout(where, item, checker)
    quantized = item.get("quantized")
    if real is None or name is None:
        return None
    order = None
    if item.get("order") is not None:
        order = tuple(_permutation(f"{where}.order", item["order"], len(real.shape), checker).tolist())
    if quantized is None:
        return Edge(name, c_name, real, real, order=order)
    quantized = checker.need(f"{where}.quantized", quantized, dict, "an object or null")
    if quantized is None:
        return None
    integer = _layout(f"{where}.quantized", {**quantized, "shape": list(real.shape)}, checker)
    scale = quantized.get("scale")
    is_scale = isinstance(scale, (int, float)) and not isinstance(scale, bool) and 0 < scale < _LARGEST_SCALE
    checker.need_that(f"{where}.quantized.scale", is_scale, "a positive number")
    tensor = checker.need(f"{where}.quantized.tensor", quantized.get("tensor"), str, "a text")
    if integer is None or not is_scale:
        return None
    return Edge(name, c_name, real, integer, float(scale), tensor, order)


def _proof_tensor(where: str, item: Any, checker: _Checker) -> ProofTensor | None:
    item = checker.need(where, item, dict, "an object")
    if item is None:
        return None
    number = _size(f"{where}.id", item.get("id"), checker)
    name = checker.need(f"{where}.name", item.get("name"), str, "a text")
    layout = _layout(where, item, checker)
    if layout is None or name is None:
        return None
    order = _permutation(f"{where}.order", item.get("order"), len(layout.shape), checker)
    tensor = ProofTensor(number, name, layout, tuple(order.tolist()))
    if item.get("permutation") is None:
        return tensor
    return replace(tensor, permutation=_permutation(f"{where}.permutation", item["permutation"], layout.count, checker))


def _layout(where: str, item: Mapping[str, Any], checker: _Checker) -> Layout | None:
    kind = item.get("type")
    shape = checker.need(f"{where}.shape", item.get("shape"), list, "a list")
    if not isinstance(kind, str) or kind not in C_TYPES:
        checker.problems.append(f"{where}.type is none of {', '.join(C_TYPES)}")
        return None
    if shape is None:
        return None
    if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < _MOST_BYTES for n in shape):
        checker.problems.append(f"{where}.shape is not a list of sizes")
        return None
    layout = Layout(tuple(shape), kind)
    if len(shape) > 32 or layout.bytes >= _MOST_BYTES:
        checker.problems.append(f"{where}.shape is larger than C code can be written for")
        return None
    return layout


def _permutation(where: str, items: Any, count: int, checker: _Checker) -> NDArray[np.int64]:
    natural = np.arange(count, dtype=np.int64)
    is_list = isinstance(items, list) and all(isinstance(n, int) and not isinstance(n, bool) for n in items)
    if not is_list or sorted(items) != natural.tolist():
        checker.problems.append(f"{where} is not an order of the numbers 0 … {count - 1}")
        return natural
    return np.array(items, np.int64)


def _identifier(where: str, value: Any, checker: _Checker) -> str:
    is_right = isinstance(value, str) and _IDENTIFIER.fullmatch(value) is not None and not _KEYWORDS.fullmatch(value)
    checker.need_that(where, is_right, "a C identifier")
    return value if is_right else "unnamed"


def _size(where: str, value: Any, checker: _Checker) -> int:
    is_right = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_BYTES
    checker.need_that(where, is_right, "a number of bytes or things below 2^31")
    return int(value) if is_right else 0


def _source(where: str, value: Any, checker: _Checker) -> str | None:
    if not _is_file_name(value) or not value.endswith(".c"):
        checker.problems.append(f"{where} is not the name of a .c file of the folder")
        return None
    return str(value)


def _stream(value: Any, checker: _Checker) -> StreamOptions | None:
    if value is None:
        return None
    item = checker.need("stream", value, dict, "an object or null") or {}
    frames = _size("stream.frames", item.get("frames"), checker)
    time, pairs = (
        _named("stream." + key, item.get(key), kind, checker) for key, kind in (("time", int), ("pairs", str))
    )
    return StreamOptions(frames, time, pairs)


def _cut(value: Any, checker: _Checker) -> Cut | None:
    if value is None:
        return None
    item = checker.need("cut", value, dict, "an object or null") or {}
    lists = [checker.need(f"cut.{f.name}", item.get(f.name), list, "a list") or [] for f in fields(Cut)]
    checker.need_that("cut", all(isinstance(name, str) for names in lists for name in names), "lists of texts")
    return Cut(*map(tuple, lists))


def _named(where: str, value: Any, kind: type, checker: _Checker) -> dict[str, Any] | None:
    if value is None:
        return None
    items = checker.need(where, value, dict, "an object or null") or {}
    checker.need_that(
        where, all(isinstance(v, kind) and not isinstance(v, bool) for v in items.values()), "names and values"
    )
    return dict(items)


def _weights(value: Any, files: Mapping[str, str], checker: _Checker) -> str | None:
    if value is None:
        return None
    item = checker.need("weights", value, dict, "an object or null")
    is_right = item is not None and isinstance(item.get("file"), str) and item["file"] in files
    checker.need_that("weights.file", is_right, "one of the files")
    return str(item["file"]) if is_right else None


def _files(value: Any, checker: _Checker) -> dict[str, str]:
    items = checker.need("files", value, dict, "an object") or {}
    checker.need_that("files", all(_is_file_name(name) for name in items), "an object of names of files of the folder")
    checker.need_that("files", all(isinstance(d, str) for d in items.values()), "an object of SHA-256 digests")
    return {name: digest for name, digest in items.items() if _is_file_name(name)}


def _is_file_name(value: Any) -> bool:
    """Whether this is a path inside the folder that no compiler takes for an option."""
    return isinstance(value, str) and _FILE_NAME.fullmatch(value) is not None


def _require_unique(what: str, items: Sequence[str], checker: _Checker) -> None:
    if len(set(items)) != len(items):
        checker.problems.append(f"the {what} are not different from each other")


def _check_files(found: ExportedFolder, checker: _Checker, *, digests: bool) -> None:
    for name in dict.fromkeys([*found.files, *found.sources, found.header]):
        try:
            content = (found.path / name).read_bytes()
        except OSError as error:
            checker.problems.append(f"{name} cannot be read ({error.strerror})")
            continue
        if not digests:
            continue
        if name not in found.files:
            checker.problems.append(f"{name} has no digest")
        elif hashlib.sha256(content).hexdigest() != found.files[name]:
            checker.problems.append(f"{name} is not the file that was exported (check_files=False takes it as it is)")
