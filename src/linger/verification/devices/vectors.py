# SPDX-License-Identifier: Apache-2.0
"""linger.write_vectors: write the inputs, every intermediate integer and the outputs of a file, to bring up a device with."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from linger.errors import UsageError, VerificationError, listing
from linger.files import file_stem, require_free_folder, write_folder
from linger.graph.core.nodes import required_inputs
from linger.graph.files.model_io import ModelLike
from linger.graph.network import Network
from linger.progress import progress
from linger.runtime.reference import Reference
from linger.runtime.session import Session
from linger.verification.array_files import Array, write_npz
from linger.verification.devices.file_runner import TensorFact, constants_of, label_of, tensor_facts
from linger.verification.feeds import Feed, given_feeds, spread_feeds
from linger.verification.proof import causes
from linger.verification.proof.comparison import verify_file
from linger.verification.recording import Recording
from linger.version import __version__

FORMATS = ("npz", "bin", "text")
MANIFEST = "manifest.json"
MANIFEST_FORMAT = "linger-vectors"
_PER_LINE = 16
_LONGEST_C_NAME = 60
_C_TYPES = {
    "bool": "uint8_t",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
}


@dataclass(frozen=True)
class _Vector:
    """One tensor of one batch, with its node, scale and width."""

    name: str
    node: str
    op_type: str
    kind: str
    order: int
    batch: int
    scale: float | None
    bits: int | None
    array: Array

    @property
    def stem(self) -> str:
        """The name of its files, in the order of execution."""
        return f"{self.order:03d}_{file_stem(self.name)}"

    @property
    def q_format(self) -> str | None:
        """Whole and fractional bits, as `Q3.4`, unsigned `UQ4.4`; None where there is no scale or it is no power of two."""
        sign = self.array.dtype.kind
        if self.scale is None or sign not in "iu":
            return None
        mantissa, exponent = np.frexp(self.scale)
        if mantissa != 0.5:
            return None
        fraction = int(exponent) - 1
        whole = (self.bits or self.array.dtype.itemsize * 8) - fraction
        return f"Q{whole - 1}.{fraction}" if sign == "i" else f"UQ{whole}.{fraction}"

    @property
    def raw(self) -> bytes:
        """Its numbers, little endian, last axis fastest."""
        return np.ascontiguousarray(self.array).astype(self.array.dtype.newbyteorder("<"), copy=False).tobytes()

    @property
    def text(self) -> bytes:
        """A line with the sizes, then one number per line; floats with the digits that give them back exactly."""
        is_whole = self.array.dtype.kind in "iub"
        numbers = self.array.reshape(-1)
        lines = map(str, numbers.astype(np.int64).tolist()) if is_whole else (_exact(n) for n in numbers)
        return "\n".join([f"# {_times(self.array.shape)}", *lines, ""]).encode()


def write_vector_files(
    folder: Path,
    batches: Iterable[Sequence[_Vector]],
    *,
    formats: Sequence[str],
    header_limit: int | None,
    about: Callable[[], dict[str, Any]],
) -> None:
    """Fill an empty folder, batch by batch: one batch is held at a time.

    Arrays of at most `header_limit` numbers go into a C header; None: no header. `about` returns further entries of the
    manifest; it is called when all batches are written.
    """
    entries: list[dict[str, Any]] = []
    header = _CHeader(header_limit or 0)
    count = 0
    for count, vectors in enumerate(batches, start=1):  # noqa: B007 - the count is wanted
        _write_batch(folder, vectors, formats)
        entries += [_entry(vector, formats) for vector in vectors]
        header.add(vectors if header_limit is not None else ())
    if header_limit is not None:
        (folder / "vectors.h").write_text(header.text(), encoding="utf-8")
    manifest = {"format": MANIFEST_FORMAT, "version": 1, **about(), "byte_order": "little", "tensors": entries}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    page = _readme(manifest, count, formats, header_limit)
    (folder / "README.txt").write_text(page, encoding="utf-8")


def _write_batch(folder: Path, vectors: Sequence[_Vector], formats: Sequence[str]) -> None:
    for form in formats:
        if form == "npz":
            write_npz(folder / _place(vectors[0], form), ((v.name, v.array) for v in vectors))
            continue
        (folder / _place(vectors[0], form)).parent.mkdir(parents=True)
        for vector in vectors:
            (folder / _place(vector, form)).write_bytes(vector.raw if form == "bin" else vector.text)


def _place(vector: _Vector, form: str) -> str:
    batch = f"batch_{vector.batch:03d}"
    return {
        "bin": f"bin/{batch}/{vector.stem}.bin",
        "npz": f"{batch}.npz",
        "text": f"text/{batch}/{vector.stem}.txt",
    }[form]


def is_vector_folder(folder: Path) -> bool:
    """Whether a folder was written by `linger vectors`."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == MANIFEST_FORMAT


def _entry(vector: _Vector, formats: Sequence[str]) -> dict[str, Any]:
    return {
        "name": vector.name,
        "node": vector.node,
        "op_type": vector.op_type,
        "kind": vector.kind,
        "order": vector.order,
        "batch": vector.batch,
        "dtype": str(vector.array.dtype),
        "shape": list(vector.array.shape),
        "scale": vector.scale,
        "bits": vector.bits,
        "q_format": vector.q_format,
        "files": {form: _place(vector, form) for form in ("bin", "npz", "text") if form in formats},
        "sha256": hashlib.sha256(vector.raw).hexdigest(),
    }


class _CHeader:
    """Arrays of at most `limit` numbers as C; larger ones are named in a comment."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: set[str] = set()
        self._lines = ["/* Test vectors of linger: see README.txt. */", "#ifndef LINGER_VECTORS_H"]
        self._lines += ["#define LINGER_VECTORS_H", "", "#include <stdint.h>", ""]

    def add(self, vectors: Iterable[_Vector]) -> None:
        """Write more arrays."""
        for vector in vectors:
            kind = _C_TYPES.get(str(vector.array.dtype))
            said = f"{_comment(vector.name)} ({vector.op_type}), {vector.array.dtype} {_times(vector.array.shape)}"
            said += f", scale {vector.scale:g}" if vector.scale is not None else ""
            if kind is None or not 0 < vector.array.size <= self._limit:
                self._lines += [f"/* left out: {said}, batch {vector.batch} */", ""]
                continue
            numbers = [_c_number(n, vector.array.dtype) for n in vector.array.reshape(-1)]
            rows = [", ".join(numbers[i : i + _PER_LINE]) for i in range(0, len(numbers), _PER_LINE)]
            self._lines += [f"/* {said} */", f"static const {kind} {self._name(vector)}[{len(numbers)}] = {{"]
            self._lines += [*(f"  {row}," for row in rows), "};", ""]

    def text(self) -> str:
        """The whole header."""
        return "\n".join([*self._lines, "#endif", ""])

    def _name(self, vector: _Vector) -> str:
        plain = re.sub(r"[^0-9A-Za-z]+", "_", vector.name).strip("_")
        name = f"b{vector.batch}_{vector.order:03d}_{plain}"[:_LONGEST_C_NAME]
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


def _c_number(number: Any, dtype: np.dtype[Any]) -> str:
    if dtype.kind == "f":
        if not np.isfinite(number):
            return "(0.0/0.0)" if np.isnan(number) else "(1.0/0.0)" if number > 0 else "(-1.0/0.0)"
        return _exact(number) + ("f" if dtype == np.float32 else "")
    value = int(number)
    if dtype == np.int64:
        return f"({value + 1}LL - 1)" if value == -(2**63) else f"{value}LL"
    return f"({value + 1} - 1)" if value == -(2**31) else f"{value}u" if dtype.kind == "u" else str(value)


def _comment(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /").replace("/*", "/ *")


def _readme(manifest: dict[str, Any], batches: int, formats: Sequence[str], header_limit: int | None) -> str:
    lines = [
        f"Test vectors of {manifest['model']}, written by linger {manifest['linger']}.",
        "",
        f"{len(manifest['tensors'])} arrays in {batches} batch{'es' if batches > 1 else ''}: inputs, every quantised tensor",
        "in between, outputs, in the order of execution. They were computed by linger's integer reference and are equal",
        "to what ONNX Runtime computes.",
        "",
        "manifest.json  name, node, op, type, sizes, scale, Q format, files and sha256 (of the raw bytes) of every array",
    ]
    if "npz" in formats:
        lines.append("batch_000.npz  all arrays of a batch by name, for numpy.load")
    if "bin" in formats:
        lines.append("bin/           raw numbers, little endian, last axis fastest (NCHW), no header, no padding")
    if "text" in formats:
        lines.append("text/          the sizes in the first line, then one number per line")
    if header_limit is not None:
        lines.append(f"vectors.h      arrays of up to {header_limit} numbers as C")
    lines += [
        "",
        "scale multiplies: integer = real number x scale. Q3.4 has 4 fractional bits, so its scale is 16.",
        "An output of type float32 with a scale holds real numbers: times the scale they are the integers.",
        "",
        "To check a device: put its tensors into a folder, under these names or with a manifest of their own, and run",
        "  linger compare model.onnx folder",
    ]
    return "\n".join([*lines, ""])


def _exact(number: Any) -> str:
    """The shortest digits that give a float back.

    >>> _exact(np.float32(0.1)), _exact(np.float32(3))
    ('0.1', '3.0')
    """
    return str(number) if isinstance(number, (np.float32, np.float16)) else repr(float(number))


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "1"


_INTEGERS = (np.int8, np.int16, np.int32)
HEADER_LIMIT = 1024


@dataclass(frozen=True)
class WrittenVectors:
    """The test vectors that were written.

    Attributes:
        folder: The folder.
        batches: How many batches.
        tensors: How many tensors each of them has.
        left_out: Intermediate tensors that hold no quantized integers.
    """

    folder: Path
    batches: int
    tensors: int
    left_out: tuple[str, ...]

    def summary(self) -> str:
        """The folder and the counts, in a sentence or two."""
        text = f"{self.folder}: {self.tensors} tensors, {self.batches} batch{'es' if self.batches != 1 else ''}."
        if self.left_out:
            text += f" Left out, since they are no quantized integers: {listing(self.left_out, limit=5)}."
        return text


def write_vectors(
    model: ModelLike,
    folder: str | os.PathLike[str],
    inputs: object = None,
    *,
    batches: int = 1,
    seed: int = 0,
    formats: str | Sequence[str] = FORMATS,
    header_limit: int | None = None,
    force: bool = False,
) -> WrittenVectors:
    """Write a folder with the inputs, every intermediate integer and the outputs of a file.

    The numbers are those of the numpy reference. ONNX Runtime must compute the same, else nothing is written.

    Args:
        model: A dialect, bare or standard ONNX file.
        folder: The folder to write; it must not exist.
        inputs: An .npz file, an array, a mapping from names to arrays, or a list of such feeds. None: random ones.
        batches: How many random feeds.
        seed: Their seed.
        formats: Any of "npz", "bin" (raw, little endian) and "text".
        header_limit: Also write `vectors.h`, with arrays of at most this many numbers. None: no header.
        force: Replace a folder that was written by this function before.

    Raises:
        UsageError: The folder exists, inputs do not fit, a format is unknown, or the file has no quantized tensors.
        VerificationError: ONNX Runtime computes something else.
    """
    chosen = (formats,) if isinstance(formats, str) else tuple(formats)
    _require_sensible(chosen, batches, header_limit)
    target = Path(folder)
    _refuse_early(target, force=force)
    run = _Run(model)
    is_random = inputs is None
    feeds = spread_feeds(run.model, seed=seed, batches=batches) if is_random else given_feeds(inputs, run.model)
    run.verify(feeds)

    def about() -> dict[str, Any]:
        return {
            "model": Path(model).name if isinstance(model, (str, os.PathLike)) else "a model in memory",
            "linger": __version__,
            "seed": seed if is_random else None,
            "left_out": list(run.left_out),
        }

    numbered = progress(list(enumerate(feeds)), "vectors")
    made = (run.vectors(number, feed) for number, feed in numbered)
    fill = partial(write_vector_files, batches=made, formats=chosen, header_limit=header_limit, about=about)
    write_folder(target, fill, is_own=is_vector_folder if force else None)
    return WrittenVectors(target, len(feeds), run.tensors, tuple(run.left_out))


def _require_sensible(formats: Sequence[str], batches: int, header_limit: int | None) -> None:
    unknown = [form for form in formats if form not in FORMATS]
    if unknown or not formats:
        raise UsageError(f"formats {listing(map(repr, unknown)) or 'are empty'}: choose among {listing(FORMATS)}.")
    if batches < 1:
        raise UsageError(f"batches {batches}: at least one is needed.")
    if header_limit is not None and header_limit < 1:
        raise UsageError(f"header_limit {header_limit}: at least 1, or None for no header.")


def _refuse_early(target: Path, *, force: bool) -> None:
    """Refuse a folder that may not be replaced, before the work."""
    require_free_folder(target, lambda _: True)
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        raise UsageError(f"{target}: the folder exists. Choose another one, or replace it with force.")
    if not is_vector_folder(target):
        raise UsageError(f"{target}: the folder holds something else than vectors. Choose another one.")


class _Run:
    def __init__(self, model: ModelLike) -> None:
        network = Network.of(model)
        self._label, self.model = label_of(model) or "the given model", Session(network, as_written=True).model
        self._written = Network(self.model, is_checked=True)
        self._compute = Reference(self._written).intermediates
        self._facts = tensor_facts(self.model)
        self._constants = constants_of(self.model)
        self._outputs = {value.name for value in self.model.graph.outputs}
        self.left_out: dict[str, None] = {}
        self.tensors = 0

    def vectors(self, batch: int, feed: Feed) -> list[_Vector]:
        """The tensors of a batch, in the order of execution."""
        computed = {**feed, **self._compute(feed)}
        found = []
        for fact in self._facts.values():
            kind = self._kind(fact, computed)
            if kind is not None:
                array = np.asarray(computed[fact.name])
                found.append(
                    _Vector(fact.name, fact.node, fact.op_type, kind, fact.order, batch, fact.scale, fact.bits, array)
                )
            elif fact.name in computed and fact.name not in self._constants:
                self.left_out[fact.name] = None
        self.tensors = len(found)
        return found

    def verify(self, feeds: Sequence[Feed]) -> None:
        """Compare the numpy reference and ONNX Runtime on every feed.

        Raises:
            UsageError: There is nothing quantized in the file.
            VerificationError: They differ.
        """
        names = [value.name or "" for value in required_inputs(self.model)]
        recordings = (Recording(inputs=[feed[n] for n in names]) for feed in feeds)
        result = verify_file(self._written, recordings, explainer=causes)
        if not result.integers:
            raise UsageError(f"{self._label}: there is no quantized tensor in it. Give a quantized file.")
        if not result.ok:
            raise VerificationError(f"{self._label}: {result.summary()} No vectors are written.")

    def _kind(self, fact: TensorFact, computed: dict[str, Array]) -> str | None:
        if fact.name not in computed:
            return None
        if fact.op_type == "Input":
            return "input"
        if fact.name in self._outputs:
            return "output"
        is_byte = computed[fact.name].dtype == np.uint8 and fact.scale is not None  # others stand for other things
        is_integer = (is_byte or computed[fact.name].dtype in _INTEGERS) and fact.name not in self._constants
        return "intermediate" if is_integer else None
