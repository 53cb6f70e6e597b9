# SPDX-License-Identifier: Apache-2.0
"""Write test vectors: .npz, raw little-endian binaries, text, a C header, a manifest and a page that explains them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from linger.files import file_stem
from linger.verification.array_files import Array, write_npz

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
class Vector:
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
        """Whole and fractional bits, as `Q3.4`; None where there is no scale or it is no power of two."""
        if self.scale is None or self.array.dtype.kind != "i":
            return None
        mantissa, exponent = np.frexp(self.scale)
        if mantissa != 0.5:
            return None
        fraction = int(exponent) - 1
        return f"Q{(self.bits or self.array.dtype.itemsize * 8) - 1 - fraction}.{fraction}"

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
    batches: Iterable[Sequence[Vector]],
    *,
    formats: Sequence[str],
    header_limit: int | None,
    about: Callable[[], dict[str, Any]],
) -> None:
    """Fill a folder, batch by batch.

    Args:
        folder: An empty folder.
        batches: The tensors of each batch; one batch is held at a time.
        formats: Any of `FORMATS`.
        header_limit: Arrays of at most this many numbers go into a C header; None: no header.
        about: Returns further entries of the manifest; called when all batches are written.
    """
    entries: list[dict[str, Any]] = []
    header = CHeader(header_limit or 0)
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


def _write_batch(folder: Path, vectors: Sequence[Vector], formats: Sequence[str]) -> None:
    for form in formats:
        if form == "npz":
            write_npz(folder / _place(vectors[0], form), ((v.name, v.array) for v in vectors))
            continue
        (folder / _place(vectors[0], form)).parent.mkdir(parents=True)
        for vector in vectors:
            (folder / _place(vector, form)).write_bytes(vector.raw if form == "bin" else vector.text)


def _place(vector: Vector, form: str) -> str:
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


def _entry(vector: Vector, formats: Sequence[str]) -> dict[str, Any]:
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


class CHeader:
    """Arrays of at most `limit` numbers as C; larger ones are named in a comment."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: set[str] = set()
        self._lines = ["/* Test vectors of linger: see README.txt. */", "#ifndef LINGER_VECTORS_H"]
        self._lines += ["#define LINGER_VECTORS_H", "", "#include <stdint.h>", ""]

    def add(self, vectors: Iterable[Vector]) -> None:
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

    def _name(self, vector: Vector) -> str:
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
