# SPDX-License-Identifier: Apache-2.0
"""Read the manifest of an exported C folder and check the folder against it; nothing in it is trusted."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from linger.errors import UsageError, listing, printable
from linger.records.reading import Is, Positive, Sha256, parse_json, read, refuse_fields

FORMAT = "linger-c"
VERSION = 1
MANIFEST = "manifest.json"

C_TYPES: Mapping[str, str] = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "int64": "int64_t",
    "float32": "float",
    "bool": "uint8_t",
}
"""The C type of each element type of a manifest."""

_MOST_BYTES = 1 << 31
_MOST_AXES = 32
_LARGEST_SCALE = 1e38
_MOST_MANIFEST_BYTES = 1 << 28
_REMEDY = "Export it again."
_KEYWORDS = re.compile(
    "auto|break|case|char|const|continue|default|do|double|else|enum|extern|float|for|goto|if|inline|int|long|register|"
    "restrict|return|short|signed|sizeof|static|struct|switch|typedef|union|unsigned|void|volatile|while|"
    "_Bool|_Complex|_Imaginary|main"
)
_IDENTIFIER = re.compile(rf"(?!(?:{_KEYWORDS.pattern})$)[A-Za-z_][A-Za-z0-9_]{{0,127}}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}(?:/[A-Za-z0-9_+][A-Za-z0-9_.+-]{0,199}){0,4}")

Identifier = Annotated[str, Is(_IDENTIFIER.fullmatch, "a C identifier")]
Size = Annotated[int, Is(lambda size: 0 <= size < _MOST_BYTES, "a number of bytes or things below 2^31")]
InFolder = Annotated[str, Is(_FILE_NAME.fullmatch, "the name of a file of the folder")]
"""A path inside the folder that no compiler takes for an option."""
Source = Annotated[InFolder, Is(lambda name: name.endswith(".c"), "the name of a .c file of the folder")]
Element = Literal["int8", "uint8", "int16", "int32", "int64", "float32", "bool"]


@dataclass(frozen=True)
class Tensor:
    """Shape and element type of a tensor, in the ONNX file and as C holds it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def ctype(self) -> str:
        """The type of its elements in C; a bool has one byte there, too."""
        return C_TYPES[self.dtype]

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """How many bytes its elements take."""
        return self.count * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class _Quantized:
    """The integers of an edge.

    Attributes:
        tensor: The ONNX name of the quantized tensor.
        scale: Multiplies a real number to give its integer.
    """

    tensor: str
    type: Element
    scale: Annotated[Positive, Is(lambda scale: scale < _LARGEST_SCALE, "a positive number")]


@dataclass(frozen=True)
class Edge:
    """An input or an output of the network.

    Attributes:
        name: The name in the ONNX file; it never reaches the C text.
        c_name: The name of the C parameter.
        shape, type: Of the array of `run` and `step`.
        order: The axes from the outermost to the innermost as C takes them; None: as they come.
        quantized: The integers of `run_q` and `step_q`; None at an edge that is not quantized.
    """

    name: str
    c_name: Identifier
    shape: tuple[Size, ...]
    type: Element
    order: tuple[int, ...] | None = None
    quantized: _Quantized | None = None

    def __post_init__(self) -> None:
        layouts = (self.layout(quantized=quantized) for quantized in (False, True))
        refuse_fields({**_too_large(*layouts), **_no_order("order", self.order, len(self.shape))})

    @property
    def tensor(self) -> str | None:
        """The ONNX name of the quantized tensor; None at an edge that is not quantized."""
        return None if self.quantized is None else self.quantized.tensor

    def packed(self, array: NDArray[Any]) -> bytes:
        """The bytes of an array as C takes them."""
        return np.ascontiguousarray(array if self.order is None else array.transpose(self.order)).tobytes()

    def unpacked(self, data: bytes, *, quantized: bool) -> NDArray[Any]:
        """The array of the bytes that C gives."""
        layout = self.layout(quantized=quantized)
        order = tuple(range(len(layout.shape))) if self.order is None else self.order
        memory = np.frombuffer(data, layout.dtype).reshape([layout.shape[axis] for axis in order])
        return memory.transpose(np.argsort(order)).copy() if order else memory.copy()

    def layout(self, *, quantized: bool) -> Tensor:
        """The array that the integer or the float interface takes here."""
        kind = self.quantized.type if quantized and self.quantized is not None else self.type
        return Tensor(self.name, self.shape, kind)


@dataclass(frozen=True)
class _ProofTensor:
    """A tensor that a proof build shows, and how to bring its bytes back into the order of the ONNX file."""

    id: Size
    name: str
    shape: tuple[Size, ...]
    type: Element
    order: tuple[int, ...]
    permutation: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        refuse_fields(
            {
                **_too_large(self.layout),
                **_no_order("order", self.order, len(self.shape)),
                **_no_order("permutation", self.permutation, self.layout.count),
            }
        )

    @property
    def layout(self) -> Tensor:
        """The array in the ONNX file."""
        return Tensor(self.name, self.shape, self.type)

    @cached_property
    def _places(self) -> NDArray[np.int64]:
        return np.array(self.permutation, np.int64)

    def restored(self, data: bytes) -> NDArray[Any]:
        """The tensor of the ONNX file from the bytes in memory."""
        memory = np.frombuffer(data, self.layout.dtype)
        if self.permutation is not None:
            flat = np.empty_like(memory)
            flat[self._places] = memory
            return flat.reshape(self.shape)
        array = memory.reshape([self.shape[axis] for axis in self.order])
        return array.transpose(np.argsort(self.order)).copy()


@dataclass(frozen=True)
class StreamOptions:
    """How the step of a streaming network was made of the file.

    Attributes:
        frames: Frames of one step; 0: the file is one step itself.
        time: The axis that is time for each input, by name; None: found from the layers.
        pairs: States that the file has itself, inputs by outputs; None: found.
    """

    frames: Size
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
class _Weights:
    """The file with the weights, where they are not compiled: every call is given its bytes."""

    file: str


@dataclass(frozen=True)
class _Model:
    """The ONNX file that the folder was made from; None where it was a model in memory."""

    sha256: Sha256 | None = None


@dataclass(frozen=True)
class ExportedFolder:
    """What a manifest says about its folder, after all of it has been checked.

    Attributes:
        name: What every symbol begins with.
        arena: Whether the arena is a static array or the caller's.
        sources: The files to compile.
        files: The SHA-256 of every file.
        states: Of a stream; only their number counts here.
        tensors: What a proof build shows.
        weights: The file with the weights; None where they are compiled.
        stream: How the step of a streaming network was made; None for a network that runs as a whole.
        cut: Which part of the file it is; None for all of it.
    """

    path: Path
    manifest_sha256: Sha256
    name: Identifier
    arena: Literal["static", "caller"]
    arena_bytes: Size
    sources: tuple[Source, ...]
    files: Mapping[InFolder, str]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    states: tuple[Any, ...]
    tensors: tuple[_ProofTensor, ...]
    weights: _Weights | None = None
    stream: StreamOptions | None = None
    cut: Cut | None = None
    model: _Model | None = None

    def __post_init__(self) -> None:
        edges, shown = (*self.inputs, *self.outputs), self.tensors
        refuse_fields(
            {
                "sources is not a list of at least one file": not self.sources,
                "outputs is not a list of at least one output": not self.outputs,
                "weights.file is not one of the files": self.weights is not None
                and self.weights.file not in self.files,
                "sources are not different from each other": _has_twice(self.sources),
                "inputs: the names are not different from each other": _has_twice([e.name for e in self.inputs]),
                "outputs: the names are not different from each other": _has_twice([e.name for e in self.outputs]),
                "inputs, outputs: the C parameter names are not different": _has_twice([e.c_name for e in edges]),
                "tensors: the ids are not different from each other": _has_twice([tensor.id for tensor in shown]),
                "tensors: the names are not different from each other": _has_twice([tensor.name for tensor in shown]),
            }
        )

    @property
    def has_caller_arena(self) -> bool:
        """Whether every call is given the arena."""
        return self.arena == "caller"

    @property
    def is_streaming(self) -> bool:
        """Whether there is a state."""
        return bool(self.states)

    @property
    def header(self) -> str:
        """The header with the functions."""
        return next((file for file in self.files if Path(file).name == f"{self.name}.h"), f"{self.name}.h")

    @property
    def model_sha256(self) -> str | None:
        """The SHA-256 of the ONNX file; None where the manifest names none."""
        return None if self.model is None else self.model.sha256

    @cached_property
    def by_id(self) -> Mapping[int, _ProofTensor]:
        """What a proof build shows, by the numbers that it shows them under."""
        return {tensor.id: tensor for tensor in self.tensors}

    def entry(self, *, quantized: bool) -> str:
        """The C function that computes: run, run_q, step or step_q."""
        return f"{self.name}_{'step' if self.is_streaming else 'run'}{'_q' if quantized else ''}"


def _has_twice(items: Sequence[object]) -> bool:
    return len(set(items)) != len(items)


def _too_large(*layouts: Tensor) -> dict[str, bool]:
    is_so = any(len(layout.shape) > _MOST_AXES or layout.bytes >= _MOST_BYTES for layout in layouts)
    return {"shape is larger than C code can be written for": is_so}


def _no_order(name: str, items: Sequence[int] | None, count: int) -> dict[str, bool]:
    is_order = items is None or (len(items) == count and sorted(items) == list(range(count)))
    return {f"{name} is not an order of the numbers 0 … {count - 1}": not is_order}


def read_folder(folder: str | os.PathLike[str], *, check_files: bool = True) -> ExportedFolder:
    """Read and check a folder that `linger.c.export` has written.

    Args:
        folder: The folder.
        check_files: Whether the content of every file must be what the manifest says; False after an edit by hand.

    Raises:
        UsageError: The folder or its manifest is missing or damaged, or a file was changed; all that is wrong is named.
    """
    path = Path(folder)
    where = f"{printable(str(path))}: this is no sound folder of exported C"
    try:
        if not path.is_dir():
            raise UsageError(
                f"{printable(str(path))}: there is no such folder. Give one that linger.c.export has written."
            )
        content, data = _manifest(path / MANIFEST)
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        reason = error.strerror if isinstance(error, OSError) else f"it is no JSON: {error}"
        raise UsageError(f"{where}: {MANIFEST} cannot be read ({reason}). {_REMEDY}") from error
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise UsageError(f"{where}: {MANIFEST} has not the format {FORMAT!r}, version {VERSION}. {_REMEDY}")
    own = {"path": str(path), "manifest_sha256": hashlib.sha256(content).hexdigest()}
    found = read(ExportedFolder, data | own, where, _REMEDY, is_open=True)
    problems = list(_wrong_files(found, digests=check_files))
    if problems:
        raise UsageError(f"{where}: {listing(problems, limit=10)}. {_REMEDY}")
    return found


def _manifest(file: Path) -> tuple[bytes, Any]:
    if file.stat().st_size > _MOST_MANIFEST_BYTES:
        raise ValueError("it is larger than any that is written")
    content = file.read_bytes()
    return content, parse_json(content)


def _wrong_files(found: ExportedFolder, *, digests: bool) -> Iterator[str]:
    for name in dict.fromkeys([*found.files, *found.sources, found.header]):
        try:
            content = (found.path / name).read_bytes()
        except OSError as error:
            yield f"{name} cannot be read ({error.strerror})"
            continue
        if digests and name not in found.files:
            yield f"{name} has no digest"
        elif digests and hashlib.sha256(content).hexdigest() != found.files[name]:
            yield f"{name} is not the file that was exported (check_files=False takes it as it is)"
